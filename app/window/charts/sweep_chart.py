"""A figure of every kernel against the swept value, log-log; what did not run is marked on top, with the reason."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyqtgraph as pg
from PySide6.QtCore import Qt

from app.report.outcome import whisker
from app.report.theme import kernel_symbol, mixed, on_cpu
from app.report.units import duration, size
from app.window.charts.chart import Chart
from app.window.look.appearance import appearance
from app.window.look.local_numbers import localised
from engine.records.results import Row

_FAINT = 0.25
_LIFT = 0.12  # of log10, between the marks of kernels that did not run


@dataclass(frozen=True)
class Point:
    """A row at its swept value."""

    x: int
    row: Row


class SweepChart(Chart):
    """Latency, or memory, on two log axes."""

    def __init__(self, *, of_memory: bool) -> None:
        super().__init__(log_x=True, log_y=True, bytes_y=of_memory)
        self._of_memory = of_memory
        self._drawn: list[object] = []
        self.setToolTip("")

    def draw(
        self, points: Mapping[str, Sequence[Point]], axis: str, hidden: Collection[str], highlighted: str | None
    ) -> None:
        """Draw the points of each kernel, in ascending order of x."""
        for item in self._drawn:
            self.removeItem(item)
        self._drawn = []
        values = sorted({point.x for line in points.values() for point in line})
        self.x_axis.chosen = values
        self.name_axes(
            axis, "peak memory; dotted: scratch" if self._of_memory else "wall ms, median; whiskers: quartiles"
        )
        shown = {kernel: line for kernel, line in points.items() if kernel not in hidden}
        for kernel, line in shown.items():
            colour = appearance().palette.kernel(kernel)
            if highlighted not in (None, kernel):
                colour = mixed(colour, appearance().palette.paper, _FAINT)
            self._line(kernel, line, colour, 3 if kernel == highlighted else 2)
        self._absent(shown)

    def _figure(self, row: Row) -> float | None:
        return row.peak_bytes if self._of_memory else row.wall_ms_median

    def _line(self, kernel: str, line: Sequence[Point], colour: str, width: float) -> None:
        known = [(math.log10(p.x), math.log10(figure), p) for p in line if (figure := self._figure(p.row))]
        if self._of_memory:
            scratch = [(math.log10(p.x), math.log10(p.row.scratch_bytes)) for p in line if p.row.scratch_bytes]
            self._curve(scratch, self.pen(colour, width * 0.75, Qt.PenStyle.DotLine))
        else:
            self._whiskers(known, colour)
        dashed = Qt.PenStyle.DashLine if on_cpu(kernel) else Qt.PenStyle.SolidLine
        self._curve([(x, y) for x, y, _ in known], self.pen(colour, width, dashed))
        self._marks(known, kernel_symbol(kernel), colour, 10)

    def _curve(self, places: Sequence[tuple[float, float]], pen: object) -> None:
        if places:
            xs, ys = map(list, zip(*places, strict=True))
            self._add(pg.PlotCurveItem(xs, ys, pen=pen, antialias=True))

    def _whiskers(self, known: Sequence[tuple[float, float, Point]], colour: str) -> None:
        xs: list[float] = []
        ys: list[float] = []
        for x, _, point in known:
            ends = whisker(point.row)
            if ends and ends[0] > 0:
                xs += [x, x]
                ys += [math.log10(end) for end in ends]
        if xs:
            self._add(pg.PlotCurveItem(xs, ys, connect="pairs", pen=self.pen(colour, 1.5), antialias=True))

    def _absent(self, shown: Mapping[str, Sequence[Point]]) -> None:
        """Mark what did not run above all figures, a row for each kernel."""
        figures = [figure for line in shown.values() for point in line if (figure := self._figure(point.row))]
        top = math.log10(max(figures, default=1.0)) + 2 * _LIFT
        place = 0
        for kernel, line in shown.items():
            missing = [(math.log10(p.x), top + place * _LIFT, p) for p in line if not self._figure(p.row)]
            if missing:
                self._marks(missing, "x", appearance().palette.kernel(kernel), 9)
                place += 1

    def _marks(self, places: Sequence[tuple[float, float, Point]], symbol: str, colour: str, side: int) -> None:
        if not places:
            return
        xs, ys, points = map(list, zip(*places, strict=True))
        marks = pg.ScatterPlotItem(
            xs, ys, symbol=symbol, size=side, pen=None, brush=colour, data=points, hoverable=True, tip=self._tip,
            useCache=not self.in_vectors,
        )  # fmt: skip
        marks.setZValue(10)
        self._add(marks)

    def _tip(self, x: float, y: float, data: Point) -> str:
        row, figure = data.row, self._figure(data.row)
        if figure is None:
            return localised(f"{row.kernel} at {data.x}: {row.status.value}. {row.message}")
        said = size(round(figure)) if self._of_memory else duration(figure)
        if self._of_memory and row.scratch_bytes is not None:
            said += f", scratch {size(row.scratch_bytes)}"
        return localised(f"{row.kernel} at {data.x}: {said}")

    def _add(self, item: object) -> None:
        self.addItem(item)
        self._drawn.append(item)
