"""The rules of sampling, one by one, on scripted kernels and a clock that only they move."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest

from engine.common.running import Cancelled, Timing
from engine.measure.sampler import MAX_REPEATS, Rule, Runner, choose_repeats, race, stop_reason, warm_up
from engine.records.results import StopReason

NOISY = (1.0, 1.2, 0.8, 1.1, 0.9)


class Clock:
    """Seconds that pass only when a kernel runs."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Script:
    """A kernel whose runs take scripted times; it remembers how often it was asked for how many runs."""

    def __init__(
        self, clock: Clock, seconds: float | Iterable[float], log: list[str] | None = None, name: str = ""
    ) -> None:
        self.clock, self.log, self.name = clock, log, name
        self.seconds = itertools.repeat(seconds) if isinstance(seconds, float) else iter(seconds)
        self.asked: list[int] = []

    def __call__(self, repeat: int) -> Timing:
        self.asked.append(repeat)
        if self.log is not None:
            self.log.append(self.name)
        wall_s = next(self.seconds) * repeat
        self.clock.now += wall_s
        return Timing(wall_ms=wall_s * 1e3, gpu_ms=wall_s * 500)

    def runner(self, first_run_s: float = 0.01) -> Runner:
        return Runner(self, first_run_s)


def rule(seconds: float = 2.0, samples: int | None = None, min_samples: int = 10) -> Rule:
    return Rule(seconds=seconds, samples=samples, min_samples=min_samples)


def raced(clock: Clock, runners: list[Runner], how: Rule, **more: Callable[..., object]) -> list[StopReason | None]:
    race(runners, how, began=100.0, now=clock, **more)  # type: ignore[arg-type]
    return [runner.stopped for runner in runners]


class TestStopRule:
    def test_a_steady_kernel_has_converged_after_the_least_samples(self) -> None:
        assert stop_reason(rule(), [1.0] * 9, 0.1) is None
        assert stop_reason(rule(), [1.0] * 10, 0.1) is StopReason.CONVERGED
        assert stop_reason(rule(min_samples=3), [1.0] * 3, 0.1) is StopReason.CONVERGED

    def test_a_spread_of_one_percent_is_not_under_one_percent(self) -> None:
        assert stop_reason(rule(), [0.99, 0.99, 0.99, 1, 1, 1, 1, 1.01, 1.01, 1.01], 0.1) is None
        assert stop_reason(rule(), [0.991, 0.991, 0.991, 1, 1, 1, 1, 1, 1, 1], 0.1) is StopReason.CONVERGED

    def test_a_spread_that_has_stopped_falling_ends_it(self) -> None:
        walls = [*NOISY] * 8
        assert stop_reason(rule(), walls[:39], 0.1) is None
        assert stop_reason(rule(), walls, 0.1) is StopReason.STABILISED

    def test_a_spread_that_still_falls_does_not(self) -> None:
        assert stop_reason(rule(), [*NOISY * 4, *[1.0, 1.02] * 20], 0.1) is None

    def test_the_budget_ends_it_after_at_least_one_sample(self) -> None:
        assert stop_reason(rule(), [], 99.0) is None
        assert stop_reason(rule(), [1.0], 2.0) is StopReason.BUDGET
        assert stop_reason(rule(), [1.0], 1.99) is None

    def test_a_fixed_count_knows_neither_budget_nor_spread(self) -> None:
        assert stop_reason(rule(samples=25), [1.0] * 24, 99.0) is None
        assert stop_reason(rule(samples=25), [1.0] * 25, 0.1) is StopReason.COUNT

    def test_zero_length_samples_neither_converge_nor_go_on_for_ever(self) -> None:
        assert stop_reason(rule(), [0.0] * 20, 0.0) is None
        assert stop_reason(rule(), [0.0] * 40, 0.0) is StopReason.STABILISED


