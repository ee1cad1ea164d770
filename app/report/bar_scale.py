"""Where a figure lies along the axis of bars: linear, or logarithmic where the figures are far apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.report import ticks

_LOG_FROM = 12.0  # bars whose extremes differ by more than this are drawn on a log scale
_ROOM_BESIDE_BAR = 0.75  # of the longest bar's length, for its figures


@dataclass(frozen=True)
class BarScale:
    """``low`` is the left end of the axis: 0, or the value that a log axis begins at."""

    low: float
    high: float
    log: bool

    @classmethod
    def over(cls, figures: Sequence[float | None]) -> BarScale:
        """Return the scale for these figures; unknown ones and 0 do not count."""
        known = [figure for figure in figures if figure] or [1.0]
        if max(known) / min(known) > _LOG_FROM:
            return cls(min(known) / 2, max(known), True)
        return cls(0.0, max(known), False)

    def at(self, value: float) -> float:
        """Return the place of a value on the axis; what lies before its beginning is at its beginning."""
        inside = max(value, self.low)
        return math.log10(inside) if self.log else inside

    @property
    def ends(self) -> tuple[float, float]:
        """The places where the axis begins and ends, with room for figures beside the longest bar."""
        left, right = self.at(self.low), self.at(self.high)
        return left, right + _ROOM_BESIDE_BAR * (right - left)

    def marks(self, *, of_bytes: bool) -> ticks.Ticks:
        """Return the marks of the axis."""
        if of_bytes:
            return (ticks.logarithmic_bytes if self.log else ticks.linear_bytes)(self.low, self.high)
        return (ticks.logarithmic if self.log else ticks.linear)(self.low, self.high)
