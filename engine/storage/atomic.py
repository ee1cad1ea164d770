"""Replaces a file whole or not at all, so that a full disk never costs the old one."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Make ``data`` the content of ``path``.

    It is written beside ``path`` (through a symbolic link: beside its target), flushed to disk and renamed; on any
    failure it is removed and ``path`` stays as it was. What is no regular file, a pipe or a device, is written to
    directly. Raises OSError.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    temporary = target.parent / f".flashscope-{secrets.token_hex(6)}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(target.stat().st_mode)
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
