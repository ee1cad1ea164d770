"""What a session finds: one row per kernel and case, and the raw samples behind it."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Status(StrEnum):
    """How a kernel's turn at a case ended."""

    OK = "ok"
    WRONG = "wrong"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


class StopReason(StrEnum):
    """Why sampling ended."""

    CONVERGED = "converged"
    STABILISED = "stabilised"
    BUDGET = "budget"
    COUNT = "count"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One timed submit: start in seconds since the session began, milliseconds per run, runs in the submit."""

    index: int
    started_s: float
    wall_ms: float
    gpu_ms: float | None
    repeats: int


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the versions a session ran on."""

    app_version: str
    numpy_version: str
    wgpu_version: str
    python_version: str
    cpu: str
    blas: str
    blas_threads: int | None
    os: str


_BETWEEN_WARNINGS = "; "  # in the one text of all of them that the reports have


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the report; its fields are the CSV's columns, in order, but for ``NOT_COLUMNS``. None where unknown.

    Times are milliseconds, sizes bytes. ``gflops`` uses the GPU clock where ``clock`` is ``gpu``, else wall time.
    """

    run_id: str
    started_at: str
    label: str = ""
    kernel: str
    direction: str = "forward"
    variant: str | None = None
    status: Status
    message: str = ""
    warnings: str = ""
    device: str | None = None
    adapter_type: str | None = None
    backend: str | None = None
    driver: str | None = None
    checks: bool | None = None
    dtype: str
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    head_dim_v: int
    causal: bool
    window: int | None = None
    softcap: float | None = None
    scale: float
    input: str
    seed: int | None = None
    threads: int | None = None
    samples: int | None = None
    repeats: int | None = None
    stop_reason: StopReason | None = None
    clock: str | None = None
    compile_ms: float | None = None
    first_run_ms: float | None = None
    wall_ms_median: float | None = None
    wall_ms_min: float | None = None
    wall_ms_p90: float | None = None
    wall_ms_p99: float | None = None
    wall_ms_iqr: float | None = None
    wall_ms_quartiles: tuple[float, float] | None = None
    outliers: int | None = None
    gpu_ms_median: float | None = None
    gpu_ms_min: float | None = None
    upload_ms: float | None = None
    readback_ms: float | None = None
    gflops: float | None = None
    peak_gflops: float | None = None
    percent_of_peak: float | None = None
    gbytes_per_s: float | None = None
    percent_of_bandwidth: float | None = None
    speedup_vs_naive: float | None = None
    scratch_bytes: int | None = None
    peak_bytes: int | None = None
    predicted_bytes: int | None = None
    process_peak_bytes: int | None = None
    verified: bool | None = None
    max_abs_err: float | None = None
    max_rel_err: float | None = None
    recorded_output_err: float | None = None
    nonfinite: int | None = None
    app_version: str
    numpy_version: str
    wgpu_version: str
    python_version: str
    cpu: str
    blas: str
    blas_threads: int | None = None
    os: str

    @property
    def cautions(self) -> tuple[str, ...]:
        """The warnings one by one; ``warnings`` is how files keep them."""
        return tuple(filter(None, self.warnings.split(_BETWEEN_WARNINGS)))

    def warned(self, *more: str) -> Row:
        """Return the row with these warnings after those it has."""
        return msgspec.structs.replace(self, warnings=_BETWEEN_WARNINGS.join((*self.cautions, *more)))


NOT_COLUMNS = ("wall_ms_quartiles",)  # what charts draw, and the CSV gives by the samples
COLUMNS: tuple[str, ...] = tuple(name for name in Row.__struct_fields__ if name not in NOT_COLUMNS)
