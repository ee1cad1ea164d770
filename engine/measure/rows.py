"""Makes the report's rows: who ran what on which device, and what the samples say about it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.devices.device import Device
from engine.measure.peaks import Peak, Peaks
from engine.measure.sampler import SHORTEST_S
from engine.measure.statistics import Summary, summarise
from engine.measure.turn import Turn
from engine.problem.attention_problem import AttentionProblem
from engine.records.plan import Case, Plan
from engine.records.results import Environment, Row, Sample, Status, StopReason

WIDE_SPREAD = 0.10
DRIFT = 0.03
_SOUND_SHARE = 0.9  # of the samples must have a usable GPU time, for a median over fewer is another population's
_BEYOND_PEAK = 110.0  # percent; short of it a kernel may be warmer than the measurement of the peak was

_SHAPE = ("direction", "dtype", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v", "causal",
          "window", "softcap", "scale")  # fmt: skip
_JUDGED = ("verified", "max_abs_err", "max_rel_err", "recorded_output_err", "nonfinite")


class Occasion(msgspec.Struct, frozen=True, kw_only=True):
    """What all rows of a session share. ``started_at`` is ISO 8601 with offset."""

    run_id: str
    started_at: str
    plan: Plan
    environment: Environment


def blank_row(occasion: Occasion, case: Case, kernel: str, device: Device | None, status: Status) -> Row:
    """Return a kernel's row with everything that is known before it runs; ``device`` None where none was opened."""
    plan, info = occasion.plan, device.info if device else None
    on_cpu = info is not None and info.adapter_type == "cpu"
    return Row(
        run_id=occasion.run_id,
        started_at=occasion.started_at,
        label=plan.label,
        kernel=kernel,
        status=status,
        device=info.name if info else None,
        adapter_type=info.adapter_type if info else None,
        backend=info.backend if info else None,
        driver=info.driver if info else None,
        checks=plan.checks if info and not on_cpu and info.backend != "cuda" else None,  # of our own shaders
        input=case.input,
        seed=None if case.from_file and not case.problem.backward else plan.seed,
        threads=device.limits.threads if device and on_cpu else None,
        **{name: getattr(case.problem, name) for name in _SHAPE},
        **msgspec.structs.asdict(occasion.environment),
    )


def row_of(
    occasion: Occasion,
    case: Case,
    turn: Turn,
    status: Status,
    messages: Sequence[str],
    doubts: Sequence[str],
    peaks: Peaks,
) -> Row:
    """Return a turn's row from all that is known of it so far; ``doubts`` are warnings that hold for its samples."""
    row = blank_row(occasion, case, turn.name, turn.device, status)
    samples = turn.runner.samples if turn.runner else []
    warnings = list(doubts) if samples else []
    if turn.first_run_ms is not None and row.adapter_type == "software":
        warnings.append("software adapter: not the speed of a GPU")
    if turn.prepared is not None:
        warnings += turn.prepared.warnings
        row = _with_attributes(row, turn.prepared, ("variant", "compile_ms", "upload_ms", "readback_ms"))
    if turn.memory is not None:
        row = _with_attributes(row, turn.memory, ("scratch_bytes", "peak_bytes"))
    if turn.verdict is not None:
        row = _with_attributes(row, turn.verdict, _JUDGED)
        if turn.verdict.nonfinite:
            what = "gradient" if case.problem.backward else "output"
            warnings.append(f"non-finite values in {turn.verdict.nonfinite} {what} rows")
    stopped = {Status.FAILED: StopReason.FAILED, Status.CANCELLED: StopReason.CANCELLED}
    row = msgspec.structs.replace(
        row.warned(*warnings),
        message="; ".join(filter(None, messages)),
        stop_reason=stopped.get(status, turn.runner.stopped if turn.runner else None),
        first_run_ms=turn.first_run_ms,
        predicted_bytes=turn.predicted_bytes,
        process_peak_bytes=turn.process_peak_bytes,
    )
    if samples and turn.device is not None:
        row = with_samples(row, case.problem, samples, peaks.of(turn.device, case.problem.dtype))
    return row


