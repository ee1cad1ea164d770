"""Numbers as people read them: three significant digits, and the unit that suits a byte count."""

from __future__ import annotations

import math

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def significant(value: float, digits: int = 3) -> str:
    """Return ``value`` rounded to ``digits`` significant digits, thousands separated, never in exponent form."""
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.{digits - 1}e}")
    if rounded == 0:
        return "0"
    if not math.isfinite(rounded):  # rounded up beyond the largest float
        return f"{value:,.0f}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}"


def size(count: int, digits: int = 3) -> str:
    """Return a byte count in binary units: ``512 B``, ``1.50 KiB``, ``8.00 MiB``."""
    value, unit = float(count), 0
    while abs(value) >= 1023.5 and unit < len(_BINARY) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{significant(value, digits)} {_BINARY[unit]}"


def sizes_apart(one: int, other: int) -> tuple[str, str]:
    """Return two different byte counts with as many digits as it takes to see that they differ."""
    pairs = ((size(one, digits), size(other, digits)) for digits in range(3, 8))
    return next((pair for pair in pairs if pair[0] != pair[1]), (f"{one:,} B", f"{other:,} B"))


def ratio(value: float) -> str:
    """Return a speed-up: ``1.42×``, ``23.5×``."""
    return f"{significant(value)}×"
