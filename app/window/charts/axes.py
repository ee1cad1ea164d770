"""Axes of a chart: round numbers in the person's locale, linear or of log10, plain or bytes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pyqtgraph as pg

from app.report import ticks
from app.report.theme import Palette
from app.report.ticks import Ticks
from app.window.look.local_numbers import localised

_LEAST_SPAN = 1e-9


class Axis(pg.AxisItem):
    """An axis whose marks ``app.report.ticks`` chooses. On a log axis places are log10 of what is shown."""

    def __init__(self, side: str, *, log: bool = False, of_bytes: bool = False) -> None:
        super().__init__(side, maxTickLength=0)
        self.log = log
        self._of_bytes = of_bytes
        self.chosen: list[int] | None = None  # the very values to mark on a log axis, as those of a sweep
        self._texts: dict[float, str] = {}
        self.enableAutoSIPrefix(False)  # the marks say their unit
        self.setStyle(tickTextOffset=6, autoExpandTextSpace=True)

    def colour(self, palette: Palette) -> None:
        """Take on an appearance."""
        self.setPen(pg.mkPen(palette.rule))
        self.setTextPen(pg.mkPen(palette.muted))

    def tickValues(self, minVal: float, maxVal: float, size: float) -> list[tuple[float, list[float]]]:  # noqa: N802, N803
        """Return where the marks stand, all of one level."""
        marks = self._marks(minVal, maxVal)
        self._texts = {place: localised(text) for place, text in marks}
        return [(1.0, [place for place, _ in marks if minVal <= place <= maxVal])]

    def tickStrings(self, values: list[float], scale: float, spacing: float) -> list[str]:  # noqa: N802
        """Return what the marks say."""
        return [self._texts.get(value, "") for value in values]

    def _marks(self, low: float, high: float) -> Ticks:
        if not (math.isfinite(low) and math.isfinite(high)) or high - low < _LEAST_SPAN * max(1.0, abs(low)):
            return []
        if self.chosen:
            return ticks.chosen(self.chosen)
        if not self.log:
            linear: Callable[[float, float], Ticks] = ticks.linear_bytes if self._of_bytes else ticks.linear
            return linear(low, high)
        if low < -300 or high > 300:  # beyond what a float can be
            return []
        if self._of_bytes:
            return ticks.logarithmic_bytes(10**low, 10**high)
        marks = ticks.logarithmic(10**low, 10**high)
        if len(marks) > 1:
            return marks
        return [(math.log10(value), text) for value, text in ticks.linear(10**low, 10**high) if value > 0]