def with_samples(row: Row, problem: AttentionProblem, samples: Sequence[Sample], peak: Peak | None) -> Row:
    """Return the row with the statistics of at least one sample, and what they make of the device's peak.

    Rates come from the GPU clock where it is sound, else from wall time; a GPU without a sound clock is warned of.
    """
    wall = summarise([sample.wall_ms for sample in samples])
    gpu = _gpu_clock(samples)
    on_gpu = row.adapter_type != "cpu"
    seconds = (gpu or wall).median / 1e3
    gflops = problem.flops() / seconds / 1e9 if seconds > 0 else None
    gbytes_per_s = problem.moved_bytes() / seconds / 1e9 if seconds > 0 else None
    warnings: list[str] = []
    if on_gpu and gpu is None:
        warnings.append("clock fallback: no sound GPU clock, rates come from wall time")
    warnings += _doubts(wall, samples[-1].repeats)
    percent_of_peak = _percent(gflops, peak.gflops if peak else None)
    if percent_of_peak is not None and percent_of_peak > _BEYOND_PEAK:
        warnings.append("faster than the peak measured here, so something slowed that measurement")
    return msgspec.structs.replace(
        row.warned(*warnings),
        samples=wall.count,
        repeats=samples[-1].repeats,
        clock="gpu" if gpu else "wall",
        wall_ms_median=wall.median,
        wall_ms_min=wall.minimum,
        wall_ms_p90=wall.p90,
        wall_ms_p99=wall.p99,
        wall_ms_iqr=wall.iqr,
        wall_ms_quartiles=wall.quartiles,
        outliers=wall.outliers,
        gpu_ms_median=gpu.median if gpu else None,
        gpu_ms_min=gpu.minimum if gpu else None,
        gflops=gflops,
        gbytes_per_s=gbytes_per_s,
        peak_gflops=peak.gflops if peak else None,
        percent_of_peak=percent_of_peak,
        percent_of_bandwidth=_percent(gbytes_per_s, peak.gbytes_per_s if peak else None),
    )


def with_speedup(row: Row, naive: Row | None) -> Row:
    """Return the row with its speed-up, wall against wall; empty unless it and its naive kernel are ``ok``.

    Empty too where they ran on devices of different types, as PyTorch's card and a software adapter are.
    """
    if naive is None or row.status is not Status.OK or naive.status is not Status.OK:
        return row
    if row.adapter_type != naive.adapter_type:
        return row
    if not row.wall_ms_median or naive.wall_ms_median is None:
        return row
    return msgspec.structs.replace(row, speedup_vs_naive=naive.wall_ms_median / row.wall_ms_median)


def _with_attributes(row: Row, source: object, names: Sequence[str]) -> Row:
    return msgspec.structs.replace(row, **{name: getattr(source, name) for name in names})


def _gpu_clock(samples: Sequence[Sample]) -> Summary | None:
    times = [sample.gpu_ms for sample in samples if sample.gpu_ms is not None]
    return summarise(times) if times and len(times) >= _SOUND_SHARE * len(samples) else None


def _doubts(wall: Summary, repeats: int) -> list[str]:
    doubts = ["one sample only, so its spread is not known"] if wall.count == 1 else []
    if wall.relative_spread > WIDE_SPREAD:
        doubts.append(f"spread {wall.relative_spread:.0%} of the median")
    if wall.drift is not None and abs(wall.drift) > DRIFT:
        doubts.append(f"drift: the last third took {wall.drift:+.0%} against the first")
    if wall.median * repeats < SHORTEST_S * 1e3:
        doubts.append(f"samples last {wall.median * repeats:.2g} ms, under {SHORTEST_S * 1e3:g} ms")
    return doubts


def _percent(value: float | None, whole: float | None) -> float | None:
    return 100 * value / whole if value is not None and whole else None
