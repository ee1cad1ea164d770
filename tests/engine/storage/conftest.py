"""A finished session, small and complete, for the tests of what is written to files."""

from __future__ import annotations

import pytest

from engine.problem.attention_problem import AttentionProblem
from engine.records.plan import Case, Plan
from engine.records.results import Environment, Row, Sample, Status, StopReason
from engine.storage.run_file import RunFile, SampleSeries

ENVIRONMENT = Environment(
    app_version="0.1.0", numpy_version="2.0", wgpu_version="0.32", python_version="3.11.2",
    cpu="A Processor, 8 cores", blas="openblas 0.3", blas_threads=8, os="Linux 6.1",
)  # fmt: skip
PROBLEM = AttentionProblem(batch=1, heads=2, seq_q=3, head_dim=4, scale=-0.25, key_mask=[[True, False, True]])


@pytest.fixture
def row() -> Row:
    return Row(
        run_id="20260102-030405-a1b2", started_at="2026-01-02T03:04:05+01:00", kernel="cpu-flash", status=Status.OK,
        dtype="f32", batch=1, heads=2, kv_heads=2, seq_q=3, seq_k=3, head_dim=4, head_dim_v=4, causal=False,
        scale=-0.25, input="normal", seed=0, samples=12, stop_reason=StopReason.CONVERGED, clock="wall",
        wall_ms_median=1.5, peak_bytes=3 << 30, verified=True, max_abs_err=2.5e-7, nonfinite=0,
        app_version="0.1.0", numpy_version="2.0", wgpu_version="0.32", python_version="3.11.2",
        cpu="A Processor, 8 cores", blas="openblas 0.3", blas_threads=8, os="Linux 6.1",
    )  # fmt: skip


@pytest.fixture
def series() -> SampleSeries:
    return SampleSeries(
        kernel="gpu-flash", case=4, samples=(Sample(0, 0.5, 1.25, 1.125, 1), Sample(1, 0.625, 1.5, None, 8))
    )


@pytest.fixture
def run(row: Row, series: SampleSeries) -> RunFile:
    return RunFile(
        run_id="20260102-030405-a1b2", started_at="2026-01-02T03:04:05+01:00", reason="done",
        environment=ENVIRONMENT,
        plan=Plan(cases=(Case(index=4, problem=PROBLEM),), kernels=("gpu-flash", "cpu-flash"), label="a, b"),
        results=(row,), samples=(series,),
    )  # fmt: skip
