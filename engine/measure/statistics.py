"""What a series of samples says: headline, spread, outliers and drift."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

P99_SAMPLES = 100  # fewer cannot tell a 99th percentile from the maximum
DRIFT_SAMPLES = 6  # two in each third


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Order statistics of a series, in its own unit; percentiles as ``numpy.percentile`` (linear).

    ``outliers`` lie beyond Tukey's inner fences (1.5 IQR from the quartiles), ``far_outliers`` of them beyond the
    outer (3 IQR); they are counted and kept. ``drift`` is the median of the last third over that of the first,
    minus 1; None where there are too few samples to tell.
    """

    count: int
    median: float
    minimum: float
    p90: float
    p99: float | None
    quartiles: tuple[float, float]
    iqr: float
    relative_spread: float
    outliers: int
    far_outliers: int
    drift: float | None


def summarise(values: Sequence[float]) -> Summary:
    """Return the statistics of at least one value."""
    array = np.asarray(values, np.float64)
    q1, median, q3, p90 = (float(x) for x in np.percentile(array, (25, 50, 75, 90)))
    iqr = q3 - q1

    def beyond(fence: float) -> int:
        return int(np.count_nonzero((array < q1 - fence * iqr) | (array > q3 + fence * iqr)))

    return Summary(
        count=len(array),
        median=median,
        minimum=float(array.min()),
        p90=p90,
        p99=float(np.percentile(array, 99)) if len(array) >= P99_SAMPLES else None,
        quartiles=(q1, q3),
        iqr=iqr,
        relative_spread=iqr / median if median else math.inf,
        outliers=beyond(1.5),
        far_outliers=beyond(3),
        drift=_drift(array.tolist()),
    )


def relative_spread(values: Sequence[float]) -> float:
    """Return IQR / median; infinite where the median is 0, for a clock that saw nothing has shown no agreement."""
    q1, median, q3 = np.percentile(values, (25, 50, 75))
    return float((q3 - q1) / median) if median else math.inf


def _drift(values: list[float]) -> float | None:
    if len(values) < DRIFT_SAMPLES:
        return None
    third = len(values) // 3
    first, last = float(np.median(values[:third])), float(np.median(values[-third:]))
    return last / first - 1 if first else None
