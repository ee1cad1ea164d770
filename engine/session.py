"""The one place where a run happens: a plan goes through devices, kernels and measurement, and events tell of it."""

from __future__ import annotations

import contextlib
import secrets
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Literal

import msgspec

from engine import cpu, inputs
from engine.devices import Device, DeviceUnavailable
from engine.events import (
    CaseFinished,
    CaseStarted,
    Event,
    KernelFailed,
    KernelFinished,
    KernelPrepared,
    KernelSkipped,
    LogLine,
    MemorySample,
    Progress,
    SampleBatch,
    SessionFinished,
    SessionStarted,
)
from engine.events import Warning as WarningEvent
from engine.inputs import Inputs
from engine.kernels import registry
from engine.kernels.base import Kernel, MemoryUse, Prepared
from engine.measure import environment, memory, sampler
from engine.measure.peaks import Peaks
from engine.measure.rows import Occasion, blank_row, with_samples, with_speedup, with_verdict
from engine.measure.sampler import Rule, Runner
from engine.measure.verify import Expected, Verdict, expect, verify
from engine.plan import Case, Plan
from engine.problem import AttentionProblem
from engine.results import Row, Status, StopReason
from engine.running import Cancelled, ShouldStop, never_stop

Emit = Callable[[Event], None]

_LONGEST_MESSAGE = 300  # characters of an error that a report repeats; the log has it all
_BATCH_S = 0.05  # between two batches of samples: what a listener can draw, and no more


def run(plan: Plan, emit: Emit, should_stop: ShouldStop = never_stop) -> None:
    """Run every kernel of the plan on every case, handing ``emit`` the events of ``engine.events`` as they happen.

    A kernel that raises, is wrong or does not fit ends in its own row and the others go on. When ``should_stop``
    answers True, asked between the tiles of a kernel, the rows so far stand and the rest get status ``cancelled``.
    Whatever happens, the last event is one SessionFinished. Raises only what ``emit`` raises.
    """
    listener = _Listener(emit)
    reason = "interrupted"
    try:
        reason = _Session(plan, listener, should_stop).run()
    except Exception as error:
        reason = f"the session broke: {_sentence(error)}"
        if listener.broken:
            raise
        listener(LogLine("error", traceback.format_exc()))
    finally:
        emit(SessionFinished(reason))


class _Listener:
    """Passes events on, and remembers if whoever listens raised: that is no fault of a kernel or of the session."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.broken = False

    def __call__(self, event: Event) -> None:
        try:
            self._emit(event)
        except BaseException:
            self.broken = True
            raise


class _Devices:
    """The devices of one session, each opened when a kernel first needs it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._cpus: dict[int | None, cpu.CpuDevice] = {}
        self._gpu: Device | DeviceUnavailable | None = None

    def open(self, kind: Literal["cpu", "gpu"], threads: int | None) -> Device:
        """Return the device of that kind. Raises DeviceUnavailable, the same again when asked again."""
        if kind == "gpu":
            if self._gpu is None:
                self._gpu = self._open_gpu()
            if isinstance(self._gpu, DeviceUnavailable):
                raise self._gpu
            return self._gpu
        if threads not in self._cpus:
            self._cpus[threads] = cpu.open_cpu(threads, self._plan.memory_limit)
        return self._cpus[threads]

    def gpu_bytes(self) -> int:
        """Return the bytes held on the GPU, 0 while it is not open."""
        in_use = getattr(self._gpu, "memory_in_use", None)
        return in_use() if in_use else 0

    def close(self) -> None:
        """Close what was opened; the GPU stays open for the process, for each one dropped leaks a little."""
        for device in self._cpus.values():
            device.close()

    def _open_gpu(self) -> Device | DeviceUnavailable:
        if self._plan.device == "cpu":
            return DeviceUnavailable("left out by --device cpu; choose auto or a GPU to run it")
        from engine.gpu.device import open_gpu

        try:
            return open_gpu(self._plan.device, self._plan.memory_limit, self._plan.checks)
        except DeviceUnavailable as error:
            return error
        except Exception as error:
            return DeviceUnavailable(f"the GPU could not be opened: {_sentence(error)}")


