"""Settings: remembered as they were, and repaired field by field, with a copy of what was there, where they are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.window.settings import MOST_RECENT, Settings, SettingsStore, load, save

FULL = Settings(
    geometry=b"\x01\x02", layout=b"\xff", tab=2, folder="/runs", recent=("/a.json", "/b.json"), picture_scale=3,
    setup={"seq": "512", "kernels": ["cpu-flash"]},
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "settings.json"


def test_they_come_back_as_they_were(file: Path) -> None:
    save(file, FULL)
    assert load(file).settings == FULL
    assert load(file).notice == ""


def test_without_a_file_there_are_defaults(file: Path) -> None:
    assert load(file) == load(file.parent / "other.json")
    assert load(file).settings == Settings()


DAMAGE: list[tuple[str, Any]] = [
    ("geometry", "no base64!"),
    ("layout", 3),
    ("tab", -1),
    ("tab", "first"),
    ("folder", None),
    ("recent", ["/a.json", 5]),
    ("recent", [f"/{n}" for n in range(MOST_RECENT + 1)]),
    ("picture_scale", 0),
    ("picture_scale", 1e300),
    ("setup", []),
]


@pytest.mark.parametrize(("field", "value"), DAMAGE)
def test_a_damaged_field_alone_is_set_to_its_default(file: Path, field: str, value: Any) -> None:
    save(file, FULL)
    fields = json.loads(file.read_text()) | {field: value}
    file.write_text(json.dumps(fields))
    found = load(file)
    for name in Settings.__struct_fields__:
        assert getattr(found.settings, name) == getattr(Settings() if name == field else FULL, name), name
    copy = file.with_name("settings.json.bak")
    assert found.notice == (
        f"The setting {field} could not be read and is set to the default; the old file is kept as {copy}."
    )
    assert json.loads(copy.read_text()) == fields


def test_one_notice_for_all_that_is_damaged(file: Path) -> None:
    save(file, FULL)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tab": None, "recent": 1, "of a later version": 2}))
    assert load(file).notice.startswith("The settings tab, recent could not be read and are set to the defaults; ")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"tab": 1', "\x00\xff", '{"tab": NaN}'])
def test_a_file_that_is_no_settings_at_all(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text, encoding="latin-1")
    found = load(file)
    assert found.settings == Settings()
    assert found.notice.startswith("The settings could not be read, so the defaults are used; the old file is kept as ")
    assert file.with_name("settings.json.bak").read_text(encoding="latin-1") == text


def test_a_file_that_cannot_be_read(file: Path) -> None:
    file.mkdir(parents=True)
    found = load(file)
    assert found.settings == Settings()
    assert str(file) in found.notice


def test_recent_files_are_few_and_each_there_once() -> None:
    settings = Settings()
    for number in (*range(MOST_RECENT + 3), 5):
        settings = settings.with_recent(f"/{number}.json")
    assert len(settings.recent) == MOST_RECENT
    assert settings.recent[:3] == ("/5.json", "/12.json", "/11.json")
    assert len(set(settings.recent)) == MOST_RECENT


def test_the_store_writes_what_was_changed(file: Path) -> None:
    store = SettingsStore(file)
    store.change(tab=1, folder="/x")
    store.add_recent("/y.json")
    store.save()
    assert SettingsStore(file).settings == Settings(tab=1, folder="/x", recent=("/y.json",))
