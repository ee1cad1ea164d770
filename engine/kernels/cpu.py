"""What the CPU kernels share: refusals, timing, the soft cap, and values that are not finite."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib import introspect
from numpy.typing import NDArray

from engine.common.running import Timing
from engine.common.units import sizes_apart
from engine.devices.blas import hold_blas
from engine.devices.device import Limits
from engine.kernels.base import Array, Gradients, Prepared
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import has_nonfinite

_FAR = 1e30  # scales and soft caps beyond this, or below its inverse, say no more in float32, only overflow
_WORTHWHILE_FLOPS = 8e6  # of an item: some 100 µs of work, against half as much of Python
_FLOPS_LOADING = 16  # what loading a number of K or V counts for
_LARGE = 1e5  # of which float32 keeps two digits after the point
_LINE = 64  # bytes of a cache line
_FOLD = 16  # rows taken as one where columns are reduced


def unsupported(problem: AttentionProblem, limits: Limits, what: str, need: int) -> str | None:
    """Return None, or the sentence that refuses the problem: not float32, or ``need`` bytes above the limit.

    ``what`` begins the sentence on memory, for example "its tiles need".
    """
    if problem.dtype != "f32":
        return f"CPU kernels work in float32 only, not {problem.dtype}"
    if need > limits.memory_bytes:
        needed, allowed = sizes_apart(need, limits.memory_bytes)
        return f"{what} {needed}, the limit is {allowed}"
    return None


def worthwhile_threads(problem: AttentionProblem, limits: Limits, items: int) -> int:
    """Return how many threads should share a problem cut into so many items. Pure.

    Short items are mostly Python, which one thread runs at a time, so that a second only gets in its way.
    """
    flops = 2 * problem.pairs * problem.seq_q * problem.seq_k * (problem.head_dim + problem.head_dim_v)
    loaded = items * problem.seq_k * (problem.head_dim + problem.head_dim_v)
    worthwhile = flops + _FLOPS_LOADING * loaded >= _WORTHWHILE_FLOPS * items
    return min(limits.threads, items) if worthwhile else 1


def run_timed(once: Callable[[], None], repeat: int) -> Timing:
    """Call ``once`` ``repeat`` times and time that, BLAS held to one thread, since every core has a thread of ours.

    NumPy's floating-point warnings are off, as they are in the threads: what overflows is counted in the result.
    """
    with hold_blas(1), np.errstate(all="ignore"):
        begin = time.perf_counter()
        for _ in range(repeat):
            once()
        return Timing(wall_ms=(time.perf_counter() - begin) * 1e3)


@functools.cache
def has_quick_exp2() -> bool:
    """Tell whether NumPy has vector code for exp2 in float32, as for AVX-512.

    It takes half the time of exp then, and twice as long without.
    """
    try:
        found = introspect.opt_func_info(func_name="^exp2$", signature="float32")
        return not found["exp2"]["ff"]["current"].startswith("baseline")
    except (AttributeError, KeyError):  # an older NumPy, or one built for a single kind of processor
        return False


def float32_scale(scale: float) -> float:
    """Return the scale, kept where float32 scores of ordinary tensors do not overflow."""
    return min(max(scale, -_FAR), _FAR)


def split_scale(scale: float) -> tuple[float, float]:
    """Return ``(power, rest)`` with ``scale = power · rest``: a signed power of two, and 1 <= rest < 2."""
    if scale == 0:
        return 0.0, 1.0
    mantissa, exponent = math.frexp(scale)
    return math.copysign(2.0 ** max(exponent - 1, -126), mantissa), 2 * abs(mantissa)


def float32_cap(softcap: float) -> float:
    """Return the soft cap, kept where neither it nor its inverse overflows."""
    return min(max(softcap, 1 / _FAR), _FAR)


def apply_softcap(scores: Array, softcap: float) -> None:
    """Replace each score s by ``softcap · tanh(s / softcap)``, in place."""
    cap = float32_cap(softcap)
    scores /= cap
    np.tanh(scores, out=scores)
    scores *= cap


def aligned(*shape: int, kind: type[np.generic] = np.float32) -> NDArray[Any]:
    """Return zeros that begin on a cache line: of vectors as long as one, NumPy's own would all lie across two."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    memory = np.zeros(size + _LINE, np.uint8)
    begin = -memory.ctypes.data % _LINE
    return memory[begin : begin + size].view(kind).reshape(shape)


