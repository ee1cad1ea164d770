"""The window on a scripted engine: run, stop, what it says of trouble, what it keeps, and every action by keyboard."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up import CPU, batch, make_row, started
from PySide6.QtCore import QLocale, Qt
from PySide6.QtGui import QAction, QGuiApplication, QShortcut
from PySide6.QtWidgets import QDoubleSpinBox
from pytestqt.qtbot import QtBot
from scripted_engine import ScriptedEngine, whole_race

from app.window.charts.refresher import Refresher
from app.window.dialogs.about import AboutDialog
from app.window.dialogs.crash import CrashDialog
from app.window.dialogs.how_to_read import HowToRead
from app.window.dialogs.shortcuts import Shortcuts, shortcuts_of
from app.window.engine_thread import EngineState
from app.window.files.questions import Answer
from app.window.look.appearance import appearance
from engine.common.running import ShouldStop
from engine.records.events import (
    CaseStarted,
    Ending,
    Event,
    KernelFinished,
    KernelPrepared,
    LogLine,
    Phase,
    Progress,
    SampleBatch,
    SessionFinished,
)
from engine.records.plan import Plan

Emit = Callable[[Event], None]
Window = Any  # app.window.main_window.MainWindow
CONTROL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier
ALT = Qt.KeyboardModifier.AltModifier


def run(qtbot: QtBot, window: Window) -> None:
    """Press Run and wait for the end."""
    with qtbot.waitSignal(window.data.finished):
        window.actions_.run.trigger()


class Held:
    """A script that tells of a few samples, then waits to be stopped, killed or released."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self.release = threading.Event()
        self.deaf = False
        engine.script = self

    def __call__(self, plan: Plan, emit: Emit, should_stop: ShouldStop) -> None:
        emit(started(plan))
        emit(CaseStarted(plan.cases[0]))
        emit(KernelPrepared(plan.cases[0], plan.kernels[0], 1 << 20, ""))
        emit(batch(plan.cases[0], plan.kernels[0], 0, 8))
        row = make_row(plan.cases[0], plan.kernels[1], 2.0)
        emit(KernelFinished(plan.cases[0], plan.kernels[1], row))
        emit(Progress(1.5, 4, 12.0, Phase.MEASURING))
        while not (self._engine.killed.is_set() or self.release.is_set() or (should_stop() and not self.deaf)):
            threading.Event().wait(0.001)
        emit(SessionFinished(Ending.CANCELLED if should_stop() else Ending.DONE))


def started_held(qtbot: QtBot, window: Window) -> None:
    """Press Run on a held script and wait until it holds."""
    window.actions_.run.trigger()
    qtbot.waitUntil(lambda: len(window.data.rows) == 1)


def test_a_fresh_window_is_ready_and_says_what_to_do(window: Window) -> None:
    assert window.windowTitle() == "FlashScope (software GPU)"
    assert window.status.text == "Ready"
    assert window.actions_.run.isEnabled()
    assert not window.actions_.stop.isEnabled()
    assert not any(action.isEnabled() for action in window.actions_.of_results)
    assert window.notices.texts() == []


def test_run_fills_every_view(qtbot: QtBot, window: Window, engine: ScriptedEngine) -> None:
    run(qtbot, window)
    (plan,) = engine.plans
    assert plan == window.setup_panel.plan()
    assert [row.kernel for row in window.data.rows] == list(plan.kernels)
    assert window.results.model.rowCount() == 4
    counts = {kernel: len(columns) for kernel, columns in window.data.samples(0).items()}
    assert counts == dict.fromkeys(plan.kernels, 20)
    assert window.status.text.startswith("Finished in ")
    assert "preparing gpu-flash" in window.log.text()
    assert "the run has ended: done" in window.log.text()
    assert all(action.isEnabled() for action in window.actions_.of_results)
    assert window.windowTitle() == "run 20261130-121314-a1b2[*] — FlashScope (software GPU)"
    assert window.isWindowModified()
    assert window.bridge.state is EngineState.IDLE


def test_run_is_disabled_with_a_reason(window: Window) -> None:
    window.setup_panel.texts["seq"].show_text("0")
    window.setup_panel._touch()
    assert window.setup_panel.plan() is None
    assert not window.actions_.run.isEnabled()
    assert "at least 1" in window.actions_.run.toolTip()
    window.run()  # as by a key that came a moment too early
    assert not window.bridge.busy


