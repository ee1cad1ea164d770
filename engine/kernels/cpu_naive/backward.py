"""cpu-naive, backward: the gradients as everyone writes them in NumPy, and well, through whole score matrices.

Two matrices of all (batch, head) pairs exist at once, [batch, heads, seq_q, seq_k] in float32: the weights P, made
again from the scores and the log-sum-exp, and the gradients of the scores dS. A first pass fills both, a thread owning
one pair at a time, or a strip of its rows where pairs are few, and gives dQ; in the second a thread owns one head of K
and V, or a strip of its keys, and gives dK and dV. No tile is skipped.
"""

from __future__ import annotations

import math

import numpy as np

from engine.common.running import ShouldStop, Timing, never_stop
from engine.devices.cpu import CpuDevice
from engine.devices.device import Limits
from engine.kernels.base import Array
from engine.kernels.cpu import (
    PreparedGradients,
    apply_softcap,
    exceed_one,
    float32_cap,
    float32_scale,
    needs_care,
    rows_of_gradients,
    run_timed,
    seen_product,
    worthwhile_threads,
)
from engine.kernels.cpu_naive.cut import hidden_keys, mask_shape, strip_rows
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import without_hidden_garbage

_ROWS = 64  # for which the slope of a soft cap is held at a time
_MIN_KEYS = 256  # of a strip, else BLAS slows down
_ENOUGH_ITEMS = 8  # fewer heads of K and V are cut into strips


def predict(problem: AttentionProblem, limits: Limits) -> int:
    """Return the bytes of tensors, both matrices, the mask, two numbers a row, and what threads hold for a while."""
    width = 0 if problem.group == 1 else max(problem.head_dim, problem.head_dim_v)
    slope = 0 if problem.softcap is None else min(_ROWS, strip_rows(problem))
    threads, key_threads = _threads(problem, limits)
    passing = 4 * max(threads * slope * problem.seq_k, key_threads * _strip_keys(problem) * width)
    held = problem.tensor_bytes + 2 * problem.score_bytes + math.prod(mask_shape(problem))
    return held + 2 * problem.lse_bytes + passing