class TestWarmUp:
    def test_two_runs_and_a_tenth_of_a_second(self) -> None:
        clock = Clock()
        fast, slow = Script(clock, 0.01), Script(clock, 0.2)
        warm_up(fast.runner(0.01), 2.0, clock)
        warm_up(slow.runner(0.2), 2.0, clock)
        assert len(fast.asked) == pytest.approx(10, abs=1)
        assert slow.asked == [1, 1]

    def test_never_over_a_quarter_of_the_budget(self) -> None:
        clock = Clock()
        script = Script(clock, 0.2)
        warm_up(script.runner(0.2), 1.0, clock)
        assert script.asked == [1]
        clock = Clock()
        warm_up(Script(clock, 0.003).runner(0.003), 0.04, clock)
        assert clock.now - 100 <= 0.01

    def test_a_first_run_over_a_quarter_of_the_budget_is_the_warm_up(self) -> None:
        script = Script(Clock(), 0.51)
        runner = script.runner(0.51)
        warm_up(runner, 2.0, script.clock)
        assert script.asked == []
        assert runner.repeats == 1

    def test_a_slow_first_run_alone_does_not_count_as_slow(self) -> None:
        clock = Clock()
        script = Script(clock, 0.0002)
        runner = script.runner(0.3)
        warm_up(runner, 2.0, clock)
        assert clock.now - 100 == pytest.approx(0.1, rel=0.1)
        assert runner.repeats in (6, 7)

    def test_a_clock_that_stands_still_does_not_hang_it(self) -> None:
        script = Script(Clock(), 0.0)
        runner = script.runner(0.0)
        warm_up(runner, 2.0, script.clock)
        assert runner.repeats == MAX_REPEATS

    def test_a_kernel_that_fails_is_stopped_and_keeps_its_error(self) -> None:
        clock = Clock()
        runner = Script(clock, [0.01, 0.01]).runner()
        warm_up(runner, 2.0, clock)
        assert runner.stopped is StopReason.FAILED
        assert isinstance(runner.error, StopIteration)


class TestRepeats:
    @pytest.mark.parametrize("run_s", [1e-6, 5e-5, 2e-4, 9.9e-4])
    def test_short_kernels_are_repeated_until_a_sample_lasts_a_millisecond(self, run_s: float) -> None:
        repeats = choose_repeats(Script(Clock(), run_s), run_s, 1e-9)
        assert 1.2e-3 <= repeats * run_s < 2e-3

    @pytest.mark.parametrize("run_s", [1.25e-3, 0.05, 3.0])
    def test_longer_ones_are_not_even_tried(self, run_s: float) -> None:
        script = Script(Clock(), run_s)
        assert choose_repeats(script, run_s, 1e-9) == 1
        assert script.asked == []

    def test_a_coarse_timer_asks_for_longer_samples_up_to_a_tenth_of_a_second(self) -> None:
        script = Script(Clock(), 1e-3)
        assert 20 <= choose_repeats(script, 1e-3, 2e-4) <= 25
        assert choose_repeats(script, 1e-3, 0.5) == 100

    def test_growth_is_bounded_so_that_one_odd_reading_does_no_harm(self) -> None:
        script = Script(Clock(), itertools.repeat(5e-4))
        assert choose_repeats(script, 0.0, 1e-9) == 10
        assert script.asked == [10]

    def test_a_zero_length_sample_ends_at_the_cap(self) -> None:
        script = Script(Clock(), 0.0)
        assert choose_repeats(script, 0.0, 1e-9) == MAX_REPEATS
        assert script.asked == [10, 100, 1000, 10000]


