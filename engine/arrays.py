"""What a caller hands in, taken as real numbers or as a whole one, or refused in a sentence that names it."""

from __future__ import annotations

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
