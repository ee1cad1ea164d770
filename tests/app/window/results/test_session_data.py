"""The session's data: fed by events or loaded from a file, the same either way, and small whatever its length."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from made_up import batch, make_row, started
from pytestqt.qtbot import QtBot

from app.report.outcome import CaseRows
from app.window.results.series import SampleColumns
from app.window.results.session_data import SessionData
from engine.problem.attention_problem import AttentionProblem
from engine.records.events import (
    CaseStarted,
    Event,
    KernelFinished,
    KernelPrepared,
    KernelSkipped,
    MemorySample,
    SampleBatch,
    SessionFinished,
)
from engine.records.events import Warning as WarningEvent
from engine.records.plan import Case, Plan
from engine.records.results import Sample, Status
from engine.storage import run_file
from engine.storage.run_file import MemoryPoint, RunRecorder, SampleSeries

CASES = tuple(Case(index=index, problem=AttentionProblem(seq_q=seq)) for index, seq in enumerate((64, 128)))
PLAN = Plan(cases=CASES, kernels=("gpu-flash", "cpu-flash"))


def events() -> list[Event]:
    """A race of two kernels over two cases, of which one is skipped in the second."""
    told: list[Event] = [started(PLAN)]
    for case in CASES:
        told += [CaseStarted(case), KernelPrepared(case, "cpu-flash", 10, "", 3.5, 700)]
        told += [batch(case, "cpu-flash", 0, 3), MemorySample(0.5 + case.index, 3 << 30, 5 << 30)]
        told += [batch(case, "cpu-flash", 3, 2), KernelFinished(case, "cpu-flash", make_row(case, "cpu-flash", 2.0))]
        if case.index == 0:
            row = make_row(case, "gpu-flash", 1.0)
            told += [batch(case, "gpu-flash", 0, 4), KernelFinished(case, "gpu-flash", row)]
        else:
            row = make_row(case, "gpu-flash", status=Status.SKIPPED, message="too large")
            told += [KernelSkipped(case, "gpu-flash", "too large", row)]
    return [*told, WarningEvent("load by others"), SessionFinished()]


@pytest.fixture
def data(qtbot: QtBot) -> SessionData:
    return SessionData()


def fed(data: SessionData) -> SessionData:
    for event in events():
        data.feed(event)
    return data


def test_it_begins_empty(data: SessionData) -> None:
    assert data.empty
    assert (data.cases, data.kernels, data.rows, data.groups(), data.run(), data.run_id()) == ((), (), [], (), None, "")


def test_rows_come_by_case_in_the_order_of_the_plan(data: SessionData) -> None:
    fed(data)
    assert [(group.case.index, [row.kernel for row in group.rows]) for group in data.groups()] == [
        (0, ["gpu-flash", "cpu-flash"]),
        (1, ["gpu-flash", "cpu-flash"]),
    ]
    assert data.rows == [row for group in data.groups() for row in group.rows]
    assert isinstance(data.groups()[0], CaseRows)
    assert data.warnings == ["load by others"]


def test_samples_are_kept_whole(data: SessionData) -> None:
    fed(data)
    assert list(data.samples(0)) == ["gpu-flash", "cpu-flash"]
    assert list(data.samples(1)) == ["cpu-flash"]
    assert data.samples(0)["cpu-flash"]["wall_ms"].tolist() == [x.wall_ms for x in batch(CASES[0], "x", 0, 5).samples]
    assert np.isnan(data.samples(0)["cpu-flash"]["gpu_ms"]).all()
    assert data.memory["process_bytes"].tolist() == [3 << 30, 3 << 30]


def test_what_comes_before_the_samples_is_known_as_soon_as_it_is_told(data: SessionData) -> None:
    for event in events()[:3]:
        data.feed(event)
    beginning = data.beginning(0, "cpu-flash")
    assert beginning is not None
    assert (beginning.first_run_ms, beginning.scratch_bytes) == (3.5, 700)
    assert data.beginning(0, "gpu-flash") is None
    assert data.running


def test_the_run_to_save_is_what_a_recorder_of_everything_holds(data: SessionData) -> None:
    recorder = RunRecorder()
    for event in events():
        recorder(event)
        data.feed(event)
    assert data.run() == recorder.run


def test_a_saved_run_comes_back_the_same(data: SessionData, tmp_path: Path, qtbot: QtBot) -> None:
    run = fed(data).run()
    assert run is not None
    run_file.save(tmp_path / "run.json", run)
    again = SessionData()
    with qtbot.waitSignal(again.reset):
        again.load(run_file.load(tmp_path / "run.json"))
    assert again.run() == run
    assert again.groups() == data.groups()
    assert not again.running
    assert again.reason == "done"
    assert again.beginning(1, "cpu-flash") is not None


def test_a_new_session_takes_the_place_of_the_old(data: SessionData) -> None:
    fed(data)
    data.feed(started(PLAN))
    assert data.rows == []
    assert data.all_samples() == {}
    assert len(data.memory) == 0
    assert data.warnings == []


def test_signals_tell_what_changed(data: SessionData, qtbot: QtBot) -> None:
    told: list[str] = []
    data.reset.connect(lambda: told.append("reset"))
    data.case_started.connect(lambda case: told.append(f"case {case.index}"))
    data.rows_changed.connect(lambda: told.append("rows"))
    data.finished.connect(told.append)
    fed(data)
    assert told == ["reset", "case 0", "rows", "rows", "case 1", "rows", "rows", "done"]


@pytest.mark.parametrize("what", ["rows", "repeats", "bytes", "not a number", "negative"])
def test_a_run_that_contradicts_itself_is_refused_and_what_is_shown_stays(data: SessionData, what: str) -> None:
    run = fed(data).run()
    assert run is not None
    before = data.run()
    row = run.results[0]
    sample = Sample(0, 0.0, 1.0, None, 10**30)
    broken = {
        "rows": {"results": run.results * 2},
        "repeats": {"samples": (SampleSeries(kernel="cpu-flash", case=0, samples=(sample,)),)},
        "not a number": {"results": (msgspec.structs.replace(row, wall_ms_median=math.nan),)},
        "negative": {"results": (msgspec.structs.replace(row, peak_bytes=-1),)},
        "bytes": {"memory": (MemoryPoint(0.0, 10**30, 0),)},
    }[what]
    with pytest.raises(ValueError, match=r"rows|repeats|cannot have been measured"):
        data.load(msgspec.structs.replace(run, **broken))
    assert data.run() == before


def test_columns_grow_and_views_of_them_stay(qtbot: QtBot) -> None:
    columns = SampleColumns()
    columns.extend(batch(CASES[0], "x", 0, 50).samples)
    early = columns["wall_ms"]
    kept = early.tolist()
    columns.extend(batch(CASES[0], "x", 50, 5000).samples)
    assert len(columns) == 5050
    assert early.tolist() == kept == columns["wall_ms"][:50].tolist()
    assert columns.samples() == batch(CASES[0], "x", 0, 5050).samples


def test_half_an_hour_at_100_samples_a_second_takes_less_than_ten_megabytes(data: SessionData) -> None:
    data.feed(started(PLAN))
    for first in range(0, 180_000, 10_000):
        data.feed(batch(CASES[0], PLAN.kernels[first // 10_000 % 2], first, 10_000))
    held = [*data.samples(0).values(), data.memory]
    assert sum(columns.nbytes for columns in held) < 10e6


def test_batches_of_one_are_taken_as_batches_of_many(data: SessionData) -> None:
    data.feed(started(PLAN))
    for sample in batch(CASES[0], "gpu-flash", 0, 200).samples:
        data.feed(SampleBatch(CASES[0], "gpu-flash", (sample,)))
    assert data.series[0].samples == batch(CASES[0], "gpu-flash", 0, 200).samples
