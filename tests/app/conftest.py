"""Made-up races for the tests of the application, and the program itself, run within the test's process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from app.__main__ import main
from app.outcome import CaseRows
from engine.plan import Case
from engine.problem import AttentionProblem
from engine.results import Row, Status

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


@pytest.fixture(name="make_row")
def make_row_fixture() -> Callable[..., Row]:
    """Give tests the maker of rows."""
    return make_row


@pytest.fixture
def race() -> CaseRows:
    """Give one case in which two kernels finish, one is wrong and one is skipped."""
    case = Case(index=0, problem=AttentionProblem(heads=12, seq_q=512, head_dim=32, causal=True), input="a/sample.npz")
    return CaseRows(
        case,
        (
            make_row(case, "gpu-flash", 131.0, warnings="software adapter; spread 12 %"),
            make_row(
                case,
                "gpu-naive",
                status=Status.SKIPPED,
                message="one pair's score matrix needs 2.0 GiB, the adapter binds at most 128 MiB",
            ),
            make_row(case, "cpu-flash", 6.1234),
            make_row(
                case,
                "cpu-naive",
                status=Status.WRONG,
                message="max abs error 0.3 is above the bound 3e-06",
                verified=False,
                max_abs_err=0.3,
            ),
        ),
    )


@pytest.fixture
def sweep() -> tuple[CaseRows, ...]:
    """Give five cases over the sequence length, the naive kernels running out of memory at the end."""
    groups = []
    for index, seq in enumerate((128, 256, 512, 1024, 2048)):
        case = Case(index=index, problem=AttentionProblem(heads=4, seq_q=seq))
        scale = (seq / 512) ** 2
        rows = [make_row(case, "gpu-flash", 420 * scale), make_row(case, "cpu-flash", 5 * scale)]
        for kernel, wall in (("gpu-naive", 700.0), ("cpu-naive", 7.0)):
            if seq < 2048:
                rows.append(make_row(case, kernel, wall * scale))
            else:
                message = "its scores need 64 MiB, the limit is 48 MiB"
                rows.append(make_row(case, kernel, status=Status.SKIPPED, message=message))
        groups.append(CaseRows(case, tuple(rows)))
    return tuple(groups)


@dataclass(frozen=True)
class Ended:
    """How the program ended, and what it printed."""

    status: int
    out: str
    err: str


@pytest.fixture
def flashscope(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Give tests the program: its words in, its status and output out."""

    def run(*words: object) -> Ended:
        with pytest.raises(SystemExit) as ending:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        assert isinstance(ending.value.code, int)
        return Ended(ending.value.code, captured.out, captured.err)

    return run
