"""The session on scripted kernels: what is told, in which order, and that nothing stops it from ending properly."""

from __future__ import annotations

import itertools
import pickle
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import msgspec
import numpy as np
import pytest

import engine.devices.gpu.device
from engine.common.running import Cancelled, ShouldStop, Timing, never_stop
from engine.devices.device import Device, DeviceInfo, DeviceUnavailable, Limits
from engine.kernels import registry
from engine.kernels.base import Kernel, MemoryUse, Outputs, Prepared
from engine.measure import peaks
from engine.problem import inputs
from engine.problem.attention_problem import AttentionProblem, Direction
from engine.problem.inputs import Inputs
from engine.records.events import (
    CaseFinished,
    CaseStarted,
    Ending,
    Event,
    KernelFailed,
    KernelFinished,
    KernelPrepared,
    KernelSkipped,
    LogLine,
    MemorySample,
    Phase,
    Progress,
    SampleBatch,
    SessionFinished,
    SessionStarted,
)
from engine.records.events import Warning as WarningEvent
from engine.records.plan import Case, Plan
from engine.records.results import Row, Status, StopReason
from engine.reference.forward import reference
from engine.session import session

PROBLEM = AttentionProblem(batch=1, heads=2, seq_q=6, head_dim=4)
MIB = 1 << 20
T = TypeVar("T")

Behaviour = Callable[["Scripted", int], float]  # (kernel, run number) -> wall ms of one run


def steady(wall_ms: float) -> Behaviour:
    return lambda kernel, number: wall_ms


class Scripted(Kernel):
    """A kernel that gives the right output and takes scripted times, except where a test says otherwise."""

    honours = ("causal", "window", "softcap", "scale", "key_mask")
    summary: ClassVar[str] = "scripted"

    def __init__(
        self,
        name: str,
        behaviour: Behaviour,
        *,
        kind: Literal["cpu", "gpu"] = "cpu",
        naive: str = "naive",
        reason: str | None = None,
        spoil: Callable[[np.ndarray], None] = lambda output: None,
        scratch: int = 0,
        warnings: tuple[str, ...] = (),
        fail_in: str = "",
    ) -> None:
        self.name, self.device_kind, self.naive = name, kind, naive  # type: ignore[misc]
        self.behaviour, self.reason, self.spoil, self.scratch = behaviour, reason, spoil, scratch
        self.warnings, self.fail_in = warnings, fail_in
        self.calls: list[str] = []
        self.seen: list[Inputs] = []
        self.open = 0

    def supports(self, problem: AttentionProblem, limits: Limits) -> str | None:
        return self.reason

    def predict(self, problem: AttentionProblem, limits: Limits) -> int:
        return problem.tensor_bytes + self.scratch

    def prepare(self, problem: AttentionProblem, inputs: Inputs, device: Any, *, want_lse: bool = False) -> Prepared:
        self.note("prepare")
        self.seen.append(inputs)
        self.open += 1
        return ScriptedRun(self, problem, inputs)

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call == self.fail_in:
            raise RuntimeError(f"{self.name} broke in {call}\nand here is more")


class ScriptedRun(Prepared):
    variant = "v1"
    compile_ms = 3.0
    upload_ms = 2.0

    def __init__(self, kernel: Scripted, problem: AttentionProblem, given: Inputs) -> None:
        self.kernel, self.problem, self.given = kernel, problem, given
        self.scratch = np.empty(kernel.scratch, np.uint8)
        self.output = np.empty(problem.output_shape, np.float32)
        self.warnings = kernel.warnings
        self.runs = 0
        self.closed = False

    def run(self, repeat: int = 1, should_stop: ShouldStop = never_stop) -> Timing:
        self.kernel.note("run")
        if should_stop():
            raise Cancelled
        wall_ms = repeat * self.kernel.behaviour(self.kernel, self.runs)
        self.runs += 1
        if np.isnan(self.output).all():
            self.output[:] = reference(self.problem, self.given)[0]
            self.kernel.spoil(self.output)
        return Timing(wall_ms=wall_ms, gpu_ms=wall_ms / 2 if self.kernel.device_kind == "gpu" else None)

    def poison(self) -> None:
        self.kernel.note("poison")
        self.output[:] = np.nan

    def outputs(self) -> Outputs:
        self.kernel.note("outputs")
        self.readback_ms = 1.0
        return Outputs(self.output)

    def memory(self) -> MemoryUse | None:
        exact = MemoryUse(self.kernel.scratch, self.problem.tensor_bytes + self.kernel.scratch)
        return exact if self.kernel.device_kind == "gpu" else None

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.kernel.open -= 1
        self.kernel.note("close")


