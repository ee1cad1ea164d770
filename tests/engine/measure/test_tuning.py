"""The search for the quickest variant, on kernels whose times are made up and on the real one."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from engine.common.running import Cancelled, ShouldStop, Timing, never_stop
from engine.devices.cpu import CpuDevice, open_cpu
from engine.kernels.base import Kernel, Outputs, Prepared
from engine.kernels.registry import get_kernel
from engine.measure.tuning import Trial, problem_to_tune, tune
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.records.results import Status
from engine.reference.forward import reference

PROBLEM = AttentionProblem(heads=1, seq_q=8, head_dim=4)
LONG = 1e3  # seconds: made-up kernels take no time, and rules other than the budget end the sampling


class Size(msgspec.Struct, frozen=True):
    """A made-up variant: ``ms`` a run, and what is wrong with it."""

    ms: int
    fault: int = 0

    def __str__(self) -> str:
        return f"{self.ms} ms"


WRONG, BROKEN, TOO_LARGE, BREAKS_LATER = 1, 2, 3, 4


class MadeUp(Kernel):
    """Takes as long as the variant in ``limits.tuned`` says, on a clock of its own."""

    honours = ("causal", "window", "softcap", "scale", "key_mask")
    name = "made-up"
    summary = "takes no time"
    device_kind = "cpu"
    naive = "made-up"

    def __init__(self, *sizes: Size) -> None:
        self.sizes = sizes

    def candidates(self, problem: AttentionProblem, limits: Any) -> list[msgspec.Struct]:
        return list(self.sizes)

    def size(self, problem: AttentionProblem, limits: Any) -> Size:
        fields = limits.variant_for(self.name, problem.dtype, problem.head_dim, problem.causal)
        return msgspec.convert(fields, Size) if fields else self.sizes[0]

    def supports(self, problem: AttentionProblem, limits: Any) -> str | None:
        return "too large for this device" if self.size(problem, limits).fault == TOO_LARGE else None

    def predict(self, problem: AttentionProblem, limits: Any) -> int:
        return 0

    def prepare(
        self, problem: AttentionProblem, inputs: Inputs, device: CpuDevice, *, want_lse: bool = False
    ) -> Prepared:
        size = self.size(problem, device.limits)
        if size.fault == BROKEN:
            raise MemoryError("no room")
        return _MadeUpPrepared(size, reference(problem, inputs)[0].astype(np.float32))


class _MadeUpPrepared(Prepared):
    def __init__(self, size: Size, output: Any) -> None:
        self._size, self._right, self._runs = size, output, 0

    def run(self, repeat: int = 1, should_stop: ShouldStop = never_stop) -> Timing:
        if should_stop():
            raise Cancelled
        self._runs += 1
        if self._size.fault == BREAKS_LATER and self._runs > 4:
            raise RuntimeError("the driver is gone")
        return Timing(wall_ms=float(self._size.ms * repeat))

    def poison(self) -> None:
        self._output = np.full_like(self._right, np.nan)

    def outputs(self) -> Outputs:
        return Outputs(self._right + 1 if self._size.fault == WRONG else self._right)

    def close(self) -> None:
        pass


@pytest.fixture
def device():
    with open_cpu(threads=1) as cpu:
        yield cpu


def test_the_quickest_wins(device: CpuDevice) -> None:
    told: list[tuple[int, int, Trial]] = []
    kernel = MadeUp(Size(50), Size(70), Size(30), Size(40))
    limits = device.limits
    tuning = tune(kernel, PROBLEM, device, LONG, lambda *trial: told.append(trial))
    assert tuning.best == 2
    assert tuning.complete
    assert tuning.gain == pytest.approx(0.4)
    assert tuning.tuned is not None
    assert tuning.tuned.kind == ("made-up", "f32", 4, False)
    assert dict(tuning.tuned.variant) == {"ms": 30, "fault": 0}
    assert [(done, total, trial.variant) for done, total, trial in told] == [
        (1, 4, "50 ms"), (2, 4, "70 ms"), (3, 4, "30 ms"), (4, 4, "40 ms"),
    ]  # fmt: skip
    assert device.limits == limits


def test_a_variant_that_is_wrong_broken_or_too_large_is_not_timed(device: CpuDevice) -> None:
    kernel = MadeUp(Size(50), Size(10, WRONG), Size(11, BROKEN), Size(12, TOO_LARGE), Size(13, BREAKS_LATER), Size(40))
    tuning = tune(kernel, PROBLEM, device, LONG)
    assert [trial.status for trial in tuning.trials] == [
        Status.OK, Status.WRONG, Status.FAILED, Status.SKIPPED, Status.FAILED, Status.OK,
    ]  # fmt: skip
    assert tuning.best == 5
    assert all(trial.median_ms is None and trial.message for trial in tuning.trials[1:5])
    assert "no room" in tuning.trials[2].message
    assert tuning.trials[3].message == "too large for this device"


def test_a_gain_within_the_noise_leaves_the_default(device: CpuDevice) -> None:
    tuning = tune(MadeUp(Size(1000), Size(995)), PROBLEM, device, LONG)
    assert tuning.best == 0
    assert tuning.gain == 0


def test_where_nothing_works_nothing_is_best(device: CpuDevice) -> None:
    tuning = tune(MadeUp(Size(1, WRONG), Size(2, WRONG)), PROBLEM, device, LONG)
    assert tuning.best is None
    assert tuning.tuned is None


def test_a_default_that_fails_gives_way(device: CpuDevice) -> None:
    tuning = tune(MadeUp(Size(1, WRONG), Size(20), Size(10)), PROBLEM, device, LONG)
    assert tuning.best == 2
    assert tuning.gain == 0


def test_a_stop_keeps_what_was_learned(device: CpuDevice) -> None:
    done = 0

    def on_trial(number: int, total: int, trial: Trial) -> None:
        nonlocal done
        done = number

    kernel = MadeUp(Size(50), Size(30), Size(10))
    tuning = tune(kernel, PROBLEM, device, LONG, on_trial, should_stop=lambda: done >= 2)
    assert not tuning.complete
    assert [trial.variant for trial in tuning.trials] == ["50 ms", "30 ms"]
    assert tuning.best == 1


def test_a_stop_before_anything_leaves_nothing(device: CpuDevice) -> None:
    tuning = tune(MadeUp(Size(50)), PROBLEM, device, LONG, should_stop=lambda: True)
    assert tuning.trials == ()
    assert tuning.best is None


def test_a_budget_that_is_spent_still_measures_the_default(device: CpuDevice) -> None:
    tuning = tune(MadeUp(Size(50), Size(30)), PROBLEM, device, 1e-9)
    assert [trial.variant for trial in tuning.trials] == ["50 ms"]
    assert not tuning.complete
    assert tuning.best == 0


@pytest.mark.parametrize(("ms", "seconds", "seq"), [(1, LONG, 4096), (1, 1e-3, 256), (100, 13.0, 512)])
def test_the_problem_fits_the_budget(device: CpuDevice, ms: int, seconds: float, seq: int) -> None:
    """Runs take four times as long for twice the length, and sixteen of them are to fit."""

    class Growing(MadeUp):
        def size(self, problem: AttentionProblem, limits: Any) -> Size:
            return Size(ms * (problem.seq_q // 256) ** 2)

        def prepare(self, problem: AttentionProblem, *_: Any, **__: Any) -> Prepared:
            return _MadeUpPrepared(self.size(problem, None), np.zeros(1))

    kernel = Growing(Size(1), Size(2))
    problem = problem_to_tune(kernel, device, 64, True, "f32", seconds)
    assert (problem.seq_q, problem.head_dim, problem.causal) == (seq, 64, True)


def test_what_cannot_run_at_all_says_why(device: CpuDevice) -> None:
    with pytest.raises(ValueError, match="made-up cannot be tuned: too large for this device"):
        problem_to_tune(MadeUp(Size(1, TOO_LARGE)), device, 64, False, "f32", 1.0)


def test_the_real_kernel_is_tuned() -> None:
    kernel = get_kernel("cpu-flash")
    with open_cpu(threads=1) as device:
        tuning = tune(kernel, AttentionProblem(heads=2, seq_q=300, head_dim=16, causal=True), device, 0.5)
    assert tuning.best is not None
    assert tuning.trials[0].status is Status.OK
    assert tuning.trials[0].samples >= 1
    assert all(trial.status is Status.OK for trial in tuning.trials)
