"""The one place where a run happens: a plan goes through devices, kernels and measurement, and events tell of it."""

from __future__ import annotations

import contextlib
import secrets
import time
import traceback
from collections.abc import Callable
from datetime import datetime

from engine.common.messages import sentence
from engine.common.running import Cancelled, ShouldStop, never_stop
from engine.devices.device import DeviceUnavailable
from engine.kernels import registry
from engine.measure import environment, memory, sampler
from engine.measure.peaks import Peaks
from engine.measure.rows import Occasion, row_of, with_speedup
from engine.measure.sampler import Rule, Runner
from engine.measure.turn import Judge, Turn
from engine.measure.verify import expect
from engine.measure.verify_backward import expect_gradients
from engine.problem import inputs
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
from engine.session.opened import OpenedDevices

Emit = Callable[[Event], None]

_BATCH_S = 0.05  # between two batches of samples: what a listener can draw, and no more


def run(plan: Plan, emit: Emit, should_stop: ShouldStop = never_stop) -> None:
    """Run every kernel of the plan on every case, handing ``emit`` the events as they happen.

    A kernel that raises, is wrong or does not fit ends in its own row and the others go on. When ``should_stop``
    answers True, asked between the tiles of a kernel, the rows so far stand and the rest get status ``cancelled``.
    Whatever happens, the last event is one SessionFinished. Raises only what ``emit`` raises.
    """
    listener = _Listener(emit)
    finished = SessionFinished(Ending.CUT_OFF, "interrupted")
    try:
        finished = SessionFinished(_Session(plan, listener, should_stop).run())
    except Exception as error:
        finished = SessionFinished(Ending.BROKEN, f"the session broke: {sentence(error)}")
        if listener.broken:
            raise
        listener(LogLine("error", traceback.format_exc()))
    finally:
        emit(finished)


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


