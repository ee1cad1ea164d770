"""One case's kernels as a table, with speed-ups against naive or against any kernel that is picked."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QObject

from app.report.columns import COMPARE, SPEEDUP, Column
from app.report.units import ratio
from app.window.results.row_table import Entry, RowTable
from engine.records.results import Row, Status


class CompareModel(RowTable):
    """The rows of one case."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(COMPARE, parent)
        self._baseline: Row | None = None

    def show_rows(self, rows: Sequence[Row], baseline: str | None) -> None:
        """Show these; ``baseline`` is a kernel among them, None for the naive kernel of each one's own device."""
        found = next((row for row in rows if row.kernel == baseline), None)
        if found != self._baseline:
            self._baseline = found
            speedup = SPEEDUP if found is None else against(found)
            self.show_columns([speedup if column is SPEEDUP else column for column in COMPARE])
        entries = [Entry((0, place), row) for place, row in enumerate(rows)]
        if entries != self.entries:
            self.show_entries(entries, anew=True)


def against(baseline: Row) -> Column:
    """Return the column of speed-ups against a row: wall clock against wall clock, between results that are right."""

    def value(row: Row) -> float | None:
        if not (row.status is baseline.status is Status.OK):
            return None
        if not row.wall_ms_median or baseline.wall_ms_median is None:
            return None
        return baseline.wall_ms_median / row.wall_ms_median

    meaning = (
        f"How many times as fast as {baseline.kernel} in this case: wall clock against wall clock, whatever the device."
    )
    return Column(f"vs {baseline.kernel}", meaning, value, ratio)
