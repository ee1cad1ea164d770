"""The columns of the tables: what a figure is called, what it means in one sentence, and how it is shown and sorted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.report.units import ratio, significant, size
from engine.records.results import Row

UNKNOWN = "–"


@dataclass(frozen=True)
class Column:
    """A figure of a row. ``value`` is what is sorted and copied, None where unknown; ``shown`` is its text."""

    title: str
    meaning: str
    value: Callable[[Row], Any]
    shown: Callable[[Any], str] = str
    right: bool = True

    def text(self, row: Row) -> str:
        """Return the cell's text, numbers with a point."""
        value = self.value(row)
        return UNKNOWN if value is None else self.shown(value)


def _percent(value: float) -> str:
    return f"{significant(value, 2)} %"


def _error(value: float) -> str:
    return f"{value:.1e}"


STATUS = Column(
    "status",
    "ok; wrong: not the reference's result; failed: it raised; skipped: it cannot run here; cancelled: it was stopped.",
    lambda row: row.status.value,
    right=False,
)
KERNEL = Column("kernel", "The kernel that ran.", lambda row: row.kernel, right=False)
WHERE = Column("case", "What sets this case apart from the others of the session.", lambda row: None, right=False)
DEVICE = Column(
    "device",
    "The kind of device it ran on; software means that a processor plays the GPU, so its times say nothing of one.",
    lambda row: row.adapter_type,
    right=False,
)
MEDIAN = Column(
    "median ms",
    "Half of the samples took less wall-clock time than this, from submit to completion.",
    lambda row: row.wall_ms_median,
    significant,
)
IQR = Column(
    "IQR ms",
    "The middle half of the samples lies within a range this wide: the smaller, the steadier.",
    lambda row: None if row.samples == 1 else row.wall_ms_iqr,
    lambda value: significant(value, 2),
)
P90 = Column("p90 ms", "Nine of ten samples took no longer than this.", lambda row: row.wall_ms_p90, significant)
MINIMUM = Column("min ms", "The fastest sample.", lambda row: row.wall_ms_min, significant)
SAMPLES = Column("n", "How many samples were taken.", lambda row: row.samples, lambda value: f"{value:,}")
GPU_MEDIAN = Column(
    "GPU ms",
    "The median by the GPU's own clock, without submitting and waiting.",
    lambda row: row.gpu_ms_median,
    significant,
)
GFLOPS = Column(
    "GFLOP/s",
    "Billions of floating-point operations a second, by the GPU's clock where it is sound, else by the wall clock.",
    lambda row: row.gflops,
    significant,
)
PEAK_SHARE = Column(
    "% of peak",
    "GFLOP/s as a share of the peak that was measured on this device in the same run.",
    lambda row: row.percent_of_peak,
    _percent,
)
BANDWIDTH = Column(
    "GB/s",
    "Billions of bytes of Q, K, V and output (backward, gradients too) moved a second, each once: decode hangs on it.",
    lambda row: row.gbytes_per_s,
    significant,
)
BANDWIDTH_SHARE = Column(
    "% of copy",
    "GB/s as a share of the copy rate that was measured on this device in the same run.",
    lambda row: row.percent_of_bandwidth,
    _percent,
)
SPEEDUP = Column(
    "vs naive",
    "How many times as fast as the naive kernel of the same device in the same case, wall clock against wall clock.",
    lambda row: row.speedup_vs_naive,
    ratio,
)
SCRATCH = Column(
    "scratch",
    "Memory the kernel needed beyond Q, K, V and the output, backward their gradients too, as counted.",
    lambda row: row.scratch_bytes,
    size,
)
PEAK = Column(
    "peak memory",
    "Q, K, V, the output, backward their gradients, and scratch together, as counted.",
    lambda row: row.peak_bytes,
    size,
)
PREDICTED = Column(
    "predicted", "What the kernel's formula said its peak memory would be.", lambda row: row.predicted_bytes, size
)
ERROR = Column(
    "max error",
    "The largest difference from the float64 reference, on the very input that was timed.",
    lambda row: row.max_abs_err,
    _error,
)
FIRST_RUN = Column(
    "first run ms",
    "The very first run, which is in no other figure: it pays for what later runs find warm.",
    lambda row: row.first_run_ms,
    significant,
)
COMPILE = Column("compile ms", "Compiling the kernel's shaders.", lambda row: row.compile_ms, significant)
REMARKS = Column(
    "remarks",
    "Why it did not run or was not right, and what a reader of the numbers should know.",
    lambda row: "; ".join(filter(None, (row.message, row.warnings))) or None,
    right=False,
)

RESULTS = (
    STATUS, KERNEL, WHERE, DEVICE, MEDIAN, IQR, P90, MINIMUM, SAMPLES, GPU_MEDIAN, GFLOPS, PEAK_SHARE, BANDWIDTH,
    BANDWIDTH_SHARE, SPEEDUP, SCRATCH, PEAK, PREDICTED, ERROR, FIRST_RUN, COMPILE, REMARKS,
)  # fmt: skip
COMPARE = (
    KERNEL, STATUS, MEDIAN, SPEEDUP, P90, SAMPLES, GPU_MEDIAN, GFLOPS, PEAK_SHARE, SCRATCH, PEAK, ERROR,
)  # fmt: skip