class PreparedNaiveBackward(PreparedGradients):
    """The backward pass of cpu-naive ready for one problem; ``inputs`` hold output and log-sum-exp."""

    variant = "whole matrix"

    def __init__(self, problem: AttentionProblem, inputs: Inputs, device: CpuDevice) -> None:
        super().__init__(problem)
        self._problem = problem
        self._inputs = inputs = without_hidden_garbage(problem, inputs)
        self._device = device
        self._scale = np.float32(float32_scale(problem.scale))
        shape = (*problem.output_shape[:3], problem.seq_k)
        self._weights: Array = np.empty(shape, np.float32)
        self._grad_scores: Array = np.empty(shape, np.float32)
        self._hidden = hidden_keys(problem)
        self._careful = needs_care(inputs, problem.scale)
        assert inputs.lse is not None
        self._exceed_one = exceed_one(inputs.lse)
        self._relative_to = np.where(np.isneginf(inputs.lse), 0, inputs.lse)[..., None]
        self._rows = strip_rows(problem)
        self._strips = -(-problem.seq_q // self._rows)
        self._keys = _strip_keys(problem)
        self._key_strips = -(-problem.seq_k // self._keys)

    def run(self, repeat: int = 1, should_stop: ShouldStop = never_stop) -> Timing:
        """Run both passes ``repeat`` times."""
        problem = self._problem
        items = problem.pairs * self._strips
        key_items = problem.batch * problem.kv_heads * self._key_strips
        threads, key_threads = _threads(problem, self._device.limits)

        def once() -> None:
            self._deltas = rows_of_gradients(self._inputs)[..., None]
            self._device.each(items, self._of_rows, should_stop, threads)
            self._device.each(key_items, self._of_keys, should_stop, key_threads)

        return run_timed(once, repeat)

    def close(self) -> None:
        """Free the matrices."""
        self._weights = self._grad_scores = np.empty(0, np.float32)
        self._hidden = None

    def _of_rows(self, worker: int, number: int, stopped: ShouldStop) -> None:
        """First pass: weights, gradients of the scores, and dQ of a strip of rows."""
        pair, strip = divmod(number, self._strips)
        batch, head = divmod(pair, self._problem.heads)
        at = batch, head, slice(strip * self._rows, (strip + 1) * self._rows)
        keys, values = (x[batch, head // self._problem.group] for x in (self._inputs.k, self._inputs.v))
        assert self._inputs.grad_output is not None
        weights, grad_scores = self._weights[at], self._grad_scores[at]
        hidden = None if self._hidden is None else self._hidden[batch % len(self._hidden), at[2]]
        np.matmul(self._inputs.q[at], keys.T, out=weights)
        weights *= self._scale
        np.matmul(self._inputs.grad_output[at], values.T, out=grad_scores)
        grad_scores -= self._deltas[at]
        if (cap := self._problem.softcap) is not None:
            apply_softcap(weights, cap)
            for start in range(0, len(weights), _ROWS):
                slope = weights[start : start + _ROWS] / np.float32(float32_cap(cap))
                np.multiply(slope, slope, out=slope)
                grad_scores[start : start + _ROWS] *= np.subtract(1, slope, out=slope)
        weights -= self._relative_to[at]
        if hidden is not None:
            np.copyto(weights, -np.inf, where=hidden)
        if self._exceed_one:
            np.minimum(weights, 0, out=weights)
        np.exp(weights, out=weights)
        grad_scores *= weights
        grad_scores *= self._scale
        if not self._careful:
            np.matmul(grad_scores, keys, out=self._dq[at])
            return
        seen = np.ones(weights.shape, np.bool_) if hidden is None else ~hidden
        for matrix in (weights, grad_scores):
            np.copyto(matrix, 0, where=~seen)
        self._dq[at] = seen_product(grad_scores, keys, seen)

    def _of_keys(self, worker: int, number: int, stopped: ShouldStop) -> None:
        """Second pass: dK and dV of a strip of keys, summed over the heads of the group."""
        pair, strip = divmod(number, self._key_strips)
        batch, kv_head = divmod(pair, self._problem.kv_heads)
        keys = slice(strip * self._keys, (strip + 1) * self._keys)
        dk, dv = self._dk[batch, kv_head, keys], self._dv[batch, kv_head, keys]
        dk.fill(0)
        dv.fill(0)
        assert self._inputs.grad_output is not None
        for head in range(kv_head * self._problem.group, (kv_head + 1) * self._problem.group):
            if stopped():
                return
            q, grad = self._inputs.q[batch, head], self._inputs.grad_output[batch, head]
            weights, grad_scores = self._weights[batch, head, :, keys].T, self._grad_scores[batch, head, :, keys].T
            if not self._careful:
                for matrix, factor, sums in ((grad_scores, q, dk), (weights, grad, dv)):
                    if head % self._problem.group == 0:
                        np.matmul(matrix, factor, out=sums)
                    else:
                        sums += matrix @ factor
                continue
            seen = np.ones(weights.shape, np.bool_)
            if self._hidden is not None:
                seen = ~self._hidden[batch % len(self._hidden), :, keys].T
            dk += seen_product(grad_scores, q, seen)
            dv += seen_product(weights, grad, seen)


def _strip_keys(problem: AttentionProblem) -> int:
    """Return the keys of one head that a thread takes at a time in the second pass."""
    strips = max(1, min(_ENOUGH_ITEMS // (problem.batch * problem.kv_heads), problem.seq_k // _MIN_KEYS))
    return -(-problem.seq_k // strips)


def _threads(problem: AttentionProblem, limits: Limits) -> tuple[int, int]:
    """Return the threads of each pass."""
    threads = worthwhile_threads(problem, limits, problem.pairs * -(-problem.seq_q // strip_rows(problem)))
    key_items = problem.batch * problem.kv_heads * -(-problem.seq_k // _strip_keys(problem))
    return threads, min(threads, key_items)
