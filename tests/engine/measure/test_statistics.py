"""Headline, spread, outliers and drift of a series."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.measure.statistics import relative_spread, summarise

SERIES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=300)


@given(SERIES)
def test_percentiles_are_numpys_linear_ones(values: list[float]) -> None:
    got = summarise(values)
    q1, median, q3, p90, p99 = np.percentile(values, (25, 50, 75, 90, 99))
    assert (got.count, got.minimum) == (len(values), min(values))
    assert (got.median, got.p90, got.iqr) == (median, p90, q3 - q1)
    assert got.p99 == (p99 if len(values) >= 100 else None)
    assert got.relative_spread == relative_spread(values) == pytest.approx((q3 - q1) / median)
    assert 0 <= got.far_outliers <= got.outliers <= got.count


def test_one_sample_is_enough() -> None:
    got = summarise([2.5])
    assert (got.median, got.minimum, got.p90, got.iqr, got.relative_spread) == (2.5, 2.5, 2.5, 0, 0)
    assert got.p99 is None
    assert got.drift is None


@pytest.mark.parametrize(("count", "known"), [(99, False), (100, True)])
def test_p99_needs_a_hundred_samples(count: int, known: bool) -> None:
    assert (summarise([1.0] * count).p99 is not None) is known


def test_outliers_by_tukeys_fences_are_counted_and_kept() -> None:
    values = [10.0, 11.0, 12.0, 13.0, 14.0] * 20  # quartiles 11 and 13: fences 8 and 16, 5 and 19
    got = summarise([*values, 15.9, 16.1, 19.1, 7.9, 4.9])
    q1, q3 = np.percentile([*values, 15.9, 16.1, 19.1, 7.9, 4.9], (25, 75))
    assert (q1, q3) == (11, 13)
    assert got.outliers == 4
    assert got.far_outliers == 2
    assert got.minimum == 4.9
    assert got.count == 105


def test_zero_length_samples_never_look_precise() -> None:
    assert relative_spread([0.0] * 50) == math.inf
    got = summarise([0.0] * 50)
    assert got.relative_spread == math.inf
    assert got.drift is None


@pytest.mark.parametrize(
    ("values", "drift"),
    [([1, 1, 9, 9, 1.05, 1.05], 0.05), ([2, 2, 2, 9, 9, 9, 9, 1, 1, 1], -0.5), ([1, 2, 3, 4, 5], None)],
)
def test_drift_is_last_third_against_first(values: list[float], drift: float | None) -> None:
    assert summarise(values).drift == (None if drift is None else pytest.approx(drift))


def test_quartiles_are_samples_and_never_below_the_least() -> None:
    summary = summarise([0.243, 0.3, 0.383, 0.9, 1.1])
    assert summary.quartiles == (0.3, 0.9)
    assert summary.quartiles[0] >= summary.minimum
