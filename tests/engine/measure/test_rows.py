"""What the samples make of a row: clock, rates, warnings and speed-up."""

from __future__ import annotations

import msgspec
import pytest

from engine.devices.device import AdapterType, Device, DeviceInfo, Limits
from engine.measure.peaks import Peak
from engine.measure.rows import Occasion, blank_row, with_samples, with_speedup
from engine.problem.attention_problem import AttentionProblem
from engine.records.plan import Case, Plan
from engine.records.results import Environment, Row, Sample, Status

PROBLEM = AttentionProblem(batch=1, heads=2, seq_q=100, head_dim=50, window=30, softcap=2.0)
CASE = Case(index=0, problem=PROBLEM)
OCCASION = Occasion(
    run_id="r", started_at="s", plan=Plan(cases=(CASE,), kernels=("k",), label="l", seed=9, checks=False),
    environment=Environment(
        app_version="1", numpy_version="2", wgpu_version="3", python_version="4", cpu="c", blas="b", blas_threads=6,
        os="o",
    ),
)  # fmt: skip
STEADY = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.01, 1.0]


class Opened(Device):
    def __init__(self, kind: AdapterType) -> None:
        self.limits = Limits(memory_bytes=1, threads=3)
        self.info = DeviceInfo(index=1, name="n", adapter_type=kind, backend="x", driver="d", limits=self.limits)


def row(kind: AdapterType = "cpu") -> Row:
    return blank_row(OCCASION, CASE, "k", Opened(kind), Status.OK)


def samples(walls: list[float], gpus: list[float | None] | None = None, repeats: int = 1) -> list[Sample]:
    return [Sample(i, float(i), wall, gpus[i] if gpus else None, repeats) for i, wall in enumerate(walls)]


def measured(kind: AdapterType, taken: list[Sample], peak: Peak | None = None) -> Row:
    return with_samples(row(kind), PROBLEM, taken, peak)


def test_a_cpu_row_before_it_runs() -> None:
    got = row("cpu")
    assert (got.run_id, got.label, got.seed, got.os, got.blas_threads) == ("r", "l", 9, "o", 6)
    assert (got.device, got.adapter_type, got.backend, got.driver) == ("n", "cpu", "x", "d")
    assert (got.threads, got.checks) == (3, None)
    assert (got.heads, got.window, got.causal, got.softcap, got.scale) == (2, 30, True, 2.0, PROBLEM.scale)
    assert got.verified is None


def test_a_gpu_row_knows_of_checks_and_not_of_threads() -> None:
    assert (row("discrete").threads, row("discrete").checks) == (None, False)


def test_a_row_without_a_device_and_one_from_a_file() -> None:
    case = msgspec.structs.replace(CASE, input="a.npz")
    got = blank_row(OCCASION, case, "k", None, Status.SKIPPED)
    assert (got.device, got.adapter_type, got.threads, got.checks) == (None, None, None, None)
    assert (got.input, got.seed) == ("a.npz", None)


@pytest.mark.parametrize("status", Status)
def test_every_row_says_its_direction_and_backward_the_seed_of_the_outputs_gradient(status: Status) -> None:
    backward = msgspec.structs.replace(PROBLEM, direction="backward")
    case = msgspec.structs.replace(CASE, problem=backward, input="a.npz")
    got = blank_row(OCCASION, case, "k", None, status)
    assert (got.direction, got.input, got.seed) == ("backward", "a.npz", 9)
    assert blank_row(OCCASION, CASE, "k", None, status).direction == "forward"


def test_statistics_are_of_wall_time_and_rates_of_the_gpu_clock() -> None:
    peak = Peak(10.0, 4.0)
    got = measured("discrete", samples([2.0, 2.0, 4.0], [1.0, 0.5, 1.0], repeats=3), peak)
    assert (got.samples, got.repeats, got.clock) == (3, 3, "gpu")
    assert (got.wall_ms_median, got.wall_ms_min, got.wall_ms_iqr, got.wall_ms_p99) == (2.0, 2.0, 1.0, None)
    assert got.wall_ms_p90 == pytest.approx(3.6)
    assert (got.gpu_ms_median, got.gpu_ms_min) == (1.0, 0.5)
    assert got.gflops == pytest.approx(PROBLEM.flops() / 1e-3 / 1e9)
    assert got.gbytes_per_s == pytest.approx(4 * 2 * 100 * (50 * 4) / 1e-3 / 1e9)
    assert got.gflops is not None
    assert got.gbytes_per_s is not None
    assert got.peak_gflops == 10.0
    assert got.percent_of_peak == pytest.approx(10 * got.gflops)
    assert got.percent_of_bandwidth == pytest.approx(25 * got.gbytes_per_s)