def test_while_it_runs_progress_is_told_and_samples_come_by_the_timer(
    qtbot: QtBot, window: Window, engine: ScriptedEngine
) -> None:
    held = Held(engine)
    window.actions_.run.trigger()
    qtbot.waitUntil(lambda: window.status.time_left == "about 12 s left")
    qtbot.waitUntil(lambda: sum(map(len, window.data.samples(0).values())) == 8)
    assert window.status.text == "Running · measuring"
    assert not window.actions_.run.isEnabled()
    assert window.actions_.run.toolTip() == "A run is under way"
    assert not window.actions_.refresh.isEnabled()
    engine.script = whole_race
    with qtbot.waitSignal(window.data.finished):
        held.release.set()
    assert window.status.time_left == "nearly done" or not window.status._left.isVisible()
    assert not window._tick.isActive()


def test_stop_asks_and_keeps_what_there_is(qtbot: QtBot, window: Window, engine: ScriptedEngine) -> None:
    Held(engine)
    started_held(qtbot, window)
    with qtbot.waitSignal(window.data.finished) as ended:
        window.actions_.stop.trigger()
        assert window.status.text.startswith("Stopping…")
        assert not window.actions_.stop.isEnabled()
    assert ended.args == ["cancelled"]
    assert window.status.text == "Stopped"
    assert window.notices.texts() == []
    assert len(window.data.rows) == 1


def test_an_engine_that_died_is_told_of_with_its_last_lines(
    qtbot: QtBot, window: Window, engine: ScriptedEngine
) -> None:
    def script(plan: Plan, emit: Emit, should_stop: ShouldStop) -> None:
        emit(started(plan))
        emit(LogLine("error", "Fatal Python error: Segmentation fault"))
        emit(SessionFinished(Ending.CUT_OFF, "the engine process was ended by SIGSEGV"))

    engine.script = script
    run(qtbot, window)
    assert window.notices.texts() == [
        "The run broke off: the engine process was ended by SIGSEGV. Its rows so far are kept."
    ]
    assert "Segmentation fault" in window.log.text()
    window.notices.choose("Show log")
    assert window.log.isVisible()
    assert window.notices.texts() == []
    engine.script = whole_race
    run(qtbot, window)
    assert len(window.data.rows) == 4


def test_a_session_that_broke_shows_a_report(qtbot: QtBot, window: Window, engine: ScriptedEngine) -> None:
    def script(plan: Plan, emit: Emit, should_stop: ShouldStop) -> None:
        emit(started(plan))
        emit(LogLine("error", "Traceback of the session"))
        emit(SessionFinished(Ending.BROKEN, "the session broke: KeyError"))

    engine.script = script
    run(qtbot, window)
    qtbot.waitUntil(lambda: window.findChild(CrashDialog) is not None)
    dialog = window.findChild(CrashDialog)
    assert "the session broke: KeyError" in dialog.report
    assert "Traceback of the session" in dialog.report


