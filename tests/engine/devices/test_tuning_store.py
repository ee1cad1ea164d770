"""The store of tuned variants: what goes in comes out for the same device alone, and no content breaks a reader."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import engine
from engine.devices import tuning_store
from engine.devices.device import DeviceInfo, Limits, Tuned

INFO = DeviceInfo(
    index=None, name="a CPU", adapter_type="cpu", backend="numpy", driver="numpy 2", limits=Limits(memory_bytes=1)
)
FIRST = Tuned(kernel="cpu-flash", dtype="f32", head_dim=64, causal=False, variant=(("rows", 256), ("wide", True)))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache" / "tuning.json"
    monkeypatch.setenv("FLASHSCOPE_TUNING", str(path))
    return path


def test_nothing_is_known_without_a_file(file: Path) -> None:
    assert tuning_store.tuned(INFO) == INFO
    assert not file.exists()


def test_what_is_stored_is_found(file: Path) -> None:
    causal = msgspec.structs.replace(FIRST, causal=True)
    tuning_store.store(INFO, FIRST)
    tuning_store.store(INFO, causal)
    limits = tuning_store.tuned(INFO).limits
    assert limits.tuned == (FIRST, causal)
    assert limits.variant_for("cpu-flash", "f32", 64, True) == {"rows": 256, "wide": True}
    assert limits.variant_for("cpu-flash", "f32", 128, True) is None
    assert limits.variant_for("gpu-flash", "f32", 64, True) is None
    hash(limits)


def test_a_later_variant_takes_the_place_of_the_one_before(file: Path) -> None:
    later = msgspec.structs.replace(FIRST, variant=(("rows", 512),))
    for tuned in (FIRST, later):
        tuning_store.store(INFO, tuned)
    assert tuning_store.tuned(INFO).limits.tuned == (later,)


@pytest.mark.parametrize("other", [{"name": "another CPU"}, {"driver": "numpy 3"}])
def test_another_device_or_driver_is_not_served(file: Path, other: dict[str, str]) -> None:
    tuning_store.store(INFO, FIRST)
    elsewhere = msgspec.structs.replace(INFO, **other)
    assert tuning_store.tuned(elsewhere).limits.tuned == ()
    tuning_store.store(elsewhere, FIRST)
    assert tuning_store.tuned(INFO).limits.tuned == (FIRST,)


def test_another_version_is_not_served(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning_store.store(INFO, FIRST)
    monkeypatch.setattr(engine, "__version__", "99")
    assert tuning_store.tuned(INFO).limits.tuned == ()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"schema": 2}', b"\xff\xfe", b'{"schema":1,"entries":[{"device":1}]}', b" " * (1 << 21)],
    ids=["empty", "cut off", "no object", "newer", "no text", "wrong type", "huge"],
)
def test_a_file_that_is_no_tuning_is_ignored_with_a_notice_and_replaced(file: Path, content: bytes) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    found = tuning_store.tuned(INFO)
    assert found.limits.tuned == ()
    assert str(file) in found.notice
    assert "ignored" in found.notice
    tuning_store.store(INFO, FIRST)
    assert tuning_store.tuned(INFO).limits.tuned == (FIRST,)
    assert tuning_store.tuned(INFO).notice == ""


def test_a_folder_in_its_place_is_a_notice_too(file: Path) -> None:
    file.mkdir(parents=True)
    assert "cannot be read" in tuning_store.tuned(INFO).notice


def test_the_oldest_entries_go_first(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_store, "_MOST_ENTRIES", 3)
    for head_dim in range(1, 6):
        tuning_store.store(INFO, msgspec.structs.replace(FIRST, head_dim=head_dim))
    assert [tuned.head_dim for tuned in tuning_store.tuned(INFO).limits.tuned] == [3, 4, 5]


def test_the_file_is_in_the_users_cache_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASHSCOPE_TUNING")
    assert tuning_store.path().name == "tuning.json"
    assert "flashscope" in tuning_store.path().parts[-2]


def test_on_a_gpu_it_holds_for_these_shaders_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = msgspec.structs.replace(INFO, index=0, adapter_type="discrete", backend="vulkan")
    tuning_store.store(gpu, FIRST)
    tuning_store.store(INFO, FIRST)
    assert tuning_store.tuned(gpu).limits.tuned == (FIRST,)
    monkeypatch.setattr(tuning_store, "_shaders", lambda: "others")
    assert tuning_store.tuned(gpu).limits.tuned == ()
    assert tuning_store.tuned(INFO).limits.tuned == (FIRST,)
