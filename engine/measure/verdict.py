"""What a comparison with the float64 reference finds, and what every such comparison goes by."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

AFFORDABLE_SCORES = 1 << 23  # float64 scores, or outputs, computed per case: about half a second on two cores
EPS = 2.0**-23
TINY = float(np.finfo(np.float32).tiny)  # what is smaller some devices take for 0


def finite_size(array: NDArray[np.floating]) -> float:
    """Return the largest finite absolute value."""
    size = np.abs(array)
    return float(size.max(initial=0.0, where=np.isfinite(size)))


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the comparison found.

    ``max_abs_err`` is over the compared rows, infinite where only one side is finite; ``max_rel_err`` is relative to
    max |reference|; ``recorded_output_err`` is against the output that came with the tensors. ``nonfinite`` counts the
    output rows, of all rows, that hold a NaN or an infinity. ``message`` says what is wrong, empty when nothing is.
    """

    verified: bool
    max_abs_err: float
    max_rel_err: float
    recorded_output_err: float | None
    nonfinite: int
    message: str = ""


def difference(got: NDArray[np.float32], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return |got - wanted| in float64: infinite where one side alone is finite, 0 where neither is."""
    here, there = np.isfinite(got), np.isfinite(wanted)
    difference = np.zeros(wanted.shape)
    np.subtract(got, wanted, out=difference, where=here & there)
    np.abs(difference, out=difference)
    difference[here != there] = np.inf
    return difference
