"""Numbers as people read them: three significant digits and a unit that suits the size."""

from __future__ import annotations

import math

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP")


def significant(value: float, digits: int = 3) -> str:
    """Return ``value`` rounded to ``digits`` significant digits, thousands separated, never in exponent form."""
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.{digits - 1}e}")
    if rounded == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}"


def duration(milliseconds: float) -> str:
    """Return a duration in µs, ms or s."""
    if abs(milliseconds) < 0.1:
        return f"{significant(milliseconds * 1e3)} µs"
    if abs(milliseconds) < 999.5:
        return f"{significant(milliseconds)} ms"
    return f"{significant(milliseconds / 1e3)} s"


def size(count: int) -> str:
    """Return a byte count in binary units: ``512 B``, ``1.50 KiB``, ``8.00 MiB``."""
    value, unit = float(count), 0
    while abs(value) >= 1023.5 and unit < len(_BINARY) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{significant(value)} {_BINARY[unit]}"


def operations(count: int) -> str:
    """Return a count of floating-point operations in decimal units: ``640 MFLOP``, ``2.15 GFLOP``."""
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(_DECIMAL) - 1:
        value, unit = value / 1000, unit + 1
    return f"{significant(value)} {_DECIMAL[unit]}"


def ratio(value: float) -> str:
    """Return a speed-up: ``1.42×``, ``23.5×``."""
    return f"{significant(value)}×"


def remaining(seconds: float) -> str:
    """Return a time left: ``12 s``, ``3 min 05 s``."""
    whole = max(0, round(seconds))
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
