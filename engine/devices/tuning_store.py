"""The variants that tuning found quickest on this machine: one JSON file in the user's cache, read with suspicion.

An entry holds for one device with one driver and one version of FlashScope, on a GPU of its shaders too; with any
other, what it says is no longer known to be true, and it is left aside. ``FLASHSCOPE_TUNING`` names another file.
"""

from __future__ import annotations

import hashlib
import os
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec
import platformdirs

import engine
from engine.devices.device import DeviceInfo, Tuned
from engine.storage.atomic import replace_file

_SCHEMA = 1
_MOST_BYTES = 1 << 20
_MOST_ENTRIES = 2000  # the oldest go first


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    driver: str
    version: str
    tuned: Tuned


class _File(msgspec.Struct, frozen=True, kw_only=True):
    schema: Annotated[int, msgspec.Meta(ge=_SCHEMA, le=_SCHEMA)] = _SCHEMA
    entries: tuple[_Entry, ...] = ()


def path() -> Path:
    """Return where the file is, or would be."""
    named = os.environ.get("FLASHSCOPE_TUNING")
    return Path(named) if named else Path(platformdirs.user_cache_dir("flashscope", appauthor=False)) / "tuning.json"


def tuned(info: DeviceInfo) -> DeviceInfo:
    """Return the device with what was tuned for it in its limits; a ``notice`` where the file could not be read."""
    try:
        entries = _read()
    except ValueError as error:
        return msgspec.structs.replace(info, notice=f"{error}; it is ignored, and `flashscope tune` writes it anew")
    found = tuple(entry.tuned for entry in entries if _at(entry) == (info.name, info.driver, _version(info)))
    return msgspec.structs.replace(info, limits=msgspec.structs.replace(info.limits, tuned=found))


def store(info: DeviceInfo, new: Tuned) -> None:
    """Keep a variant for a device in place of what was known of that kind of problem. Raises OSError."""
    try:
        entries = _read()
    except ValueError:
        entries = ()
    entry = _Entry(device=info.name, driver=info.driver, version=_version(info), tuned=new)
    others = [old for old in entries if (_at(old), old.tuned.kind) != (_at(entry), new.kind)]
    content = _File(entries=(*others[1 - _MOST_ENTRIES :], entry))
    path().parent.mkdir(parents=True, exist_ok=True)
    replace_file(path(), msgspec.json.format(msgspec.json.encode(content), indent=1))


def _version(info: DeviceInfo) -> str:
    """Return what an entry holds for: this version, and on a GPU these shaders, whose forms were timed."""
    return engine.__version__ if info.adapter_type == "cpu" else f"{engine.__version__}, shaders {_shaders()}"


def _shaders() -> str:
    """Return a digest of all shader sources, as they stand now."""
    digest = hashlib.sha256()
    for folder in sorted(files("shaders").iterdir(), key=lambda folder: folder.name):
        for file in sorted(folder.iterdir() if folder.is_dir() else (), key=lambda file: file.name):
            if file.name.endswith((".wgsl", ".j2")):
                digest.update(f"{folder.name}/{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _at(entry: _Entry) -> tuple[str, str, str]:
    return entry.device, entry.driver, entry.version


def _read() -> tuple[_Entry, ...]:
    """Return the entries, none where there is no file. Raises ValueError with a sentence where it is no such file."""
    file = path()
    try:
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from error
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{file} has more than {_MOST_BYTES} bytes, which no tuning has")
    try:
        return msgspec.json.decode(data, type=_File).entries
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} holds no tuning: {error}") from error