def test_an_unsound_gpu_clock_falls_back_to_wall_time_and_says_so() -> None:
    got = measured("integrated", samples([2.0] * 4, [1.0, None, 1.0, None]))
    assert (got.clock, got.gpu_ms_median, got.gpu_ms_min) == ("wall", None, None)
    assert got.gflops == pytest.approx(PROBLEM.flops() / 2e-3 / 1e9)
    assert got.warnings == "clock fallback: no sound GPU clock, rates come from wall time"


def test_one_bad_reading_does_not_cost_the_gpu_clock() -> None:
    got = measured("integrated", samples([2.0] * 10, [1.0] * 9 + [None]))
    assert (got.clock, got.warnings) == ("gpu", "")


def test_a_steady_cpu_row_has_no_warning() -> None:
    got = measured("cpu", samples(STEADY))
    assert (got.clock, got.warnings, got.peak_gflops, got.percent_of_peak) == ("wall", "", None, None)


@pytest.mark.parametrize(
    ("walls", "repeats", "warning"),
    [
        ([2.0, 3.0, 4.0], 1, "spread 33% of the median"),
        ([2.0, 2.0, 2.1, 2.1, 2.1, 2.1], 1, "drift: the last third took +5% against the first"),
        ([2.0], 1, "one sample only, so its spread is not known"),
        ([0.2] * 5, 4, "samples last 0.8 ms, under 1 ms"),
    ],
)
def test_doubts_travel_with_the_row(walls: list[float], repeats: int, warning: str) -> None:
    assert measured("cpu", samples(walls, repeats=repeats)).warnings == warning
    before = msgspec.structs.replace(row(), warnings="hot")
    assert with_samples(before, PROBLEM, samples(walls, repeats=repeats), None).warnings == f"hot; {warning}"


@pytest.mark.parametrize(("percent", "doubted"), [(100.0, False), (109.0, False), (120.0, True)])
def test_a_rate_beyond_the_peak_casts_doubt_on_the_peak(percent: float, doubted: bool) -> None:
    rate = PROBLEM.flops() / 1e-3 / 1e9
    got = measured("cpu", samples(STEADY), Peak(rate / percent * 100, 1.0))
    assert got.percent_of_peak == pytest.approx(percent, rel=0.02)
    assert got.warnings == "faster than the peak measured here, so something slowed that measurement" * doubted


def test_zero_length_samples_give_no_rates() -> None:
    got = measured("cpu", samples([0.0] * 3), Peak(1.0, 1.0))
    assert (got.wall_ms_median, got.gflops, got.percent_of_peak, got.gbytes_per_s) == (0.0, None, None, None)
    assert with_speedup(got, got).speedup_vs_naive is None


def test_speedup_is_wall_against_wall_and_may_be_below_one() -> None:
    fast = measured("discrete", samples([2.0] * 3, [0.1] * 3))
    naive = measured("discrete", samples([3.0] * 3, [3.0] * 3))
    assert with_speedup(fast, naive).speedup_vs_naive == 1.5
    assert with_speedup(naive, fast).speedup_vs_naive == pytest.approx(2 / 3)
    assert with_speedup(fast, None).speedup_vs_naive is None


def test_only_devices_of_one_type_make_a_speedup() -> None:
    card, software = measured("discrete", samples([2.0] * 3)), measured("software", samples([9.0] * 3))
    assert with_speedup(card, software).speedup_vs_naive is None


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.OK])
def test_only_two_right_kernels_make_a_speedup(status: Status) -> None:
    good = measured("cpu", samples([2.0] * 3))
    bad = msgspec.structs.replace(good, status=status)
    assert with_speedup(good, bad).speedup_vs_naive is None
    assert with_speedup(bad, good).speedup_vs_naive is None


def test_warnings_are_told_one_by_one_and_kept_in_one_text() -> None:
    warned = row().warned("hot").warned("spread 12 %", "drift 7 %")
    assert warned.cautions == ("hot", "spread 12 %", "drift 7 %")
    assert warned.warnings == "hot; spread 12 %; drift 7 %"
    assert row().cautions == ()
