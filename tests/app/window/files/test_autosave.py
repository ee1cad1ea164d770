"""Autosave: what was measured is on disk as it comes, and comes back whole however the program ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from made_up import batch, make_row, started
from scripted_engine import whole_race

from app.window.files import autosave
from app.window.files.autosave import Autosave, kept, read
from engine.common.running import never_stop
from engine.problem.attention_problem import AttentionProblem
from engine.records.events import CaseStarted, Event, KernelFinished, SessionFinished
from engine.records.plan import Case, Plan
from engine.records.results import Status
from engine.storage.run_file import RunRecorder

ROOT = Path(__file__).parent.parent.parent.parent.parent
CASES = tuple(Case(index=index, problem=AttentionProblem(heads=2, seq_q=32 << index)) for index in range(2))
PLAN = Plan(cases=CASES, kernels=("gpu-flash", "cpu-flash"), label="=1+1")
RUN_ID = "20261130-121314-a1b2"


def race() -> list[Event]:
    events: list[Event] = []
    whole_race(PLAN, events.append, never_stop)
    return events


def write(folder: Path, events: Sequence[Event]) -> Autosave:
    journal = Autosave(folder)
    for event in events:
        journal(event)
    return journal


def test_a_run_comes_back_as_it_was_recorded(tmp_path: Path) -> None:
    recorder = RunRecorder()
    events = race()
    for event in events:
        recorder(event)
    journal = write(tmp_path, events)
    journal.release()
    (entry,) = kept(tmp_path)
    assert (entry.finished, entry.rows, entry.offer) == (True, 4, True)
    assert entry.started_at == "2026-11-30T12:13:14+00:00"
    assert read(entry.path) == recorder.run


def test_numbers_that_json_lacks_survive(tmp_path: Path) -> None:
    row = make_row(CASES[0], "cpu-flash", 1.0, max_abs_err=float("nan"), max_rel_err=float("inf"))
    write(tmp_path, [started(PLAN), KernelFinished(CASES[0], "cpu-flash", row), SessionFinished()]).release()
    (found,) = read(kept(tmp_path)[0].path).results
    assert str((found.max_abs_err, found.max_rel_err)) == "(nan, inf)"


def test_a_run_that_was_cut_off_gets_its_rows_cancelled(tmp_path: Path) -> None:
    events: list[Event] = [
        started(PLAN),
        CaseStarted(CASES[0]),
        batch(CASES[0], "gpu-flash", 0, 7),
        batch(CASES[0], "cpu-flash", 0, 5),
        KernelFinished(CASES[0], "gpu-flash", make_row(CASES[0], "gpu-flash", 2.0)),
    ]
    write(tmp_path, events).release()
    (entry,) = kept(tmp_path)
    assert (entry.finished, entry.rows) == (False, 1)
    run = read(entry.path)
    assert run.reason == "the program ended before the run did"
    assert [(row.kernel, row.status, row.samples) for row in run.results] == [
        ("gpu-flash", Status.OK, 40),
        ("cpu-flash", Status.CANCELLED, 5),
        ("gpu-flash", Status.CANCELLED, None),
        ("cpu-flash", Status.CANCELLED, None),
    ]
    assert [(s.kernel, len(s.samples)) for s in run.samples] == [("gpu-flash", 7), ("cpu-flash", 5)]


def test_wherever_the_file_ends_what_came_before_is_there(tmp_path: Path) -> None:
    journal = write(tmp_path / "whole", race())
    journal.release()
    assert journal.path is not None
    data = journal.path.read_bytes()
    rows = []
    first = 4 + int.from_bytes(data[:4], "little")
    for end in (*range(first, len(data), 97), len(data)):
        (tmp_path / "cut.run").write_bytes(data[:end])
        rows.append(sum(row.status is Status.OK for row in read(tmp_path / "cut.run").results))
    assert rows == sorted(rows)
    assert set(rows) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("spoil", [lambda data: b"", lambda data: b"\xff" * 100, lambda data: data[:4] + b"\xc1" * 99])
def test_what_is_no_run_is_not_offered(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    journal = write(tmp_path, race())
    journal.release()
    assert journal.path is not None
    journal.path.write_bytes(spoil(journal.path.read_bytes()))
    assert kept(tmp_path) == []
    with pytest.raises(ValueError, match="holds no run"):
        read(journal.path)


def test_a_run_under_way_is_nobody_elses(tmp_path: Path) -> None:
    journal = write(tmp_path, race()[:4])
    assert kept(tmp_path) == []
    journal.release()
    assert len(kept(tmp_path)) == 1
    journal.forget()
    assert list(tmp_path.iterdir()) == []


def test_another_run_sets_the_one_before_aside(tmp_path: Path) -> None:
    journal = write(tmp_path, race())
    first = journal.path
    journal(beginning("20261130-131415-c3d4"))
    assert first is not None
    assert not first.exists()
    (entry,) = kept(tmp_path)  # the other is under way
    assert (entry.path, entry.offer) == (first.with_suffix(autosave.EARLIER), False)
    journal.adopt(entry.path)
    assert {(e.path.stem, e.offer) for e in kept(tmp_path)} == {(RUN_ID, False), ("20261130-131415-c3d4", False)}
    journal.forget()
    assert [e.path.stem for e in kept(tmp_path)] == ["20261130-131415-c3d4"]


def beginning(run_id: str) -> Event:
    return msgspec.structs.replace(started(PLAN), run_id=run_id)


def test_only_so_many_are_kept_and_the_oldest_go(tmp_path: Path) -> None:
    journal = Autosave(tmp_path)
    ids = [f"20261130-1213{number:02d}-aaaa" for number in range(autosave.MOST_KEPT + 3)]
    for run_id in ids:
        journal(beginning(run_id))
        journal(SessionFinished())
    journal.release()
    assert {entry.path.stem for entry in kept(tmp_path)} == set(ids[-autosave.MOST_KEPT :])


def test_a_run_id_that_is_a_path_writes_nothing(tmp_path: Path) -> None:
    journal = Autosave(tmp_path / "in")
    for event in (beginning("../escaped"), *race()[1:]):
        journal(event)
    journal.release()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_complained_of_once(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a file where the folder should be")
    journal = write(tmp_path / "in", race())
    journal.release()
    assert "This run is not autosaved" in journal.complaint
    assert journal.path is None


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, "tests/helpers")
from made_up import started
from scripted_engine import whole_race
from app.window.files.autosave import Autosave
from engine.records.plan import Case, Plan
from engine.problem.attention_problem import AttentionProblem
from engine.common.running import never_stop
journal = Autosave(Path(sys.argv[1]))
def emit(event):
    journal(event)
    journal.flush()
    if type(event).__name__ == "CaseFinished":
        os.kill(os.getpid(), signal.SIGKILL)
cases = tuple(Case(index=index, problem=AttentionProblem(heads=2, seq_q=32)) for index in range(2))
whole_race(Plan(cases=cases, kernels=("gpu-flash", "cpu-flash")), emit, never_stop)
"""


def test_a_program_that_is_killed_leaves_its_rows(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr
    (entry,) = kept(tmp_path)  # its lock is that of a process that is gone
    assert (entry.rows, entry.finished, entry.offer) == (2, False, True)
    run = read(entry.path)
    assert [row.status for row in run.results] == [Status.OK, Status.OK, Status.CANCELLED, Status.CANCELLED]
