"""The scale of bars: linear from 0, or logarithmic where figures are far apart."""

from __future__ import annotations

import math

from app.report.bar_scale import BarScale


def test_near_figures_stand_on_a_linear_axis_from_zero() -> None:
    scale = BarScale.over([2.0, None, 8.0])
    assert (scale.low, scale.high, scale.log) == (0.0, 8.0, False)
    assert scale.at(4.0) == 4.0
    assert scale.ends == (0.0, 14.0)


def test_far_figures_stand_on_a_log_axis() -> None:
    scale = BarScale.over([1.0, 100.0])
    assert scale.log
    assert scale.at(100.0) == 2.0
    assert scale.at(0.0) == math.log10(0.5)  # what lies before the axis is at its beginning
    assert [text for _, text in scale.marks(of_bytes=False)] == ["1", "3", "10", "30", "100"]


def test_no_figures_still_make_an_axis() -> None:
    scale = BarScale.over([None, 0])
    assert scale.ends[1] > scale.ends[0]
    assert scale.marks(of_bytes=True)
