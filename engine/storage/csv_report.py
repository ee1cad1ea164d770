"""The CSV report, one row per kernel and case, and the CSV of raw samples."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from engine.records.results import COLUMNS, Row
from engine.storage.atomic import replace_file
from engine.storage.run_file import SampleSeries

SAMPLE_COLUMNS = ("run_id", "kernel", "case", "index", "started_s", "wall_ms", "gpu_ms", "repeats")

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what a spreadsheet may take for the start of a formula
_NUMBER = re.compile(r"[+-](\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def write_rows(path: str | os.PathLike[str], rows: Iterable[Row]) -> None:
    """Write the report to ``path``, replacing it whole. Raises OSError, and the old file stays as it was."""
    write_table(path, COLUMNS, ([getattr(row, column) for column in COLUMNS] for row in rows))


def write_samples(path: str | os.PathLike[str], run_id: str, series: Iterable[SampleSeries]) -> None:
    """Write every raw sample to ``path``, replacing it whole; ``case`` is the case's index. Raises OSError."""
    write_table(
        path,
        SAMPLE_COLUMNS,
        (
            (run_id, s.kernel, s.case, x.index, x.started_s, x.wall_ms, x.gpu_ms, x.repeats)
            for s in series
            for x in s.samples
        ),
    )


def cell(value: Any) -> str:
    """Return a value as the report writes it, before quoting.

    Empty for None, ``true``/``false``, whole numbers plain, floats as the shortest decimals that read back the same.
    Text that a spreadsheet could take for a formula gets a leading apostrophe; a negative number does not.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) and not _NUMBER.fullmatch(value) else value
    return str(value)


def write_table(path: str | os.PathLike[str], header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write any table the way the reports are written, replacing ``path`` whole. Raises OSError."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(header)
    writer.writerows([cell(value) for value in row] for row in rows)
    # backslashreplace: a path in the system's own encoding may hold what UTF-8 cannot
    replace_file(path, text.getvalue().encode("utf-8", "backslashreplace"))
