"""Durations and counts as people read them."""

from __future__ import annotations

import pytest

from app.report import units


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0.0123, "12.3 µs"), (0.91, "0.910 ms"), (999.4, "999 ms"), (999.6, "1.00 s"), (65e3, "65.0 s")],
)
def test_duration(milliseconds: float, text: str) -> None:
    assert units.duration(milliseconds) == text


def test_remaining() -> None:
    assert units.remaining(12.4) == "12 s"
    assert units.remaining(185) == "3 min 05 s"
    assert units.remaining(3599.4) == "59 min 59 s"
    assert units.remaining(3599.6) == "1 h 00 min"
    assert units.remaining(156_199) == "43 h 23 min"
    assert units.remaining(-1) == "0 s"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 FLOP"), (512, "512 FLOP"), (8_388_608, "8.39 MFLOP"), (999_499_999, "999 MFLOP"),
     (999_500_000, "1.00 GFLOP"), (2_147_483_648, "2.15 GFLOP"), (10**19, "10,000 PFLOP")],
)  # fmt: skip
def test_operations_in_decimal_units(count: int, text: str) -> None:
    assert units.operations(count) == text
