"""The picture: written, of the right size, not blank, and drawn for every kind of outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyqtgraph as pg
import pytest
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import QApplication

from app.picture.race_chart import png
from app.picture.race_plots import Bars
from app.report.outcome import CaseRows
from app.report.theme import kernel_colour
from engine.problem.attention_problem import AttentionProblem
from engine.records.plan import Case
from engine.records.results import Row, Status

MakeRow = Callable[..., Row]


def drawn(groups: Sequence[CaseRows], qapp: QApplication) -> QImage:
    picture = QImage.fromData(png(groups))
    assert not picture.isNull()
    assert picture.width() == 2400
    return picture


def share(picture: QImage, colour: str) -> float:
    """Return which part of the picture's pixels, looked at on a coarse grid, has a colour."""
    wanted = QColor(colour).rgb()
    points = [(x, y) for x in range(0, picture.width(), 5) for y in range(0, picture.height(), 5)]
    return sum(picture.pixel(x, y) == wanted for x, y in points) / len(points)


def test_bars_show_in_their_kernels_colour(make_row: MakeRow, qapp: QApplication) -> None:
    case = Case(index=0, problem=AttentionProblem())
    walls = {"gpu-flash": 0.91, "gpu-naive": 2.0, "cpu-flash": 5.2, "cpu-naive": 6.1}
    picture = drawn([CaseRows(case, tuple(make_row(case, kernel, wall) for kernel, wall in walls.items()))], qapp)
    shares = {kernel: share(picture, kernel_colour(kernel)) for kernel in walls}
    assert all(part > 0.001 for part in shares.values())
    assert shares["cpu-naive"] > shares["gpu-naive"] > shares["gpu-flash"]  # longer bars for longer times
    assert share(picture, "#FFFFFF") > 0.5


def test_texts_of_an_axis_do_not_run_into_one_another(make_row: MakeRow, qapp: QApplication) -> None:
    case = Case(index=0, problem=AttentionProblem())
    row = make_row(case, "gpu-flash", 1.0, scratch_bytes=130 << 10, peak_bytes=4 << 20)
    bars = Bars([CaseRows(case, (row,))], 1200)
    levels = [axis._tickLevels[0] for axis in bars._widget.scene().items() if isinstance(axis, pg.AxisItem)]
    assert ["", "512 KiB", "", "2 MiB", ""] in [[text for _, text in level][-5:] for level in levels]
    bars._widget.close()
    bars._widget.deleteLater()


def test_skipped_and_wrong_kernels_have_no_bar(race: CaseRows, qapp: QApplication) -> None:
    picture = drawn([race], qapp)
    assert share(picture, kernel_colour("cpu-flash")) > 0.001
    assert share(picture, kernel_colour("gpu-naive")) == 0
    assert share(picture, kernel_colour("cpu-naive")) == 0


def test_a_sweep_draws_lines(sweep: Sequence[CaseRows], qapp: QApplication) -> None:
    picture = drawn(sweep, qapp)
    assert picture.height() > 1000
    for kernel in ("gpu-flash", "gpu-naive", "cpu-flash", "cpu-naive"):
        assert share(picture, kernel_colour(kernel)) > 0.0001


def test_several_sweeps_draw_a_line_each(make_row: MakeRow, qapp: QApplication) -> None:
    shapes = [(heads, seq, threads) for heads in (4, 8) for seq in (512, 1024, 4096) for threads in (1, 2)]
    groups = []
    for index, (heads, seq, threads) in enumerate(shapes):
        case = Case(index=index, problem=AttentionProblem(heads=heads, seq_q=seq), threads=threads)
        groups.append(CaseRows(case, (make_row(case, "cpu-flash", seq * heads / threads / 1e3),)))
    assert share(drawn(groups, qapp), kernel_colour("cpu-flash")) > 0.0001


@pytest.mark.parametrize("status", [Status.SKIPPED, Status.CANCELLED, Status.FAILED])
@pytest.mark.parametrize("cases", [1, 2])
def test_nothing_to_draw_is_drawn_as_such(make_row: MakeRow, qapp: QApplication, status: Status, cases: int) -> None:
    groups = []
    for index in range(cases):
        case = Case(index=index, problem=AttentionProblem(seq_q=128 << index))
        groups.append(CaseRows(case, (make_row(case, "a-kernel", status=status, message="it was <b>not</b> to be"),)))
    drawn(groups, qapp)


def test_figures_beyond_all_measure_do_not_break_it(make_row: MakeRow, qapp: QApplication) -> None:
    case = Case(index=0, problem=AttentionProblem())
    rows = (make_row(case, "cpu-flash", 1e-4, wall_ms_iqr=5.0), make_row(case, "cpu-naive", 1e7, scratch_bytes=0))
    drawn([CaseRows(case, rows)], qapp)


@pytest.mark.parametrize("lengths", [1, 3])
def test_both_directions_are_drawn(make_row: MakeRow, qapp: QApplication, lengths: int) -> None:
    problems = [
        AttentionProblem(seq_q=128 << length, direction=direction)
        for length in range(lengths)
        for direction in ("forward", "backward")
    ]
    groups = []
    for index, problem in enumerate(problems):
        case = Case(index=index, problem=problem)
        groups.append(CaseRows(case, (make_row(case, "gpu-flash", problem.flops() / 1e8),)))
    picture = drawn(groups, qapp)
    assert share(picture, kernel_colour("gpu-flash")) > 0.0001
    if lengths == 1:  # bars, one for each direction
        assert picture.height() > drawn(groups[:1], qapp).height()
        assert share(picture, kernel_colour("gpu-flash")) > 0.005