class ScriptedGpu(Device):
    def __init__(self) -> None:
        self.limits = Limits(memory_bytes=1 << 30, software=True)
        self.info = DeviceInfo(
            index=0, name="Soft", adapter_type="software", backend="vulkan", driver="d", limits=self.limits
        )

    def memory_in_use(self) -> int:
        return 4321


@pytest.fixture(autouse=True)
def quick_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "measure_cpu", lambda threads: peaks.Peak(100.0, 10.0))
    monkeypatch.setattr(peaks, "measure_gpu", lambda device: peaks.Peak(1000.0, 50.0))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A scripted GPU; the list is filled with what it was opened for."""
    opened: list[tuple[Any, ...]] = []

    def open_gpu(*how: Any) -> Device:
        opened.append(how)
        return ScriptedGpu()

    monkeypatch.setattr(engine.devices.gpu.device, "open_gpu", open_gpu)
    return opened


class Told:
    """The events of a session, and what to look up in them."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def rows(self) -> list[Row]:
        return [e.row for e in self.events if isinstance(e, (KernelSkipped, KernelFinished, KernelFailed))]

    def row(self, kernel: str) -> Row:
        (row,) = (row for row in self.rows if row.kernel == kernel)
        return row


def plan(kernels: Iterable[Kernel], monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Plan:
    """Register the kernels and return a plan that races them. A run of 10 ms is long for its budget: no warm-up."""
    known = {kernel.name: kernel for kernel in kernels}
    monkeypatch.setattr(registry, "get_kernel", known.__getitem__)
    defaults = {"cases": (Case(index=0, problem=PROBLEM, threads=1),), "kernels": tuple(known), "seconds": 0.03}
    return Plan(**defaults | changes)


def told(what: Plan, should_stop: ShouldStop = never_stop) -> Told:
    got = Told()
    session.run(what, got.events.append, should_stop)
    assert len(got.of(SessionFinished)) == 1
    assert isinstance(got.events[-1], SessionFinished)
    return got


def test_a_race_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, naive = Scripted("fast", steady(10), scratch=3 * MIB, warnings=("odd",)), Scripted("naive", steady(25))
    got = told(plan([fast, naive], monkeypatch, label="mine", seed=4))
    row = got.row("fast")
    assert (row.status, row.verified, row.message) == (Status.OK, True, "")
    assert (row.stop_reason, row.samples, row.repeats, row.clock) == (StopReason.CONVERGED, 10, 1, "wall")
    assert (row.wall_ms_median, row.first_run_ms, row.speedup_vs_naive) == (10, 10, 2.5)
    assert (row.compile_ms, row.upload_ms, row.readback_ms, row.variant) == (3, 2, 1, "v1")
    assert (row.label, row.seed, row.threads, row.seq_q, row.adapter_type) == ("mine", 4, 1, 6, "cpu")
    assert row.gflops == pytest.approx(PROBLEM.flops() / 10e-3 / 1e9)
    assert row.percent_of_peak == pytest.approx(row.gflops)
    assert row.peak_gflops == 100
    assert row.predicted_bytes == PROBLEM.tensor_bytes + 3 * MIB
    assert row.peak_bytes == pytest.approx(row.predicted_bytes, abs=256 << 10)
    assert row.scratch_bytes == pytest.approx(3 * MIB, abs=256 << 10)
    assert row.process_peak_bytes is not None
    assert row.process_peak_bytes > 3 * MIB
    assert "odd" in row.warnings
    assert (row.nonfinite, row.recorded_output_err) == (0, None)
    assert got.row("naive").speedup_vs_naive == 1
    assert fast.open == naive.open == 0
    assert got.events[-1] == SessionFinished()


def test_the_order_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [Scripted("a", steady(10)), Scripted("b", steady(10))]
    cases = tuple(Case(index=i, problem=PROBLEM, threads=1) for i in (0, 1))
    got = told(plan(kernels, monkeypatch, cases=cases))
    skeleton = [
        (type(e).__name__, getattr(e, "kernel", None))
        for e in got.events
        if not isinstance(e, (Progress, MemorySample, LogLine, SampleBatch, WarningEvent))
    ]
    case = [("CaseStarted", None), ("KernelPrepared", "a"), ("KernelPrepared", "b"), ("KernelFinished", "a"),
            ("KernelFinished", "b"), ("CaseFinished", None)]  # fmt: skip
    assert skeleton == [("SessionStarted", None), *case, *case, ("SessionFinished", None)]
    assert [e.case.index for e in got.of(CaseStarted)] == [0, 1]
    doing = [(e.phase, e.kernel) for e in got.of(Progress)]
    entered = [after for before, after in itertools.pairwise([(None, ""), *doing]) if after != before]
    phases = [(Phase.REFERENCE, ""), (Phase.PREPARING, "a"), (Phase.PREPARING, "b"), (Phase.MEASURING, "")]
    assert entered == [*phases, *phases]


def test_events_can_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Scripted("b", steady(10), fail_in="run")
    got = told(plan([Scripted("a", steady(10)), broken, Scripted("c", steady(1), reason="no")], monkeypatch))
    assert pickle.loads(pickle.dumps(got.events)) == got.events


def test_every_sample_is_told_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_BATCH_S", 0.0)
    got = told(plan([Scripted("a", steady(10)), Scripted("b", steady(10))], monkeypatch, samples=5))
    for name in "ab":
        samples = [s for batch in got.of(SampleBatch) if batch.kernel == name for s in batch.samples]
        assert [s.index for s in samples] == [0, 1, 2, 3, 4]
        assert [s.started_s for s in samples] == sorted(s.started_s for s in samples)
    order = [batch.kernel for batch in got.of(SampleBatch)]
    assert "".join(order) == "abbaabbaab"


def test_samples_are_told_in_batches_not_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_BATCH_S", 1e9)
    got = told(plan([Scripted("a", steady(10))], monkeypatch, samples=50))
    (batch,) = got.of(SampleBatch)
    assert len(batch.samples) == 50


def test_progress_grows_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_BATCH_S", 0.0)
    cases = tuple(Case(index=i, problem=PROBLEM, threads=1) for i in (0, 1))
    kernels = [
        Scripted("a", steady(10)), Scripted("b", steady(10), reason="no"), Scripted("c", steady(9), fail_in="run")
    ]  # fmt: skip
    progress = told(plan(kernels, monkeypatch, cases=cases, samples=4)).of(Progress)
    done = [p.done for p in progress]
    assert done == sorted(done)
    assert {p.total for p in progress} == {6}
    assert (progress[-1].done, progress[-1].seconds_left) == (6, 0)
    assert 2.25 in done  # one of four samples beside two turns that are over
    assert all(p.seconds_left is None for p in progress if p.done < 3)  # a count tells no time before a case is over
    assert all(p.seconds_left is not None for p in progress if p.done > 3)


def test_time_left_goes_by_the_budget_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [Scripted("no", steady(10), reason="no"), Scripted("a", steady(10)), Scripted("b", steady(10))]
    first = told(plan(kernels, monkeypatch)).of(Progress)[0]
    assert (first.done, first.total, first.seconds_left) == (1, 3, pytest.approx(0.06))


def test_the_run_id_sorts_by_time_and_is_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    what = plan([Scripted("a", steady(10))], monkeypatch)
    starts = [told(what).of(SessionStarted)[0] for _ in range(2)]
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", start.run_id) for start in starts)
    assert starts[0].run_id != starts[1].run_id
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", starts[0].started_at)
    assert starts[0].plan == what


def test_memory_is_traced_in_a_pass_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Scripted("a", steady(10), scratch=MIB)
    told(plan([kernel], monkeypatch, seconds=0.05, samples=2))
    assert kernel.calls[:8] == ["prepare", "poison", "run", "close", "prepare", "poison", "run", "outputs"]


def test_a_long_first_run_is_that_pass_and_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Scripted("a", lambda _, number: 14 - number, scratch=MIB)
    got = told(plan([kernel], monkeypatch, seconds=0.05, samples=2))
    assert kernel.calls == ["prepare", "poison", "run", "outputs", "run", "run", "close"]
    row = got.row("a")
    assert (row.first_run_ms, row.wall_ms_median) == (14, 12.5)
    assert row.scratch_bytes == pytest.approx(MIB, abs=256 << 10)


def test_short_kernels_are_warmed_up_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Scripted("a", lambda _, number: 50.0 if number == 0 else 0.3)
    row = told(plan([kernel], monkeypatch, seconds=1.0, samples=3)).row("a")
    assert (row.first_run_ms, row.repeats, row.samples) == (50, 4, 3)
    assert row.wall_ms_median == pytest.approx(0.3)
    assert "under 1 ms" not in row.warnings


class TestTheGpu:
    def test_its_rows(self, monkeypatch: pytest.MonkeyPatch, gpu: list[tuple[Any, ...]]) -> None:
        kernel = Scripted("g", steady(10), kind="gpu", naive="g", scratch=5 * MIB)
        got = told(plan([kernel], monkeypatch, device="soft", memory_limit=7, checks=False))
        row = got.row("g")
        assert gpu == [("soft", 7, False)]
        assert (row.clock, row.wall_ms_median, row.gpu_ms_median) == ("gpu", 10, 5)
        assert row.gflops == pytest.approx(PROBLEM.flops() / 5e-3 / 1e9)
        assert row.percent_of_peak == pytest.approx(row.gflops / 10)
        assert (row.device, row.adapter_type, row.threads, row.checks) == ("Soft", "software", None, False)
        assert (row.scratch_bytes, row.peak_bytes) == (5 * MIB, row.predicted_bytes)
        assert "software adapter" in row.warnings
        assert kernel.calls.count("prepare") == 1
        assert {m.gpu_bytes for m in got.of(MemorySample)} == {4321}

    def test_it_is_opened_once_for_all_cases(self, monkeypatch: pytest.MonkeyPatch, gpu: list[tuple[Any, ...]]) -> None:
        cases = tuple(Case(index=i, problem=PROBLEM) for i in range(3))
        kernels = [Scripted("g", steady(10), kind="gpu"), Scripted("h", steady(10), kind="gpu")]
        told(plan(kernels, monkeypatch, cases=cases, samples=1))
        assert len(gpu) == 1

    def test_it_is_not_opened_for_cpu_kernels(
        self, monkeypatch: pytest.MonkeyPatch, gpu: list[tuple[Any, ...]]
    ) -> None:
        told(plan([Scripted("a", steady(10))], monkeypatch))
        assert gpu == []

    def test_device_cpu_leaves_it_out(self, monkeypatch: pytest.MonkeyPatch, gpu: list[tuple[Any, ...]]) -> None:
        kernels = [Scripted("g", steady(10), kind="gpu"), Scripted("a", steady(10))]
        got = told(plan(kernels, monkeypatch, device="cpu"))
        assert (got.row("g").status, got.row("a").status) == (Status.SKIPPED, Status.OK)
        assert "--device cpu" in got.row("g").message
        assert gpu == []

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (DeviceUnavailable("install a driver"), "install a driver"),
            (ValueError("device 'x' is unknown"), "the GPU could not be opened: device 'x' is unknown"),
            (KeyError("limit"), "the GPU could not be opened: KeyError: 'limit'"),
        ],
    )
    def test_where_it_cannot_be_had_its_rows_are_skipped_and_the_others_run(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
    ) -> None:
        asked: list[int] = []

        def open_gpu(*_: Any) -> Device:
            asked.append(1)
            raise error

        monkeypatch.setattr(engine.devices.gpu.device, "open_gpu", open_gpu)
        kernels = [
            Scripted("g", steady(10), kind="gpu"), Scripted("h", steady(10), kind="gpu"), Scripted("a", steady(10))
        ]  # fmt: skip
        got = told(plan(kernels, monkeypatch))
        assert [(r.kernel, r.status, r.message) for r in got.rows] == [
            ("g", Status.SKIPPED, message),
            ("h", Status.SKIPPED, message),
            ("a", Status.OK, ""),
        ]
        assert got.row("g").device is None
        assert len(asked) == 1
        assert got.events[-1] == SessionFinished()


