"""The far side of the host: what runs in the worker process, and the messages that cross the pipe."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.common.messages import sentence
from engine.records.events import Event, MemorySample, Phase, Progress, SampleBatch
from engine.records.plan import Plan

_BUNDLE_S = 0.5  # between two bundles of samples while CPU kernels are timed
_PAUSE_S = 0.15  # after one: the window looks ten times a second then, and draws for some 40 ms

Question = Literal["devices", "doctor", "free_memory"]


class Run(msgspec.Struct, frozen=True):
    """Run this plan; what comes back are the session's events, up to and including its SessionFinished."""

    plan: Plan


class Stop(msgspec.Struct, frozen=True):
    """Stop the run under way; without one it means nothing."""


class Ask(msgspec.Struct, frozen=True):
    """Answer a question; what comes back is one Answer or one Broke."""

    question: Question


class Answer(msgspec.Struct, frozen=True):
    """What a question came to: a list of DeviceInfo, a list of Check, or a number of bytes."""

    value: Any


class Broke(msgspec.Struct, frozen=True):
    """A question that raised: the error as a sentence, and its traceback."""

    message: str
    traceback: str


def work(connection: Connection, log: Path) -> None:
    """Serve the host at the other end of ``connection`` until that end closes; this is the worker's main thread.

    Whatever the process prints goes to ``log``, a fault's stack too. Ctrl+C is left to the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _print_to(log)
    inbox: queue.SimpleQueue[Run | Ask] = queue.SimpleQueue()
    stop = threading.Event()
    threading.Thread(target=_listen, args=(connection, inbox, stop), name="host", daemon=True).start()
    while True:
        match inbox.get():
            case Run(plan):
                from engine.session import session

                session.run(plan, Paced(plan, connection.send), stop.is_set)
            case Ask(question):
                connection.send(_answer(question))


class Paced:
    """Sends a run's events on; while CPU kernels are sampled, what grows comes in bundles with a pause after each.

    Whoever draws a bundle takes a core for a moment. Without the pause that moment is the next sample's, every time.
    """

    def __init__(
        self,
        plan: Plan,
        send: Callable[[Event], None],
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._send, self._now, self._sleep = send, now, sleep
        self._on_cpu = _on_cpu(plan)
        self._held: list[Event] = []
        self._sent_at = now()
        self._doing: tuple[Phase | None, str] = (None, "")

    def __call__(self, event: Event) -> None:
        """Send the event, or keep it for the bundle that the next Progress after half a second closes.

        Progress into another phase is sent at once.
        """
        self._held.append(event)
        grows = self._on_cpu and isinstance(event, (SampleBatch, MemorySample, Progress))
        if isinstance(event, Progress) and (event.phase, event.kernel) != self._doing:
            self._doing, grows = (event.phase, event.kernel), False
        if grows and not (isinstance(event, Progress) and self._now() - self._sent_at >= _BUNDLE_S):
            return
        held, self._held = self._held, []
        for one in held:
            self._send(one)
        if grows:
            self._sleep(_PAUSE_S)
        self._sent_at = self._now()


def _on_cpu(plan: Plan) -> bool:
    """Whether a kernel of the plan is timed on the cores that drawing needs too."""
    from engine.kernels.registry import get_kernel

    with contextlib.suppress(ValueError):  # an unknown name: the session says so in its row
        return any(get_kernel(name).device_kind == "cpu" for name in plan.kernels)
    return False


def _listen(connection: Connection, inbox: queue.SimpleQueue[Run | Ask], stop: threading.Event) -> None:
    """Sort what arrives. The end of the pipe is the end of the process, whatever its main thread is doing."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            message = connection.recv()
            if isinstance(message, Stop):
                stop.set()
                continue
            if isinstance(message, Run):
                stop.clear()  # a stop that came too late for the last run is none for this one
            inbox.put(message)
    os._exit(0)  # drivers have been seen to hang or crash while they are taken down in good order


def _print_to(log: Path) -> None:
    """Send standard output and error, those of native libraries too, to a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)
    sys.stdout = open(1, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115 - lasts as long as the process
    sys.stderr = open(2, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    faulthandler.enable(sys.stderr, all_threads=False)  # the faulting one, for only the last lines are told


def _answer(question: Question) -> Answer | Broke:
    try:
        return Answer(_ANSWERS[question]())
    except Exception as error:
        return Broke(sentence(error), traceback.format_exc())


def _devices() -> Any:
    from engine.devices.cpu import open_cpu
    from engine.devices.gpu.device import list_devices

    with open_cpu() as cpu:
        return [*list_devices(), cpu.info]


def _doctor() -> Any:
    from engine.devices.doctor import doctor
    from engine.devices.gpu.device import list_devices

    return doctor(list_devices())


def _free_memory() -> Any:
    import psutil

    return int(psutil.virtual_memory().available)


_ANSWERS: dict[Question, Callable[[], Any]] = {
    "devices": _devices,
    "doctor": _doctor,
    "free_memory": _free_memory,
}
