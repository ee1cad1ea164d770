"""Numbers as people read them: three significant digits and a unit that suits the size."""

from __future__ import annotations

from engine.common.units import ratio, significant, size

__all__ = ["duration", "operations", "ratio", "remaining", "significant", "size"]

_DECIMAL = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP")


def duration(milliseconds: float) -> str:
    """Return a duration in µs, ms or s."""
    if abs(milliseconds) < 0.1:
        return f"{significant(milliseconds * 1e3)} µs"
    if abs(milliseconds) < 999.5:
        return f"{significant(milliseconds)} ms"
    return f"{significant(milliseconds / 1e3)} s"


def operations(count: int) -> str:
    """Return a count of floating-point operations in decimal units: ``640 MFLOP``, ``2.15 GFLOP``."""
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(_DECIMAL) - 1:
        value, unit = value / 1000, unit + 1
    return f"{significant(value)} {_DECIMAL[unit]}"


def remaining(seconds: float) -> str:
    """Return a time left: ``12 s``, ``3 min 05 s``, ``43 h 23 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole // 3600} h {whole // 60 % 60:02d} min"
