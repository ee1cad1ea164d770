"""The far side of the host: what runs in the worker process, and the messages that cross the pipe."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.messages import sentence
from engine.plan import Plan

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
                from engine import session

                session.run(plan, connection.send, stop.is_set)
            case Ask(question):
                connection.send(_answer(question))


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
    from engine.cpu import open_cpu
    from engine.gpu.device import list_devices

    with open_cpu() as cpu:
        return [*list_devices(), cpu.info]


def _doctor() -> Any:
    from engine.doctor import doctor
    from engine.gpu.device import list_devices

    return doctor(list_devices())


def _free_memory() -> Any:
    import psutil

    return int(psutil.virtual_memory().available)


_ANSWERS: dict[Question, Callable[[], Any]] = {
    "devices": _devices,
    "doctor": _doctor,
    "free_memory": _free_memory,
}
