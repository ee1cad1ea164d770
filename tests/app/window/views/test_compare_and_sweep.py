"""Compare and Sweep: the answer on top, what is drawn and tabled, what did not run, and pictures of it all."""

from __future__ import annotations

import math
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyqtgraph as pg
import pytest
from made_up import make_row, started
from PySide6.QtCore import QPoint, QRectF, Qt
from PySide6.QtGui import QGuiApplication, QHelpEvent, QImage
from PySide6.QtWidgets import QApplication, QToolTip
from pytestqt.qtbot import QtBot

from app.report.outcome import CaseRows
from app.window.charts import bars_view
from app.window.charts.bars_view import BarsView
from app.window.charts.sweep_chart import SweepChart
from app.window.results.session_data import SessionData
from app.window.views.compare_tab import CompareTab
from app.window.views.sweep_tab import SweepTab
from app.window.views.tab import ChartTab
from engine.problem.attention_problem import AttentionProblem
from engine.records.events import CaseStarted, KernelFinished, SessionFinished
from engine.records.plan import Case, Plan
from engine.records.results import Status


@pytest.fixture
def data(qtbot: QtBot) -> SessionData:
    return SessionData()


def shown(qtbot: QtBot, tab: ChartTab) -> ChartTab:
    qtbot.addWidget(tab)
    tab.resize(900, 560)
    tab.show()
    return tab


@pytest.fixture
def compare(data: SessionData, qtbot: QtBot) -> CompareTab:
    tab = shown(qtbot, CompareTab(data))
    assert isinstance(tab, CompareTab)
    return tab


@pytest.fixture
def sweeping(data: SessionData, qtbot: QtBot) -> SweepTab:
    tab = shown(qtbot, SweepTab(data))
    assert isinstance(tab, SweepTab)
    return tab


def feed(tab: ChartTab, *groups: CaseRows, finished: bool = True) -> None:
    plan = Plan(cases=tuple(group.case for group in groups), kernels=tuple(row.kernel for row in groups[0].rows))
    tab.data.feed(started(plan))
    for group in groups:
        tab.data.feed(CaseStarted(group.case))
        for row in group.rows:
            tab.data.feed(KernelFinished(group.case, row.kernel, row))
        tab.refresher.now()
    if finished:
        tab.data.feed(SessionFinished())
        tab.refresher.now()


def said(tab: ChartTab) -> str:
    return tab.answer.text().replace("\N{NON-BREAKING HYPHEN}", "-")


def cells(tab: CompareTab, title: str) -> list[str]:
    model = tab.table.model()
    titles = [model.headerData(n, Qt.Orientation.Horizontal) for n in range(model.columnCount())]
    return [model.index(row, titles.index(title)).data() for row in range(model.rowCount())]


# --- compare --------------------------------------------------------------------------------------------------------


def test_the_winner_stands_on_top(compare: CompareTab, race: CaseRows) -> None:
    assert "Press Run" in compare._hint.label.text()
    feed(compare, race)
    assert said(compare) == (
        "cpu-flash is fastest: 6.12 ms, 21.4× as fast as gpu-flash (wall clock). "
        "cpu-naive is wrong: max abs error 0.3 is above the bound 3e-06."
    )
    assert "software: llvmpipe" in compare.about.text()
    assert "Mesa 22.3.6" in compare.about.text()
    assert cells(compare, "kernel") == ["gpu-flash", "gpu-naive", "cpu-flash", "cpu-naive"]
    assert cells(compare, "status") == ["ok", "skipped", "ok", "wrong"]
    assert "wall clock with wall clock" in compare._clock.text()


def test_any_kernel_can_be_the_baseline(compare: CompareTab, sweep: tuple[CaseRows, ...]) -> None:
    feed(compare, sweep[0])
    assert cells(compare, "vs naive") == ["1.42×", "1.42×", "1.00×", "1.00×"]
    compare.baseline.setCurrentText("cpu-flash")
    assert cells(compare, "vs cpu-flash") == ["0.0119×", "1.00×", "0.00714×", "0.714×"]
    feed(compare, sweep[1])
    assert compare.baseline.currentText() == "cpu-flash"  # it stays for the next session