class _Session:
    """A run while it runs."""

    def __init__(self, plan: Plan, emit: Emit, should_stop: ShouldStop) -> None:
        now = datetime.now().astimezone()
        self._occasion = Occasion(
            run_id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
            started_at=now.isoformat(timespec="seconds"),
            plan=plan,
            environment=environment.describe(),
        )
        self._plan = plan
        self._emit = emit
        self._should_stop = should_stop
        self._rule = Rule(seconds=plan.seconds, samples=plan.samples, min_samples=plan.min_samples)
        self._devices = OpenedDevices(plan)
        self._peaks = Peaks()
        self._doubts: list[str] = []  # warnings that hold for every number of the session
        self._began = self._told_at = time.perf_counter()
        self._pace_s = plan.seconds if plan.samples is None else None  # of a turn: its budget, until cases have shown
        self._turns: list[Turn] = []  # of the case under way
        self._turns_done = 0
        self._note = ""  # what the input of the case under way has to say
        self._doing: tuple[Phase | None, str] = (None, "")
        self._cancelled = False
        self._notices: set[str] = set()  # of devices and inputs, that have been told

    def run(self) -> Ending:
        """Run all cases; return whether they are done or were cancelled."""
        about = self._occasion
        self._emit(SessionStarted(about.run_id, about.started_at, self._plan, about.environment))
        if warning := environment.power_warning():
            self._doubts.append(warning)
            self._emit(WarningEvent(warning))
        with contextlib.closing(self._devices):
            for case in self._plan.cases:
                self._emit(CaseStarted(case))
                self._case(case)
                self._pace_s = (time.perf_counter() - self._began) / max(1, self._turns_done)
                self._emit(CaseFinished(case))
        return Ending.CANCELLED if self._cancelled else Ending.DONE

    def _case(self, case: Case) -> None:
        self._turns = [Turn(name) for name in self._plan.kernels]
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
        self._enter(Phase.REFERENCE)
        try:
            given = _inputs(case, self._plan.seed)
            judged = expect_gradients if case.problem.backward else expect
            judge = judged(case.problem, given, self._plan.seed, self._should_stop)
        except Cancelled:
            raise
        except Exception as error:
            for turn in self._open_turns():
                self._fail(case, turn, error)
            return
        self._note = given.note
        if not judge.finite_input:
            self._tell_notice(f"the input {case.input} holds NaN or infinity; rows that see it are not finite")
        for turn in self._open_turns():
            self._check_stop()
            self._first_run(case, turn, given, judge)
        self._race(case)

    def _admit(self, case: Case, turn: Turn) -> None:
        """Find the kernel and its device, and ask whether the problem can run there."""
        reason: str | None
        try:
            turn.kernel = registry.get_kernel(turn.name)
            reason = turn.kernel.missing()
            if reason is None:
                turn.device = turn.kernel.on(self._devices.open(turn.kernel.device_kind, case.threads))
                reason = turn.kernel.refusal(case.problem, turn.device.limits)
            if reason is None:
                assert turn.device is not None
                turn.predicted_bytes = turn.kernel.predict(case.problem, turn.device.limits)
        except DeviceUnavailable as error:
            reason = str(error)
        except Exception as error:
            self._fail(case, turn, error)
            return
        if turn.device is not None:
            self._tell_notice(turn.device.info.notice)
        if reason is not None:
            row = self._row(case, turn, Status.SKIPPED, reason)
            self._end(turn, KernelSkipped(case, turn.name, reason, row))

    def _tell_notice(self, notice: str) -> None:
        """Pass on, once, what there is to say of a device or an input."""
        if notice and notice not in self._notices:
            self._notices.add(notice)
            self._emit(WarningEvent(notice))

    def _first_run(self, case: Case, turn: Turn, given: Inputs, judge: Judge) -> None:
        """See a kernel through its first run; a wrong one is over then."""
        self._emit(LogLine("info", f"preparing {turn.name}"))
        self._enter(Phase.PREPARING, turn.name)
        try:
            turn.first_run(case.problem, given, judge, self._plan.seconds, self._should_stop)
        except Cancelled:
            raise
        except Exception as error:
            self._fail(case, turn, error)
            return
        assert turn.prepared is not None
        assert turn.verdict is not None
        scratch = turn.memory.scratch_bytes if turn.memory else None
        variant = turn.prepared.variant
        self._emit(KernelPrepared(case, turn.name, turn.predicted_bytes or 0, variant, turn.first_run_ms, scratch))
        self._tell_memory()
        if turn.verdict.verified is False:
            row = self._row(case, turn, Status.WRONG, turn.verdict.message)
            self._close(turn)
            self._end(turn, KernelFinished(case, turn.name, row))

    def _race(self, case: Case) -> None:
        """Warm the kernels up and sample them in turns. Raises Cancelled when all samples have been told."""
        self._enter(Phase.MEASURING)
        for turn in self._open_turns():
            self._check_stop()
            assert turn.device is not None
            assert turn.runner is not None
            self._peaks.of(turn.device, case.problem.dtype)  # while nothing else runs
            sampler.warm_up(turn.runner, self._plan.seconds)
            self._fail_if_broken(case, turn)

        def on_sample(_: Runner) -> None:
            if time.perf_counter() - self._told_at >= _BATCH_S:
                self._tell(case)

        turns = self._open_turns()
        runners = [turn.runner for turn in turns if turn.runner is not None]
        sampler.race(runners, self._rule, began=self._began, on_sample=on_sample, should_stop=self._should_stop)
        self._tell(case)
        for turn in turns:
            self._fail_if_broken(case, turn)
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
                said = turn.verdict.message if turn.verdict else ""
                rows[turn.name] = self._row(case, turn, Status.OK, said, load)
        for turn in open_turns:
            naive = rows.get(turn.kernel.naive) if turn.kernel else None
            self._end(turn, KernelFinished(case, turn.name, with_speedup(rows[turn.name], naive)))

    def _fail_if_broken(self, case: Case, turn: Turn) -> None:
        if turn.runner is not None and turn.runner.error is not None:
            self._fail(case, turn, turn.runner.error)

    def _fail(self, case: Case, turn: Turn, error: Exception) -> None:
        message = sentence(error)
        row = self._row(case, turn, Status.FAILED, message)
        self._close(turn)
        trace = "".join(traceback.format_exception(error))
        self._end(turn, KernelFailed(case, turn.name, message, trace, row))

    def _end(self, turn: Turn, event: KernelSkipped | KernelFinished | KernelFailed) -> None:
        turn.row = event.row
        self._turns_done += 1
        self._emit(event)
        self._tell_progress()

    def _close(self, turn: Turn) -> None:
        try:
            turn.close()
        except Exception as error:
            self._emit(LogLine("warning", f"{turn.name} could not be closed: {sentence(error)}"))

    def _row(self, case: Case, turn: Turn, status: Status, message: str, load: str | None = None) -> Row:
        doubts = [*self._doubts, *([load] if load else [])]
        return row_of(self._occasion, case, turn, status, [message, self._note], doubts, self._peaks)

    def _open_turns(self) -> list[Turn]:
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

    def _enter(self, phase: Phase, kernel: str = "") -> None:
        self._doing = phase, kernel
        self._tell_progress()

    def _tell_progress(self) -> None:
        """Emit the progress; the time left goes by what a turn of the cases so far took."""
        total = len(self._plan.cases) * len(self._plan.kernels)
        done = self._turns_done + sum(self._share(turn.runner) for turn in self._open_turns() if turn.runner)
        left = None if self._pace_s is None else self._pace_s * (total - done)
        self._emit(Progress(done, total, left, *self._doing))

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
    given = inputs.as_inputs(inputs.load(case.input), case.problem)
    return inputs.with_grad_output(case.problem, given, seed) if case.problem.backward else given
