"""Where the marks of a chart's axis stand and what they say: few of them, round numbers, no exponents."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from app.report.units import significant

Ticks = list[tuple[float, str]]
_MOST = 6
_SMALL, _LARGE = 1e-300, 1e300  # spans beyond which steps cannot be computed
_DECADES = 307
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def plain(value: float) -> str:
    """Return a round number without trailing zeros: ``0.5``, ``20``, ``1,000``."""
    text = significant(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def whole_bytes(value: float) -> str:
    """Return a byte count that is a power of two, or a few of them, in its largest unit: ``512 KiB``, ``1.5 MiB``."""
    power = min(max(0, int(math.log2(value) // 10)), len(_UNITS) - 1) if value > 0 else 0
    return f"{plain(value / 1024**power)} {_UNITS[power]}"


def linear(low: float, high: float) -> Ticks:
    """Return marks at steps of 1, 2 or 5 times a power of ten; the ends alone where a float has no such step."""
    if not _SMALL < high - low < _LARGE:
        return [(low, plain(low)), (high, plain(high))]
    decade = 10.0 ** math.floor(math.log10((high - low) / _MOST))
    step = next(decade * factor for factor in (1, 2, 5, 10) if decade * factor * _MOST >= high - low)
    return _multiples(step, low, high, plain)


def linear_bytes(low: float, high: float) -> Ticks:
    """Return marks at steps of a power of two bytes; the ends alone where a float has no such step."""
    if not _SMALL < high - low < _LARGE:
        return [(low, whole_bytes(low)), (high, whole_bytes(high))]
    return _multiples(2.0 ** math.ceil(math.log2((high - low) / _MOST)), low, high, whole_bytes)


def logarithmic(low: float, high: float) -> Ticks:
    """Return marks between positive numbers for an axis of log10: powers of ten, and 2 and 5 where there is room."""
    decades = range(max(-_DECADES, math.floor(math.log10(low))), min(_DECADES, math.ceil(math.log10(high))) + 1)
    stride = max(1, math.ceil((math.log10(high) - math.log10(low)) / _MOST))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        marks = [f * 10.0**d for d in decades if d % stride == 0 for f in factors if low <= f * 10.0**d <= high]
        if len(marks) <= _MOST:
            break
    return [(math.log10(mark), plain(mark)) for mark in marks]


def logarithmic_bytes(low: float, high: float) -> Ticks:
    """Return marks between two byte counts for an axis of log10: powers of two, evenly apart."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    stride = max(1, math.ceil((last - first + 1) / _MOST))
    return [(power * math.log10(2), whole_bytes(2.0**power)) for power in range(first, last + 1) if power % stride == 0]


def chosen(values: list[int]) -> Ticks:
    """Return marks at the values themselves for an axis of log10, leaving out those that would run together."""
    span = math.log10(values[-1]) - math.log10(values[0]) or 1.0
    marks: Ticks = []
    for value in values:
        if not marks or math.log10(value) - marks[-1][0] >= span / 9:
            marks.append((math.log10(value), str(value)))
    return marks


def stride(spans: Sequence[tuple[float, float]]) -> int:
    """Return how many marks share a text, so that texts with these left and right ends stand evenly and apart."""
    steps = range(1, len(spans) + 1)
    return next((n for n in steps if all(one[1] <= other[0] for one, other in pairwise(spans[::n]))), 1)


def thinned(marks: Ticks, at: Callable[[float], float], room: Callable[[str], float]) -> Ticks:
    """Return the marks with a text at every nth only, so that none runs into the next.

    ``at`` gives where on the screen a mark is, ``room`` the width that its text needs.
    """
    nth = stride([(at(place) - room(text) / 2, at(place) + room(text) / 2) for place, text in marks])
    return [(place, text if number % nth == 0 else "") for number, (place, text) in enumerate(marks)]


def _multiples(step: float, low: float, high: float, text: Callable[[float], str]) -> Ticks:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(n * step, text(n * step) if n else "0") for n in range(first, last + 1)]
