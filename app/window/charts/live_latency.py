"""Latency of every kernel of one case, sample by sample: curve, median, p90 band, and the first run apart."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtGui import QColor

from app.report.theme import kernel_symbol, mixed
from app.window.charts.chart import Chart
from app.window.look.appearance import appearance
from app.window.results.series import SampleColumns
from app.window.results.session_data import SessionData

_MARKED = 100  # samples, up to which each is marked
_GROWTH = 1.02  # of the samples, from which the median and p90 are worth taking anew
_FAINT = 0.2  # of its strength, for a kernel beside one that is brought out
_SPARSE, _DENSE = 0.8, 0.55  # of a curve's strength with few or many samples, so that its median shows
_BAND = 30  # of 255


@dataclass(frozen=True)
class Level:
    """Where the samples of a kernel lie, in milliseconds, when there were ``count`` of them."""

    count: int
    low: float
    median: float
    p90: float
    iqr: float


class LatencyChart(Chart):
    """``by_time`` and ``log`` say against what, and how, latency is drawn; ``levels`` are those of ``case``."""

    def __init__(self) -> None:
        super().__init__(log_y=True)
        self.by_time = False
        self.levels: dict[str, Level] = {}
        self.case: int | None = None
        self._kernels: dict[str, _KernelItems] = {}
        self._name()

    @property
    def log(self) -> bool:
        """Whether the latency axis is logarithmic."""
        return self.y_axis.log

    def look(self, *, by_time: bool, log: bool) -> None:
        """Draw against time or sample number, on a log or linear axis; the next drawing shows it."""
        self.by_time, self.y_axis.log = by_time, log
        self._name()
        self.fit()

    def clear_case(self) -> None:
        """Forget the case that is drawn."""
        for items in self._kernels.values():
            items.remove(self)
        self._kernels, self.levels, self.case = {}, {}, None

    def draw(self, data: SessionData, case: int, hidden: Collection[str], highlighted: str | None) -> None:
        """Draw a case as far as it has come."""
        if case != self.case:
            self.clear_case()
            self.case = case
            self.fit()
        samples = data.samples(case)
        for kernel in data.kernels:
            columns, beginning = samples.get(kernel), data.beginning(case, kernel)
            first = beginning.first_run_ms if beginning else None
            if columns is None and first is None:
                continue
            items = self._kernels.get(kernel) or self._kernels.setdefault(kernel, _KernelItems(kernel, self))
            items.show(kernel not in hidden)
            strength = _FAINT if highlighted not in (None, kernel) else 1.0
            items.colour = mixed(appearance().palette.kernel(kernel), appearance().palette.paper, strength)
            items.strong = kernel == highlighted
            begins = 0.0
            if columns is not None:
                self.levels[kernel] = level = _level(columns, self.levels.get(kernel))
                x = columns["started_s"] if self.by_time else np.arange(1, len(columns) + 1, dtype=np.float64)
                begins = float(x[0]) if self.by_time else 0.0
                levels = self._placed(np.array([level.low, level.median, level.p90]))
                items.draw(self, x, self._placed(columns["wall_ms"]), levels)
            if columns is not None or not self.by_time:
                items.draw_first(self, begins, self._placed(np.array([first or np.nan])))
        self.x_axis.setStyle(showValues=bool(self._kernels))
        self.y_axis.setStyle(showValues=bool(self._kernels))
        self.settle()

    def nearest(self, data: SessionData, x: float) -> dict[str, int]:
        """Return the sample nearest to a place of the x axis, by its index, of each kernel that is shown."""
        found = {}
        for kernel, columns in data.samples(self.case if self.case is not None else -1).items():
            if kernel not in self._kernels or not self._kernels[kernel].shown:
                continue
            if self.by_time:
                started = columns["started_s"]
                place = int(np.searchsorted(started, x))
                before = place and (place == len(started) or x - started[place - 1] < started[place] - x)
                found[kernel] = place - 1 if before else place
            elif 0.5 <= x < len(columns) + 0.5:
                found[kernel] = round(x) - 1
        return found

    def _placed(self, milliseconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return where latencies lie on the axis."""
        if not self.y_axis.log:
            return milliseconds
        with np.errstate(divide="ignore", invalid="ignore"):
            placed = np.log10(milliseconds)
        placed[~np.isfinite(placed)] = np.nan  # 0, from a clock that saw nothing
        return placed

    def _name(self) -> None:
        self.name_axes("seconds since the session began" if self.by_time else "sample", "wall ms of one run")


