"""The worker process: warm between runs, stopped when asked, ended when it does not listen, replaced when it dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.problem.attention_problem import AttentionProblem
from engine.process.host import EngineBroke, EngineDied, Host
from engine.records.events import (
    Event,
    KernelFailed,
    KernelFinished,
    KernelSkipped,
    LogLine,
    SampleBatch,
    SessionFinished,
    SessionStarted,
)
from engine.records.plan import Case, Plan
from engine.records.results import Row, Status

ROOT = Path(__file__).parent.parent.parent.parent
ROWS = (KernelFinished, KernelSkipped, KernelFailed)
SMALL = Plan(
    cases=(Case(index=0, problem=AttentionProblem(heads=2, seq_q=32, head_dim=16)),),
    kernels=("cpu-flash", "cpu-naive"), device="cpu", samples=4,
)  # fmt: skip
LONG = Plan(
    cases=tuple(Case(index=i, problem=AttentionProblem(heads=2, seq_q=256, head_dim=16), threads=1) for i in range(2)),
    kernels=("cpu-flash", "cpu-naive"), device="cpu", samples=10_000_000,
)  # fmt: skip


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host(patience_s=60)  # a busy machine may need seconds for what a quiet one does at once
    yield host
    host.close()


@pytest.fixture
def hasty_host() -> Iterator[Host]:
    host = Host(patience_s=0.3)
    yield host
    host.close()


class Listener:
    """Keeps events, and does something once, when the first samples have come."""

    def __init__(self, act: Callable[[], Any] = lambda: None) -> None:
        self.events: list[Event] = []
        self.sampled = False
        self._act = act

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, SampleBatch) and not self.sampled:
            self.sampled = True
            self._act()

    @property
    def rows(self) -> list[Row]:
        return [event.row for event in self.events if isinstance(event, ROWS)]

    @property
    def reason(self) -> str:
        """Why it ended; checks that it did, once and at last."""
        ends = [event for event in self.events if isinstance(event, SessionFinished)]
        assert ends == self.events[-1:]
        return ends[0].reason


def send(host: Host, number: int) -> None:
    assert host.pid is not None
    os.kill(host.pid, number)


def test_a_worker_runs_sessions_and_stays_warm(host: Host) -> None:
    first, second = Listener(), Listener()
    host.run(SMALL, first)
    pid = host.pid
    host.run(SMALL, second)
    assert (first.reason, second.reason, host.pid) == ("done", "done", pid)
    for told in (first, second):
        assert isinstance(told.events[0], SessionStarted)
        assert told.events[0].plan == SMALL
        assert [(row.kernel, row.status, row.samples) for row in told.rows] == [
            ("cpu-flash", Status.OK, 4),
            ("cpu-naive", Status.OK, 4),
        ]


def test_it_answers_questions(host: Host) -> None:
    devices = host.devices()
    assert [device.index for device in devices[:-1]] == list(range(len(devices) - 1))
    assert devices[-1].adapter_type == "cpu"
    assert "Python" in {check.name for check in host.doctor()}
    assert 0 < host.free_memory() <= psutil.virtual_memory().total
    pid = host.pid
    assert [device.name for device in host.devices(anew=True)] == [device.name for device in devices]
    assert host.pid != pid


def test_a_stop_is_heard_in_the_middle_of_a_run(host: Host) -> None:
    told = Listener()
    host.run(LONG, told, should_stop=lambda: told.sampled)
    pid = host.pid
    assert told.reason == "cancelled"
    assert [row.status for row in told.rows] == [Status.CANCELLED] * 4
    late = Listener()
    host.run(SMALL, late)  # the stop was for the run before
    assert (late.reason, host.pid) == ("done", pid)


def test_a_stop_from_the_start_is_not_lost(host: Host) -> None:
    told = Listener()
    host.run(LONG, told, should_stop=lambda: True)
    assert told.reason == "cancelled"
    assert [row.status for row in told.rows] == [Status.CANCELLED] * 4


def test_a_worker_that_does_not_listen_is_ended(hasty_host: Host) -> None:
    told = Listener(lambda: send(hasty_host, signal.SIGSTOP))
    hasty_host.run(LONG, told, should_stop=lambda: told.sampled)
    assert told.reason == "cancelled"
    assert [row.status for row in told.rows] == [Status.CANCELLED] * 4
    assert told.rows[0].samples
    assert LogLine("warning", "the engine did not stop within 0.3 s and was ended; a new one takes the next run") in (
        told.events
    )
    hasty_host.run(SMALL, again := Listener())
    assert again.reason == "done"


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (signal.SIGSEGV, "the engine process was ended by SIGSEGV (a segmentation fault in a driver or library)"),
        (signal.SIGKILL, "the engine process was ended by SIGKILL (as the system does when memory runs out)"),
    ],
)
def test_a_worker_that_dies_ends_the_run_with_a_sentence(host: Host, number: int, sentence: str) -> None:
    told = Listener(lambda: send(host, number))
    host.run(LONG, told)
    assert told.reason == sentence
    assert [row.status for row in told.rows] == [Status.CANCELLED] * 4
    assert told.rows[0].message == "the engine died while it was measured"
    errors = [event.text for event in told.events if isinstance(event, LogLine) and event.level == "error"]
    assert errors[0] == sentence
    assert any("Segmentation fault" in line for line in errors) == (number == signal.SIGSEGV)
    host.run(SMALL, again := Listener())
    assert again.reason == "done"


def test_one_that_is_killed_on_purpose_was_stopped(host: Host) -> None:
    told = Listener(host.kill)
    host.run(LONG, told)
    assert told.reason == "cancelled"
    assert told.rows[0].message == "stopped while it was measured"


def test_a_question_to_a_worker_that_died_goes_to_a_new_one(host: Host) -> None:
    host.start()
    pid = host.pid
    send(host, signal.SIGKILL)
    psutil.Process(pid).wait()  # which takes the exit status from under the host
    assert host.devices()
    assert host.pid != pid


def test_a_worker_that_cannot_answer_is_known_to_have_died(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "_receive", lambda self: (send(self, signal.SIGABRT), real(self))[1])
    with pytest.raises(EngineDied, match=r"was ended by SIGABRT \(a driver or library gave up\)"):
        host.devices()


real = Host._receive


def test_a_question_that_raises_brings_its_traceback(host: Host) -> None:
    with pytest.raises(EngineBroke, match="KeyError: 'nonsense'") as broke:
        host._ask("nonsense")  # type: ignore[arg-type]
    assert "Traceback" in broke.value.traceback
    assert host.free_memory() > 0


def test_ctrl_c_is_left_to_the_parent(host: Host) -> None:
    told = Listener(lambda: send(host, signal.SIGINT))
    host.run(SMALL, told)
    assert told.reason == "done"


def test_a_listener_that_raises_takes_its_run_with_it(host: Host) -> None:
    with pytest.raises(ZeroDivisionError):
        host.run(LONG, Listener(lambda: 1 // 0))
    host.run(SMALL, told := Listener())
    assert (told.reason, len(told.rows)) == ("done", 2)


def test_closed_it_leaves_nothing_and_may_start_again() -> None:
    host = Host()
    host.start()
    pid, folder = host.pid, Path(host._folder.name)  # type: ignore[union-attr]
    host.close()
    assert not psutil.pid_exists(pid or 0)
    assert not folder.exists()
    host.run(SMALL, told := Listener())
    assert told.reason == "done"
    host.close()
    host.close()


ORPHAN = """
import os
from engine.process.host import Host
host = Host()
host.devices()
print(host.pid, flush=True)
os._exit(0)
"""


def test_the_worker_dies_with_its_parent() -> None:
    command = [sys.executable, "-c", ORPHAN]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(timeout=30)
    assert not psutil.pid_exists(int(done.stdout))
