"""A race without a window: runs the session on a thread, follows it on the terminal, writes the files, says who won."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence

from rich.console import Console

from app.report.outcome import by_case, message, notes
from app.terminal.interrupt import Interrupt
from app.terminal.outputs import Outputs
from app.terminal.progress import LiveProgress
from app.terminal.table import print_report
from engine.records import events
from engine.records.events import Ending, Event
from engine.records.plan import Plan
from engine.records.results import Row, Status
from engine.session import session
from engine.storage.run_file import RunRecorder

_INTERRUPTED = 128  # plus the signal's number: 130 for Ctrl+C
_WAIT_S = 0.2  # how long the main thread waits before it looks for signals, which Windows does not deliver in a wait


def race(plan: Plan, outputs: Outputs, console: Console) -> int:
    """Run ``plan``, print the result on ``console``, write ``outputs`` and return the exit status.

    0: every row is ok or skipped and one at least ok; 1: a row is wrong or failed, none is ok, or a file could not be
    written; 128 + n: ended by signal n, with the rows so far printed and written.
    """
    recorder = RunRecorder()
    ending = _Ending()
    progress = LiveProgress(console)
    with Interrupt(progress.stopping) as interrupt:
        worker, incoming = _start(plan, lambda: bool(interrupt))
        try:
            with progress:
                while (event := _next(incoming)) is not None:
                    for listener in (recorder, ending, progress):
                        listener(event)
        except KeyboardInterrupt:
            ending.finished = events.SessionFinished(Ending.CANCELLED)
        try:
            status = _finish(plan, recorder, ending, outputs, console)
        finally:
            if worker.is_alive():  # insisted on: a thread deep in a driver cannot be ended any other way
                _leave(_INTERRUPTED + (interrupt.signal or 0))
    return _INTERRUPTED + interrupt.signal if interrupt.signal is not None else status


class _Ending:
    """How the session ended, and the warnings on the way."""

    def __init__(self) -> None:
        self.finished = events.SessionFinished(Ending.CUT_OFF, "the session ended without a word")
        self.warnings: list[str] = []

    def __call__(self, event: Event) -> None:
        match event:
            case events.SessionFinished():
                self.finished = event
            case events.Warning(text):
                self.warnings.append(text)
            case _:
                pass


def _start(plan: Plan, should_stop: Callable[[], bool]) -> tuple[threading.Thread, queue.SimpleQueue[Event | None]]:
    """Start the session on a thread of its own, so that signals reach the main one; None follows the last event."""
    incoming: queue.SimpleQueue[Event | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            session.run(plan, incoming.put, should_stop)
        finally:
            incoming.put(None)

    worker = threading.Thread(target=work, name="session", daemon=True)
    worker.start()
    return worker, incoming


def _next(incoming: queue.SimpleQueue[Event | None]) -> Event | None:
    while True:
        try:
            return incoming.get(timeout=_WAIT_S)
        except queue.Empty:
            continue


def _finish(plan: Plan, recorder: RunRecorder, ending: _Ending, outputs: Outputs, console: Console) -> int:
    """Write the files, print the report and what went wrong, and return the exit status."""
    groups = by_case(plan, recorder.rows)
    written, failures = outputs.write(recorder, groups)
    if not ending.finished.ending.orderly:
        failures.insert(0, ending.finished.reason)
    if groups:
        print_report(console, groups, ending.warnings)
    if written:
        console.print()
        console.print("Wrote " + ", ".join(map(str, written)), markup=False, highlight=False, soft_wrap=True)
    if console.quiet:
        failures += notes(groups, _error)
    for sentence in failures:
        print(sentence, file=sys.stderr)
    return 1 if failures else _status(recorder.rows)


def _error(row: Row) -> str:
    return message(row) if row.status in (Status.WRONG, Status.FAILED) else ""


def _status(rows: Sequence[Row]) -> int:
    seen = {row.status for row in rows}
    return 0 if Status.OK in seen and seen <= {Status.OK, Status.SKIPPED} else 1


def _leave(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
