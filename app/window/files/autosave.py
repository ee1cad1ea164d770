"""Keeps a run on disk while it goes on, event by event, so that a crash costs nothing that was measured."""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import platformdirs
from PySide6.QtCore import QLockFile

from engine.records.events import (
    CaseStarted,
    Ending,
    Event,
    KernelFailed,
    KernelFinished,
    KernelPrepared,
    KernelSkipped,
    MemorySample,
    SampleBatch,
    SessionFinished,
    SessionStarted,
)
from engine.session.unfinished import Unfinished
from engine.storage.run_file import MAX_FILE_BYTES, RunFile, RunRecorder

MOST_KEPT = 20  # runs that were never saved; the oldest go first
NEW, EARLIER = ".run", ".earlier"  # to be offered at the next start; only to be had from the menu
_LENGTH = struct.Struct("<I")  # of the event that follows
_LARGEST_EVENT = 64 << 20
_KEPT = (
    SessionStarted | CaseStarted | KernelPrepared | SampleBatch | MemorySample | KernelSkipped | KernelFinished
    | KernelFailed | SessionFinished
)  # fmt: skip
_DECODER = msgspec.msgpack.Decoder(Event)
_NAME = re.compile(r"[\w.-]{1,80}")


@dataclass(frozen=True)
class Kept:
    """A run on disk that was never saved: what it is called in a menu, and whether it ran to its end."""

    path: Path
    started_at: str  # ISO 8601
    rows: int
    finished: bool
    offer: bool  # nobody has been asked about it yet


def autosave_folder() -> Path:
    """Return where runs are kept until they are saved."""
    return Path(platformdirs.user_data_dir("flashscope", appauthor=False)) / "unsaved"


class Autosave:
    """Writes a run's events to a file of its own as they come; hand every event to it.

    The file is locked meanwhile, so that another window does not take the run for one that was cut off. Raises
    nothing: a disk that is full is told of once, through ``complaint``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: BinaryIO | None = None
        self._lock: QLockFile | None = None
        self.path: Path | None = None
        self.complaint = ""

    def __call__(self, event: Event) -> None:
        """Write an event, where it is one that a run is made of."""
        if isinstance(event, SessionStarted):
            self._begin(event.run_id)
        if self._file is None or not isinstance(event, _KEPT):
            return
        data = msgspec.msgpack.encode(event)
        try:
            self._file.write(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        """Hand what was written to the system, which keeps it even where this process is killed."""
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._give_up(error)

    def release(self) -> None:
        """End the file under way; it stays, to be offered at the next start."""
        self.flush()
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
        if self._lock is not None:
            self._lock.unlock()
            self._lock = None

    def set_aside(self) -> None:
        """End the file under way and keep it for the menu of earlier runs: another run takes its place."""
        self.release()
        if self.path is not None:
            set_aside(self.path)
            self.path = None

    def adopt(self, path: Path) -> None:
        """Take on a kept run that is shown again: saved it is forgotten, replaced it is set aside."""
        self.set_aside()
        self.path = path

    def forget(self) -> None:
        """End the file under way and remove it: the run was saved, or is not wanted."""
        self.release()
        if self.path is not None:
            remove(self.path)
            self.path = None

    def _begin(self, run_id: str) -> None:
        self.set_aside()
        self.complaint = ""
        if not _NAME.fullmatch(run_id):
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _make_room(self.folder)
            path = self.folder / f"{run_id}{NEW}"
            lock = _lock(path)
            lock.tryLock(0)
            self._file = path.open("wb")
            self._lock, self.path = lock, path
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.complaint = f"This run is not autosaved: {error.strerror or error}; save it when it has finished."
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


def kept(folder: Path) -> list[Kept]:
    """Return the runs in the folder that no other window is writing, newest first."""
    found = []
    for path in sorted(_runs(folder), reverse=True):
        lock = _lock(path)
        if not lock.tryLock(0):
            continue
        try:
            entry = _describe(path)
        finally:
            lock.unlock()
        if entry is not None:
            found.append(entry)
    return found


def read(path: Path) -> RunFile:
    """Return a kept run; kernels that had no row yet get one, ``cancelled``, with the samples they had.

    Raises OSError, or ValueError with one sentence where the file holds no run.
    """
    recorder, unfinished = RunRecorder(), Unfinished()
    finished = False
    for event in _events(path):
        recorder(event)
        unfinished(event)
        finished = finished or isinstance(event, SessionFinished)
    if not finished:
        for event in unfinished.ending(
            SessionFinished(Ending.CUT_OFF, "the program ended before the run did"), "the program ended"
        ):
            recorder(event)
    if recorder.run is None:
        raise ValueError(f"{path.name} holds no run that could be read")
    return recorder.run


def remove(path: Path) -> None:
    """Remove a kept run; one that cannot be removed is offered again, which does no harm."""
    with contextlib.suppress(OSError):
        path.unlink()


def set_aside(path: Path) -> Path:
    """Offer a kept run no more; it stays in the menu of earlier runs. Return where it is now."""
    with contextlib.suppress(OSError):
        return path.replace(path.with_suffix(EARLIER))
    return path


def _runs(folder: Path) -> list[Path]:
    return [path for suffix in (NEW, EARLIER) for path in folder.glob(f"*{suffix}")]


def _lock(path: Path) -> QLockFile:
    lock = QLockFile(f"{path}.lock")
    lock.setStaleLockTime(0)  # a run may take long; a lock is stale when its process is gone
    return lock


def _describe(path: Path) -> Kept | None:
    started, rows, finished = "", 0, False
    with contextlib.suppress(OSError):
        for event in _events(path):
            match event:
                case SessionStarted(started_at=started_at):
                    started = started_at
                case KernelFinished() | KernelSkipped() | KernelFailed():
                    rows += 1
                case SessionFinished():
                    finished = True
                case _:
                    pass
    return Kept(path, started, rows, finished, path.suffix == NEW) if started else None


def _events(path: Path) -> Iterator[Event]:
    """Yield the events of a file up to its end, or to where it was cut off or damaged. Raises OSError."""
    with path.open("rb") as file:
        left = MAX_FILE_BYTES
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            left -= length
            if length > _LARGEST_EVENT or left < 0:
                return
            try:
                yield _DECODER.decode(file.read(length))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
                return


def _make_room(folder: Path) -> None:
    """Remove the oldest runs beyond the number that is kept, and locks whose run is gone."""
    for path in sorted(_runs(folder), key=os.path.getmtime)[: 1 - MOST_KEPT]:
        lock = _lock(path)
        if lock.tryLock(0):
            remove(path)
            lock.unlock()
