"""The run file: what is saved comes back, and what strangers send is refused with a sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.records.events import (
    CaseFinished,
    CaseStarted,
    Ending,
    KernelFailed,
    KernelFinished,
    KernelSkipped,
    SampleBatch,
    SessionFinished,
    SessionStarted,
)
from engine.records.results import Row, Status
from engine.storage import run_file
from engine.storage.run_file import RunFile, RunRecorder, load, save


def saved(path: Path, run: RunFile) -> dict[str, Any]:
    save(path, run)
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def test_a_run_comes_back_as_it_was(tmp_path: Path, run: RunFile) -> None:
    path = tmp_path / "run.json"
    save(path, run)
    assert load(path) == run
    assert load(str(path)).plan.cases[0].problem.key_mask == run.plan.cases[0].problem.key_mask


def test_it_is_plain_json_with_a_schema(tmp_path: Path, run: RunFile) -> None:
    document = saved(tmp_path / "run.json", run)
    assert document["schema"] == 2
    assert document["results"][0]["kernel"] == "cpu-flash"
    assert document["samples"][0]["samples"][1] == [1, 0.625, 1.5, None, 8]


def test_non_finite_numbers_come_back(tmp_path: Path, run: RunFile, row: Row) -> None:
    path = tmp_path / "run.json"
    odd = msgspec.structs.replace(
        row, label="Infinity", max_abs_err=math.inf, max_rel_err=math.nan, recorded_output_err=-math.inf
    )
    document = saved(path, msgspec.structs.replace(run, results=(odd,)))
    assert document["results"][0]["max_abs_err"] == "Infinity"
    (got,) = load(path).results
    assert got.label == "Infinity"
    assert got.max_abs_err == math.inf
    assert got.max_rel_err is not None
    assert math.isnan(got.max_rel_err)
    assert got.recorded_output_err == -math.inf


def test_a_path_that_is_not_utf8_is_still_saved(tmp_path: Path, run: RunFile, row: Row) -> None:
    path = tmp_path / "run.json"
    save(path, msgspec.structs.replace(run, results=(msgspec.structs.replace(row, input="q\udcff.npz"),)))
    assert load(path).results[0].input == "q\\udcff.npz"


def test_a_newer_schema_is_refused(tmp_path: Path, run: RunFile) -> None:
    path = tmp_path / "run.json"
    document = saved(path, run)
    path.write_text(json.dumps({"schema": 3, "entirely": "different"}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"run\.json was written by a newer FlashScope \(schema 3, .* up to 2\)"):
        load(path)
    path.write_text(json.dumps(document | {"schema": 3}), encoding="utf-8")
    with pytest.raises(ValueError, match="newer FlashScope"):
        load(path)


def test_a_file_from_before_a_field_existed_is_read(tmp_path: Path, run: RunFile) -> None:
    path = tmp_path / "run.json"
    document = saved(path, run)
    del document["reason"], document["plan"]["checks"], document["results"][0]["nonfinite"]
    path.write_text(json.dumps(document | {"unknown": 1}), encoding="utf-8")
    got = load(path)
    assert (got.reason, got.plan.checks, got.results[0].nonfinite) == ("done", True, None)


def test_a_backward_case_comes_back_and_one_from_before_there_were_any_is_forward(tmp_path: Path, run: RunFile) -> None:
    path = tmp_path / "run.json"
    case = msgspec.structs.replace(
        run.plan.cases[0], problem=msgspec.structs.replace(run.plan.cases[0].problem, direction="backward")
    )
    document = saved(path, msgspec.structs.replace(run, plan=msgspec.structs.replace(run.plan, cases=(case,))))
    assert load(path).plan.cases == (case,)
    del document["plan"]["cases"][0]["problem"]["direction"], document["results"][0]["direction"]
    path.write_text(json.dumps(document | {"schema": 1}), encoding="utf-8")
    assert load(path) == run


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\x00\xff", b"null", b"[]", b"{}", b'{"schema": "1"}', b'{"schema": 0}', b'{"schema": 1}',
     b'{"schema": 1.5}', b'{"schema": NaN}', b"\x80\x04\x95", b"[" * 100_000, '{"schema": 1, "ü'.encode("latin-1")],
)  # fmt: skip
def test_garbage_is_refused_with_a_sentence(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"^run\.json is not a sound FlashScope run file: .") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_every_truncation_is_refused(tmp_path: Path, run: RunFile) -> None:
    path = tmp_path / "run.json"
    save(path, run)
    data = path.read_bytes()
    for end in range(0, len(data), 37):
        path.write_bytes(data[:end])
        with pytest.raises(ValueError, match="not a sound"):
            load(path)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("results", 0, "batch"), "1"),
        (("results", 0, "batch"), 1.5),
        (("results", 0, "wall_ms_median"), "fast"),
        (("results", 0, "wall_ms_median"), [1]),
        (("results", 0, "status"), "splendid"),
        (("results", 0, "verified"), 1),
        (("results", 0), []),
        (("results",), {}),
        (("samples", 0, "samples", 0), [0, 1.0, 1.0]),
        (("samples", 0, "samples", 0, 2), None),
        (("samples", 0, "case"), "0"),
        (("plan", "cases", 0, "problem", "heads"), 0),
        (("plan", "cases", 0, "problem", "direction"), "sideways"),
        (("plan", "cases", 0, "problem", "scale"), 1e999),
        (("plan", "cases", 0, "problem", "key_mask", "bits"), "AAAA"),
        (("plan", "cases", 0, "problem", "key_mask", "bits"), "~"),
        (("environment", "cpu"), None),
    ],
)
def test_wrong_types_and_values_are_refused(tmp_path: Path, run: RunFile, where: tuple[Any, ...], value: Any) -> None:
    path = tmp_path / "run.json"
    document: Any = saved(path, run)
    spot = document
    for step in where[:-1]:
        spot = spot[step]
    spot[where[-1]] = value
    path.write_text(json.dumps(document).replace("Infinity", "1e999"), encoding="utf-8")
    with pytest.raises(ValueError, match="not a sound"):
        load(path)


def test_sizes_are_bounded(tmp_path: Path, run: RunFile, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    save(path, run)
    monkeypatch.setattr(run_file, "MAX_FILE_BYTES", 1 << 20)
    load(path)
    with path.open("ab") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(ValueError, match=r"run\.json is larger than 1 MiB"):
        load(path)


def test_counts_are_bounded(tmp_path: Path, run: RunFile) -> None:
    path = tmp_path / "run.json"
    document = saved(path, run)
    document["results"] = [{}] * (run_file.MAX_ROWS + 1)
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ValueError, match="not a sound"):
        load(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_flipped_bytes_never_do_worse_than_a_sentence(tmp_path: Path, run: RunFile, data: st.DataObject) -> None:
    path = tmp_path / "run.json"
    save(path, run)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        load(path)
    except ValueError as error:
        assert str(error).startswith("run.json ")  # noqa: PT017 - either outcome is right, a traceback is not


def test_a_missing_file_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        load(tmp_path / "none.json")


def test_the_recorder_collects_a_session_and_keeps_the_plans_order(run: RunFile, row: Row) -> None:
    recorder = RunRecorder()
    assert recorder.run is None
    run = msgspec.structs.replace(
        run, plan=msgspec.structs.replace(run.plan, kernels=("cpu-flash", "gpu-flash", "cpu-naive"))
    )
    case, samples = run.plan.cases[0], run.samples[0].samples
    skipped = msgspec.structs.replace(row, kernel="gpu-flash", status=Status.SKIPPED)
    failed = msgspec.structs.replace(row, kernel="cpu-naive", status=Status.FAILED)
    recorder(SessionStarted(run.run_id, run.started_at, run.plan, run.environment))
    recorder(CaseStarted(case))
    recorder(KernelSkipped(case, "gpu-flash", "no", skipped))
    recorder(SampleBatch(case, "gpu-flash", samples[:1]))
    recorder(KernelFailed(case, "cpu-naive", "no", "Traceback", failed))
    recorder(SampleBatch(case, "gpu-flash", samples[1:]))
    assert recorder.rows == [skipped, failed]
    assert recorder.run is not None
    assert recorder.run.reason == "unfinished"
    recorder(KernelFinished(case, "cpu-flash", row))
    recorder(CaseFinished(case))
    recorder(SessionFinished())
    assert recorder.run == msgspec.structs.replace(run, results=(row, skipped, failed))


@pytest.mark.parametrize(
    ("reason", "ending"),
    [("done", Ending.DONE), ("cancelled", Ending.CANCELLED), ("the engine died", Ending.CUT_OFF)],
)
def test_the_ending_is_kept_in_its_words(reason: str, ending: Ending, run: RunFile) -> None:
    finished = msgspec.structs.replace(run, reason=reason).finished
    assert (finished.ending, finished.reason) == (ending, reason)
