"""cpu-flash: blocked attention in NumPy with an online softmax, in scratch that does not grow with the sequence.

A work item is a block of query rows of one head (of several whole heads of one group, where heads are short); one
thread does it alone, from the first visible key to the last, in tiles of keys. What a thread owns, for R rows and T
keys (R·T scores fit L2):

    queries [R, head_dim + 1]     keys   [T, head_dim + 1]     scores [R, T]
    sums    [R, head_dim_v + 1]   values [T, head_dim_v + 1]   tile_sums, as sums

The algorithm is the forward pass of FlashAttention-2 (Dao 2023, algorithm 1), changed where NumPy asks for it, since
each pass over the scores costs a good part of a matrix product:

- Minus the row's running maximum is one more column of the queries, against a column of ones in the keys, so that the
  product comes out shifted. The maximum is raised only where a tile exceeds it by more than ``_SLACK``.
- A column of ones in the values brings the row sums with the second product.
- Of the scale, sign and power of two are folded into the queries, which rounds nothing, so equal scores stay equal;
  the rest, a factor in [1, 2) that is 1 for head_dim 16, 64 and 256, multiplies the product.
- Keys hidden by ``key_mask`` are never loaded: the visible ones are numbered through and a row sees a range of them.
  Nothing hidden can leak, and only tiles on the edge of a causal or window range need a mask.
"""

from __future__ import annotations

import math

import numpy as np

from engine.cpu import CpuDevice
from engine.devices import Limits
from engine.inputs import Inputs
from engine.kernels.base import Array, Kernel, Outputs, Prepared
from engine.kernels.cpu_blocks import Blocks, KeyNumbers, Sight, shown_keys
from engine.kernels.cpu_common import (
    add_nonfinite,
    apply_softcap,
    bounds,
    float32_scale,
    run_timed,
    take_nonfinite,
    unsupported,
)
from engine.problem import AttentionProblem
from engine.running import ShouldStop, Timing, never_stop

_SLACK = 4.0  # how far a score may exceed the running maximum; times a factor below 2, e^8 is far from overflow


class CpuFlash(Kernel):
    """Blocked attention with an online softmax in NumPy, threaded over (batch, head, query block)."""

    name = "cpu-flash"
    summary = "NumPy, blocked, online softmax"
    device_kind = "cpu"
    naive = "cpu-naive"

    def supports(self, problem: AttentionProblem, limits: Limits) -> str | None:
        """Return None, or why the problem cannot run: not float32, or more memory than the limit."""
        return unsupported(problem, limits, "its tensors and tiles need", self.predict(problem, limits))

    def predict(self, problem: AttentionProblem, limits: Limits) -> int:
        """Return the bytes of Q, K, V, output, every thread's buffers and the numbers of the keys shown."""
        blocks = Blocks.of(problem, limits)
        rows, width, width_v = blocks.rows * blocks.heads, problem.head_dim + 1, problem.head_dim_v + 1
        workspace = 4 * (rows * (blocks.keys + 2 * width + 2 * width_v) + blocks.keys * (width + width_v))
        if problem.causal:
            workspace += rows * blocks.keys
        if problem.key_mask is not None:
            workspace += 4 * blocks.keys * max(problem.head_dim, problem.head_dim_v)  # gathered, then copied
        numbers = sum(keys.nbytes for keys in shown_keys(problem))
        return problem.tensor_bytes + min(limits.threads, blocks.count) * workspace + numbers

    def prepare(
        self, problem: AttentionProblem, inputs: Inputs, device: CpuDevice, *, want_lse: bool = False
    ) -> Prepared:
        """Allocate the output and every thread's buffers, and number the keys shown."""
        return _PreparedFlash(problem, inputs, device, want_lse)


