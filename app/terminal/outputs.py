"""The files that a run writes: checked before it starts, written when it ends, each whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.report.outcome import CaseRows
from engine.storage import csv_report, run_file
from engine.storage.atomic import replace_file
from engine.storage.run_file import RunRecorder

_OTHER_PICTURES = {".bmp", ".eps", ".gif", ".jpeg", ".jpg", ".pdf", ".ps", ".svg", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Where to write what; None where it was not asked for."""

    csv: Path | None = None
    samples_csv: Path | None = None
    json: Path | None = None
    png: Path | None = None

    def check(self, inputs: Sequence[Path] = ()) -> None:
        """Raise ValueError with one sentence unless every path can be written and is neither input nor another's.

        A picture is a PNG: a name that promises another format is refused.
        """
        if self.png is not None and self.png.suffix.lower() in _OTHER_PICTURES:
            raise ValueError(f"--png writes a PNG, and {self.png} names another format; let it end in .png")
        taken = {_identity(path): "the --input file" for path in inputs}
        for option, path in self._given():
            _check_writable(option, path)
            other = taken.setdefault(_identity(path), option)
            if other is not option:
                raise ValueError(f"{option} {path} is {other} too; give it a path of its own")

    def write(self, recorder: RunRecorder, groups: Sequence[CaseRows]) -> tuple[list[Path], list[str]]:
        """Write every file asked for; return the paths written and a sentence for each that could not be.

        One that fails keeps its old content, and the others are still written.
        """
        written, failures = [], []
        for option, path in self._given():
            try:
                _WRITERS[option](path, recorder, groups)
            except (OSError, ValueError, ImportError) as error:  # ImportError: Qt lacks a library
                failures.append(f"{option} {path} could not be written: {_reason(error)}")
            else:
                written.append(path)
        return written, failures

    def _given(self) -> Iterator[tuple[str, Path]]:
        for option in _WRITERS:
            path = getattr(self, option.removeprefix("--").replace("-", "_"))
            if path is not None:
                yield option, path


def _identity(path: Path) -> str:
    return os.path.normcase(path.resolve())


def _check_writable(option: str, path: Path) -> None:
    """Try what writing will do: put a new file into the folder, under no name where the system can."""
    target = path.resolve()
    if target.is_dir():
        raise ValueError(f"{option} {path} is a folder; give the name of a file in it")
    if target.exists() and not os.access(target, os.W_OK):
        raise ValueError(f"{option} {path} is write-protected; choose another file")
    if target.exists() and not target.is_file():
        return
    if not target.parent.is_dir():
        raise ValueError(f"{option} {path} is in a folder that does not exist; create {path.parent} first")
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise ValueError(
            f"{option} {path} is in a folder that cannot be written to ({_reason(error)}); choose another one"
        ) from None


def _reason(error: Exception) -> str:
    """Return why, on one line."""
    return " ".join(((error.strerror if isinstance(error, OSError) else None) or str(error)).split())


def _write_csv(path: Path, recorder: RunRecorder, groups: Sequence[CaseRows]) -> None:
    csv_report.write_rows(path, [row for group in groups for row in group.rows])


def _write_samples(path: Path, recorder: RunRecorder, groups: Sequence[CaseRows]) -> None:
    run = recorder.run
    csv_report.write_samples(path, run.run_id if run else "", recorder.series)


def _write_json(path: Path, recorder: RunRecorder, groups: Sequence[CaseRows]) -> None:
    if recorder.run is None:
        raise ValueError("the run ended before it began")
    run_file.save(path, recorder.run)


def _write_png(path: Path, recorder: RunRecorder, groups: Sequence[CaseRows]) -> None:
    if not groups:
        raise ValueError("no kernel has a result to draw")
    from app.picture.race_chart import png  # Qt is loaded for this and for nothing else here

    replace_file(path, png(groups))


_WRITERS: dict[str, Callable[[Path, RunRecorder, Sequence[CaseRows]], None]] = {
    "--csv": _write_csv,
    "--samples-csv": _write_samples,
    "--json": _write_json,
    "--png": _write_png,
}
