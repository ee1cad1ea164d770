"""Finds a kernel's quickest variant: all are verified and sampled, then the best few and the default in turns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from engine.common.messages import sentence
from engine.common.running import Cancelled, ShouldStop, never_stop
from engine.devices.device import Device, Tuned
from engine.kernels.base import Kernel, Prepared
from engine.measure import sampler
from engine.measure.sampler import Rule, Runner
from engine.measure.statistics import summarise
from engine.measure.verify import Expected, expect, verify
from engine.problem.attention_problem import AttentionProblem, Dtype
from engine.problem.inputs import Inputs, seeded
from engine.records.results import Sample, Status, StopReason

_HEADS = 8
_SHORTEST, _LONGEST = 256, 4096  # queries and keys of the problem that is tuned on
_RUNS_EACH = 8  # of every candidate, that the problem is sized for
_FIRST_SHARE = 0.6  # of the budget, for all candidates one by one; the finals have the rest
_FINALISTS = 3  # beside the default
_MIN_GAIN = 0.01  # below which the default stays


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one variant: wall times, or the GPU's where its clock is sound, in milliseconds."""

    variant: str
    status: Status
    median_ms: float | None = None
    iqr_ms: float | None = None
    samples: int = 0
    message: str = ""


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """The trials of a kernel on a problem, the default's first; ``best`` is the place of the one to take."""

    kernel: str
    problem: AttentionProblem
    trials: tuple[Trial, ...]
    best: int | None
    tuned: Tuned | None
    complete: bool

    @property
    def gain(self) -> float:
        """How much quicker the best is than the default, as a share of the default's time; 0 where that is the best."""
        if self.best is None:
            return 0.0
        default, best = self.trials[0].median_ms, self.trials[self.best].median_ms
        return 1 - best / default if default and best else 0.0


OnTrial = Callable[[int, int, Trial], None]  # trials done, candidates there are, the latest trial


def problem_to_tune(
    kernel: Kernel,
    device: Device,
    head_dim: int,
    causal: bool,
    dtype: Dtype,
    seconds: float,
    should_stop: ShouldStop = never_stop,
) -> AttentionProblem:
    """Return a problem long enough to tell variants apart and short enough to try all of them in ``seconds``.

    Raises Cancelled, and ValueError with the kernel's reason where even the shortest cannot run.
    """

    def problem_of(seq: int) -> AttentionProblem:
        return AttentionProblem(heads=_HEADS, seq_q=seq, head_dim=head_dim, causal=causal, dtype=dtype)

    kernel.load()
    problem = problem_of(_SHORTEST)
    while True:
        if (reason := kernel.refusal(problem, device.limits)) is not None:
            raise ValueError(f"{kernel.name} cannot be tuned: {reason}")
        with contextlib.closing(kernel.prepare(problem, seeded(problem, 0), device)) as prepared:
            prepared.run(1, should_stop)
            run_s = prepared.run(1, should_stop).wall_ms / 1e3
        longer = problem_of(2 * problem.seq_q)
        runs = _RUNS_EACH * max(1, len(kernel.candidates(longer, device.limits)))
        if longer.seq_q > _LONGEST or 4 * run_s * runs > seconds or kernel.refusal(longer, device.limits) is not None:
            return problem
        problem = longer


def tune(
    kernel: Kernel,
    problem: AttentionProblem,
    device: Device,
    seconds: float,
    on_trial: OnTrial = lambda done, total, trial: None,
    should_stop: ShouldStop = never_stop,
) -> Tuning:
    """Measure the kernel's candidates on the problem for ``seconds`` and return which is the quickest.

    A variant whose output is not that of the reference is ``wrong`` and no time of it counts. One other than the
    default is the best only where it is quicker by more than the spread and 1 %. When ``should_stop`` answers True,
    what is known by then is returned, and is not ``complete``.
    """
    return _Search(kernel, problem, device, seconds, on_trial, should_stop).run()


@dataclass
class _Candidate:
    variant: msgspec.Struct
    trial: Trial | None = None