class _Workspace:
    """The buffers of one thread, kept from run to run. The last column of keys and values stays 1."""

    def __init__(self, problem: AttentionProblem, blocks: Blocks) -> None:
        rows = blocks.rows * blocks.heads
        self.queries = np.zeros((rows, problem.head_dim + 1), np.float32)
        self.keys = np.ones((blocks.keys, problem.head_dim + 1), np.float32)
        self.values = np.ones((blocks.keys, problem.head_dim_v + 1), np.float32)
        self.scores = np.zeros(rows * blocks.keys, np.float32)
        self.hidden = np.zeros(rows * blocks.keys if problem.causal else 0, np.bool_)
        self.sums = np.zeros((rows, problem.head_dim_v + 1), np.float32)
        self.tile_sums = np.zeros((rows, problem.head_dim_v + 1), np.float32)


class _PreparedFlash(Prepared):
    """cpu-flash ready for one problem."""

    def __init__(self, problem: AttentionProblem, inputs: Inputs, device: CpuDevice, want_lse: bool) -> None:
        self._problem = problem
        self._inputs = inputs
        self._device = device
        self._blocks = Blocks.of(problem, device.limits)
        self.variant = f"{self._blocks.rows * self._blocks.heads}x{self._blocks.keys}"
        self._output: Array = np.empty(problem.output_shape, np.float32)
        self._lse: Array | None = np.empty(problem.output_shape[:3], np.float32) if want_lse else None
        self._shown = shown_keys(problem)
        self._bounds = np.empty((problem.batch * problem.kv_heads, 2, problem.head_dim_v), np.float32)
        self._workspaces = [_Workspace(problem, self._blocks) for _ in range(device.workers(self._blocks.count))]

    def run(self, repeat: int = 1, should_stop: ShouldStop = never_stop) -> Timing:
        phases = [(len(self._bounds), self._find_bounds), (self._blocks.count, self._block)]
        return run_timed(self._device, phases, repeat, should_stop)

    def poison(self) -> None:
        self._output.fill(np.nan)
        if self._lse is not None:
            self._lse.fill(np.nan)

    def outputs(self) -> Outputs:
        return Outputs(self._output, self._lse)

    def close(self) -> None:
        self._workspaces.clear()

    def _tile(self, batch: int, start: int, stop: int) -> slice | KeyNumbers:
        """Return the index of the keys from ``start`` to before ``stop``, counted without those that are hidden."""
        return self._shown[batch][start:stop] if self._shown else slice(start, stop)

    def _find_bounds(self, worker: int, number: int, stopped: ShouldStop) -> None:
        """Find the least and the greatest of each column of a head's values."""
        batch, kv_head = divmod(number, self._problem.kv_heads)
        v = self._inputs.v[batch, kv_head]
        low, high = self._bounds[number]
        low.fill(np.inf)
        high.fill(-np.inf)
        for start in range(0, len(self._shown[batch]) if self._shown else len(v), self._blocks.keys):
            tile_low, tile_high = bounds(v[self._tile(batch, start, start + self._blocks.keys)])
            np.minimum(low, tile_low, out=low)
            np.maximum(high, tile_high, out=high)

    def _block(self, worker: int, number: int, stopped: ShouldStop) -> None:
        """Compute one block of query rows, tile by tile of keys."""
        problem, work = self._problem, self._workspaces[worker]
        batch, heads, rows = self._blocks.block(problem, number)
        kv_head = heads.start // problem.group
        k, v = self._inputs.k[batch, kv_head], self._inputs.v[batch, kv_head]
        sight = Sight(problem, self._shown[batch] if self._shown else None, self._blocks.heads, rows)
        low, high = self._bounds[batch * problem.kv_heads + kv_head]
        finite = bool(np.isfinite(low).all() and np.isfinite(high).all())
        softmax = _OnlineSoftmax(problem, work, self._inputs.q[batch, heads, rows].reshape(-1, problem.head_dim))

        for start in range(sight.start, sight.stop, self._blocks.keys):
            if stopped():
                return
            stop = min(start + self._blocks.keys, sight.stop)
            tile = self._tile(batch, start, stop)
            keys, values = work.keys[: stop - start], work.values[: stop - start]
            keys[:, :-1], values[:, :-1] = k[tile], v[tile]
            scores = softmax.scores(keys)
            sight.hide(scores, start, work.hidden)
            weights = softmax.weights(scores)
            if finite:
                softmax.add(weights, values)
                continue
            bad, taken = take_nonfinite(values[:, :-1])
            softmax.add(weights, values)
            add_nonfinite(softmax.sums[:, :-1], weights, bad, taken, sight.sees(start + bad))

        blind = sight.blind()
        output = self._output[batch, heads, rows].reshape(-1, problem.head_dim_v)
        np.divide(softmax.sums[:, :-1], softmax.sums[:, -1:], out=output)
        if finite:
            np.clip(output, low, high, out=output)
        output[blind] = 0
        if self._lse is not None:
            self._lse[batch, heads, rows] = np.where(blind, -np.inf, softmax.lse()).reshape(self._blocks.heads, -1)


