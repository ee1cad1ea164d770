"""Numbers as people read them, and byte counts in the unit that suits them."""

from __future__ import annotations

import math

import pytest

from engine.common import units


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
    ("count", "text"),
    [(0, "0 B"), (1024, "1.00 KiB"), (1_048_300, "1.00 MiB"), (3 << 30, "3.00 GiB"), (1 << 60, "1.00 EiB")],
)
def test_size(count: int, text: str) -> None:
    assert units.size(count) == text


@pytest.mark.parametrize(
    ("one", "other", "texts"),
    [
        (1 << 20, 3, ("1.00 MiB", "3 B")),
        (4_000_000_000_000, 8 << 30, ("3.64 TiB", "8.00 GiB")),
        ((128 << 20) + 20_000, 128 << 20, ("128.02 MiB", "128.00 MiB")),
        ((1 << 50) + 1, 1 << 50, ("1,125,899,906,842,625 B", "1,125,899,906,842,624 B")),
    ],
)
def test_two_sizes_are_told_apart(one: int, other: int, texts: tuple[str, str]) -> None:
    assert units.sizes_apart(one, other) == texts


def test_ratio() -> None:
    assert units.ratio(0.833) == "0.833×"
