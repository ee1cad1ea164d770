"""cpu-naive: attention as everyone writes it in NumPy, and well: all scores, their softmax, times the values.

The score matrices of all (batch, head) pairs exist at once, [batch, heads, seq_q, seq_k] in float32, and the mask is
built once. Three passes go over all of them: the scores, their softmax in place, the product with the values. In each,
a thread owns one pair at a time, or a strip of its rows where pairs are few. No tile is skipped.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from engine.common.running import ShouldStop, Timing, never_stop
from engine.devices.cpu import CpuDevice
from engine.devices.device import Limits
from engine.kernels.base import Array, Kernel, Outputs, Prepared
from engine.kernels.cpu import (
    add_nonfinite,
    apply_softcap,
    bounds,
    float32_scale,
    run_timed,
    take_nonfinite,
    unsupported,
    worthwhile_threads,
)
from engine.kernels.cpu_naive import backward as backward
from engine.kernels.cpu_naive.cut import hidden_keys, mask_shape, strip_rows
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs


class CpuNaive(Kernel):
    """Attention through whole score matrices in NumPy, threaded over (batch, head)."""

    name = "cpu-naive"
    summary = "NumPy, whole score matrices"
    device_kind = "cpu"
    naive = "cpu-naive"
    honours = ("causal", "window", "softcap", "scale", "key_mask")

    def supports(self, problem: AttentionProblem, limits: Limits) -> str | None:
        """Return None, or why the problem cannot run: not float32, or score matrices above the memory limit."""
        return unsupported(problem, limits, "its tensors and score matrices need", self.predict(problem, limits))

    def predict(self, problem: AttentionProblem, limits: Limits) -> int:
        """Return the bytes of Q, K, V, output, the score matrices and the mask."""
        if problem.backward:
            return backward.predict(problem, limits)
        return problem.tensor_bytes + problem.score_bytes + math.prod(mask_shape(problem))

    def prepare(
        self, problem: AttentionProblem, inputs: Inputs, device: CpuDevice, *, want_lse: bool = False
    ) -> Prepared:
        """Allocate the result and all score matrices, and build the mask."""
        if problem.backward:
            return backward.PreparedNaiveBackward(problem, self.with_forward(problem, inputs, device), device)
        return _PreparedNaive(problem, inputs, device, want_lse)


class _PreparedNaive(Prepared):
    """cpu-naive ready for one problem."""

    def __init__(self, problem: AttentionProblem, inputs: Inputs, device: CpuDevice, want_lse: bool) -> None:
        self._problem = problem
        self._inputs = inputs
        self._device = device
        self._scale = float32_scale(problem.scale)
        self._output: Array = np.empty(problem.output_shape, np.float32)
        self._lse: Array | None = np.empty(problem.output_shape[:3], np.float32) if want_lse else None
        self._scores: Array = np.empty((*problem.output_shape[:3], problem.seq_k), np.float32)
        self._hidden = hidden_keys(problem)
        self._blind = np.zeros((problem.batch, problem.seq_q), np.bool_)
        if self._hidden is not None:
            self._blind |= self._hidden.all(axis=2)
        self._rows = strip_rows(problem)
        self._strips = -(-problem.seq_q // self._rows)
        self.variant = "whole matrix"

    def run(self, repeat: int = 1, should_stop: ShouldStop = never_stop) -> Timing:
        items = self._problem.pairs * self._strips
        threads = worthwhile_threads(self._problem, self._device.limits, items)

        def once() -> None:
            for work in (self._score, self._soften, self._average):
                self._device.each(items, work, should_stop, threads)

        return run_timed(once, repeat)

    def poison(self) -> None:
        self._output.fill(np.nan)
        if self._lse is not None:
            self._lse.fill(np.nan)

    def outputs(self) -> Outputs:
        return Outputs(self._output, self._lse)

    def close(self) -> None:
        self._scores = np.empty(0, np.float32)
        self._hidden = None

    def _strip(self, number: int) -> tuple[int, int, slice]:
        """Return batch, head and rows of a strip."""
        pair, strip = divmod(number, self._strips)
        return *divmod(pair, self._problem.heads), slice(strip * self._rows, (strip + 1) * self._rows)

    def _hidden_from(self, at: tuple[int, int, slice]) -> NDArray[np.bool_] | None:
        return None if self._hidden is None else self._hidden[at[0] % len(self._hidden), at[2]]

    def _score(self, worker: int, number: int, stopped: ShouldStop) -> None:
        """First pass: queries times keys."""
        at = batch, head, _ = self._strip(number)
        np.matmul(self._inputs.q[at], self._inputs.k[batch, head // self._problem.group].T, out=self._scores[at])

    def _soften(self, worker: int, number: int, stopped: ShouldStop) -> None:
        """Second pass: the softmax of each row, in place."""
        at = batch, _, rows = self._strip(number)
        scores, hidden = self._scores[at], self._hidden_from(at)
        scores *= self._scale
        if self._problem.softcap is not None:
            apply_softcap(scores, self._problem.softcap)
        if hidden is not None:
            np.copyto(scores, -np.inf, where=hidden)
        blind = self._blind[batch, rows]
        top = scores.max(axis=1, keepdims=True)
        top[blind] = 0
        scores -= top
        np.exp(scores, out=scores)
        total = scores.sum(axis=1, keepdims=True)
        if self._lse is not None:
            self._lse[at] = (top + np.log(total))[:, 0]
        total[blind] = 1
        scores /= total

    def _average(self, worker: int, number: int, stopped: ShouldStop) -> None:
        """Third pass: weights times values."""
        at = batch, head, rows = self._strip(number)
        values = self._inputs.v[batch, head // self._problem.group]
        _weighted_means(self._scores[at], values, self._hidden_from(at), self._output[at])
        self._output[at][self._blind[batch, rows]] = 0


def _weighted_means(weights: Array, values: Array, hidden: NDArray[np.bool_] | None, out: Array) -> None:
    """Write ``weights`` [rows, keys] times ``values`` [keys, head_dim_v]; ``hidden`` tells which key a row sees not."""
    low, high = bounds(values)
    if np.isfinite(low).all() and np.isfinite(high).all():
        np.matmul(weights, values, out=out)
        np.clip(out, low, high, out=out)
        return
    values = values.copy()
    keys, taken = take_nonfinite(values)
    np.matmul(weights, values, out=out)
    seen = np.ones((len(weights), len(keys)), np.bool_) if hidden is None else ~hidden[:, keys]
    add_nonfinite(out, weights, keys, taken, seen)
