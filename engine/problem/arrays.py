"""What a caller hands in, taken as real numbers, as one number or as a flag, or refused in a sentence that names it."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def as_array(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return the value as an array, uncopied where it is one. Raises ValueError for ragged lists."""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be an array, but its nested lists differ in length") from error


def as_real(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return the value as an array of whole numbers, float16, float32 or float64. Raises ValueError for all others."""
    array = as_array(name, value)
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise ValueError(f"{name} must hold real numbers (float16, float32 or float64), got {array.dtype}")
    return array


def as_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return the array in C-contiguous float32, uncopied where it is; a number too large for it becomes infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(array, np.float32, order="C")


def as_whole(name: str, value: Any, least: int = 1) -> int:
    """Return the value as an int. Raises ValueError for what is no whole number or below ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be a whole number from {least} on, got {value!r}")
    return int(value)


def as_positive(name: str, value: Any) -> float:
    """Return the value as a float. Raises ValueError for what is no finite number above 0."""
    number = math.nan
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # a whole number beyond every float
            number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
    return number


def as_flag(name: str, value: Any) -> bool:
    """Return the value as a bool. Raises ValueError for what is neither True nor False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)
