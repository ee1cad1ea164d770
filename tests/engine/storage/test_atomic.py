"""A file is replaced whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from engine.storage.atomic import replace_file


def full_disk(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "out"
    replace_file(path, b"one")
    replace_file(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    if step == "fsync":
        monkeypatch.setattr(os, "fsync", full_disk)
    else:
        monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["out"]


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "out", b"new")
    assert names(tmp_path) == []


def test_a_missing_folder_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "no" / "out", b"")


if sys.platform != "win32":  # limits, permissions, links and devices as POSIX has them
    import resource
    import signal

    def test_a_write_cut_short_leaves_the_old_file_whole(tmp_path: Path) -> None:
        path = tmp_path / "out"
        path.write_bytes(b"old")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                replace_file(path, bytes(100_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["out"]

    def test_permissions_links_and_devices_are_kept(tmp_path: Path) -> None:
        target, link = tmp_path / "target", tmp_path / "link"
        target.write_bytes(b"old")
        target.chmod(0o640)
        link.symlink_to(target)
        replace_file(link, b"new")
        assert link.is_symlink()
        assert target.read_bytes() == b"new"
        assert stat.S_IMODE(target.stat().st_mode) == 0o640
        mask = os.umask(0)
        os.umask(mask)
        replace_file(tmp_path / "fresh", b"")
        assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o666 & ~mask
        replace_file("/dev/null", b"gone")
        assert Path("/dev/null").is_char_device()
