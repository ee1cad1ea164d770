"""Marks of axes: inside the range, rising, few, and round."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.report import ticks

_positive = st.floats(1e-6, 1e12)
_bytes = st.floats(1, 2**50)


def _assert_sound(marks: ticks.Ticks, low: float, high: float) -> None:
    places = [place for place, _ in marks]
    slack = 1e-6 * (high - low)
    assert places == sorted(set(places))
    assert len(places) <= 8
    assert all(low - slack <= place <= high + slack for place in places)
    assert len({text for _, text in marks}) == len(marks)


@given(_positive)
def test_linear(high: float) -> None:
    marks = ticks.linear(0.0, high)
    assert marks[0] == (0.0, "0")
    assert len(marks) >= 3
    _assert_sound(marks, 0, high)


@given(_bytes)
def test_linear_bytes(high: float) -> None:
    _assert_sound(ticks.linear_bytes(0.0, high), 0, high)


@given(_positive, st.floats(12, 1e9))
def test_logarithmic(low: float, ratio: float) -> None:
    marks = ticks.logarithmic(low, low * ratio)
    assert len(marks) >= 1
    _assert_sound(marks, math.log10(low), math.log10(low * ratio))


@given(_bytes, st.floats(12, 2**20))
def test_logarithmic_bytes(low: float, ratio: float) -> None:
    marks = ticks.logarithmic_bytes(low, low * ratio)
    assert len(marks) >= 2
    _assert_sound(marks, math.log10(low), math.log10(low * ratio))


def test_chosen_keeps_the_swept_values_and_drops_those_that_would_run_together() -> None:
    assert [text for _, text in ticks.chosen([128, 256, 512])] == ["128", "256", "512"]
    assert [text for _, text in ticks.chosen([512, 1000, 1024, 4096])] == ["512", "1000", "4096"]
    assert ticks.chosen([7]) == [(math.log10(7), "7")]


@pytest.mark.parametrize(
    ("width", "texts"), [(10.0, "012345"), (11.0, "024"), (25.0, "03"), (35.0, "04"), (45.0, "05"), (60.0, "0")]
)
def test_texts_that_would_run_together_are_thinned_evenly(width: float, texts: str) -> None:
    spans = [(10.0 * n - width / 2, 10.0 * n + width / 2) for n in range(6)]
    assert "012345"[:: ticks.stride(spans)] == texts


def test_the_short_text_at_0_leaves_no_gap_behind_it() -> None:
    spans = [(-5.0, 5.0)] + [(15.0 * n - 10, 15.0 * n + 10) for n in range(1, 6)]
    assert ticks.stride(spans) == 2  # not 0, 1, 3, 5


def test_no_mark_is_no_text() -> None:
    assert ticks.stride([]) == 1
    assert ticks.thinned([(0, "a"), (1, "bb"), (2, "c")], lambda x: 10 * x, lambda text: 9.0 * len(text)) == [
        (0, "a"), (1, ""), (2, "c")
    ]  # fmt: skip


def test_texts_are_round() -> None:
    assert ticks.linear(0.0, 6.1) == [(0, "0"), (2, "2"), (4, "4"), (6, "6")]
    assert [text for _, text in ticks.linear_bytes(0.0, 3.67 * 2**20)] == ["0", "1 MiB", "2 MiB", "3 MiB"]
    assert [text for _, text in ticks.logarithmic(0.2, 11_000)] == ["1", "10", "100", "1,000", "10,000"]
    assert [text for _, text in ticks.logarithmic_bytes(4e5, 9e6)] == ["512 KiB", "1 MiB", "2 MiB", "4 MiB", "8 MiB"]


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(one=FINITE, other=FINITE)
@example(one=0.0, other=5e-324)
@example(one=-1e308, other=1e308)
@example(one=-1.7e308, other=1.79e308)
def test_any_two_floats_have_marks_between_them(one: float, other: float) -> None:
    low, high = sorted((one, other))
    if low < high:
        for marks in (ticks.linear, ticks.linear_bytes):
            found = marks(low, high)
            assert len(found) <= 10
            assert all(math.isfinite(place) and text for place, text in found)


@given(one=st.floats(5e-324, 1.79e308), other=st.floats(5e-324, 1.79e308))
@example(one=1e-200, other=1e200)
@example(one=1e-320, other=1e-3)
def test_any_two_positive_floats_have_marks_of_log10_between_them(one: float, other: float) -> None:
    low, high = sorted((one, other))
    for marks in (ticks.logarithmic, ticks.logarithmic_bytes):
        assert all(math.isfinite(place) and text for place, text in marks(low, high))
