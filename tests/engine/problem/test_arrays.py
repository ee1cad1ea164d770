"""What a caller hands in: taken as real numbers, one number or a flag, or refused in a sentence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from engine.problem.arrays import as_array, as_flag, as_float32, as_positive, as_real, as_whole


@pytest.mark.parametrize("value", [1.5, [], [[1, 2], [3, 4]], np.ones(3, ">f8"), np.ones((2, 3), np.float16).T])
def test_real_numbers_keep_their_shape_in_float32(value: Any) -> None:
    array = as_float32(as_real("x", value))
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    np.testing.assert_array_equal(array, np.asarray(value))
    assert array.shape == np.shape(value)


def test_float32_is_not_copied_and_what_is_too_large_becomes_infinite() -> None:
    array = np.ones((2, 3), np.float32)
    assert as_float32(as_real("x", array)) is array
    assert as_float32(np.array([1e300])) == np.inf


@pytest.mark.parametrize("value", [1j, True, "a", None, np.ones(2, np.longdouble), object()])
def test_others_are_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match="x must hold real numbers"):
        as_real("x", value)


def test_ragged_lists_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="x must be an array, but its nested lists differ in length"):
        as_array("x", [[1], [2, 3]])


def test_whole_numbers() -> None:
    assert as_whole("n", np.int64(3)) == 3
    assert as_whole("n", 0, least=0) == 0
    for bad in (0, -1, 2.0, True, "3", None):
        with pytest.raises(ValueError, match="n must be a whole number from 1 on, got"):
            as_whole("n", bad)


def test_numbers_above_0() -> None:
    assert as_positive("x", np.float16(0.5)) == 0.5
    assert isinstance(as_positive("x", 3), float)
    for bad in (0, -1.0, math.nan, math.inf, 10**400, True, "1", 1j, None, np.ones(1)):
        with pytest.raises(ValueError, match="x must be a finite number above 0, got"):
            as_positive("x", bad)


def test_flags() -> None:
    assert as_flag("x", np.True_) is True
    assert as_flag("x", False) is False
    for bad in (1, 0, None, "yes", np.ones(2, np.bool_)):
        with pytest.raises(ValueError, match="x must be True or False, got"):
            as_flag("x", bad)
