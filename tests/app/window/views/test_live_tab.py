"""The Live tab: samples appear, the answer so far stands on top, and pausing, hiding, zooming lose nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from made_up import batch, make_row, started
from PySide6.QtCore import QPointF, Qt
from pytestqt.qtbot import QtBot

from app.window.look.appearance import appearance
from app.window.results.session_data import SessionData
from app.window.views.live_tab import LiveTab
from engine.problem.attention_problem import AttentionProblem
from engine.records.events import (
    CaseStarted,
    Ending,
    KernelFinished,
    KernelPrepared,
    MemorySample,
    SampleBatch,
    SessionFinished,
)
from engine.records.plan import Case, Plan
from engine.records.results import Sample
from engine.storage.run_file import RunFile, SampleSeries

CASES = tuple(Case(index=index, problem=AttentionProblem(seq_q=seq)) for index, seq in enumerate((64, 128)))
PLAN = Plan(cases=CASES[:1], kernels=("gpu-flash", "cpu-flash"))
SWEEP = Plan(cases=CASES, kernels=PLAN.kernels)


@pytest.fixture
def tab(qtbot: QtBot) -> LiveTab:
    tab = LiveTab(SessionData())
    qtbot.addWidget(tab)
    tab.resize(900, 500)
    tab.show()
    return tab


@pytest.fixture
def back_to_light(tab: LiveTab) -> Iterator[None]:
    yield
    appearance().follow(Qt.ColorScheme.Light)


def begin(tab: LiveTab, plan: Plan = PLAN) -> None:
    tab.data.feed(started(plan))
    tab.data.feed(CaseStarted(plan.cases[0]))


def sampled(tab: LiveTab, case: Case, first: int = 0, count: int = 20) -> None:
    tab.data.feed(batch(case, "gpu-flash", first, count, 1.0))
    tab.data.feed(batch(case, "cpu-flash", first, count, 4.0))
    tab.data.feed(MemorySample(first * 0.002, 3 << 30, 1 << 20))
    tab.refresher.now()


def said(tab: LiveTab) -> str:
    return tab.answer.text().replace("\N{NON-BREAKING HYPHEN}", "-")


def drawn(tab: LiveTab, kernel: str) -> tuple[np.ndarray, np.ndarray]:
    x, y = tab.latency._kernels[kernel]._curve.getOriginalDataset()
    return x, y


def test_it_says_what_to_do_before_anything_ran(tab: LiveTab) -> None:
    assert "press Run" in tab._hint.label.text()
    assert not tab.latency.isVisible()


def test_the_picker_has_room_for_the_longer_names_of_another_session(tab: LiveTab) -> None:
    begin(tab, SWEEP)
    width = tab.case.sizeHint().width()
    sizes = [(heads, seq) for heads in (1000, 2000) for seq in (1000, 2000)]
    problems = [AttentionProblem(heads=heads, seq_q=seq, seq_k=2 * seq) for heads, seq in sizes]
    cases = tuple(Case(index=index, problem=problem) for index, problem in enumerate(problems))
    begin(tab, Plan(cases=cases, kernels=PLAN.kernels))
    assert tab.case.sizeHint().width() > width


def test_preparing_is_said_and_first_runs_show_at_once(tab: LiveTab) -> None:
    begin(tab)
    tab.refresher.now()
    assert tab.latency.isVisible()
    assert said(tab).startswith("Preparing")
    tab.data.feed(KernelPrepared(CASES[0], "cpu-flash", 1, "", 9.0, 100))
    tab.refresher.now()
    x, y = tab.latency._kernels["cpu-flash"]._first.getData()
    assert x.tolist() == [0.0]
    assert y == pytest.approx(np.log10([9.0]))


def test_samples_median_and_answer_so_far(tab: LiveTab) -> None:
    begin(tab)
    sampled(tab, CASES[0])
    x, y = drawn(tab, "cpu-flash")
    assert x.tolist() == list(range(1, 21))
    assert y == pytest.approx(np.log10(tab.data.samples(0)["cpu-flash"]["wall_ms"]))
    level = tab.latency.levels["cpu-flash"]
    walls = tab.data.samples(0)["cpu-flash"]["wall_ms"]
    assert (level.median, level.p90) == pytest.approx(tuple(np.percentile(walls, (50, 90))))
    assert said(tab).startswith("So far gpu-flash is fastest: 1.0")
    assert "as fast as cpu-flash" in said(tab)


def test_time_and_linear_axes(tab: LiveTab) -> None:
    begin(tab)
    sampled(tab, CASES[0])
    tab.against.setCurrentIndex(1)
    tab.log.setChecked(False)
    x, y = drawn(tab, "gpu-flash")
    assert x == pytest.approx(tab.data.samples(0)["gpu-flash"]["started_s"])
    assert y == pytest.approx(tab.data.samples(0)["gpu-flash"]["wall_ms"])
    assert tab.latency.x_axis.labelText == "seconds since the session began"


def test_pausing_freezes_the_view_and_loses_nothing(tab: LiveTab) -> None:
    begin(tab)
    sampled(tab, CASES[0])
    tab.pause.click()
    sampled(tab, CASES[0], first=20)
    assert len(drawn(tab, "cpu-flash")[0]) == 20
    assert tab.pause.text() == "Resume"
    tab.pause.click()
    tab.refresher.now()
    assert len(drawn(tab, "cpu-flash")[0]) == 40


def test_what_is_asked_of_a_paused_view_is_drawn(tab: LiveTab) -> None:
    begin(tab, SWEEP)
    sampled(tab, CASES[0])
    tab.pause.click()
    tab.data.feed(CaseStarted(CASES[1]))
    sampled(tab, CASES[1], count=5)
    tab.latency.move_crosshair(15.0)  # a sample that the case under way does not have
    assert "sample 15" in tab.readout.text()
    tab.log.setChecked(False)
    assert drawn(tab, "gpu-flash")[1] == pytest.approx(tab.data.samples(0)["gpu-flash"]["wall_ms"])
    tab.legend.buttons["gpu-flash"].click()
    assert not tab.latency._kernels["gpu-flash"].shown
    assert "case 1 of 2" in tab.about.text()
    tab.case.setCurrentIndex(2)
    assert "case 2 of 2" in tab.about.text()
    assert len(drawn(tab, "cpu-flash")[0]) == 5


def test_resuming_goes_on_to_the_case_under_way(tab: LiveTab) -> None:
    begin(tab, SWEEP)
    tab.refresher.now()
    tab.pause.click()
    tab.data.feed(CaseStarted(CASES[1]))
    sampled(tab, CASES[1])
    assert "case 1 of 2" in tab.about.text()
    tab.pause.click()
    tab.refresher.now()
    assert tab.case.currentText() == "the case under way"
    assert "case 2 of 2" in tab.about.text()


def test_a_run_that_ends_while_paused_leaves_the_case_that_is_shown(tab: LiveTab) -> None:
    begin(tab, SWEEP)
    tab.refresher.now()
    tab.pause.click()
    for case in CASES:
        tab.data.feed(CaseStarted(case))
        sampled(tab, case)
        for kernel, wall in (("gpu-flash", 1.0), ("cpu-flash", 4.0)):
            tab.data.feed(KernelFinished(case, kernel, make_row(case, kernel, wall)))
    assert said(tab).startswith("Preparing")
    tab.data.feed(SessionFinished())
    tab.refresher.now()
    assert tab.case.currentText() == "seq 64"
    assert "case 1 of 2" in tab.about.text()
    assert said(tab).startswith("gpu-flash is fastest")
    assert len(drawn(tab, "cpu-flash")[0]) == 20
    assert (tab.pause.isEnabled(), tab.pause.isChecked(), tab.pause.text()) == (False, False, "Pause")


def test_the_end_of_a_run_gives_the_answer(tab: LiveTab) -> None:
    begin(tab)
    sampled(tab, CASES[0])
    for kernel, wall in (("gpu-flash", 1.0), ("cpu-flash", 4.0)):
        tab.data.feed(KernelFinished(CASES[0], kernel, make_row(CASES[0], kernel, wall)))
    tab.data.feed(SessionFinished())
    tab.refresher.now()
    assert said(tab) == "gpu-flash is fastest: 1.00 ms, 4.00× as fast as cpu-flash (wall clock)."
    assert not tab.pause.isEnabled()


def test_a_run_stopped_early_says_so(tab: LiveTab) -> None:
    begin(tab)
    tab.data.feed(SessionFinished(Ending.CANCELLED))
    tab.refresher.now()
    assert said(tab) == "Stopped before a kernel finished."


def test_it_follows_the_case_under_way_until_one_is_chosen(tab: LiveTab) -> None:
    begin(tab, SWEEP)
    sampled(tab, CASES[0])
    assert tab.case.isVisible()
    assert "case 1 of 2" in tab.about.text()
    tab.data.feed(CaseStarted(CASES[1]))
    sampled(tab, CASES[1], count=5)
    assert "case 2 of 2" in tab.about.text()
    assert len(drawn(tab, "cpu-flash")[0]) == 5
    tab.case.setCurrentIndex(1)
    assert "case 1 of 2" in tab.about.text()
    assert len(drawn(tab, "cpu-flash")[0]) == 20


def test_when_the_run_is_over_it_stays_with_the_last_case(tab: LiveTab) -> None:
    begin(tab, SWEEP)
    sampled(tab, CASES[0])
    tab.data.feed(CaseStarted(CASES[1]))
    sampled(tab, CASES[1])
    assert tab.case.currentText() == "the case under way"
    tab.data.feed(SessionFinished())
    tab.refresher.now()
    assert [tab.case.itemText(n) for n in range(tab.case.count())] == ["seq 64", "seq 128"]
    assert tab.case.currentText() == "seq 128"


def test_the_legend_hides_a_kernel_and_brings_another_out(tab: LiveTab) -> None:
    begin(tab)
    sampled(tab, CASES[0])
    tab.legend.buttons["gpu-flash"].click()
    tab.refresher.now()
    assert not tab.latency._kernels["gpu-flash"]._curve.isVisible()
    assert tab.latency._kernels["cpu-flash"]._curve.isVisible()
    tab.legend.buttons["gpu-flash"].click()
    tab.legend.highlighted = "cpu-flash"
    tab.refresher.now()
    assert tab.latency._kernels["cpu-flash"].strong
    assert tab.latency._kernels["gpu-flash"].colour != appearance().palette.kernel("gpu-flash")


def test_the_crosshair_reads_the_samples_under_it(tab: LiveTab) -> None:
    begin(tab)
    sampled(tab, CASES[0])
    tab.latency.move_crosshair(7.2)
    wall = tab.data.samples(0)["cpu-flash"]["wall_ms"][6]
    assert "sample 7" in tab.readout.text()
    assert f"<b>{wall:.2f} ms</b>" in tab.readout.text()
    tab.against.setCurrentIndex(1)
    tab.latency.move_crosshair(0.0121)
    assert "cpu-flash #7" in tab.readout.text()
    tab.latency.move_crosshair(None)
    assert tab.readout.text() == tab._explained()
    tab.memory.move_crosshair(1.0)
    assert "3.00 GiB resident, 1.00 MiB held on the GPU" in tab.readout.text()


def test_memory_shows_the_worker_the_gpu_and_scratch(tab: LiveTab) -> None:
    begin(tab)
    tab.data.feed(KernelPrepared(CASES[0], "gpu-flash", 1, "", 9.0, 4096))
    sampled(tab, CASES[0])
    sampled(tab, CASES[0], first=20)
    tab.draw()  # while running, memory is drawn a few times a second
    assert tab.memory._process.getOriginalDataset()[1].tolist() == [3 << 30] * 2  # beyond 32 bits
    assert tab.memory._gpu.isVisible()
    x, y = tab.memory._scratch["gpu-flash"].getData()
    assert y.tolist() == [4096, 4096]
    assert x.tolist() == pytest.approx([0.0, 39 * 0.002])


def test_scratch_is_explained_for_both_directions(tab: LiveTab) -> None:
    assert "beyond Q, K, V and the output, backward their gradients too." in tab._lines.toolTip()


def test_a_zoomed_view_stays_while_samples_come_and_fit_follows_again(tab: LiveTab) -> None:
    begin(tab)
    sampled(tab, CASES[0])
    tab.latency.zoom(0.5, 0.5)
    before = tab.latency.view.viewRange()
    sampled(tab, CASES[0], first=20)
    assert tab.latency.view.viewRange() == before
    tab.fit.click()
    sampled(tab, CASES[0], first=40)
    tab.grab()
    assert tab.latency.view.viewRange()[0][1] >= 60


@pytest.mark.usefixtures("back_to_light")
def test_colours_follow_the_appearance_while_running(tab: LiveTab) -> None:
    begin(tab)
    sampled(tab, CASES[0])
    light = tab.grab().toImage()
    appearance().follow(Qt.ColorScheme.Dark)
    sampled(tab, CASES[0], first=20)
    dark = tab.grab().toImage()
    corner = QPointF(3, 3).toPoint()
    assert light.pixelColor(corner).lightness() > 200 > 60 > dark.pixelColor(corner).lightness()
    assert tab.latency._kernels["gpu-flash"].colour == appearance().palette.kernel("gpu-flash")


def test_samples_of_no_length_and_odd_files_do_no_harm(tab: LiveTab) -> None:
    begin(tab)
    zeros = tuple(Sample(n, 0.0, 0.0, None, 1) for n in range(5))
    tab.data.feed(SampleBatch(CASES[0], "cpu-flash", zeros))
    tab.data.feed(SampleBatch(CASES[0], "not-in-the-plan", zeros))
    tab.refresher.now()
    tab.grab()
    assert said(tab).startswith("Preparing")  # nothing was timed
    tab.data.feed(batch(CASES[0], "cpu-flash", 5, 3))
    tab.refresher.now()
    tab.grab()
    tab.log.setChecked(False)
    tab.against.setCurrentIndex(1)
    tab.grab()


def test_a_tab_that_nobody_sees_draws_when_it_is_shown(tab: LiveTab) -> None:
    tab.hide()
    begin(tab)
    sampled(tab, CASES[0])
    assert tab.latency._kernels == {}
    tab.show()
    assert len(drawn(tab, "cpu-flash")[0]) == 20


def opened(samples: int) -> RunFile:
    series = tuple(
        SampleSeries(kernel=kernel, case=0, samples=batch(CASES[0], kernel, 0, samples // 2).samples)
        for kernel in PLAN.kernels
    )
    event = started(PLAN)
    return RunFile(
        run_id="r", started_at=event.started_at, reason="done", environment=event.environment, plan=PLAN, results=(),
        samples=series,
    )  # fmt: skip


def test_curves_of_any_length_are_thinned_to_what_the_screen_shows(tab: LiveTab) -> None:
    tab.data.load(opened(200_000))
    curve = tab.latency._kernels["cpu-flash"]._curve
    assert len(curve.getOriginalDataset()[0]) == 100_000
    tab.grab()
    assert len(curve.curve.xData) < 4 * tab.latency.width()
    tab.latency.zoom(x=0.1)
    tab.grab()
    assert len(curve.curve.xData) < 5 * tab.latency.width()
