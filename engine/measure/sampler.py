"""Takes the samples: warm-up, repeats, turns between kernels, and when to stop."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from engine.common.running import Cancelled, Timing
from engine.measure.statistics import relative_spread
from engine.records.results import Sample, StopReason

Clock = Callable[[], float]  # seconds
Run = Callable[[int], Timing]  # so many runs in one submit

CONVERGED_SPREAD = 0.01
WARM_UP_RUNS = 2
WARM_UP_S = 0.1
SHORTEST_S, LONGEST_S = 1e-3, 0.1  # of a sample that is made of repeated runs
MAX_REPEATS = 10_000  # for a clock that sees nothing pass
_MARGIN = 1.2  # asked of a sample's length, as a warm kernel gets a little quicker still
_MAX_GROWTH = 10  # of the repeats in one step, as short samples tell little


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """How long to sample a kernel: ``seconds`` at most, or exactly ``samples``."""

    seconds: float
    samples: int | None
    min_samples: int


def stop_reason(rule: Rule, walls: Sequence[float], spent_s: float) -> StopReason | None:
    """Return why sampling ends after these samples, None where it goes on.

    The spread (IQR / median) has stopped falling when all samples together spread no less than their first half.
    """
    count = len(walls)
    if rule.samples is not None:
        return StopReason.COUNT if count >= rule.samples else None
    if count >= rule.min_samples:
        spread = relative_spread(walls)
        if spread < CONVERGED_SPREAD:
            return StopReason.CONVERGED
        if count >= 4 * rule.min_samples and spread >= relative_spread(walls[: count // 2]):
            return StopReason.STABILISED
    return StopReason.BUDGET if count and spent_s >= rule.seconds else None


@dataclass
class Runner:
    """One kernel while it is sampled. ``first_run_s`` is what its first run took; times as in ``Sample``."""

    run: Run
    first_run_s: float
    repeats: int = 1
    spent_s: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    walls: list[float] = field(default_factory=list)
    stopped: StopReason | None = None
    error: Exception | None = None


def warm_up(runner: Runner, seconds: float, now: Clock = time.perf_counter) -> None:
    """Run the kernel until it is warm, and choose its repeats; not where one run takes over a quarter of ``seconds``.

    Warm is after two runs and 100 ms, and no run is begun that would pass a quarter of ``seconds``. A kernel that
    raises is stopped as ``failed`` and keeps its error. Raises Cancelled.
    """
    longest = seconds / 4
    if runner.first_run_s > longest:
        return
    begin = now()
    run_s = runner.first_run_s
    try:
        for runs in itertools.count():
            elapsed = now() - begin
            if (runs >= WARM_UP_RUNS and elapsed >= WARM_UP_S) or elapsed + run_s > longest or runs >= MAX_REPEATS:
                break
            run_s = runner.run(1).wall_ms / 1e3
        runner.repeats = choose_repeats(runner.run, run_s)
    except Cancelled:
        raise
    except Exception as error:
        runner.stopped, runner.error = StopReason.FAILED, error


def choose_repeats(run: Run, run_s: float, resolution_s: float | None = None) -> int:
    """Return how many runs one sample needs to last 1 ms, or 100 times the timer's resolution, but not over 100 ms.

    ``run_s`` is what a single run took; the count is tried out and corrected until a sample is long enough.
    """
    if resolution_s is None:
        resolution_s = time.get_clock_info("perf_counter").resolution
    shortest = min(_MARGIN * max(SHORTEST_S, 100 * resolution_s), LONGEST_S)
    repeats, sample_s = 1, run_s
    while sample_s < shortest and repeats < MAX_REPEATS:
        wanted = math.ceil(repeats * shortest / sample_s) if sample_s > 0 else MAX_REPEATS
        repeats = min(wanted, _MAX_GROWTH * repeats, MAX_REPEATS)
        sample_s = run(repeats).wall_ms / 1e3
    return max(1, min(repeats, int(LONGEST_S * repeats / sample_s))) if sample_s > 0 else repeats


def race(
    runners: Sequence[Runner],
    rule: Rule,
    *,
    began: float,
    on_sample: Callable[[Runner], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
    now: Clock = time.perf_counter,
) -> None:
    """Sample all runners in turns, A B C then C B A, so that drift hits all alike, until each has its ``stopped``.

    ``began`` is the session's start by ``now``; ``on_sample`` is called after each sample, outside the timed region.
    A runner that raises is stopped as ``failed`` and keeps its error; the others go on. When ``should_stop`` answers
    True, or a run raises Cancelled, all that still run are stopped as ``cancelled``.
    """
    for turn in itertools.count():
        running = [runner for runner in runners if runner.stopped is None]
        if not running:
            return
        for runner in running if turn % 2 == 0 else reversed(running):
            try:
                if should_stop():
                    raise Cancelled
                _sample(runner, rule, began, now)
            except Cancelled:
                for other in runners:
                    other.stopped = other.stopped or StopReason.CANCELLED
                return
            if runner.error is None:
                on_sample(runner)


def _sample(runner: Runner, rule: Rule, began: float, now: Clock) -> None:
    start = now()
    try:
        timing = runner.run(runner.repeats)
    except Cancelled:
        raise
    except Exception as error:
        runner.stopped, runner.error = StopReason.FAILED, error
        return
    wall_ms = timing.wall_ms / runner.repeats
    gpu_ms = None if timing.gpu_ms is None else timing.gpu_ms / runner.repeats
    runner.samples.append(Sample(len(runner.samples), start - began, wall_ms, gpu_ms, runner.repeats))
    runner.walls.append(wall_ms)
    runner.spent_s += now() - start
    runner.stopped = stop_reason(rule, runner.walls, runner.spent_s)
