"""Made-up results: rows, devices and samples as a race would give them."""

from __future__ import annotations

from typing import Any

from engine.devices.device import DeviceInfo, Limits
from engine.records.events import SampleBatch, SessionStarted
from engine.records.plan import Case, Plan
from engine.records.results import Environment, Row, Sample, Status

SOFTWARE = {
    "device": "llvmpipe (LLVM 15.0.6, 256 bits)",
    "adapter_type": "software",
    "backend": "vulkan",
    "driver": "Mesa 22.3.6 (LLVM 15.0.6)",
}
PROCESSOR = {
    "device": "AMD EPYC 7B13 64-Core Processor",
    "adapter_type": "cpu",
    "backend": "numpy",
    "driver": "numpy 2.4.6, OpenBLAS 0.3.30",
}


def make_row(case: Case, kernel: str, wall_ms: float | None = None, **fields: Any) -> Row:
    """Return a row of ``kernel``: verified and timed at ``wall_ms``, or whatever ``fields`` say instead."""
    problem = case.problem
    gpu = kernel.startswith("gpu")
    naive = kernel.endswith("naive")
    scratch = problem.score_bytes if naive else 700_000
    known: dict[str, Any] = {
        "run_id": "20261130-121314-a1b2",
        "started_at": "2026-11-30T12:13:14+00:00",
        "kernel": kernel,
        "direction": problem.direction,
        "status": Status.OK,
        **(SOFTWARE if gpu else PROCESSOR),
        "dtype": problem.dtype,
        "batch": problem.batch,
        "heads": problem.heads,
        "kv_heads": problem.kv_heads,
        "seq_q": problem.seq_q,
        "seq_k": problem.seq_k,
        "head_dim": problem.head_dim,
        "head_dim_v": problem.head_dim_v,
        "causal": problem.causal,
        "scale": problem.scale,
        "input": case.input,
        "threads": case.threads or 2,
        "app_version": "0.1.0",
        "numpy_version": "2.4.6",
        "wgpu_version": "0.32.0",
        "python_version": "3.11.2",
        "cpu": "AMD EPYC 7B13 64-Core Processor",
        "blas": "OpenBLAS 0.3.30",
        "blas_threads": 2,
        "os": "Linux 6.1",
    }
    if wall_ms is not None:
        gflops = problem.flops() / wall_ms / 1e6
        known |= {
            "samples": 40,
            "clock": "gpu" if gpu else "wall",
            "wall_ms_median": wall_ms,
            "wall_ms_iqr": wall_ms * 0.04,
            "wall_ms_min": wall_ms * 0.97,
            "gpu_ms_median": wall_ms * 0.9 if gpu else None,
            "gflops": gflops,
            "percent_of_peak": min(99.0, gflops / 1.3),
            "speedup_vs_naive": 1.0 if naive else 1.42,
            "scratch_bytes": scratch,
            "peak_bytes": problem.tensor_bytes + scratch,
            "verified": True,
            "max_abs_err": 2.1e-7,
            "max_rel_err": 8e-8,
            "nonfinite": 0,
        }
    return Row(**(known | fields))


ENVIRONMENT = Environment(
    app_version="0.1.0", numpy_version="2.4.6", wgpu_version="0.32.0", python_version="3.11.2", cpu="A Processor",
    blas="OpenBLAS 0.3.30", blas_threads=2, os="Linux 6.1",
)  # fmt: skip
GPU = DeviceInfo(
    index=0, name=SOFTWARE["device"], adapter_type="software", backend="vulkan", driver=SOFTWARE["driver"],
    limits=Limits(
        memory_bytes=8 << 30, binding_bytes=128 << 20, buffer_bytes=256 << 20, workgroup_bytes=32 << 10,
        workgroup_threads=1024, workgroups_per_dimension=65535, subgroup_size=8, timestamps=True, software=True,
    ),
)  # fmt: skip
CPU = DeviceInfo(
    index=None, name=PROCESSOR["device"], adapter_type="cpu", backend="numpy", driver=PROCESSOR["driver"],
    limits=Limits(memory_bytes=8 << 30, threads=2, l2_bytes=1 << 20),
)  # fmt: skip


def started(plan: Plan) -> SessionStarted:
    """Return the first event of a run of that plan."""
    return SessionStarted("20261130-121314-a1b2", "2026-11-30T12:13:14+00:00", plan, ENVIRONMENT)


def batch(case: Case, kernel: str, first: int, count: int, wall_ms: float = 2.0) -> SampleBatch:
    """Return samples of a kernel, the first of them number ``first``."""
    gpu_ms = wall_ms * 0.9 if kernel.startswith("gpu") else None
    samples = (Sample(n, n * 0.002, wall_ms * (1 + n % 7 / 100), gpu_ms, 1) for n in range(first, first + count))
    return SampleBatch(case, kernel, tuple(samples))