def test_the_newest_case_is_shown_until_another_is_chosen(compare: CompareTab, sweep: tuple[CaseRows, ...]) -> None:
    feed(compare, *sweep)
    assert compare.case.currentText() == "seq 2048"
    assert "case 5 of 5" in compare.about.text()
    compare.case.setCurrentIndex(1)
    compare.case.activated.emit(1)
    assert "case 2 of 5" in compare.about.text()
    assert cells(compare, "median ms")[0] == "105"


def test_a_chosen_case_stays_while_others_come(compare: CompareTab, sweep: tuple[CaseRows, ...]) -> None:
    feed(compare, *sweep, finished=False)
    compare.case.setCurrentIndex(0)
    compare.data.feed(SessionFinished())
    compare.refresher.now()
    assert compare.case.currentText() == "seq 128"


def test_cases_that_a_stop_left_out_are_not_shown_first(compare: CompareTab, sweep: tuple[CaseRows, ...]) -> None:
    kernels = [row.kernel for row in sweep[0].rows]
    never = [
        CaseRows(group.case, tuple(make_row(group.case, kernel, status=Status.CANCELLED) for kernel in kernels))
        for group in sweep[2:]
    ]
    feed(compare, *sweep[:2], *never)
    assert compare.case.count() == 5
    assert compare.case.currentText() == "seq 256"
    feed(compare, *never)
    assert compare.case.currentText() == "seq 2048"


@pytest.mark.parametrize(("which", "picker"), [("compare", "case"), ("sweeping", "line")])
def test_a_picker_has_room_for_the_longer_names_of_another_session(
    which: str, picker: str, request: pytest.FixtureRequest, qtbot: QtBot
) -> None:
    tab = request.getfixturevalue(which)
    widths = []
    for heads in ((8,), (1000, 2000)):
        problems = [
            AttentionProblem(heads=count, seq_q=seq, direction=way)
            for count in heads for seq in (128, 256) for way in ("forward", "backward")
        ]  # fmt: skip
        cases = [Case(index=index, problem=problem) for index, problem in enumerate(problems)]
        feed(tab, *(CaseRows(case, (make_row(case, "gpu-flash", 1.0),)) for case in cases))
        widths.append(getattr(tab, picker).sizeHint().width())
    assert widths[1] > widths[0]


def test_a_case_under_way_says_so_far(compare: CompareTab, race: CaseRows) -> None:
    plan = Plan(cases=(race.case,), kernels=tuple(row.kernel for row in race.rows))
    compare.data.feed(started(plan))
    compare.refresher.now()
    assert "first kernel's result appears here" in compare._hint.label.text()
    compare.data.feed(KernelFinished(race.case, "cpu-flash", race.rows[2]))
    compare.refresher.now()
    assert said(compare).startswith("So far: cpu-flash took 6.12 ms")


def test_bars_explain_themselves(compare: CompareTab, race: CaseRows, qtbot: QtBot) -> None:
    feed(compare, race)
    view = compare.bars
    place = view._band(1).center().toPoint()
    QApplication.sendEvent(view, QHelpEvent(QHelpEvent.Type.ToolTip, place, view.mapToGlobal(place)))
    qtbot.waitUntil(lambda: "binds at most 128 MiB" in QToolTip.text())
    away = QPoint(2, 2)
    QApplication.sendEvent(view, QHelpEvent(QHelpEvent.Type.ToolTip, away, view.mapToGlobal(away)))
    qtbot.waitUntil(lambda: not QToolTip.isVisible())


def test_bars_are_as_long_as_their_figures_say(qtbot: QtBot, sweep: tuple[CaseRows, ...]) -> None:
    view = BarsView()
    qtbot.addWidget(view)
    view.resize(800, 300)
    case = Case(index=0, problem=AttentionProblem())
    rows = [make_row(case, "gpu-flash", 8.0), make_row(case, "cpu-flash", 4.0)]
    view.show_rows(rows, (), None)
    latency, _ = view._panels()
    left = latency.x(0)
    assert math.isclose(latency.x(8.0) - left, 2 * (latency.x(4.0) - left))
    view.show_rows(rows, {"gpu-flash"}, None)
    assert [row.kernel for row in view._rows] == ["cpu-flash"]