class _Search:
    """A search while it goes on."""

    def __init__(
        self,
        kernel: Kernel,
        problem: AttentionProblem,
        device: Device,
        seconds: float,
        on_trial: OnTrial,
        should_stop: ShouldStop,
    ) -> None:
        self._kernel, self._problem, self._device, self._seconds = kernel, problem, device, seconds
        self._on_trial, self._should_stop = on_trial, should_stop
        self._candidates = [_Candidate(variant) for variant in kernel.candidates(problem, device.limits)]

    def run(self) -> Tuning:
        begin = time.perf_counter()
        complete = True
        try:
            self._kernel.load()
            given = seeded(self._problem, 0)
            expected = expect(self._problem, given, should_stop=self._should_stop)
            self._try_all(given, expected, begin)
            self._finals(given, begin)
        except Cancelled:
            complete = False
        tried = [candidate for candidate in self._candidates if candidate.trial is not None]
        best = _best([candidate.trial for candidate in tried if candidate.trial is not None])
        return Tuning(
            kernel=self._kernel.name,
            problem=self._problem,
            trials=tuple(candidate.trial for candidate in tried if candidate.trial is not None),
            best=best,
            tuned=None if best is None else self._tuned(tried[best].variant),
            complete=complete and len(tried) == len(self._candidates),
        )

    def _try_all(self, given: Inputs, expected: Expected, begin: float) -> None:
        """Verify and sample the candidates one by one, as many as there is time for, the default in any case."""
        share = _FIRST_SHARE * self._seconds / max(1, len(self._candidates))
        for number, candidate in enumerate(self._candidates):
            if number and time.perf_counter() - begin > _FIRST_SHARE * self._seconds:
                return
            if self._should_stop():
                raise Cancelled
            candidate.trial = self._try(candidate.variant, given, expected, share)
            self._on_trial(number + 1, len(self._candidates), candidate.trial)

    def _try(self, variant: msgspec.Struct, given: Inputs, expected: Expected, seconds: float) -> Trial:
        try:
            with self._choosing(variant):
                reason = self._kernel.refusal(self._problem, self._device.limits)
                if reason is not None:
                    return Trial(variant=str(variant), status=Status.SKIPPED, message=reason)
                with contextlib.closing(self._kernel.prepare(self._problem, given, self._device)) as prepared:
                    prepared.poison()
                    first_s = prepared.run(1, self._should_stop).wall_ms / 1e3
                    verdict = verify(expected, prepared.outputs().output)
                    if not verdict.verified:
                        return Trial(variant=str(variant), status=Status.WRONG, message=verdict.message)
                    runner = self._runner(prepared, first_s)
                    sampler.warm_up(runner, seconds)
                    self._sample([runner], seconds)
            return _judged(str(variant), runner)
        except Cancelled:
            raise
        except Exception as error:
            return Trial(variant=str(variant), status=Status.FAILED, message=sentence(error))

    def _finals(self, given: Inputs, begin: float) -> None:
        """Sample the best few and the default again, in turns, so that drift hits all alike."""
        timed = [(c.trial.median_ms, c) for c in self._candidates if c.trial is not None and c.trial.median_ms]
        finalists = [candidate for _, candidate in sorted(timed, key=lambda pair: pair[0])[:_FINALISTS]]
        default = self._candidates[0] if self._candidates else None
        if default is not None and default not in finalists and default.trial and default.trial.median_ms:
            finalists.append(default)
        left = self._seconds - (time.perf_counter() - begin)
        if len(finalists) < 2 or left <= 0:
            return
        with contextlib.ExitStack() as stack:
            runners = []
            for candidate in finalists:
                with self._choosing(candidate.variant):
                    prepared = self._kernel.prepare(self._problem, given, self._device)
                stack.enter_context(contextlib.closing(prepared))
                runner = self._runner(prepared, prepared.run(1, self._should_stop).wall_ms / 1e3)
                sampler.warm_up(runner, left / len(finalists))
                runners.append(runner)
            self._sample(runners, left / len(finalists))
        for candidate, runner in zip(finalists, runners, strict=True):
            candidate.trial = _judged(str(candidate.variant), runner)

    def _runner(self, prepared: Prepared, first_run_s: float) -> Runner:
        return Runner(lambda repeat: prepared.run(repeat, self._should_stop), first_run_s)

    def _sample(self, runners: Sequence[Runner], seconds: float) -> None:
        rule = Rule(seconds=seconds, samples=None, min_samples=5)
        sampler.race(runners, rule, began=time.perf_counter(), should_stop=self._should_stop)
        if any(runner.stopped is StopReason.CANCELLED for runner in runners):
            raise Cancelled

    @contextlib.contextmanager
    def _choosing(self, variant: msgspec.Struct) -> Iterator[None]:
        """Have the kernel choose that variant on the device."""
        limits = self._device.limits
        self._device.limits = msgspec.structs.replace(limits, tuned=(self._tuned(variant),))
        try:
            yield
        finally:
            self._device.limits = limits

    def _tuned(self, variant: msgspec.Struct) -> Tuned:
        problem = self._problem
        return Tuned(
            kernel=self._kernel.name,
            dtype=problem.dtype,
            head_dim=problem.head_dim,
            causal=problem.causal,
            variant=tuple(msgspec.structs.asdict(variant).items()),
        )


def _judged(variant: str, runner: Runner) -> Trial:
    if runner.error is not None:
        return Trial(variant=variant, status=Status.FAILED, message=sentence(runner.error))
    summary = summarise(_times(runner.samples))
    return Trial(
        variant=variant, status=Status.OK, median_ms=summary.median, iqr_ms=summary.iqr, samples=len(runner.samples)
    )


def _times(samples: Sequence[Sample]) -> list[float]:
    gpu = [sample.gpu_ms for sample in samples if sample.gpu_ms is not None]
    return gpu if len(gpu) == len(samples) else [sample.wall_ms for sample in samples]


def _best(trials: Sequence[Trial]) -> int | None:
    """Return the place of the quickest trial; of the first, the default, where no other is quicker beyond doubt."""
    timed = [(trial.median_ms, place) for place, trial in enumerate(trials) if trial.median_ms is not None]
    if not timed:
        return None
    median, place = min(timed)
    default = trials[0]
    if default.median_ms is None or place == 0:
        return place
    doubt = max(_MIN_GAIN * default.median_ms, ((default.iqr_ms or 0) + (trials[place].iqr_ms or 0)) / 4)
    return place if default.median_ms - median > doubt else 0
