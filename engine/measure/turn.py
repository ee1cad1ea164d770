"""One kernel's turn at one case: prepared, run once, its memory counted and its output judged before it is timed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import msgspec

from engine.common.running import ShouldStop
from engine.devices.device import Device
from engine.kernels.base import Kernel, MemoryUse, Prepared
from engine.measure import memory
from engine.measure.diagnose import Comparison, diagnose
from engine.measure.sampler import Runner
from engine.measure.verdict import Verdict
from engine.measure.verify import Expected
from engine.measure.verify_backward import ExpectedGradients
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.records.results import Row

Judge = Expected | ExpectedGradients


@dataclass
class Turn:
    """What is known of the turn so far. ``runner`` is there once the kernel may be timed, ``row`` once it is over."""

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
    told: int = 0  # samples that listeners have
    row: Row | None = None

    def first_run(
        self, problem: AttentionProblem, given: Inputs, judge: Judge, seconds: float, should_stop: ShouldStop
    ) -> None:
        """Prepare the kernel, run it once, count its memory and have its result judged.

        A CPU kernel that does not count its memory is traced in a pass of its own; where that run takes over a quarter
        of ``seconds`` it is kept as the first run. Raises Cancelled, and whatever the kernel raises.
        """
        assert self.kernel is not None
        self.kernel.load()
        memory.reset_high_water()
        if self.kernel.device_kind == "cpu" and not self.kernel.counts_memory:
            with memory.traced() as trace:
                run_ms = self._prepare_and_run(problem, given, should_stop)
            peak = given.nbytes + trace.peak_bytes
            self.memory = MemoryUse(scratch_bytes=max(0, peak - problem.tensor_bytes), peak_bytes=peak)
            if run_ms > 1e3 * seconds / 4:
                self.first_run_ms = run_ms
        if self.first_run_ms is None:
            self.first_run_ms = self._prepare_and_run(problem, given, should_stop)
        self.process_peak_bytes = memory.high_water_bytes()
        assert self.prepared is not None
        self.memory = self.prepared.memory() or self.memory
        self.verdict = judge.judge(self.prepared)
        if self.verdict.verified is False and isinstance(judge, Expected):
            self.verdict = self._diagnosed(self.verdict, problem, given, judge)
        if self.verdict.verified is not False:
            self.runner = Runner(partial(self.prepared.run, should_stop=should_stop), self.first_run_ms / 1e3)

    def close(self) -> None:
        """Free what the kernel holds. Safe to call twice."""
        prepared, self.prepared = self.prepared, None
        if prepared is not None:
            prepared.close()

    def _diagnosed(self, verdict: Verdict, problem: AttentionProblem, given: Inputs, judge: Expected) -> Verdict:
        """Return a verdict whose message begins with the mistake that explains what is wrong, where one does."""
        assert self.prepared is not None
        got = self.prepared.outputs().output[:, :, judge.rows]
        found = diagnose(problem, given, Comparison(judge.rows, got, judge.output, judge.bound))
        if found.cause is None:
            return verdict
        return msgspec.structs.replace(verdict, message=f"{found.sentences[0]}; {verdict.message}")

    def _prepare_and_run(self, problem: AttentionProblem, given: Inputs, should_stop: ShouldStop) -> float:
        """Prepare the kernel anew and run it once on a poisoned output; return the run's wall milliseconds."""
        assert self.kernel is not None
        self.close()
        self.prepared = self.kernel.prepare(problem, given, self.device)
        self.prepared.poison()
        return self.prepared.run(1, should_stop).wall_ms