@pytest.mark.parametrize("size", [(460, 120), (640, 280), (1600, 900)])
def test_bars_stay_within_any_size(compare: CompareTab, race: CaseRows, size: tuple[int, int]) -> None:
    feed(compare, race)
    compare.bars.resize(*size)
    latency, memory = compare.bars._panels()
    assert latency.area.right() < memory.area.left()
    assert memory.area.right() <= size[0] + 1
    assert not compare.bars.grab().isNull()


@pytest.mark.parametrize("width", [500, 560, 640, 700, 800])
def test_the_memory_axis_is_named_at_even_steps(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    said: list[str] = []
    draw = bars_view._Drawing._text

    def note(self: bars_view._Drawing, place: QRectF, text: str, *style: Any) -> float:
        said.append(text)
        return draw(self, place, text, *style)

    monkeypatch.setattr(bars_view._Drawing, "_text", note)
    view = BarsView()
    qtbot.addWidget(view)
    view.resize(width, 200)
    fields = {"peak_bytes": 5_700_000, "scratch_bytes": 5_400_000}
    view.show_rows([make_row(Case(index=0, problem=AttentionProblem()), "cpu-flash", 1.0, **fields)], (), None)
    view.grab()
    begin = said.index("Memory")
    named = [int(found[1]) for text in said[begin:] if (found := re.fullmatch(r"(\d)(?: MiB)?", text))]
    assert named[0] == 0
    assert len({after - before for before, after in pairwise(named)}) == 1


# --- sweep ----------------------------------------------------------------------------------------------------------


def marks(chart: SweepChart, symbol: str | None = None) -> list[pg.SpotItem]:
    scatters = [item for item in chart.plotItem.items if isinstance(item, pg.ScatterPlotItem)]
    return [spot for item in scatters for spot in item.points() if symbol in (None, spot.symbol())]


def test_curves_run_over_the_swept_value(sweeping: SweepTab, sweep: tuple[CaseRows, ...]) -> None:
    feed(sweeping, *sweep)
    assert said(sweeping) == "cpu-flash is fastest in all 5 cases, by 1.40× to 84.0× over the next (wall clock)."
    spots = [(10 ** spot.pos().x(), 10 ** spot.pos().y()) for spot in marks(sweeping.latency, "o")]
    assert spots == [pytest.approx((seq, 420 * (seq / 512) ** 2)) for seq in (128, 256, 512, 1024, 2048)]
    sizes = [10 ** spot.pos().y() for spot in marks(sweeping.memory, "o")]
    assert sizes == [pytest.approx(group.rows[0].peak_bytes) for group in sweep]


def test_what_did_not_run_is_marked_above_with_its_reason(sweeping: SweepTab, sweep: tuple[CaseRows, ...]) -> None:
    feed(sweeping, *sweep)
    for chart in (sweeping.latency, sweeping.memory):
        crosses = marks(chart, "x")
        assert sorted(spot.data().row.kernel for spot in crosses) == ["cpu-naive", "gpu-naive"]
        highest = max(spot.pos().y() for spot in marks(chart) if spot.symbol() != "x")
        assert all(spot.pos().y() > highest for spot in crosses)
        told = chart._tip(0, 0, crosses[0].data())
        assert "skipped. its scores need 64 MiB, the limit is 48 MiB" in told
    assert sweeping._note.isVisible()


def test_a_point_says_its_figures(sweeping: SweepTab, sweep: tuple[CaseRows, ...]) -> None:
    feed(sweeping, *sweep)
    point = marks(sweeping.latency, "o")[2].data()
    assert sweeping.latency._tip(0, 0, point) == "gpu-flash at 512: 420 ms"
    assert sweeping.memory._tip(0, 0, point).startswith("gpu-flash at 512: 2.67 MiB, scratch 684 KiB")


def test_two_sweeps_are_shown_one_line_at_a_time(sweeping: SweepTab) -> None:
    cases = [
        Case(index=2 * number + other, problem=AttentionProblem(heads=heads, seq_q=seq))
        for number, heads in enumerate((4, 8))
        for other, seq in enumerate((128, 256, 512)[:2])
    ]
    groups = [CaseRows(case, (make_row(case, "gpu-flash", case.index + 1.0),)) for case in cases]
    feed(sweeping, *groups)
    assert [sweeping.axis.itemText(n) for n in range(sweeping.axis.count())] == ["sequence length", "heads"]
    assert [sweeping.line.itemText(n) for n in range(sweeping.line.count())] == ["heads 4", "heads 8"]
    assert [round(10 ** spot.pos().y()) for spot in marks(sweeping.latency, "o")] == [1, 2]
    sweeping.line.setCurrentIndex(1)
    sweeping.line.activated.emit(1)
    assert [round(10 ** spot.pos().y()) for spot in marks(sweeping.latency, "o")] == [3, 4]
    sweeping.axis.setCurrentIndex(1)
    sweeping.axis.activated.emit(1)
    assert [round(10 ** spot.pos().y()) for spot in marks(sweeping.latency, "o")] == [1, 3]


def test_directions_are_two_lines_with_their_names_from_the_start(sweeping: SweepTab) -> None:
    ways = [(seq, way) for seq in (128, 256) for way in ("forward", "backward")]
    cases = [
        Case(index=index, problem=AttentionProblem(seq_q=seq, direction=way))  # type: ignore[arg-type]
        for index, (seq, way) in enumerate(ways)
    ]
    plan = Plan(cases=tuple(cases), kernels=("gpu-flash",))
    sweeping.data.feed(started(plan))
    for case in cases[:3]:  # the last one, backward, has yet to come
        sweeping.data.feed(KernelFinished(case, "gpu-flash", make_row(case, "gpu-flash", case.index + 1.0)))
    sweeping.refresher.now()
    assert [sweeping.line.itemText(n) for n in range(sweeping.line.count())] == ["forward", "backward"]
    assert [round(10 ** spot.pos().y()) for spot in marks(sweeping.latency, "o")] == [1, 3]
    assert sweeping.about.text().endswith(" · f32 · forward")  # pictures hold this line, and not the choices
    sweeping.line.setCurrentIndex(1)
    sweeping.line.activated.emit(1)
    assert [round(10 ** spot.pos().y()) for spot in marks(sweeping.latency, "o")] == [2]
    assert sweeping.about.text().endswith(" · f32 · backward")
    assert "flash took 2.00 ms" in sweeping.answer.text()  # the answer to what is drawn


def test_two_directions_are_no_sweep(sweeping: SweepTab) -> None:
    problems = (AttentionProblem(), AttentionProblem(direction="backward"))
    cases = [Case(index=index, problem=problem) for index, problem in enumerate(problems)]
    feed(sweeping, *(CaseRows(case, (make_row(case, "gpu-flash", 1.0),)) for case in cases))
    assert not sweeping.latency.isVisible()
    assert "Nothing is swept" in sweeping._hint.label.text()


def test_without_a_sweep_it_says_how_to_make_one(sweeping: SweepTab, race: CaseRows) -> None:
    feed(sweeping, race)
    assert not sweeping.latency.isVisible()
    assert "256..4096*2" in sweeping._hint.label.text()


def test_hidden_kernels_leave_both_charts(sweeping: SweepTab, sweep: tuple[CaseRows, ...]) -> None:
    feed(sweeping, *sweep)
    sweeping.legend.buttons["gpu-flash"].click()
    sweeping.refresher.now()
    assert marks(sweeping.latency, "o") == []
    assert marks(sweeping.memory, "o") == []


# --- pictures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["compare", "sweeping"])
def test_pictures_are_written_and_copied(
    which: str, request: pytest.FixtureRequest, sweep: tuple[CaseRows, ...], tmp_path: Path
) -> None:
    tab: ChartTab = request.getfixturevalue(which)
    feed(tab, *sweep)
    tab.export_png(tmp_path / "a.png", 3.0)
    image = QImage(os.fspath(tmp_path / "a.png"))
    assert image.width() > 3 * 0.9 * tab.width()
    tab.export_svg(tmp_path / "a.svg")
    drawing = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "fastest" in drawing
    tab.copy_image()
    assert not QGuiApplication.clipboard().image().isNull()
    assert all(chart.pen_scale == 1.0 and not chart.in_vectors for chart in tab.charts())


def test_a_picture_that_cannot_be_written_raises_and_leaves_the_view_as_it_was(
    sweeping: SweepTab, sweep: tuple[CaseRows, ...], tmp_path: Path
) -> None:
    feed(sweeping, *sweep)
    with pytest.raises(OSError, match="gone"):
        sweeping.export_png(tmp_path / "gone" / "a.png", 2.0)
    assert sweeping.latency.pen_scale == 1.0