@dataclass
class _Turn:
    """One kernel's turn at one case, filled in as it goes; ``row`` is set once, when the turn is over."""

    name: str
    kernel: Kernel | None = None
    device: Device | None = None
    predicted_bytes: int | None = None
    prepared: Prepared | None = None
    memory: MemoryUse | None = None
    process_peak_bytes: int | None = None
    first_run_ms: float | None = None
    verdict: Verdict | None = None
    runner: Runner | None = None
    told: int = 0  # samples already emitted
    row: Row | None = None

    def prepare_and_run(self, problem: AttentionProblem, given: Inputs, should_stop: ShouldStop) -> float:
        """Prepare the kernel anew and run it once on a poisoned output; return the run's wall milliseconds."""
        assert self.kernel is not None
        self.close()
        self.prepared = self.kernel.prepare(problem, given, self.device)
        self.prepared.poison()
        return self.prepared.run(1, should_stop).wall_ms

    def close(self) -> None:
        """Free what the kernel holds. Safe to call twice."""
        if self.prepared is not None:
            prepared, self.prepared = self.prepared, None
            prepared.close()


class _Session:
    """A run while it runs."""

    def __init__(self, plan: Plan, emit: Emit, should_stop: ShouldStop) -> None:
        self._plan = plan
        self._emit = emit
        self._should_stop = should_stop
        self._rule = Rule(seconds=plan.seconds, samples=plan.samples, min_samples=plan.min_samples)
        self._devices = _Devices(plan)
        self._peaks = Peaks()
        self._doubts: list[str] = []  # warnings that hold for every number of the session
        self._began = self._told_at = time.perf_counter()
        self._turns: list[_Turn] = []  # of the case under way
        self._turns_done = 0
        self._note = ""  # what the input of the case under way has to say
        self._cancelled = False

    def run(self) -> str:
        """Run all cases; return ``done`` or ``cancelled``."""
        now = datetime.now().astimezone()
        self._occasion = Occasion(
            run_id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
            started_at=now.isoformat(timespec="seconds"),
            plan=self._plan,
            environment=environment.describe(),
        )
        self._emit(
            SessionStarted(self._occasion.run_id, self._occasion.started_at, self._plan, self._occasion.environment)
        )
        if warning := environment.power_warning():
            self._doubts.append(warning)
            self._emit(WarningEvent(warning))
        with contextlib.closing(self._devices):
            for case in self._plan.cases:
                self._emit(CaseStarted(case))
                self._case(case)
                self._emit(CaseFinished(case))
        return "cancelled" if self._cancelled else "done"

    def _case(self, case: Case) -> None:
        self._turns = [_Turn(name) for name in self._plan.kernels]
        self._note = ""
        load = environment.OthersLoad()
        try:
            try:
                self._measure(case)
            except Cancelled:
                self._cancelled = True
            self._conclude(case, load.warning())
        finally:
            for turn in self._turns:
                self._close(turn)

    def _measure(self, case: Case) -> None:
        """Take the turns of a case as far as they go. Raises Cancelled."""
        self._check_stop()
        for turn in self._turns:
            self._admit(case, turn)
        if not self._open_turns():
            return
        try:
            given = _inputs(case, self._plan.seed)
            expected = expect(case.problem, given, self._plan.seed)
        except Exception as error:
            for turn in self._open_turns():
                self._fail(case, turn, error)
            return
        self._note = given.note
        if not expected.finite_input:
            self._emit(WarningEvent(f"the input {case.input} holds NaN or infinity; rows that see it are not finite"))
        for turn in self._open_turns():
            self._check_stop()
            self._emit(LogLine("info", f"preparing {turn.name}"))
            self._first_run(case, turn, given, expected)
        self._race(case, self._open_turns())

    def _admit(self, case: Case, turn: _Turn) -> None:
        """Find the kernel and its device, and ask whether the problem can run there."""
        reason: str | None
        try:
            turn.kernel = registry.get_kernel(turn.name)
            turn.device = self._devices.open(turn.kernel.device_kind, case.threads)
            reason = turn.kernel.supports(case.problem, turn.device.limits)
            if reason is None:
                turn.predicted_bytes = turn.kernel.predict(case.problem, turn.device.limits)
        except DeviceUnavailable as error:
            reason = str(error)
        except Exception as error:
            self._fail(case, turn, error)
            return
        if reason is not None:
            row = self._row(case, turn, Status.SKIPPED, reason)
            self._end(turn, KernelSkipped(case, turn.name, reason, row))

    def _first_run(self, case: Case, turn: _Turn, given: Inputs, expected: Expected) -> None:
        """Prepare a kernel, run it once, count its memory and compare its output with what is expected."""
        assert turn.kernel is not None
        memory.reset_high_water()
        try:
            if turn.kernel.device_kind == "cpu":
                self._traced_run(case.problem, turn, given)
            if turn.first_run_ms is None:
                turn.first_run_ms = turn.prepare_and_run(case.problem, given, self._should_stop)
            turn.process_peak_bytes = memory.high_water_bytes()
            assert turn.prepared is not None
            turn.memory = turn.prepared.memory() or turn.memory
            turn.verdict = verify(expected, turn.prepared.outputs().output)
        except Cancelled:
            raise
        except Exception as error:
            self._fail(case, turn, error)
            return
        self._emit(KernelPrepared(case, turn.name, turn.predicted_bytes or 0, turn.prepared.variant))
        self._tell_memory()
        if turn.verdict.verified:
            turn.runner = Runner(partial(turn.prepared.run, should_stop=self._should_stop), turn.first_run_ms / 1e3)
        else:
            row = self._row(case, turn, Status.WRONG, turn.verdict.message)
            self._close(turn)
            self._end(turn, KernelFinished(case, turn.name, row))

    def _traced_run(self, problem: AttentionProblem, turn: _Turn, given: Inputs) -> None:
        """Count a CPU kernel's memory in a pass of its own, which is the first run where it is a long one."""
        with memory.traced() as trace:
            run_ms = turn.prepare_and_run(problem, given, self._should_stop)
        peak = given.q.nbytes + given.k.nbytes + given.v.nbytes + trace.peak_bytes
        turn.memory = MemoryUse(scratch_bytes=max(0, peak - problem.tensor_bytes), peak_bytes=peak)
        if run_ms > 1e3 * self._plan.seconds / 4:
            turn.first_run_ms = run_ms

    def _race(self, case: Case, turns: list[_Turn]) -> None:
        """Warm the kernels up and sample them in turns. Raises Cancelled when all samples have been told."""
        runners = [turn.runner for turn in turns if turn.runner is not None]
        for turn, runner in zip(turns, runners, strict=True):
            self._check_stop()
            assert turn.device is not None
            self._peaks.of(turn.device)  # while nothing else runs
            sampler.warm_up(runner, self._plan.seconds)

        def on_sample(_: Runner) -> None:
            if time.perf_counter() - self._told_at >= _BATCH_S:
                self._tell(case)

        sampler.race(runners, self._rule, began=self._began, on_sample=on_sample, should_stop=self._should_stop)
        self._tell(case)
        for turn, runner in zip(turns, runners, strict=True):
            if runner.error is not None:
                self._fail(case, turn, runner.error)
        if any(runner.stopped is StopReason.CANCELLED for runner in runners):
            raise Cancelled

    def _conclude(self, case: Case, load: str | None) -> None:
        """Give every turn that is still open its row: ``ok`` where it was sampled to the end, else ``cancelled``."""
        rows: dict[str, Row] = {turn.name: turn.row for turn in self._turns if turn.row is not None}
        open_turns = self._open_turns()
        for turn in open_turns:
            stopped = turn.runner.stopped if turn.runner else None
            if stopped in (None, StopReason.CANCELLED):
                begun = turn.runner is not None and turn.runner.samples
                message = "stopped while it was measured" if begun else "stopped before it was measured"
                rows[turn.name] = self._row(case, turn, Status.CANCELLED, message, load)
            else:
                rows[turn.name] = self._row(case, turn, Status.OK, "", load)
        for turn in open_turns:
            naive = rows.get(turn.kernel.naive) if turn.kernel else None
            self._end(turn, KernelFinished(case, turn.name, with_speedup(rows[turn.name], naive)))

    def _fail(self, case: Case, turn: _Turn, error: Exception) -> None:
        message = _sentence(error)
        row = self._row(case, turn, Status.FAILED, message)
        self._close(turn)
        trace = "".join(traceback.format_exception(error))
        self._end(turn, KernelFailed(case, turn.name, message, trace, row))

    def _end(self, turn: _Turn, event: KernelSkipped | KernelFinished | KernelFailed) -> None:
        turn.row = event.row
        self._turns_done += 1
        self._emit(event)
        self._tell_progress()

    def _close(self, turn: _Turn) -> None:
        try:
            turn.close()
        except Exception as error:
            self._emit(LogLine("warning", f"{turn.name} could not be closed: {_sentence(error)}"))

    def _row(self, case: Case, turn: _Turn, status: Status, message: str, load: str | None = None) -> Row:
        """Return a turn's row from all that is known of it so far."""
        row = blank_row(self._occasion, case, turn.name, turn.device, status)
        samples = turn.runner.samples if turn.runner else []
        stopped = turn.runner.stopped if turn.runner else None
        note = self._note if turn.first_run_ms is not None else ""
        warnings = [*self._doubts, *([load] if load else [])] if samples else []
        if turn.first_run_ms is not None and row.adapter_type == "software":
            warnings.append("software adapter: not the speed of a GPU")
        if turn.prepared is not None:
            warnings += turn.prepared.warnings
            row = msgspec.structs.replace(
                row,
                variant=turn.prepared.variant,
                compile_ms=turn.prepared.compile_ms,
                upload_ms=turn.prepared.upload_ms,
                readback_ms=turn.prepared.readback_ms,
            )
        if turn.verdict is not None:
            row = with_verdict(row, turn.verdict)
            if turn.verdict.nonfinite:
                warnings.append(f"non-finite values in {turn.verdict.nonfinite} output rows")
        row = msgspec.structs.replace(
            row,
            message="; ".join(filter(None, (message, note))),
            warnings="; ".join(warnings),
            stop_reason={Status.FAILED: StopReason.FAILED, Status.CANCELLED: StopReason.CANCELLED}.get(status, stopped),
            first_run_ms=turn.first_run_ms,
            scratch_bytes=turn.memory.scratch_bytes if turn.memory else None,
            peak_bytes=turn.memory.peak_bytes if turn.memory else None,
            predicted_bytes=turn.predicted_bytes,
            process_peak_bytes=turn.process_peak_bytes,
        )
        if samples and turn.device is not None:
            row = with_samples(row, case.problem, samples, self._peaks.of(turn.device))
        return row

    def _open_turns(self) -> list[_Turn]:
        return [turn for turn in self._turns if turn.row is None]

    def _check_stop(self) -> None:
        if self._cancelled or self._should_stop():
            raise Cancelled

    def _tell(self, case: Case) -> None:
        """Emit the new samples, the memory in use and the progress."""
        self._told_at = time.perf_counter()
        for turn in self._turns:
            if turn.runner is not None and (new := turn.runner.samples[turn.told :]):
                turn.told += len(new)
                self._emit(SampleBatch(case, turn.name, tuple(new)))
        self._tell_memory()
        self._tell_progress()

    def _tell_memory(self) -> None:
        now = time.perf_counter() - self._began
        self._emit(MemorySample(now, memory.resident_bytes(), self._devices.gpu_bytes()))

    def _tell_progress(self) -> None:
        """Emit the progress; the time left goes by what the turns so far took."""
        total = len(self._plan.cases) * len(self._plan.kernels)
        done = self._turns_done + sum(self._share(turn.runner) for turn in self._open_turns() if turn.runner)
        elapsed = time.perf_counter() - self._began
        self._emit(Progress(done, total, elapsed / done * (total - done) if done else None))

    def _share(self, runner: Runner) -> float:
        """Return how much of a turn's sampling is done, 0 to 1."""
        if runner.stopped is not None:
            return 1.0
        if self._plan.samples is not None:
            return len(runner.samples) / self._plan.samples
        return min(1.0, runner.spent_s / self._plan.seconds)


def _inputs(case: Case, seed: int) -> Inputs:
    """Return the tensors of a case. Raises ValueError where its file cannot be read or does not fit the problem."""
    if not case.from_file:
        return inputs.seeded(case.problem, seed)
    return inputs.as_inputs(inputs.load(case.input), case.problem)


def _sentence(error: BaseException) -> str:
    """Return an error as one line of text, with its type where the text alone would not tell."""
    text = " ".join(str(error).split())
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[:_LONGEST_MESSAGE]}…"
    if isinstance(error, MemoryError):
        return f"out of memory: {text}" if text else "out of memory"
    name = type(error).__name__
    return text if text and isinstance(error, (ValueError, RuntimeError, OSError)) else f"{name}: {text}".rstrip(": ")