class _OnlineSoftmax:
    """The softmax of a block of rows while its tiles go by: weighted sums of values, relative to a running maximum.

    ``sums[:, -1]`` is the sum of the weights ``exp(factor · (score - maximum))``; scores are kept in units of
    ``factor``, which is what is left of the scale.
    """

    def __init__(self, problem: AttentionProblem, work: _Workspace, q: Array) -> None:
        count = len(q)
        power, rest = _split(float32_scale(problem.scale))
        self._softcap = problem.softcap
        # the cap wants whole scores, so before it the rest of the scale must be in, and after it nothing is left
        self._before_cap, self._factor = (1.0, rest) if problem.softcap is None else (rest, 1.0)
        self._queries, self._scores = work.queries[:count], work.scores
        self.sums, self._tile_sums = work.sums[:count], work.tile_sums[:count]
        self._maximum = np.zeros(count, np.float32)
        self._fresh = np.ones(count, np.bool_)  # rows without a score so far
        np.multiply(q, power, out=self._queries[:, :-1])
        self._queries[:, -1] = 0
        self.sums.fill(0)

    def scores(self, keys: Array) -> Array:
        """Return the scores [rows, keys] against ``keys`` [keys, head_dim + 1], less the row's maximum so far."""
        count = len(self._queries)
        scores = self._scores[: count * len(keys)].reshape(count, len(keys))
        np.matmul(self._queries, keys.T, out=scores)
        if self._softcap is not None:
            scores *= self._before_cap
            apply_softcap(scores, self._softcap)
            scores -= self._maximum[:, None]
        return scores

    def weights(self, scores: Array) -> Array:
        """Turn the scores of a tile, -inf where hidden, into weights in place; return them."""
        self._raise_maximum(scores)
        if self._factor != 1:
            scores *= self._factor
        return np.exp(scores, out=scores)

    def add(self, weights: Array, values: Array) -> None:
        """Add ``weights`` [rows, keys] times ``values`` [keys, head_dim_v + 1] to the sums."""
        np.matmul(weights, values, out=self._tile_sums)
        self.sums += self._tile_sums

    def lse(self) -> Array:
        """Return the log-sum-exp of each row's scores, natural log [rows]."""
        return self._factor * self._maximum + np.log(self.sums[:, -1])

    def _raise_maximum(self, scores: Array) -> None:
        """Where a row's scores exceed its maximum by far, or are its first, shift scores, sums and maximum."""
        top = scores.max(axis=1)
        raised = (top > _SLACK) | (self._fresh & (top > -np.inf))
        if not raised.any():
            return
        maximum = np.where(raised, self._maximum + top, self._maximum)
        step = maximum - self._maximum  # as float32 has it, so that tiles before and after agree
        scores -= step[:, None]
        self.sums *= np.where(self._fresh, 1, np.exp(-self._factor * step))[:, None]
        self._maximum = maximum
        self._fresh &= ~raised
        if self._softcap is None:  # beside a cap, which is not linear, the maximum cannot enter the product
            np.negative(maximum, out=self._queries[:, -1])


def _split(scale: float) -> tuple[float, float]:
    """Return ``(power, rest)`` with ``scale = power · rest``: a signed power of two, and 1 <= rest < 2."""
    if scale == 0:
        return 0.0, 1.0
    mantissa, exponent = math.frexp(scale)
    return math.copysign(2.0 ** max(exponent - 1, -126), mantissa), 2 * abs(mantissa)