def test_one_dialog_for_all_errors_nobody_expected(qtbot: QtBot, window: Window, tmp_path: Path) -> None:
    window._reporter.install()
    try:
        thread = threading.Thread(target=lambda: 1 // 0)
        with qtbot.captureExceptions():
            thread.start()
            thread.join()
        window._reporter._unhandled(KeyError, KeyError("in a slot"), None)
        qtbot.waitUntil(lambda: len(window.findChildren(CrashDialog)) == 1)
        dialog = window.findChild(CrashDialog)
        qtbot.waitUntil(lambda: "ZeroDivisionError" in dialog.report)
        assert "in a slot" in dialog.report
        assert dialog.heading.text().startswith("2 things went wrong")
        dialog.copy()
        assert QGuiApplication.clipboard().text() == dialog.report
        written = (tmp_path / "errors.log").read_text()
        assert "ZeroDivisionError" in written
        assert "in a slot" in written
        dialog.close()
        qtbot.waitUntil(lambda: window._crash is None)
        window._reporter.report("a third one")
        qtbot.waitUntil(lambda: window.findChild(CrashDialog) is not None)
    finally:
        window._reporter.uninstall()


def test_no_devices_is_said_and_tried_again(qtbot: QtBot, window: Window, engine: ScriptedEngine) -> None:
    def die() -> None:
        from engine.process.host import EngineDied

        raise EngineDied("the engine process ended with exit status 1", ("ImportError: numpy",))

    engine.listing = die  # type: ignore[assignment]
    window.actions_.refresh.trigger()
    qtbot.waitUntil(lambda: window.bridge.state is EngineState.DEAD)
    assert window.notices.texts() == ["The engine process ended with exit status 1."]
    assert "ImportError: numpy" in window.log.text()
    engine.listing = lambda: [CPU]
    with qtbot.waitSignal(window.bridge.devices_ready):
        window.notices.choose("Try again")
    assert window.windowTitle() == "FlashScope"


def test_samples_come_in_faster_than_they_are_drawn(
    qtbot: QtBot, window: Window, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are kept, and few drawings are made of them; scripts/bench_window.py measures how free the window stays."""

    def script(plan: Plan, emit: Emit, should_stop: ShouldStop) -> None:
        emit(started(plan))
        emit(CaseStarted(plan.cases[0]))
        for number in range(3000):
            emit(batch(plan.cases[0], plan.kernels[number % 2], number // 2, 1))
            if number % 50 == 0:
                emit(Progress(number / 3000, 1, 1.0))
        emit(SessionFinished())

    drawings: list[int] = []
    now = Refresher.now
    monkeypatch.setattr(Refresher, "now", lambda self: (drawings.append(1), now(self)))
    engine.script = script
    with qtbot.waitSignal(window.data.finished, timeout=30_000):
        window.actions_.run.trigger()
    assert sum(map(len, window.data.samples(0).values())) == 3000
    assert len(drawings) < 1000


# --- closing and coming back ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "closed", "left"), [("CANCEL", False, 1), ("DISCARD", True, 0)])
def test_closing_asks_about_results_that_were_not_saved(
    qtbot: QtBot, window: Window, monkeypatch: pytest.MonkeyPatch, answer: str, closed: bool, left: int
) -> None:
    run(qtbot, window)
    monkeypatch.setattr("app.window.files.questions.what_of_unsaved", lambda *_: Answer[answer])
    assert window.close() is closed
    assert len(list(window.journal.folder.glob("*.run"))) == left


def test_closing_without_results_asks_nothing(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("app.window.files.questions.what_of_unsaved")
    assert window.close()
    assert window.ended


def test_closing_during_a_run_ends_it_and_the_next_start_offers_it(
    qtbot: QtBot, open_window: Callable[..., Window], engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("app.window.files.questions.what_of_unsaved")
    window = open_window()
    Held(engine).deaf = True
    started_held(qtbot, window)
    assert window.close()
    assert window.ended
    assert engine.killed.is_set()

    second = open_window(engine=ScriptedEngine())
    (offer,) = second.notices.texts()
    assert offer == "The run of 2026-11-30 12:13 did not finish; what it measured is kept (1 row)."
    second.notices.choose("Show it")
    assert [row.status.value for row in second.data.rows].count("cancelled") == 3
    assert len(second.data.samples(0)["gpu-flash"]) == 8
    assert second.isWindowModified()
    second.close_without_asking()

    third = open_window(engine=ScriptedEngine())  # asked about once is enough; the menu still has it
    assert third.notices.texts() == []
    from PySide6.QtWidgets import QMenu

    menu = QMenu(third)
    third.files.fill_earlier(menu)
    assert [action.text() for action in menu.actions()] == ["2026-11-30 12:13: 1 row, unfinished"]


def test_an_unfinished_run_can_be_discarded(
    qtbot: QtBot, open_window: Callable[..., Window], engine: ScriptedEngine
) -> None:
    window = open_window()
    Held(engine)
    started_held(qtbot, window)
    window.close_without_asking()
    second = open_window(engine=ScriptedEngine())
    second.notices.choose("Discard it")
    assert list(second.journal.folder.iterdir()) == []


def test_the_window_comes_back_as_it_was(qtbot: QtBot, open_window: Callable[..., Window]) -> None:
    window = open_window()
    first_size = window.size()
    window.tabs.setCurrentIndex(2)
    window.log_dock.raise_()
    window.setup_dock.hide()
    window.setup_panel.texts["seq"].show_text("256,512")
    window.setup_panel._touch()
    window.resize(window.width(), 700)
    assert window.close()

    second = open_window()
    assert (second.tabs.currentIndex(), second.setup_dock.isVisible()) == (2, False)
    assert second.height() == 700
    assert [case.problem.seq_q for case in second.setup_panel.plan().cases] == [256, 512]
    second.actions_.reset_layout.trigger()
    assert second.setup_dock.isVisible()
    assert second.size() == first_size


@pytest.mark.parametrize(
    "text",
    ["{", '{"tab": 99}', '{"geometry": "AAAA", "layout": "AAAA", "tab": 7}', '{"setup": {"seq": 5, "kernels": "x"}}'],
)
def test_damaged_settings_do_no_harm(
    folders_of_one_person: Path, open_window: Callable[..., Window], text: str
) -> None:
    file = folders_of_one_person / "config" / "settings.json"
    file.parent.mkdir()
    file.write_text(text)
    window = open_window()
    damaged = text in ("{", '{"tab": 99}')
    assert len(window.notices.texts()) == damaged
    assert file.with_name("settings.json.bak").exists() == damaged
    assert window.setup_panel.plan() is not None
    assert window.close()
    assert open_window().notices.texts() == []


# --- by keyboard ------------------------------------------------------------------------------------------------------


def test_every_action_has_keys_of_its_own(window: Window) -> None:
    actions = [a for a in vars(window.actions_).values() if isinstance(a, QAction)] + window.actions_.tabs
    keys = [action.shortcut().toString() for action in actions]
    assert "" not in keys
    assert len(set(keys)) == len(keys), "two actions on the same keys"
    listed = dict(shortcuts_of(window))
    assert {action.text().replace("&", "").rstrip("…") for action in actions} <= set(listed)
    assert listed["Run"] == "F5"
    assert all(shortcut.whatsThis() for shortcut in window.findChildren(QShortcut)), "a shortcut that F1 does not list"


def test_keys_do_what_they_say(qtbot: QtBot, window: Window) -> None:
    qtbot.waitActive(window)
    window.activateWindow()
    for number, tab in enumerate(window.charts, 1):
        qtbot.keyClick(window, str(number), CONTROL)
        assert window.tabs.currentWidget() is tab
    for key, widget in (("3", window.log), ("2", window.results), ("1", window.setup_panel)):
        qtbot.keyClick(window, key, ALT)
        focus = QGuiApplication.focusObject()
        assert widget is focus or widget.isAncestorOf(focus)
    with qtbot.waitSignal(window.data.finished):
        qtbot.keyClick(window, Qt.Key.Key_F5)
    assert window.tabs.currentIndex() == 0
    for key, modifier, dialog in (
        (Qt.Key.Key_F1, Qt.KeyboardModifier.NoModifier, Shortcuts),
        (Qt.Key.Key_F1, CONTROL, HowToRead),
        (Qt.Key.Key_A, CONTROL | SHIFT, AboutDialog),
    ):
        window.activateWindow()
        qtbot.waitUntil(window.isActiveWindow)
        qtbot.keyClick(window, key, modifier)
        shown = window.findChild(dialog)
        assert shown.isVisible()
        qtbot.keyClick(shown, Qt.Key.Key_Escape)
        qtbot.waitUntil(lambda dialog=dialog: window.findChild(dialog) is None)
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    qtbot.keyClick(window, Qt.Key.Key_F6)
    assert window.charts[0].pause.isChecked()
    with qtbot.waitSignal(window.charts[0].fit.clicked):
        qtbot.keyClick(window, Qt.Key.Key_F7)
    qtbot.keyClick(window, "F", CONTROL)
    qtbot.keyClicks(QGuiApplication.focusObject(), "cpu")
    assert window.results.table.model().rowCount() == 2
    qtbot.keyClick(window, "L", CONTROL | SHIFT)
    assert "-m app run" in QGuiApplication.clipboard().text()


def test_an_action_has_its_keys_where_text_is_typed(
    qtbot: QtBot, window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.window.files.questions.file_to_write", lambda *_: None)
    qtbot.waitActive(window)
    run(qtbot, window)
    export, panel = window.actions_.export_csv, window.setup_panel
    export.setShortcut("Ctrl+Left")  # a text field takes these everywhere, Ctrl+E on X11 only
    for field in (panel.texts["seq"].edit, window.results.filter, panel.findChild(QDoubleSpinBox)):
        field.setFocus()
        with qtbot.waitSignal(export.triggered):
            qtbot.keyClick(field, Qt.Key.Key_Left, CONTROL)
    export.setShortcut("Ctrl+E")
    edit = panel.texts["seq"].edit
    edit.setText("64,128")
    edit.setFocus()
    qtbot.keyClick(edit, Qt.Key.Key_Left, CONTROL)
    assert edit.cursorPosition() < len("64,128")  # a key that no action has is the field's


def test_about_tells_what_the_doctor_found(qtbot: QtBot, window: Window) -> None:
    with qtbot.waitSignal(window.bridge.doctor_ready):
        window.actions_.about.trigger()
    dialog = window.findChild(AboutDialog)
    assert "missing  GPU adapters  none" in dialog.report
    assert "sudo apt-get install x" in dialog.report
    dialog.copy()
    assert QGuiApplication.clipboard().text() == dialog.report


def test_a_sweep_is_watched_where_it_is_drawn(qtbot: QtBot, window: Window) -> None:
    window.setup_panel.texts["seq"].show_text("128,256")
    window.setup_panel._touch()
    window.tabs.setCurrentIndex(2)
    run(qtbot, window)
    assert window.tabs.currentIndex() == 2
    assert len(window.data.rows) == 8


def shown(qtbot: QtBot, window: Window, place: int) -> str:
    """Go to a tab and return what it says it is about."""
    window.tabs.setCurrentIndex(place)
    about = window.charts[place].about
    qtbot.waitUntil(lambda: bool(about.text()))
    return str(about.text())


def test_both_directions_are_told_apart_everywhere(
    qtbot: QtBot, open_window: Callable[..., Window], window: Window, engine: ScriptedEngine
) -> None:
    window.setup_panel.restore({"direction": "both", "seq": "64"})
    window.tabs.setCurrentIndex(2)
    run(qtbot, window)
    assert window.tabs.currentIndex() == 0  # two directions are no sweep
    (plan,) = engine.plans
    assert [case.problem.direction for case in plan.cases] == ["forward", "backward"]
    assert [row.direction for row in window.data.rows] == 4 * ["forward"] + 4 * ["backward"]
    assert "4 kernels × 2 cases" in window.setup_panel._estimate.text()
    for place, chart in enumerate(window.charts[:2]):
        shown(qtbot, window, place)
        assert [chart.case.itemText(number) for number in range(chart.case.count())] == ["forward", "backward"]
        assert chart.about.text().startswith("case 2 of 2 · backward · batch 1")
    for line in ("case 1 of 2: forward", "case 2 of 2: backward"):
        assert line in window.log.text()
    window.close_without_asking()
    assert open_window().setup_panel.direction.currentText() == "both"


def test_a_forward_run_does_not_speak_of_it(qtbot: QtBot, window: Window) -> None:
    window.setup_panel.restore({"seq": "64,128"})
    run(qtbot, window)
    abouts = [shown(qtbot, window, place) for place in range(3)]
    assert not any("forward" in text for text in (*abouts, window.log.text(), window.status.text))


def test_the_log_of_a_backward_run_says_so(qtbot: QtBot, window: Window) -> None:
    window.setup_panel.restore({"direction": "backward", "kernels": ["cpu-flash"]})
    run(qtbot, window)
    assert ": cpu-flash, 1 backward case\n" in window.log.text()
    assert shown(qtbot, window, 0).startswith("backward · batch 1")


# --- looks ------------------------------------------------------------------------------------------------------------


def test_numbers_are_those_of_the_country(
    qtbot: QtBot, window: Window, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = QLocale()
    QLocale.setDefault(QLocale("de_DE"))
    try:
        run(qtbot, window)
        assert "2,00" in window.results.table.tsv() or "2,00" in _cells(window)
        monkeypatch.setattr("app.window.files.questions.file_to_write", lambda *_: tmp_path / "out.csv")
        window.actions_.export_csv.trigger()
        assert ",2.0," in (tmp_path / "out.csv").read_text()
    finally:
        QLocale.setDefault(before)


def _cells(window: Window) -> str:
    model = window.results.table.model()
    columns = range(model.columnCount())
    return "\n".join(str(model.index(row, column).data()) for row in range(model.rowCount()) for column in columns)


def test_it_turns_dark_while_it_runs(qtbot: QtBot, window: Window, engine: ScriptedEngine) -> None:
    Held(engine)
    started_held(qtbot, window)
    try:
        appearance().follow(Qt.ColorScheme.Dark)
        assert appearance().palette.dark
        picture = window.grab().toImage()
        assert picture.pixelColor(picture.width() - 40, 12).lightness() < 80
    finally:
        appearance().follow(Qt.ColorScheme.Light)
    with qtbot.waitSignal(window.data.finished):
        window.actions_.stop.trigger()


def test_samples_that_come_after_a_new_beginning_belong_to_it(
    qtbot: QtBot, window: Window, engine: ScriptedEngine
) -> None:
    run(qtbot, window)

    def script(plan: Plan, emit: Emit, should_stop: ShouldStop) -> None:
        emit(started(plan))
        for _ in range(3):
            emit(batch(plan.cases[0], plan.kernels[0], 0, 5))
        emit(SessionFinished())

    engine.script = script
    seen: list[Event] = []
    feed = window.data.feed
    window.data.feed = lambda event: (seen.append(event), feed(event))
    run(qtbot, window)
    assert [type(event) for event in seen][1:4] == [SampleBatch] * 3
    assert len(window.data.samples(0)["gpu-flash"]) == 15
