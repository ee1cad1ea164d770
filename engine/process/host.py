"""Runs sessions in a worker process, so that timings know no window and a driver's crash takes none down."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from engine.common.running import ShouldStop, never_stop
from engine.devices.device import DeviceInfo
from engine.process.worker import Answer, Ask, Broke, Question, Run, Stop, work
from engine.records.events import Ending, Event, LogLine, SessionFinished
from engine.records.plan import Plan
from engine.session.unfinished import Unfinished

if TYPE_CHECKING:
    from engine.devices.doctor import Check

PATIENCE_S = 5.0  # that a stop may take before the worker is ended
_LOOK_S = 0.05  # how often should_stop is asked
_LAST_LINES = 40
_TAIL_BYTES = 16 << 10
_LEAVE_S = 1.0  # for a worker that was told to go, before it is ended
_FATES = {
    "SIGSEGV": "a segmentation fault in a driver or library",
    "SIGBUS": "a bus error in a driver or library",
    "SIGABRT": "a driver or library gave up",
    "SIGILL": "an instruction this processor does not have",
    "SIGFPE": "an arithmetic fault in a driver or library",
    "SIGKILL": "as the system does when memory runs out",
}


class EngineDied(RuntimeError):  # noqa: N818 - what happened, said plainly
    """The worker process is gone; the message says how, ``last_lines`` is what it printed last."""

    def __init__(self, message: str, last_lines: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.last_lines = last_lines


class EngineBroke(RuntimeError):  # noqa: N818
    """The worker raised where nothing should; the message is one sentence, ``traceback`` the whole of it."""

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback


class Engine(Protocol):
    """What a window needs of an engine: the host, or a scripted one in tests."""

    def start(self) -> None: ...  # noqa: D102 - as in Host
    def run(self, plan: Plan, emit: Callable[[Event], None], should_stop: ShouldStop) -> None: ...  # noqa: D102
    def devices(self, *, anew: bool = False) -> list[DeviceInfo]: ...  # noqa: D102
    def doctor(self) -> list[Check]: ...  # noqa: D102
    def kill(self) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class Host:
    """The parent's side of one worker process, kept warm between runs and replaced when it dies.

    All methods but ``kill`` belong to one thread, any but the window's: they wait for the worker.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._devices: list[DeviceInfo] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._killed = False

    @property
    def pid(self) -> int | None:
        """The worker's process id, None while there is none."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the worker unless it lives already. Raises OSError where the system has no room for a process."""
        if self._process is not None and self._connection is not None and self._process.is_alive():
            with contextlib.suppress(OSError):
                if not self._connection.poll():  # an idle worker has nothing to say: what can be read is its end
                    return
        self._leave()
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="flashscope-", ignore_cleanup_errors=True)
        self._log.unlink(missing_ok=True)
        self._killed = False
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, self._log), name="engine", daemon=True)
        try:
            with _no_interrupts():
                process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()  # the worker holds the only other end: its death is the end of the pipe
        self._process, self._connection = process, ours

    def run(self, plan: Plan, emit: Callable[[Event], None], should_stop: ShouldStop = never_stop) -> None:
        """Run a plan as ``engine.session.session.run`` does, in the worker, handing ``emit`` the events.

        A worker that goes on for longer than the host's patience after ``should_stop`` answered True is ended, and one
        may die by itself: the rows it still owed are then ``cancelled``. Whatever happens, the last event is one
        SessionFinished. Raises only what ``emit`` raises.
        """
        unfinished = Unfinished(self._devices)
        try:
            self.start()
            self._send(Run(plan))
            for event in self._events(should_stop):
                unfinished(event)
                self._pass_on(event, emit)
                if isinstance(event, SessionFinished):
                    return
            last, why, said = SessionFinished(Ending.CANCELLED), "stopped", [LogLine("warning", self._insisted())]
        except EngineDied as death:
            if self._killed:
                last, why, said = SessionFinished(Ending.CANCELLED), "stopped", []
            else:
                last, why = SessionFinished(Ending.CUT_OFF, str(death)), "the engine died"
                said = [LogLine("error", line) for line in (str(death), *death.last_lines)]
        except OSError as error:
            sentence = f"the engine could not be started: {error.strerror or error}"
            last, why = SessionFinished(Ending.CUT_OFF, sentence), "the engine did not start"
            said = [LogLine("error", sentence)]
        for event in (*said, *unfinished.ending(last, why)):
            emit(event)

    def devices(self, *, anew: bool = False) -> list[DeviceInfo]:
        """Return the GPUs, best first, then the CPU; ``anew`` in a new worker, for a driver lists adapters only once.

        Raises EngineDied, or EngineBroke where the listing itself raised.
        """
        if anew:
            self._leave()
        self._devices = self._ask("devices")
        return self._devices

    def doctor(self) -> list[Check]:
        """Return what the doctor finds. Raises like ``devices``."""
        found: list[Check] = self._ask("doctor")
        return found

    def free_memory(self) -> int:
        """Return the bytes of memory that are free on this machine. Raises like ``devices``."""
        return int(self._ask("free_memory"))

    def kill(self) -> None:
        """End the worker at once. May be called from any thread; whoever waits for the worker learns of its death."""
        process = self._process
        if process is not None:
            self._killed = True
            with contextlib.suppress(ValueError, OSError):  # closed, or gone already
                process.kill()

    def close(self) -> None:
        """End the worker and remove its log. The host may be started again."""
        self._leave()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @property
    def _log(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "engine.log"

    def _events(self, should_stop: ShouldStop) -> Iterator[Event]:
        """Yield events as they arrive; end, with the worker gone, where it would not stop. Raises EngineDied."""
        deadline: float | None = None
        while True:
            if self._arrived(_LOOK_S):
                yield self._receive()
            if deadline is None:
                if should_stop():
                    deadline = time.monotonic() + self._patience_s
                    self._send(Stop())
            elif time.monotonic() > deadline:
                self.kill()
                self._leave()
                return

    def _pass_on(self, event: Event, emit: Callable[[Event], None]) -> None:
        try:
            emit(event)
        except BaseException:  # nobody listens any more: the rest of the run must not meet the next one
            self._leave()
            raise

    def _insisted(self) -> str:
        return f"the engine did not stop within {self._patience_s:g} s and was ended; a new one takes the next run"

    def _ask(self, question: Question) -> Any:
        try:
            self.start()
        except OSError as error:
            raise EngineDied(f"the engine could not be started: {error.strerror or error}") from error
        self._send(Ask(question))
        match self._receive():
            case Answer(value):
                return value
            case Broke(message, traceback):
                raise EngineBroke(message, traceback)
            case other:
                raise AssertionError(other)

    def _arrived(self, timeout_s: float) -> bool:
        assert self._connection is not None
        try:
            return self._connection.poll(timeout_s)
        except OSError:  # Windows: the pipe is broken
            raise self._death() from None

    def _receive(self) -> Any:
        assert self._connection is not None
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise self._death() from None

    def _send(self, message: Run | Ask | Stop) -> None:
        assert self._connection is not None
        try:
            self._connection.send(message)
        except OSError:
            raise self._death() from None

    def _death(self) -> EngineDied:
        """Bury the worker and return what is known of its end."""
        assert self._process is not None
        self._process.join(_LEAVE_S)  # the pipe ends a moment before the process does
        code = self._process.exitcode
        lines = self._last_lines()
        self._leave()
        return EngineDied(f"the engine process {_fate(code)}", lines)

    def _last_lines(self) -> tuple[str, ...]:
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return tuple(file.read().decode("utf-8", "replace").splitlines()[-_LAST_LINES:])
        return ()

    def _leave(self) -> None:
        """Let go of the worker: the end of the pipe tells it to go, and it is ended where it does not."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if process is None:
            return
        process.join(_LEAVE_S)
        if process.is_alive():
            process.kill()
            process.join()
        with contextlib.suppress(ValueError):  # something else in this program has waited for it, and took its status
            process.close()


def _fate(code: int | None) -> str:
    if code is None:
        return "closed its pipe and hangs"
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}" + (f" ({_FATES[name]})" if name in _FATES else "")


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Hold Ctrl+C back from this thread, so that a process started meanwhile never sees one before it ignores it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