class TestFaults:
    def test_a_kernel_that_does_not_fit_is_skipped_with_its_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kernels = [Scripted("big", steady(10), reason="needs 9 GiB, the limit is 4 GiB"), Scripted("a", steady(10))]
        got = told(plan(kernels, monkeypatch))
        (event,) = got.of(KernelSkipped)
        assert event.reason == event.row.message == "needs 9 GiB, the limit is 4 GiB"
        assert (event.row.status, event.row.samples, event.row.verified) == (Status.SKIPPED, None, None)
        assert kernels[0].calls == []
        assert got.row("a").status is Status.OK

    def test_a_wrong_kernel_is_not_timed_and_has_no_speedup(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def spoil(output: np.ndarray) -> None:
            output[0, 1, 3, 2] += 1e-3

        wrong = Scripted("wrong", steady(10), naive="naive", spoil=spoil)
        got = told(plan([wrong, Scripted("naive", steady(10))], monkeypatch))
        row = got.row("wrong")
        assert (row.status, row.verified, row.samples, row.speedup_vs_naive) == (Status.WRONG, False, None, None)
        assert row.max_abs_err == pytest.approx(1e-3, rel=0.01)
        assert "head 1, query 3, dim 2" in row.message
        assert wrong.calls[-1] == "close"
        assert got.row("naive").status is Status.OK

    def test_a_wrong_naive_kernel_is_no_yardstick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        naive = Scripted("naive", steady(10), spoil=lambda output: output.fill(0))
        got = told(plan([Scripted("a", steady(10)), naive], monkeypatch))
        assert (got.row("a").status, got.row("a").speedup_vs_naive) == (Status.OK, None)

    def test_unwritten_output_is_found_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def spoil(output: np.ndarray) -> None:
            output[0, 0, 5] = np.nan  # as the poison left it

        row = told(plan([Scripted("a", steady(10), spoil=spoil)], monkeypatch)).row("a")
        assert (row.status, row.nonfinite) == (Status.WRONG, 1)

    @pytest.mark.parametrize("step", ["prepare", "poison", "run", "outputs"])
    def test_a_kernel_that_raises_ends_in_its_own_row(self, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
        broken = Scripted("broken", steady(10), fail_in=step)
        got = told(plan([broken, Scripted("a", steady(10))], monkeypatch))
        (event,) = got.of(KernelFailed)
        assert event.message == f"broken broke in {step} and here is more"
        assert f"RuntimeError: broken broke in {step}" in event.traceback
        assert (event.row.status, event.row.message) == (Status.FAILED, event.message)
        assert event.row.stop_reason is StopReason.FAILED
        assert got.row("a").status is Status.OK
        assert broken.open == 0
        assert got.events[-1] == SessionFinished()

    def test_a_kernel_that_raises_while_it_is_sampled_keeps_what_was_measured(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def tires(_: Scripted, number: int) -> float:
            if number == 4:
                raise MemoryError
            return 10.0

        got = told(plan([Scripted("broken", tires), Scripted("a", steady(10))], monkeypatch))
        row = got.row("broken")
        assert (row.status, row.message, row.samples, row.verified) == (Status.FAILED, "out of memory", 3, True)
        assert (row.wall_ms_median, row.speedup_vs_naive) == (10, None)
        assert got.row("a").samples == 10

    def test_a_kernel_that_raises_in_supports_or_is_unknown_fails_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Odd(Scripted):
            def supports(self, problem: AttentionProblem, limits: Limits) -> str | None:
                raise ZeroDivisionError

        what = plan([Odd("odd", steady(1)), Scripted("a", steady(10))], monkeypatch)
        got = told(msgspec.structs.replace(what, kernels=("odd", "unknown", "a")))
        assert [(r.kernel, r.status, r.message) for r in got.rows] == [
            ("odd", Status.FAILED, "ZeroDivisionError"),
            ("unknown", Status.FAILED, "KeyError: 'unknown'"),
            ("a", Status.OK, ""),
        ]

    def test_a_kernel_that_cannot_be_closed_is_logged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        got = told(plan([Scripted("a", steady(10), fail_in="close")], monkeypatch, seconds=0.01))
        assert got.row("a").status is Status.OK
        assert "a could not be closed" in got.of(LogLine)[-1].text

    def test_an_input_that_cannot_be_read_fails_its_case_and_no_other(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        cases = (Case(index=0, problem=PROBLEM, input=str(tmp_path / "gone.npz")), Case(index=1, problem=PROBLEM))
        got = told(plan([Scripted("a", steady(10))], monkeypatch, cases=cases))
        assert [row.status for row in got.rows] == [Status.FAILED, Status.OK]
        assert "gone.npz" in got.rows[0].message
        assert len(got.of(CaseFinished)) == 2

    def test_a_long_error_is_cut_for_the_report_and_whole_in_the_log(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def shouts(_: Scripted, __: int) -> float:
            raise ValueError("x" * 1000)

        (event,) = told(plan([Scripted("a", shouts)], monkeypatch)).of(KernelFailed)
        assert event.message == "x" * 300 + "…"
        assert "x" * 1000 in event.traceback


class TestInput:
    def test_all_kernels_get_the_same_tensors_and_one_reference(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[AttentionProblem] = []
        real = session.expect
        monkeypatch.setattr(session, "expect", lambda *args: (asked.append(args[0]), real(*args))[1])
        kernels = [Scripted("a", steady(10)), Scripted("b", steady(10))]
        told(plan(kernels, monkeypatch, seed=3))
        assert len(asked) == 1
        assert all(seen is kernels[0].seen[0] for kernel in kernels for seen in kernel.seen)
        np.testing.assert_array_equal(kernels[0].seen[0].q, inputs.seeded(PROBLEM, 3).q)

    def test_a_file_is_raced_compared_with_its_output_and_its_note_kept(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        given = inputs.seeded(PROBLEM, 0)
        path = tmp_path / "in.npz"
        output = reference(PROBLEM, given)[0] + 0.5
        np.savez(path, q=given.q.astype(np.float64), k=given.k, v=given.v, output=output)
        case = Case(index=0, problem=PROBLEM, input=str(path))
        row = told(plan([Scripted("a", steady(10))], monkeypatch, cases=(case,))).row("a")
        assert (row.status, row.input, row.seed) == (Status.OK, str(path), None)
        assert row.recorded_output_err == pytest.approx(0.5, abs=1e-5)
        assert "float64" in row.message

    def test_nan_in_the_input_runs_is_warned_of_and_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given = inputs.seeded(PROBLEM, 0)
        q = given.q.copy()
        q[0, 0, 2, 1] = np.nan
        monkeypatch.setattr(inputs, "seeded", lambda problem, seed: replace(given, q=q))
        cases = tuple(Case(index=index, problem=PROBLEM, threads=1 + index) for index in range(2))
        got = told(plan([Scripted("a", steady(10))], monkeypatch, cases=cases))
        for row in got.rows:
            assert (row.status, row.verified, row.nonfinite) == (Status.OK, True, 1)
            assert "non-finite values in 1 output rows" in row.warnings
        assert sum("NaN or infinity" in w.message for w in got.of(WarningEvent)) == 1  # for all cases of the input


class TestStopping:
    def test_a_stop_while_sampling_keeps_the_rows_and_cancels_the_rest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stop: list[int] = []

        def stops(_: Scripted, number: int) -> float:
            if number == 13:
                stop.append(1)
            return (10.0, 30.0)[number % 2]

        kernels = [Scripted("quick", steady(10)), Scripted("slow", stops), Scripted("no", steady(1), reason="no")]
        cases = tuple(Case(index=i, problem=PROBLEM, threads=1) for i in (0, 1))
        got = told(plan(kernels, monkeypatch, cases=cases), lambda: bool(stop))
        rows = {(e.case.index, e.kernel): e.row for e in got.events if hasattr(e, "row")}
        assert rows[0, "quick"].status is Status.OK
        slow = rows[0, "slow"]
        assert (slow.status, slow.stop_reason, slow.samples) == (Status.CANCELLED, StopReason.CANCELLED, 13)
        assert slow.wall_ms_median is not None
        assert (slow.verified, slow.speedup_vs_naive) == (True, None)
        assert slow.message == "stopped while it was measured"
        assert rows[0, "no"].status is Status.SKIPPED
        for name in ("quick", "slow", "no"):
            row = rows[1, name]
            assert (row.status, row.samples, row.message) == (Status.CANCELLED, None, "stopped before it was measured")
        samples = [s for batch in got.of(SampleBatch) if batch.kernel == "slow" for s in batch.samples]
        assert len(samples) == 13
        assert [e.case.index for e in got.of(CaseFinished)] == [0, 1]
        assert got.events[-1] == SessionFinished(Ending.CANCELLED)
        assert {kernel.open for kernel in kernels} == {0}

    def test_a_kernel_that_failed_to_warm_up_before_the_stop_stays_failed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stop: list[int] = []

        def tires(_: Scripted, number: int) -> float:
            if number == 1:
                stop.append(1)
                raise ValueError("tired")
            return 10.0

        what = plan([Scripted("broken", tires), Scripted("a", steady(10))], monkeypatch, seconds=1)
        got = told(what, lambda: bool(stop))
        assert (got.row("broken").status, got.row("broken").message) == (Status.FAILED, "tired")
        assert got.row("a").status is Status.CANCELLED

    @pytest.mark.parametrize("at", range(1, 9))
    def test_a_stop_at_any_moment_ends_in_cancelled_rows(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        asked: list[int] = []

        def should_stop() -> bool:
            asked.append(1)
            return len(asked) == at  # once only: the session itself must remember

        kernels = [Scripted("a", steady(10)), Scripted("b", steady(10))]
        cases = tuple(Case(index=i, problem=PROBLEM) for i in (0, 1))
        got = told(plan(kernels, monkeypatch, cases=cases, samples=9), should_stop)
        assert [row.status for row in got.rows] == [Status.CANCELLED] * 4
        assert got.events[-1] == SessionFinished(Ending.CANCELLED)
        assert {kernel.open for kernel in kernels} == {0}

    def test_three_runs_started_and_stopped_in_one_process_then_a_whole_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kernel = Scripted("a", steady(10))
        what = plan([kernel], monkeypatch)
        for runs in (1, 3, 5):
            kernel.calls.clear()
            got = told(what, lambda runs=runs: kernel.calls.count("run") >= runs)
            assert got.row("a").status is Status.CANCELLED
        assert told(what).row("a").status is Status.OK
        assert kernel.open == 0


class TestListeners:
    @pytest.mark.parametrize(
        "kind", [SessionStarted, CaseStarted, KernelPrepared, SampleBatch, KernelFinished, KernelSkipped, KernelFailed]
    )
    def test_a_listener_that_raises_ends_the_session_and_hears_so_once(
        self, monkeypatch: pytest.MonkeyPatch, kind: type[Event]
    ) -> None:
        kernels = [
            Scripted("a", steady(10)), Scripted("no", steady(1), reason="no"), Scripted("bad", steady(1), fail_in="run")
        ]  # fmt: skip
        heard: list[Event] = []

        def emit(event: Event) -> None:
            heard.append(event)
            if isinstance(event, kind):
                raise LookupError("the listener's own fault")

        with pytest.raises(LookupError, match="own fault"):
            session.run(plan(kernels, monkeypatch), emit)
        assert [type(e) for e in heard].count(kind) == 1
        assert heard[-1] == SessionFinished(Ending.BROKEN, "the session broke: LookupError: the listener's own fault")
        assert [type(e) for e in heard].count(SessionFinished) == 1
        assert {kernel.open for kernel in kernels} == {0}

    def test_a_listener_that_raises_at_the_end_hears_the_end_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        heard: list[Event] = []

        def emit(event: Event) -> None:
            heard.append(event)
            if isinstance(event, SessionFinished):
                raise LookupError

        with pytest.raises(LookupError):
            session.run(plan([Scripted("a", steady(10))], monkeypatch), emit)
        assert [type(e) for e in heard].count(SessionFinished) == 1

    def test_a_fault_of_the_session_itself_is_told_not_raised(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken() -> None:
            raise OSError("no such thing")

        monkeypatch.setattr(session.environment, "describe", broken)
        got = told(plan([Scripted("a", steady(10))], monkeypatch))
        assert got.events[-1] == SessionFinished(Ending.BROKEN, "the session broke: no such thing")
        assert "Traceback" in got.of(LogLine)[0].text

    def test_an_interrupt_still_ends_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(_: Scripted, __: int) -> float:
            raise KeyboardInterrupt

        kernel = Scripted("a", interrupt)
        heard: list[Event] = []
        with pytest.raises(KeyboardInterrupt):
            session.run(plan([kernel], monkeypatch), heard.append)
        assert heard[-1] == SessionFinished(Ending.CUT_OFF, "interrupted")
        assert kernel.open == 0


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_cpu_kernels_for_real(direction: Direction) -> None:
    problem = AttentionProblem(batch=1, heads=2, seq_q=96, head_dim=16, causal=True, direction=direction)
    what = Plan(
        cases=(Case(index=0, problem=problem, threads=2),), kernels=("cpu-flash", "cpu-naive"), samples=3, device="cpu"
    )
    got = told(what)
    assert [row.status for row in got.rows] == [Status.OK, Status.OK], got.rows
    for row in got.rows:
        assert row.direction == direction
        assert row.peak_bytes == pytest.approx(row.predicted_bytes, rel=0.05, abs=256 << 10)
        assert row.max_abs_err is not None
        assert row.max_abs_err < 4e-6
        assert row.speedup_vs_naive is not None


def test_rows_that_never_ran_say_their_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [Scripted("a", steady(10), reason="no"), Scripted("b", steady(10), fail_in="prepare")]
    case = Case(index=0, problem=msgspec.structs.replace(PROBLEM, direction="backward"), threads=1)
    what = plan(kernels, monkeypatch, cases=(case,))
    for got, statuses in (
        (told(what), [Status.SKIPPED, Status.FAILED]),
        (told(what, lambda: True), [Status.CANCELLED, Status.CANCELLED]),
    ):
        assert [(row.status, row.direction) for row in got.rows] == [(status, "backward") for status in statuses]


class TestTheWayBack:
    """Backward cases, with the CPU kernels for real."""

    def race(self, case: Case, **changes: Any) -> Told:
        defaults = {"cases": (case,), "kernels": ("cpu-flash", "cpu-naive"), "samples": 3, "device": "cpu"}
        return told(Plan(**defaults | changes))

    def test_a_row_says_so_and_counts_the_work_of_five_products(self) -> None:
        problem = AttentionProblem(heads=4, kv_heads=2, seq_q=96, head_dim=16, causal=True, direction="backward")
        got = self.race(Case(index=0, problem=problem, threads=2))
        assert [row.status for row in got.rows] == [Status.OK, Status.OK], got.rows
        for row in got.rows:
            assert (row.direction, row.verified, row.nonfinite, row.seed) == ("backward", True, 0, 0)
            assert row.peak_bytes == pytest.approx(row.predicted_bytes, rel=0.05, abs=256 << 10)
            assert row.scratch_bytes == row.peak_bytes - problem.tensor_bytes
            assert row.max_rel_err is not None
            assert row.max_rel_err < 4e-6
            assert row.wall_ms_median is not None
            assert row.gflops == pytest.approx(2.5 * problem.forward_pass.flops() / row.wall_ms_median / 1e6)
            assert row.speedup_vs_naive is not None
            assert row.recorded_output_err is None
        assert got.row("cpu-naive").scratch_bytes > 2 * problem.score_bytes

    def test_tensors_of_a_file_go_with_a_seeded_gradient(self, sample_file: Path) -> None:
        tensors = inputs.load(str(sample_file))
        problem = msgspec.structs.replace(inputs.problem_for(tensors, causal=True), direction="backward")
        case = Case(index=0, problem=problem, input=str(sample_file), threads=1)
        got = self.race(case, seed=5, samples=1, kernels=("cpu-flash", "cpu-naive", "cpu-flash-jit"))
        for row in (got.row("cpu-flash"), got.row("cpu-naive")):
            assert (row.status, row.verified, row.direction, row.seed) == (Status.OK, True, "backward", 5), row
            assert row.input == str(sample_file)
            assert row.recorded_output_err is None  # the file records no gradients
        assert (got.row("cpu-flash-jit").status, got.row("cpu-flash-jit").direction) == (Status.SKIPPED, "backward")

    def test_nan_in_the_input_is_warned_of_and_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = AttentionProblem(heads=2, seq_q=20, head_dim=8, causal=True, direction="backward")
        given = inputs.seeded(problem, 0)
        given.q[0, 0, 4, 1] = np.nan
        monkeypatch.setattr(inputs, "seeded", lambda problem, seed: given)
        got = self.race(Case(index=0, problem=problem, threads=1))
        for row in got.rows:
            assert (row.status, row.verified, row.nonfinite) == (Status.OK, True, 1 + 5 + 5)
            assert "non-finite values in 11 gradient rows" in row.warnings
        assert any("NaN or infinity" in w.message for w in got.of(WarningEvent))

    def test_wrong_gradients_are_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from engine.kernels.cpu import PreparedGradients

        real = PreparedGradients.gradients
        monkeypatch.setattr(
            PreparedGradients, "gradients", lambda self: msgspec.structs.replace(real(self), dk=-real(self).dk)
        )
        problem = AttentionProblem(heads=2, seq_q=20, head_dim=8, direction="backward")
        for row in self.race(Case(index=0, problem=problem, threads=1)).rows:
            assert (row.status, row.verified, row.wall_ms_median) == (Status.WRONG, False, None)
            assert row.message.startswith("dk is ")

    def test_what_does_not_fit_is_skipped_with_both_figures(self) -> None:
        problem = AttentionProblem(heads=2, seq_q=300, head_dim=8, direction="backward")
        got = self.race(Case(index=0, problem=problem, threads=1), memory_limit=1 << 20)
        assert got.row("cpu-naive").status == Status.SKIPPED
        assert got.row("cpu-naive").message == "its tensors and score matrices need 1.53 MiB, the limit is 1.00 MiB"
