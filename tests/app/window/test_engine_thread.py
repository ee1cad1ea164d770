"""The bridge with a scripted engine: order, states, one end to every run, and a thread that always ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from made_up import CPU, GPU, batch, started
from pytestqt.qtbot import QtBot
from scripted_engine import ScriptedEngine, whole_race

from app.window.engine_thread import EngineBridge, EngineState
from engine.common.running import ShouldStop
from engine.problem.attention_problem import AttentionProblem
from engine.process.host import EngineBroke, EngineDied
from engine.records.events import Ending, Event, LogLine, SessionFinished, SessionStarted
from engine.records.plan import Case, Plan

ROOT = Path(__file__).parent.parent.parent.parent
CASE = Case(index=0, problem=AttentionProblem(heads=2, seq_q=32))
PLAN = Plan(cases=(CASE,), kernels=("gpu-flash", "cpu-flash"))
Emit = Callable[[Event], None]


class Window:
    """What a window would see of a bridge: events in order, samples drained before each of them, and states."""

    def __init__(self, bridge: EngineBridge) -> None:
        self.bridge = bridge
        self.events: list[Event] = []
        self.states: list[EngineState] = []
        self.failures: list[str] = []
        bridge.happened.connect(self.take)
        bridge.state_changed.connect(self.states.append)
        bridge.failed.connect(self.failures.append)

    def take(self, event: Event) -> None:
        self.events += [*self.bridge.drain(), event]

    @property
    def ends(self) -> list[SessionFinished]:
        return [event for event in self.events if isinstance(event, SessionFinished)]


@pytest.fixture
def bridge(qtbot: QtBot, engine: ScriptedEngine) -> Iterator[EngineBridge]:
    bridge = EngineBridge(engine)
    with qtbot.waitSignal(bridge.devices_ready):
        bridge.start()
    qtbot.waitUntil(lambda: bridge.state is EngineState.IDLE)
    yield bridge
    assert bridge.close()
    assert engine.closed


@pytest.fixture
def window(bridge: EngineBridge) -> Window:
    return Window(bridge)


def finish(qtbot: QtBot, bridge: EngineBridge, act: Callable[[], None]) -> None:
    """Do something and wait for the run to end."""
    with qtbot.waitSignal(bridge.happened, check_params_cb=lambda event: isinstance(event, SessionFinished)):
        act()


def test_devices_arrive_in_the_background(qtbot: QtBot, engine: ScriptedEngine) -> None:
    bridge = EngineBridge(engine)
    assert bridge.state is EngineState.STARTING
    with qtbot.waitSignal(bridge.devices_ready) as got:
        bridge.start()
    assert got.args == [[GPU, CPU]]
    with qtbot.waitSignal(bridge.devices_ready):
        bridge.refresh_devices()
    assert engine.listed_anew == 1
    with qtbot.waitSignal(bridge.doctor_ready) as found:
        bridge.examine()
    assert found.args[0][0].name == "Python"
    bridge.close()


def test_events_and_samples_come_in_the_order_they_were_told(
    qtbot: QtBot, bridge: EngineBridge, engine: ScriptedEngine, window: Window
) -> None:
    told: list[Event] = []

    def script(plan: Plan, emit: Emit, should_stop: ShouldStop) -> None:
        whole_race(plan, told.append, should_stop)
        for event in told:
            emit(event)

    engine.script = script
    finish(qtbot, bridge, lambda: bridge.run(PLAN))
    assert window.events == told
    assert window.states == [EngineState.RUNNING, EngineState.IDLE]
    assert bridge.drain() == []


def test_samples_wait_for_the_event_before_them(qtbot: QtBot, bridge: EngineBridge, engine: ScriptedEngine) -> None:
    """A timer that drains before SessionStarted was delivered must not get the samples that follow it."""
    told, leave = threading.Event(), threading.Event()

    def script(plan: Plan, emit: Emit, should_stop: ShouldStop) -> None:
        emit(batch(CASE, "cpu-flash", 0, 1))
        emit(started(plan))
        emit(batch(CASE, "cpu-flash", 1, 1))
        told.set()
        leave.wait()
        emit(SessionFinished())

    engine.script = script
    bridge.run(PLAN)
    told.wait()
    assert [event.samples[0].index for event in bridge.drain()] == [0]  # type: ignore[union-attr]
    with qtbot.waitSignal(bridge.happened):
        pass
    assert [event.samples[0].index for event in bridge.drain()] == [1]  # type: ignore[union-attr]
    finish(qtbot, bridge, leave.set)


def test_stop_asks(qtbot: QtBot, bridge: EngineBridge, engine: ScriptedEngine, window: Window) -> None:
    def script(plan: Plan, emit: Emit, should_stop: ShouldStop) -> None:
        emit(started(plan))
        while not should_stop():
            threading.Event().wait(0.001)
        emit(SessionFinished(Ending.CANCELLED))

    engine.script = script
    bridge.stop()  # nothing runs: nothing happens
    with qtbot.waitSignal(bridge.happened):
        bridge.run(PLAN)
    with pytest.raises(RuntimeError, match="under way"):
        bridge.run(PLAN)
    finish(qtbot, bridge, bridge.stop)
    assert window.ends == [SessionFinished(Ending.CANCELLED)]
    assert window.states == [EngineState.RUNNING, EngineState.STOPPING, EngineState.IDLE]
    engine.script = whole_race
    finish(qtbot, bridge, lambda: bridge.run(PLAN))
    assert window.ends[1:] == [SessionFinished()]  # the stop was for the run before


@pytest.mark.parametrize("ended", [False, True])
def test_a_run_that_raises_ends_once(
    qtbot: QtBot, bridge: EngineBridge, engine: ScriptedEngine, window: Window, ended: bool
) -> None:
    def script(plan: Plan, emit: Emit, should_stop: ShouldStop) -> None:
        emit(started(plan))
        if ended:
            emit(SessionFinished())
        raise ZeroDivisionError("no pipe")

    engine.script = script
    with qtbot.waitSignal(bridge.broke) as broke:
        finish(qtbot, bridge, lambda: bridge.run(PLAN))
    assert "ZeroDivisionError: no pipe" in broke.args[0]
    assert len(window.ends) == 1
    assert isinstance(window.events[0], SessionStarted)
    if not ended:
        assert window.ends[0].reason == "the run broke: ZeroDivisionError: no pipe"
        assert any(isinstance(event, LogLine) and "ZeroDivisionError" in event.text for event in window.events)
    qtbot.waitUntil(lambda: bridge.state is EngineState.IDLE)


def test_an_engine_that_cannot_start_is_dead_until_it_can(
    qtbot: QtBot, bridge: EngineBridge, engine: ScriptedEngine, window: Window
) -> None:
    def die() -> None:
        raise EngineDied("the engine process ended with exit status 1", ("no numpy",))

    engine.listing = die  # type: ignore[assignment]
    bridge.refresh_devices()
    qtbot.waitUntil(lambda: bridge.state is EngineState.DEAD)
    assert window.failures == ["the engine process ended with exit status 1\nno numpy"]
    engine.listing = lambda: [CPU]
    with qtbot.waitSignal(bridge.devices_ready):
        bridge.refresh_devices()
    qtbot.waitUntil(lambda: bridge.state is EngineState.IDLE)


def test_an_error_nobody_expected_is_told_with_its_traceback(
    qtbot: QtBot, bridge: EngineBridge, engine: ScriptedEngine
) -> None:
    def raise_there() -> None:
        raise EngineBroke("KeyError: 'x'", "Traceback of the worker")

    engine.listing = raise_there  # type: ignore[assignment]
    with qtbot.waitSignal(bridge.broke) as broke:
        bridge.refresh_devices()
    assert broke.args == ["Traceback of the worker"]


def test_closing_insists(qtbot: QtBot, engine: ScriptedEngine) -> None:
    """An engine that does not stop when asked is killed, and what it still has to say is told."""

    def script(plan: Plan, emit: Emit, should_stop: ShouldStop) -> None:
        emit(started(plan))
        engine.killed.wait()
        emit(SessionFinished(Ending.CANCELLED))

    engine.script = script
    bridge = EngineBridge(engine)
    bridge.start()
    window = Window(bridge)
    with qtbot.waitSignal(bridge.happened):
        bridge.run(PLAN)
    assert bridge.close(timeout_s=1)
    assert engine.killed.is_set()
    assert window.ends == [SessionFinished(Ending.CANCELLED)]


def test_a_thread_that_hangs_is_told_of(qtbot: QtBot, engine: ScriptedEngine) -> None:
    leave = threading.Event()
    engine.listing = lambda: [leave.wait(), CPU][1:]  # type: ignore[list-item]
    bridge = EngineBridge(engine)
    bridge.start()
    assert not bridge.close(timeout_s=0.02)
    assert not engine.closed
    leave.set()
    assert bridge.close()


EMISSIONS = """
import sys
from PySide6.QtCore import QCoreApplication
from app.window.engine_thread import EngineBridge
from engine.records.events import LogLine, SessionFinished
from engine.records.plan import Plan

class Engine:
    def start(self): pass
    def devices(self, *, anew=False): return []
    def kill(self): pass
    def close(self): pass
    def run(self, plan, emit, should_stop):
        for number in range(5000):
            emit(LogLine("info", str(number)))
        emit(SessionFinished())

application = QCoreApplication(sys.argv)
bridge = EngineBridge(Engine())
seen = []
def take(event):
    seen.append(event)
    if isinstance(event, SessionFinished):
        application.quit()
bridge.happened.connect(take)
bridge.start()
bridge.run(Plan(cases=(), kernels=()))
for _ in range(5000):
    bridge.state_changed.emit(True)  # the very value that some versions of Qt for Python lose a reference to
application.exec()
assert bridge.close()
print(len(seen))
"""


def test_five_thousand_signals_do_no_harm() -> None:
    command = [sys.executable, "-c", EMISSIONS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "5001\n", "")
