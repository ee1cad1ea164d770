"""The bridge between the window and the engine: a thread that waits for the worker, so that the window never does."""

from __future__ import annotations

import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable
from enum import Enum

from PySide6.QtCore import QObject, QThread, Signal, Slot

from engine.common.messages import sentence
from engine.process.host import Engine, EngineBroke, EngineDied, Host
from engine.records.events import Ending, Event, LogLine, MemorySample, SampleBatch, SessionFinished
from engine.records.plan import Plan

_HASTE_S = 0.5  # that a run gets to stop by itself when the window closes


class EngineState(Enum):
    """What the engine is doing, as the window sees it."""

    STARTING = "starting"
    IDLE = "idle"
    RUNNING = "running"
    STOPPING = "stopping"
    DEAD = "dead"  # it could not be started; the next run or refresh tries again


class EngineBridge(QObject):
    """Runs plans on an engine and tells of them in signals; it lives in the window's thread, and so do its signals.

    Events reach the window in order: all but samples through ``happened``, samples through ``drain``, which gives those
    that came before the event being told. Every run ends with exactly one SessionFinished.
    """

    happened = Signal(object)  # engine.records.events.Event, neither SampleBatch nor MemorySample
    devices_ready = Signal(object)  # list[DeviceInfo]
    doctor_ready = Signal(object)  # list[Check]
    failed = Signal(object)  # one sentence
    broke = Signal(object)  # the traceback of an error that nobody expected
    state_changed = Signal(object)  # EngineState

    _arrived = Signal()
    _call = Signal(object)  # Callable[[], None], to be made in the window's thread

    def __init__(self, engine: Engine | None = None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._engine: Engine = engine or Host()
        self._state = EngineState.STARTING
        self._stop = threading.Event()
        self._closing = threading.Event()
        self._incoming: deque[Event] = deque()  # filled by the thread, emptied by the window
        self._samples: list[Event] = []  # out of it, and not drained yet
        self._telling = False
        self._thread = _EngineThread()
        self._arrived.connect(self._deliver)
        self._call.connect(self._make)

    @property
    def state(self) -> EngineState:
        """What the engine is doing."""
        return self._state

    @property
    def busy(self) -> bool:
        """Whether a run is under way."""
        return self._state in (EngineState.RUNNING, EngineState.STOPPING)

    def start(self) -> None:
        """Start the thread and on it the worker; ``devices_ready`` follows."""
        self._thread.start()
        self._list_devices(anew=False)

    def refresh_devices(self) -> None:
        """List the devices anew; ``devices_ready`` or ``failed`` follows."""
        self._list_devices(anew=True)

    def examine(self) -> None:
        """Ask the doctor; ``doctor_ready`` or ``failed`` follows, after the run where one is under way."""
        self._do(lambda: self._hand(self.doctor_ready.emit, self._engine.doctor()))

    def run(self, plan: Plan) -> None:
        """Start a run. Raises RuntimeError while another one is under way."""
        if self.busy:
            raise RuntimeError("a run is under way; stop it first")
        stop = self._stop = threading.Event()
        self._set_state(EngineState.RUNNING)
        self._do(lambda: self._run(plan, stop))

    def stop(self) -> None:
        """Ask the run under way to stop; the engine insists after its patience."""
        if self._state is EngineState.RUNNING:
            self._stop.set()
            self._set_state(EngineState.STOPPING)

    def drain(self) -> list[Event]:
        """Return the SampleBatch and MemorySample events that are due, in order."""
        while not self._telling and self._incoming and _is_sample(self._incoming[0]):
            self._samples.append(self._incoming.popleft())
        due, self._samples = self._samples, []
        return due

    def close(self, timeout_s: float = 2.0) -> bool:
        """End the run, the worker and the thread; tell what is still to be told. Return whether all ended in time."""
        self._closing.set()
        self._stop.set()
        self._thread.ask(None)
        ended = self._thread.wait(round(1e3 * min(_HASTE_S, timeout_s / 2)))
        if not ended:
            self._engine.kill()
            ended = self._thread.wait(round(1e3 * timeout_s / 2))
        if ended:
            self._engine.close()
        self._deliver()
        return ended

    def _list_devices(self, *, anew: bool) -> None:
        if not self.busy:
            self._set_state(EngineState.STARTING)
        self._do(lambda: self._hand(self.devices_ready.emit, self._engine.devices(anew=anew)))

    def _do(self, work: Callable[[], None]) -> None:
        """Have the thread do ``work``, and whatever comes of it end in a signal."""
        self._thread.ask(lambda: self._guarded(work))

    # --- on the engine's thread -----------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        state = EngineState.IDLE
        try:
            work()
            if not self._closing.is_set():
                self._engine.start()  # warm for what comes next, where the last one did not survive
        except EngineDied as death:
            state = EngineState.DEAD
            self._hand(self.failed.emit, "\n".join((str(death), *death.last_lines)))
        except EngineBroke as error:
            self._hand(self.broke.emit, error.traceback)
        except OSError as error:
            state = EngineState.DEAD
            self._hand(self.failed.emit, f"the engine could not be started: {sentence(error)}")
        except Exception:
            self._hand(self.broke.emit, traceback.format_exc())
        self._hand(self._settle, state)

    def _run(self, plan: Plan, stop: threading.Event) -> None:
        finished = False

        def emit(event: Event) -> None:
            nonlocal finished
            finished = isinstance(event, SessionFinished)
            self._tell(event)

        try:
            self._engine.run(plan, emit, stop.is_set)
        except Exception as error:
            if not finished:
                self._tell(LogLine("error", traceback.format_exc()))
                self._tell(SessionFinished(Ending.CUT_OFF, f"the run broke: {sentence(error)}"))
            raise

    def _tell(self, event: Event) -> None:
        self._incoming.append(event)
        if not _is_sample(event):
            self._arrived.emit()

    def _hand(self, receive: Callable[[object], None], value: object) -> None:
        """Have ``receive(value)`` called in the window's thread."""
        self._call.emit(lambda: receive(value))

    # --- on the window's thread -----------------------------------------------------------------------------------

    @Slot()
    def _deliver(self) -> None:
        while self._incoming:
            event = self._incoming.popleft()
            if _is_sample(event):
                self._samples.append(event)
                continue
            if isinstance(event, SessionFinished):
                self._set_state(EngineState.IDLE)
            self._telling = True  # what is drained meanwhile came before this event
            try:
                self.happened.emit(event)
            finally:
                self._telling = False

    @Slot(object)
    def _make(self, call: Callable[[], None]) -> None:
        call()

    def _settle(self, state: object) -> None:
        """Take note that the thread has done its last task, unless a run has been asked for since."""
        if not self.busy and isinstance(state, EngineState):
            self._set_state(state)

    def _set_state(self, state: EngineState) -> None:
        if state is not self._state:
            self._state = state
            self.state_changed.emit(state)


class _EngineThread(QThread):
    """Does what it is asked, one thing after the other, until it is asked for None."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("engine")
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def ask(self, task: Callable[[], None] | None) -> None:
        """Queue a task."""
        self._tasks.put(task)

    def run(self) -> None:
        """Do the tasks."""
        while (task := self._tasks.get()) is not None:
            task()


def _is_sample(event: Event) -> bool:
    return isinstance(event, (SampleBatch, MemorySample))
