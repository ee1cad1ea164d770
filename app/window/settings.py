"""What the window remembers from one start to the next: one JSON file, repaired field by field where it is damaged."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import platformdirs

from engine.storage.atomic import replace_file

MOST_RECENT = 10
_MAX_FILE_BYTES = 4 << 20

_Path = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Remembered values; every one has a default. ``geometry`` and ``layout`` are Qt's own bytes."""

    geometry: bytes = b""
    layout: bytes = b""
    tab: Annotated[int, msgspec.Meta(ge=0, le=20)] = 0
    folder: Annotated[str, msgspec.Meta(max_length=4096)] = ""  # where files were last opened or saved
    recent: Annotated[tuple[_Path, ...], msgspec.Meta(max_length=MOST_RECENT)] = ()  # newest first
    picture_scale: Annotated[int, msgspec.Meta(ge=1, le=8)] = 2
    setup: dict[str, Any] = {}

    def with_recent(self, path: str) -> Settings:
        """Return the settings with a file put first among the recent ones."""
        others = [other for other in self.recent if other != path]
        return msgspec.structs.replace(self, recent=tuple([path, *others][:MOST_RECENT]))


@dataclass(frozen=True)
class Loaded:
    """The settings as read, and one sentence where something had to be repaired."""

    settings: Settings
    notice: str = ""


def settings_file() -> Path:
    """Return where the settings are kept."""
    return Path(platformdirs.user_config_dir("flashscope", appauthor=False)) / "settings.json"


def load(path: Path) -> Loaded:
    """Read the settings. A field that is damaged gets its default; the file as it was is kept beside it, once."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return Loaded(Settings())
    except OSError as error:
        return Loaded(Settings(), f"The settings in {path} could not be read ({error.strerror}); defaults are used.")
    try:
        if len(data) > _MAX_FILE_BYTES:
            raise ValueError("too large")
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return Loaded(Settings(), f"The settings could not be read, so the defaults are used; {_backup(path, data)}.")
    known: dict[str, Any] = {}
    damaged = []
    for field in msgspec.structs.fields(Settings):
        if field.name in fields:
            try:
                known[field.name] = msgspec.json.decode(fields[field.name], type=field.type)
            except (ValueError, RecursionError):
                damaged.append(field.name)
    if not damaged:
        return Loaded(Settings(**known))
    many = len(damaged) > 1
    sentence = f"The setting{'s' * many} {', '.join(damaged)} could not be read and {'are' if many else 'is'} set to "
    sentence += f"the default{'s' * many}; {_backup(path, data)}."
    return Loaded(Settings(**known), sentence)


def save(path: Path, settings: Settings) -> None:
    """Write the settings, replacing the file whole. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.json.format(msgspec.json.encode(settings)))


class SettingsStore:
    """The settings of the running program: changed in memory, written when the window closes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        loaded = load(path)
        self.settings, self.notice = loaded.settings, loaded.notice

    def change(self, **values: Any) -> None:
        """Set some of the fields."""
        self.settings = msgspec.structs.replace(self.settings, **values)

    def add_recent(self, path: str) -> None:
        """Put a file first among the recent ones."""
        self.settings = self.settings.with_recent(path)

    def save(self) -> None:
        """Write them. Raises OSError."""
        save(self._path, self.settings)


def _backup(path: Path, data: bytes) -> str:
    """Keep what was there and say where."""
    copy = path.with_name(f"{path.name}.bak")
    with contextlib.suppress(OSError):
        replace_file(copy, data)
        return f"the old file is kept as {copy}"
    return f"the old file could not be kept beside {os.fspath(path)}"