def bounds(values: Array) -> tuple[Array, Array]:
    """Return the least and the greatest of each column of C-contiguous ``values`` [..., keys, head_dim_v].

    NaN in a column makes both NaN. A weighted mean lies within what it is taken of; holding it there undoes what
    rounding did, so that equal values come back exactly.
    """
    # NumPy pays for every row of such a reduction, so first the rows are made fewer and longer
    *several, keys, width = values.shape
    whole = keys - keys % _FOLD

    def fold(pick: np.ufunc) -> Array:
        rows: Array = values[..., whole:, :]
        if whole:
            long_rows = values[..., :whole, :].reshape(*several, whole // _FOLD, _FOLD * width)
            few = pick.reduce(long_rows, axis=-2).reshape(*several, _FOLD, width)
            rows = np.concatenate([rows, few], axis=-2) if whole < keys else few
        return np.asarray(pick.reduce(rows, axis=-2))

    return fold(np.minimum), fold(np.maximum)


def take_nonfinite(values: Array) -> tuple[NDArray[np.intp], Array]:
    """Zero the rows of ``values`` [keys, n] that hold NaN or inf, in place; return their indices and what they held.

    A weight of 0 times NaN is NaN, so such a row must not take part in a matrix product with rows that do not see it.
    """
    keys = np.flatnonzero(~np.isfinite(values).all(axis=1))
    taken = values[keys]
    values[keys] = 0
    return keys, taken


def add_nonfinite(sums: Array, weights: Array, keys: NDArray[np.intp], taken: Array, seen: NDArray[np.bool_]) -> None:
    """Add the weighted value rows that ``take_nonfinite`` took to the ``sums`` of the rows that see them.

    ``weights`` is [rows, all keys]; ``seen`` [rows, len(keys)] tells which row sees which of the taken keys.
    """
    for key, value, rows in zip(keys, taken, seen.T, strict=True):
        sums[rows] += weights[rows, key, None] * value


def seen_product(weights: Array, values: Array, seen: NDArray[np.bool_]) -> Array:
    """Return ``weights`` [rows, keys] times ``values`` [keys, n], what is not finite met only where it is ``seen``."""
    values = values.copy()
    keys, taken = take_nonfinite(values)
    sums: Array = np.matmul(weights, values)
    add_nonfinite(sums, weights, keys, taken, seen[:, keys])
    return sums


def rows_of_gradients(inputs: Inputs) -> Array:
    """Return ``Σ dO_d · O_d`` of each row [batch, heads, seq_q]: what the gradients of its weights are relative to."""
    assert inputs.grad_output is not None
    assert inputs.output is not None
    deltas: Array = np.vecdot(inputs.grad_output, inputs.output)
    return deltas


def largest_lse(lse: Array) -> float:
    """Return the size of the largest finite log-sum-exp."""
    return float(np.abs(lse).max(initial=0, where=np.isfinite(lse)))


def exceed_one(lse: Array) -> bool:
    """Whether scores are so large that rounding could make weights ``exp(score - lse)`` far larger than 1."""
    return largest_lse(lse) > _LARGE


def needs_care(inputs: Inputs, scale: float) -> bool:
    """Whether what a row does not see could spoil its gradients: 0 times what is not finite is NaN.

    So where the input is not finite, or where scores or the gradients of weights may overflow.
    """
    if has_nonfinite(inputs):
        return True
    assert inputs.grad_output is not None
    q, k, v, grad = (max(float(x.max()), -float(x.min())) for x in (inputs.q, inputs.k, inputs.v, inputs.grad_output))
    scores, grad_weights = q * k * inputs.k.shape[-1] * max(1.0, abs(scale)), grad * v * inputs.v.shape[-1]
    return bool(max(scores, grad_weights) >= float(np.finfo(np.float32).max))


class PreparedGradients(Prepared):
    """What the backward passes of the CPU kernels share: the gradients they leave behind."""

    def __init__(self, problem: AttentionProblem) -> None:
        shapes = (problem.q_shape, problem.k_shape, problem.v_shape)
        self._dq, self._dk, self._dv = (np.zeros(shape, np.float32) for shape in shapes)

    def poison(self) -> None:
        """Fill the gradients with NaN."""
        for gradient in (self._dq, self._dk, self._dv):
            gradient.fill(np.nan)

    def gradients(self) -> Gradients:
        """Return the gradients that the last run left."""
        return Gradients(self._dq, self._dk, self._dv)
