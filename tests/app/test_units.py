"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from app import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.314, "1.31"),
        (9.996, "10.0"),
        (0.012345, "0.0123"),
        (99.95, "100"),
        (1234.5, "1,230"),
        (-2.5, "-2.50"),
        (1e-7, "0.000000100"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_significant(value: float, text: str) -> None:
    assert units.significant(value) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0.0123, "12.3 µs"), (0.91, "0.910 ms"), (999.4, "999 ms"), (999.6, "1.00 s"), (65e3, "65.0 s")],
)
def test_duration(milliseconds: float, text: str) -> None:
    assert units.duration(milliseconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1024, "1.00 KiB"), (1_048_300, "1.00 MiB"), (3 << 30, "3.00 GiB"), (1 << 60, "1,020 PiB")],
)
def test_size(count: int, text: str) -> None:
    assert units.size(count) == text


def test_ratio_and_remaining() -> None:
    assert units.ratio(0.833) == "0.833×"
    assert units.remaining(12.4) == "12 s"
    assert units.remaining(185) == "3 min 05 s"
    assert units.remaining(-1) == "0 s"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 FLOP"), (512, "512 FLOP"), (8_388_608, "8.39 MFLOP"), (999_499_999, "999 MFLOP"),
     (999_500_000, "1.00 GFLOP"), (2_147_483_648, "2.15 GFLOP"), (10**19, "10,000 PFLOP")],
)  # fmt: skip
def test_operations_in_decimal_units(count: int, text: str) -> None:
    assert units.operations(count) == text