class TestRace:
    def test_kernels_take_turns_there_and_back(self) -> None:
        clock, log = Clock(), list[str]()
        runners = [Script(clock, 0.01, log, name).runner() for name in "ABC"]
        assert raced(clock, runners, rule(samples=4)) == [StopReason.COUNT] * 3
        assert "".join(log) == "ABCCBAABCCBA"

    def test_a_kernel_that_is_done_leaves_the_rotation(self) -> None:
        clock, log = Clock(), list[str]()
        steady = Script(clock, 0.01, log, "A").runner()
        noisy = Script(clock, (0.01 * x for x in itertools.cycle(NOISY)), log, "B").runner()
        assert raced(clock, [steady, noisy], rule()) == [StopReason.CONVERGED, StopReason.STABILISED]
        assert (len(steady.samples), len(noisy.samples)) == (10, 40)
        assert "".join(log) == "ABBA" * 5 + "B" * 30

    def test_each_kernel_has_its_own_hard_budget(self) -> None:
        clock = Clock()
        slow, quick = Script(clock, 5.0).runner(), Script(clock, itertools.cycle((0.3, 0.5, 0.4))).runner()
        assert raced(clock, [slow, quick], rule()) == [StopReason.BUDGET] * 2
        assert len(slow.samples) == 1
        assert len(quick.samples) == 5
        assert quick.spent_s == pytest.approx(2.0, abs=0.5)

    def test_samples_are_per_run_and_know_when_they_began(self) -> None:
        clock = Clock()
        runner = Script(clock, 0.001).runner()
        runner.repeats = 4
        race([runner], rule(samples=2), began=99.0, now=clock)
        second = runner.samples[1]
        assert (second.index, second.repeats) == (1, 4)
        assert second.started_s == pytest.approx(1.004)
        assert second.wall_ms == pytest.approx(1.0)
        assert second.gpu_ms == pytest.approx(0.5)

    def test_a_kernel_that_fails_leaves_and_the_others_go_on(self) -> None:
        clock = Clock()
        broken, sound = Script(clock, [0.01] * 3).runner(), Script(clock, 0.01).runner()
        assert raced(clock, [broken, sound], rule(samples=5)) == [StopReason.FAILED, StopReason.COUNT]
        assert len(broken.samples) == 3
        assert isinstance(broken.error, StopIteration)
        assert sound.error is None

    def test_running_out_of_memory_is_a_failure_like_any_other(self) -> None:
        def hungry(_: int) -> Timing:
            raise MemoryError

        clock = Clock()
        runners = [Runner(hungry, 0.01), Script(clock, 0.01).runner()]
        assert raced(clock, runners, rule(samples=1)) == [StopReason.FAILED, StopReason.COUNT]

    def test_a_stop_between_samples_cancels_all_that_still_run(self) -> None:
        clock = Clock()
        done, going = Script(clock, 0.01).runner(), Script(clock, itertools.cycle((0.01, 0.02))).runner()
        stops = raced(clock, [done, going], rule(), should_stop=lambda: len(going.samples) == 15)
        assert stops == [StopReason.CONVERGED, StopReason.CANCELLED]
        assert len(going.samples) == 15

    def test_a_stop_within_a_run_cancels_and_keeps_what_was_measured(self) -> None:
        def cancelling() -> Iterable[float]:
            yield from (0.01, 0.01)
            raise Cancelled

        clock = Clock()
        one, two = Script(clock, cancelling()).runner(), Script(clock, 0.01).runner()
        assert raced(clock, [one, two], rule()) == [StopReason.CANCELLED] * 2
        assert (len(one.samples), len(two.samples)) == (2, 2)

    def test_on_sample_hears_of_every_sample_and_its_errors_are_its_own(self) -> None:
        clock, heard = Clock(), list[int]()
        runners = [Script(clock, 0.01).runner(), Script(clock, 0.01).runner()]
        raced(clock, runners, rule(samples=3), on_sample=lambda r: heard.append(len(r.samples)))
        assert heard == [1, 1, 2, 2, 3, 3]

        def broken(_: Runner) -> None:
            raise RuntimeError("listener")

        with pytest.raises(RuntimeError, match="listener"):
            raced(clock, [Script(clock, 0.01).runner()], rule(), on_sample=broken)

    def test_nobody_to_race_is_a_race_that_is_over(self) -> None:
        assert raced(Clock(), [], rule()) == []