class _KernelItems:
    """What is drawn for one kernel."""

    def __init__(self, kernel: str, chart: Chart) -> None:
        self._kernel = kernel
        self.shown = True
        self.strong = False
        self.colour = ""
        self._first_drawn: tuple[object, ...] = ()
        self._curve = pg.PlotDataItem(symbolSize=6, autoDownsampleFactor=1.0)  # a peak and a trough a pixel
        self._median = pg.PlotCurveItem()
        self._top, self._bottom = pg.PlotCurveItem(pen=None), pg.PlotCurveItem(pen=None)
        self._band = pg.FillBetweenItem(self._top, self._bottom)
        self._first = pg.ScatterPlotItem(symbol=kernel_symbol(kernel), size=11)
        self._items = (self._band, self._curve, self._median, self._first)
        for depth, item in zip((-5, 0, 5, 6), self._items, strict=True):
            item.setZValue(depth)
            chart.addItem(item)

    def remove(self, chart: Chart) -> None:
        for item in self._items:
            chart.removeItem(item)

    def show(self, shown: bool) -> None:
        if shown != self.shown:
            self.shown = shown
            for item in self._items:
                item.setVisible(shown)

    def draw(self, chart: Chart, x: NDArray[np.float64], y: NDArray[np.float64], levels: NDArray[np.float64]) -> None:
        """Draw the samples; ``levels`` holds the lowest, the median and p90 as placed.

        What has no place, a latency of 0 on a log axis, is left out: pyqtgraph cannot fit a view to it.
        """
        paper = appearance().palette.paper
        placed = np.isfinite(y)
        if not placed.any():
            x, y = x[:0], y[:0]
        marked = len(x) <= _MARKED
        self._curve.scatter.opts["useCache"] = not chart.in_vectors
        self._curve.setData(
            x,
            y,
            pen=chart.pen(mixed(self.colour, paper, _SPARSE if marked else _DENSE)),
            symbol=kernel_symbol(self._kernel) if marked else None,
            symbolBrush=self.colour,
            symbolPen=None,
            skipFiniteCheck=bool(placed.all()),
        )
        median_pen = chart.pen(self.colour, 3 if self.strong else 2)
        ends = [x[0], x[-1]] if len(x) > 1 else [x[0] - 0.5, x[0] + 0.5] if len(x) else []
        for item, level in zip((self._bottom, self._median, self._top), levels, strict=True):
            there = ends if np.isfinite(level) else []
            item.setData(there, [level] * len(there))
        self._median.setPen(median_pen)
        band = QColor(self.colour)
        band.setAlpha(_BAND * 2 if self.strong else _BAND)
        self._band.setBrush(band)

    def draw_first(self, chart: Chart, x: float, y: NDArray[np.float64]) -> None:
        """Draw the first run, NaN where it is not known."""
        paper = appearance().palette.paper
        known = y[np.isfinite(y)].tolist()
        looks = (x, known, self.colour, paper, chart.pen_scale, chart.in_vectors)
        if looks != self._first_drawn:
            self._first_drawn = looks
            self._first.opts["useCache"] = not chart.in_vectors
            self._first.setData([x] * len(known), known, pen=chart.pen(self.colour, 1.6), brush=paper)


def _level(columns: SampleColumns, before: Level | None) -> Level:
    """Return where the samples lie; as before where few have come since."""
    count = len(columns)
    if before is not None and count < _GROWTH * before.count:
        return before
    low, q1, median, q3, p90 = np.percentile(columns["wall_ms"], (0, 25, 50, 75, 90)).tolist()
    return Level(count, low, median, p90, q3 - q1)
