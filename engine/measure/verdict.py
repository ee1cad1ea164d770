"""What a comparison with the float64 reference finds, and what every such comparison goes by."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.problem.attention_problem import Dtype

AFFORDABLE_SCORES = 1 << 23  # float64 scores, or outputs, computed per case: about half a second on two cores
EPS = 2.0**-23
TINY = float(np.finfo(np.float32).tiny)  # what is smaller some devices take for 0
_NEXT_TO = 1e-4  # relative
_LARGEST = {"f32": float(np.finfo(np.float32).max), "f16": float(np.finfo(np.float16).max)}


def finite_size(array: NDArray[np.floating]) -> float:
    """Return the largest finite absolute value."""
    size = np.abs(array)
    return float(size.max(initial=0.0, where=np.isfinite(size)))


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the comparison found.

    ``verified`` is None where nothing finite was there to compare. ``max_abs_err`` is over the compared rows, infinite
    where only one side is finite; ``max_rel_err`` is relative to max |reference|; ``recorded_output_err`` is against
    the output that came with the tensors. ``nonfinite`` counts the output rows, of all rows, that hold a NaN or an
    infinity. ``message`` says what is wrong, or what could not be compared; empty where there is nothing to say.
    """

    verified: bool | None
    max_abs_err: float
    max_rel_err: float
    recorded_output_err: float | None
    nonfinite: int
    message: str = ""


def difference(got: NDArray[np.float32], wanted: NDArray[np.float64], dtype: Dtype = "f32") -> NDArray[np.float64]:
    """Return |got - wanted| in float64: infinite where one side alone is finite, 0 where neither is.

    What is wanted beyond the largest number of ``dtype`` is infinite there: to overflow is right, a number is not. Of
    what is next to that number both are right.
    """
    here, there = np.isfinite(got), np.abs(wanted) <= _LARGEST[dtype]
    there = np.where(np.abs(np.abs(wanted) / _LARGEST[dtype] - 1) < _NEXT_TO, here, there)
    difference = np.zeros(wanted.shape)
    np.subtract(got, wanted, out=difference, where=here & there)
    np.abs(difference, out=difference)
    difference[here != there] = np.inf
    return difference


def exceeds(off_by: NDArray[np.float64], bound: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which elements are further off than is allowed; infinitely far off is never allowed."""
    return np.asarray((off_by > bound) | np.isinf(off_by))


def share_of(off_by: NDArray[np.float64], bound: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``off_by`` in units of what is allowed: above 1 where it is wrong."""
    with np.errstate(all="ignore"):
        return np.where(off_by > 0, off_by / bound, 0.0)
