"""A race without a window, over a scripted session: exit status, files, what is printed and what is not."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.records import events
from engine.records.plan import Plan
from engine.records.results import Environment, Row, Sample, Status

Program = Callable[..., Any]
MakeRow = Callable[..., Row]
Emit = Callable[[events.Event], None]
DONE = events.SessionFinished()
KERNELS = "cpu-flash,cpu-naive"

ENVIRONMENT = Environment(
    app_version="0.1.0",
    numpy_version="2.4.6",
    wgpu_version="0.32.0",
    python_version="3.11.2",
    cpu="a processor",
    blas="OpenBLAS",
    blas_threads=2,
    os="Linux",
)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, make_row: MakeRow) -> Callable[..., list[Plan]]:
    """Give tests a session that gives the kernels rows of these statuses; the plans it was given come back."""

    def prepare(
        *statuses: Status,
        finished: events.SessionFinished = DONE,
        before_the_end: Callable[[], None] = lambda: None,
    ) -> list[Plan]:
        plans: list[Plan] = []

        def run(plan: Plan, emit: Emit, should_stop: Callable[[], bool]) -> None:
            plans.append(plan)
            emit(events.SessionStarted("20261130-121314-a1b2", "2026-11-30T12:13:14+00:00", plan, ENVIRONMENT))
            for case in plan.cases:
                emit(events.CaseStarted(case))
                for kernel, status in zip(plan.kernels, statuses, strict=True):
                    for event in turn(case, kernel, status, make_row):
                        emit(event)
                emit(events.CaseFinished(case))
            before_the_end()
            emit(events.Warning("the machine is busy"))
            emit(finished if not should_stop() else events.SessionFinished(events.Ending.CANCELLED))

        monkeypatch.setattr("engine.session.session.run", run)
        return plans

    return prepare


def turn(case: Any, kernel: str, status: Status, make_row: MakeRow) -> Iterator[events.Event]:
    if status is Status.SKIPPED:
        row = make_row(case, kernel, status=status, message="it does not fit")
        yield events.KernelSkipped(case, kernel, row.message, row)
        return
    yield events.KernelPrepared(case, kernel, 1000, "blocked")
    yield events.SampleBatch(case, kernel, tuple(Sample(n, n * 0.1, 5.0 + n, None, 1) for n in range(6)))
    yield events.Progress(0.5, 2, 3.0)
    if status is Status.FAILED:
        row = make_row(case, kernel, status=status, message="out of memory")
        yield events.KernelFailed(case, kernel, row.message, "Traceback …", row)
    elif status is Status.OK:
        yield events.KernelFinished(case, kernel, make_row(case, kernel, 5.0))
    else:
        yield events.KernelFinished(case, kernel, make_row(case, kernel, status=status, message="it went wrong"))


OK, WRONG, FAILED, SKIPPED, CANCELLED = Status.OK, Status.WRONG, Status.FAILED, Status.SKIPPED, Status.CANCELLED


@pytest.mark.parametrize(
    ("statuses", "exit_status"),
    [
        ((OK, OK), 0),
        ((OK, SKIPPED), 0),
        ((SKIPPED, SKIPPED), 1),
        ((OK, WRONG), 1),
        ((OK, FAILED), 1),
        ((FAILED, SKIPPED), 1),
        ((OK, CANCELLED), 1),
    ],
)
def test_exit_status(flashscope: Program, script: Any, statuses: tuple[Status, ...], exit_status: int) -> None:
    script(*statuses)
    ended = flashscope("run", "--kernels", KERNELS)
    assert ended.status == exit_status
    assert ended.err == ""
    assert "the machine is busy" in ended.out


def test_a_session_that_breaks_says_so(flashscope: Program, script: Any) -> None:
    script(OK, OK, finished=events.SessionFinished(events.Ending.BROKEN, "the session broke: no memory"))
    ended = flashscope("run", "--kernels", KERNELS)
    assert (ended.status, ended.err) == (1, "the session broke: no memory\n")
    assert "cpu-flash" in ended.out


@pytest.mark.usefixtures("no_display")
def test_every_file_is_written(flashscope: Program, script: Any, tmp_path: Path) -> None:
    script(OK, SKIPPED)
    files = ("--csv", "out.csv", "--json", "out.json", "--png", "out.png", "--samples-csv", "samples.csv")
    ended = flashscope("run", "--kernels", KERNELS, "--label", "first", *files)
    assert ended.status == 0
    assert "Wrote out.csv, samples.csv, out.json, out.png" in ended.out
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["kernel"], row["status"]) for row in rows] == [("cpu-flash", "ok"), ("cpu-naive", "skipped")]
    with (tmp_path / "samples.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 6
    assert json.loads((tmp_path / "out.json").read_text())["plan"]["label"] == "first"
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.json", "out.png", "samples.csv"]

    shown = flashscope("out.json")
    assert shown.status == 0
    assert shown.out.splitlines()[0] == ended.out.splitlines()[0]
    assert flashscope("out.json", "out.json").out.count("cpu-flash took") == 2


def test_a_file_that_cannot_be_written_keeps_its_content_and_stops_no_other(
    flashscope: Program, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(OK, OK)
    (tmp_path / "out.csv").write_text("old")

    def full(file: int) -> None:
        if not (tmp_path / "out.json").exists():  # --csv is written first
            monkeypatch.undo()
            raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    files = ("--csv", tmp_path / "out.csv", "--json", tmp_path / "out.json")
    monkeypatch.setattr(os, "fsync", full)
    ended = flashscope("run", "--kernels", KERNELS, *files)
    assert ended.status == 1
    assert ended.err == f"--csv {tmp_path / 'out.csv'} could not be written: No space left on device\n"
    assert (tmp_path / "out.csv").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.json"]


def test_quiet_prints_nothing(flashscope: Program, script: Any, tmp_path: Path) -> None:
    script(OK, SKIPPED)
    ended = flashscope("run", "--kernels", KERNELS, "--quiet", "--csv", "out.csv")
    assert (ended.status, ended.out, ended.err) == (0, "", "")
    assert (tmp_path / "out.csv").exists()


def test_quiet_still_tells_of_errors(flashscope: Program, script: Any) -> None:
    script(WRONG, FAILED)
    ended = flashscope("run", "--kernels", KERNELS, "--quiet")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err == "cpu-flash wrong: it went wrong\ncpu-naive failed: out of memory\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_the_rows_so_far(
    flashscope: Program, script: Any, tmp_path: Path, number: signal.Signals
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    script(OK, CANCELLED, before_the_end=lambda: os.kill(os.getpid(), number))
    ended = flashscope("run", "--kernels", KERNELS, "--csv", "out.csv")
    assert ended.status == 128 + number
    assert "cpu-flash took 5.00 ms" in ended.out
    assert (tmp_path / "out.csv").read_text().count("cancelled") == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_plan_holds_every_option(flashscope: Program, script: Any) -> None:
    (plan,) = [script(OK, OK)]
    words = (
        "--kernels cpu-naive,cpu-flash --device cpu --batch 2 --heads 4,8 --kv-heads 2 --seq 64..128*2 --seq-k 256 "
        "--head-dim 32 --head-dim-v 16 --window 7 --softcap 30 --scale -0.5 --dtype f16 --seed 5 --threads 1 "
        "--seconds 0.5 --samples 20 --min-samples 3 --memory-limit 1.5GiB --no-checks --label hello"
    )
    flashscope("run", *words.split())
    (made,) = plan
    shapes = [(case.index, case.problem.heads, case.problem.seq_q) for case in made.cases]
    assert shapes == [(0, 4, 64), (1, 4, 128), (2, 8, 64), (3, 8, 128)]
    problem = made.cases[0].problem
    assert (problem.batch, problem.kv_heads, problem.seq_k, problem.head_dim, problem.head_dim_v) == (2, 2, 256, 32, 16)
    assert (problem.causal, problem.window, problem.softcap, problem.scale, problem.dtype) == (True, 7, 30, -0.5, "f16")
    assert {case.threads for case in made.cases} == {1}
    assert (made.kernels, made.device, made.seed, made.label) == (("cpu-naive", "cpu-flash"), "cpu", 5, "hello")
    assert (made.seconds, made.samples, made.min_samples) == (0.5, 20, 3)
    assert (made.memory_limit, made.checks) == (3 << 29, False)


def test_the_defaults(flashscope: Program, script: Any) -> None:
    (plan,) = [script(SKIPPED, SKIPPED, OK, OK)]
    flashscope("run")
    (made,) = plan
    (case,) = made.cases
    problem = case.problem
    assert made.kernels == ("gpu-flash", "gpu-naive", "cpu-flash", "cpu-naive")
    assert (problem.batch, problem.heads, problem.kv_heads, problem.seq_q, problem.seq_k) == (1, 8, 8, 1024, 1024)
    assert (problem.head_dim, problem.head_dim_v, problem.causal, problem.scale) == (64, 64, False, 0.125)
    assert (case.input, case.threads) == ("normal", None)
    assert (made.device, made.seed, made.seconds, made.samples, made.min_samples) == ("auto", 0, 2.0, None, 10)
    assert (made.memory_limit, made.checks) == (None, True)


def test_a_file_gives_the_problem_and_threads_may_sweep(flashscope: Program, script: Any, padded_file: Path) -> None:
    (plan,) = [script(OK, OK)]
    flashscope("run", "--kernels", KERNELS, "--input", padded_file, "--causal", "--threads", "1,2")
    (made,) = plan
    assert [case.threads for case in made.cases] == [1, 2]
    problem = made.cases[0].problem
    assert (problem.q_shape, problem.causal) == ((2, 4, 67, 32), True)
    assert problem.key_mask is not None
    assert made.cases[0].input == str(padded_file)


@pytest.mark.parametrize(
    ("word", "directions"),
    [("forward", ["forward"]), ("backward", ["backward"]), ("both", ["forward", "backward"])],
)
def test_a_direction_makes_a_case_of_every_problem(
    flashscope: Program, script: Any, padded_file: Path, word: str, directions: list[str]
) -> None:
    plans = script(OK, OK)
    flashscope("run", "--kernels", KERNELS, "--direction", word, "--seq", "64,128")
    flashscope("run", "--kernels", KERNELS, "--direction", word, "--input", padded_file, "--threads", "1,2")
    swept, from_file = ([(case.index, case.problem.direction) for case in plan.cases] for plan in plans)
    assert swept == from_file == list(enumerate(2 * directions))
    assert [case.problem.seq_q for case in plans[0].cases] == [seq for seq in (64, 128) for _ in directions]
    assert [case.threads for case in plans[1].cases] == [count for count in (1, 2) for _ in directions]


@pytest.mark.parametrize(
    ("text", "count"),
    [("8GiB", 8 << 30), ("512M", 512 << 20), ("1.5 g", 3 << 29), ("1000000", 1_000_000), ("2kb", 2048), ("7B", 7)],
)
def test_memory_limits(flashscope: Program, script: Any, text: str, count: int) -> None:
    (plan,) = [script(OK, OK)]
    flashscope("run", "--kernels", KERNELS, "--memory-limit", text)
    assert plan[0].memory_limit == count
