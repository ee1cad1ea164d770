"""cpu-flash: blocked attention in NumPy with an online softmax, in scratch that does not grow with the sequence.

A work item is a block of query rows of one head (of several whole heads of one group, where heads are short); one
thread does it alone, from the first visible key to the last, in tiles of keys. What a thread owns, for R rows and T
keys (R·T scores are at most four times L2: larger blocks load keys and values less often, and NumPy is called less):

    queries [R, head_dim + 1]     keys   [T, head_dim + 1]     scores [R, T], hidden [R, T]
    sums    [R, head_dim_v + 1]   values [T, head_dim_v + 1]   tile_sums, as sums

The algorithm is the forward pass of FlashAttention-2 (Dao 2023, algorithm 1), changed where NumPy asks for it, since
each pass over the scores costs a good part of a matrix product:

- The softmax is relative to a maximum that need not be exact: it moves only when scores are far from it. A row's first
  tile is measured against it; of later tiles the sum of weights, which comes anyway, tells whether they exceed it.
- Minus the maximum is one more column of the queries, against a column of ones in the keys, so that the product comes
  out shifted. A column of ones in the values brings the sums of weights with the second product.
- Of the scale, sign and power of two are folded into the queries, which rounds nothing, so equal scores stay equal;
  the rest, a factor in [1, 2) that is 1 for head_dim 16, 64 and 256, multiplies the product.
- Keys hidden by ``key_mask`` are never loaded: the visible ones are numbered through and a row sees a range of them.
  Nothing hidden can leak. On the edge of a causal or window range, rows that see nothing of a tile are left out, and
  rows that see a part of it are masked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from engine.cpu import CpuDevice
from engine.devices import Limits
from engine.inputs import Inputs
from engine.kernels.base import Array, Kernel, Outputs, Prepared
from engine.kernels.cpu_blocks import Blocks, BlockSizes, KeyNumbers, Sight, shown_keys
from engine.kernels.cpu_common import (
    add_nonfinite,
    apply_softcap,
    bounds,
    float32_scale,
    run_timed,
    take_nonfinite,
    unsupported,
    worthwhile_threads,
)
from engine.problem import AttentionProblem
from engine.running import ShouldStop, Timing, never_stop

_EDGE_KEYS = 256
_L2_TIMES = 4
_SLACK = 8.0  # how far scores may be from the running maximum; times a factor below 2, e^16 is far from overflow
_MOST = 1e6  # sum of a row's weights in a tile above which scores exceed the maximum by far


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
        blocks = _blocks(problem, limits)
        rows, width, width_v = blocks.rows * blocks.heads, problem.head_dim + 1, problem.head_dim_v + 1
        workspace = 4 * (rows * (blocks.keys + 2 * width + 2 * width_v) + blocks.keys * (width + width_v))
        if problem.causal:
            workspace += rows * blocks.keys
        if problem.key_mask is not None:
            workspace += 4 * blocks.keys * max(problem.head_dim, problem.head_dim_v)  # gathered, then copied
        numbers = sum(keys.nbytes for keys in shown_keys(problem))
        return problem.tensor_bytes + worthwhile_threads(problem, limits, blocks.count) * workspace + numbers

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
        self._sight: tuple[tuple[int, int], Sight] | None = None

    def sight(self, problem: AttentionProblem, shown: list[KeyNumbers], heads: int, batch: int, rows: slice) -> Sight:
        """Return what the rows see; the last answer is kept, since blocks of the same rows follow one another."""
        at = (batch if shown else 0, rows.start)
        if self._sight is None or self._sight[0] != at:
            self._sight = at, Sight(problem, shown[batch] if shown else None, heads, rows)
        return self._sight[1]


class _PreparedFlash(Prepared):
    """cpu-flash ready for one problem."""

    def __init__(self, problem: AttentionProblem, inputs: Inputs, device: CpuDevice, want_lse: bool) -> None:
        self._problem = problem
        self._inputs = inputs
        self._device = device
        self._blocks = _blocks(problem, device.limits)
        self.variant = f"{self._blocks.rows * self._blocks.heads}x{self._blocks.keys}"
        self._output: Array = np.empty(problem.output_shape, np.float32)
        self._lse: Array | None = np.empty(problem.output_shape[:3], np.float32) if want_lse else None
        self._shown = shown_keys(problem)
        self._bounds = np.empty((problem.batch * problem.kv_heads, 2, problem.head_dim_v), np.float32)
        self._bounded = np.zeros(len(self._bounds), np.bool_)  # whether found in this run
        threads = worthwhile_threads(problem, device.limits, self._blocks.count)
        self._workspaces = [_Workspace(problem, self._blocks) for _ in range(threads)]

    def run(self, repeat: int = 1, should_stop: ShouldStop = never_stop) -> Timing:
        def once() -> None:
            self._bounded.fill(False)
            self._device.each(self._blocks.count, self._block, should_stop, len(self._workspaces))

        return run_timed(once, repeat)

    def poison(self) -> None:
        self._output.fill(np.nan)
        if self._lse is not None:
            self._lse.fill(np.nan)

    def outputs(self) -> Outputs:
        return Outputs(self._output, self._lse)

    def close(self) -> None:
        self._workspaces.clear()

    def _keys(self, batch: int, start: int, stop: int) -> slice | KeyNumbers:
        """Return the index of the keys from ``start`` to before ``stop``, counted without those that are hidden."""
        return self._shown[batch][start:stop] if self._shown else slice(start, stop)

    def _bounds_of(self, batch: int, kv_head: int) -> tuple[Array, Array]:
        """Return the least and the greatest of each column of a head's values; the first block to ask finds them."""
        number = batch * self._problem.kv_heads + kv_head
        if not self._bounded[number]:
            v = self._inputs.v[batch, kv_head]
            low, high = np.full((2, self._problem.head_dim_v), [[np.inf], [-np.inf]], np.float32)
            keys, step = (len(self._shown[batch]), self._blocks.keys) if self._shown else (len(v), len(v))
            for start in range(0, keys, step):  # hidden values leave gaps, so a mask costs a copy, tile by tile
                tile_low, tile_high = bounds(v[self._keys(batch, start, start + step)])
                np.minimum(low, tile_low, out=low)
                np.maximum(high, tile_high, out=high)
            self._bounds[number] = low, high
            self._bounded[number] = True  # last, for blocks of the same head in other threads
        low, high = self._bounds[number]
        return low, high

    def _block(self, worker: int, number: int, stopped: ShouldStop) -> None:
        """Compute one block of query rows, tile by tile of keys."""
        problem, work = self._problem, self._workspaces[worker]
        batch, heads, rows = self._blocks.block(problem, number)
        kv_head = heads.start // problem.group
        k, v = self._inputs.k[batch, kv_head], self._inputs.v[batch, kv_head]
        sight = work.sight(problem, self._shown, self._blocks.heads, batch, rows)
        low, high = self._bounds_of(batch, kv_head)
        finite = bool(np.isfinite(low).all() and np.isfinite(high).all())
        softmax = _OnlineSoftmax(problem, work, self._inputs.q[batch, heads, rows].reshape(-1, problem.head_dim))

        for tile in sight.tiles(self._blocks.keys, self._blocks.edge_keys):
            if stopped():
                return
            index, count = self._keys(batch, tile.start, tile.stop), tile.stop - tile.start
            keys, values = work.keys[:count], work.values[:count]
            keys[:, :-1], values[:, :-1] = k[index], v[index]
            hide = partial(sight.hide, tile=tile, scratch=work.hidden)
            if finite:
                softmax.add(tile.rows, keys, values, hide)
                continue
            bad, taken = take_nonfinite(values[:, :-1])
            weights = softmax.add(tile.rows, keys, values, hide)
            add_nonfinite(softmax.sums[tile.rows, :-1], weights, bad, taken, sight.sees(tile.start + bad)[tile.rows])

        output = self._output[batch, heads, rows].reshape(-1, problem.head_dim_v)
        np.divide(softmax.sums[:, :-1], softmax.sums[:, -1:], out=output)
        if finite:
            np.clip(output, low, high, out=output)
        output[sight.blind] = 0
        if self._lse is not None:
            lse = np.where(sight.blind, -np.inf, softmax.lse())
            self._lse[batch, heads, rows] = lse.reshape(self._blocks.heads, -1)


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
        self._careful = False  # whether a tile has exceeded the maximum by far
        np.multiply(q, power, out=self._queries[:, :-1])
        self._queries[:, -1] = 0
        self.sums.fill(0)

    def add(self, rows: slice, keys: Array, values: Array, hide: Callable[[Array], None]) -> Array:
        """Add a tile for some rows, and return its weights [rows, keys].

        ``keys`` is [keys, head_dim + 1], ``values`` [keys, head_dim_v + 1]; ``hide`` sets to -inf the scores of keys
        that a row does not see.
        """
        careful = self._careful or bool(self._fresh[rows].any())
        weights = self._scores_of(rows, keys)
        hide(weights)
        if careful:
            self._move_maximum(rows, weights)
        if self._factor != 1:
            weights *= self._factor
        np.exp(weights, out=weights)
        tile_sums = self._tile_sums[rows]
        np.matmul(weights, values, out=tile_sums)
        if not careful and not tile_sums[:, -1].max() <= _MOST:
            self._careful = True
            return self.add(rows, keys, values, hide)
        self.sums[rows] += tile_sums
        return weights

    def lse(self) -> Array:
        """Return the log-sum-exp of each row's scores, natural log [rows]."""
        return self._factor * self._maximum + np.log(self.sums[:, -1])

    def _scores_of(self, rows: slice, keys: Array) -> Array:
        """Return the scores of some rows, less the maximum so far."""
        queries = self._queries[rows]
        scores = self._scores[: len(queries) * len(keys)].reshape(len(queries), len(keys))
        np.matmul(queries, keys.T, out=scores)
        if self._softcap is not None:
            scores *= self._before_cap
            apply_softcap(scores, self._softcap)
            scores -= self._maximum[rows, None]
        return scores

    def _move_maximum(self, rows: slice, scores: Array) -> None:
        """Where the scores of a tile are far from the row's maximum so far, move it, and scores and sums with it."""
        top, fresh = scores.max(axis=1), self._fresh[rows]
        moved = (top > _SLACK) | (fresh & (top < -_SLACK) & (top > -np.inf))
        if moved.any():
            maximum = np.where(moved, self._maximum[rows] + top, self._maximum[rows])
            step = maximum - self._maximum[rows]  # as float32 has it, so that tiles before and after agree
            scores -= step[:, None]
            self.sums[rows] *= np.where(fresh, 1, np.exp(-self._factor * step))[:, None]
            self._maximum[rows] = maximum
            if self._softcap is None:  # beside a cap, which is not linear, the maximum cannot enter the product
                np.negative(maximum, out=self._queries[rows, -1])
        fresh &= top == -np.inf


def _blocks(problem: AttentionProblem, limits: Limits) -> Blocks:
    return Blocks.of(problem, BlockSizes.default(limits, _EDGE_KEYS, _L2_TIMES))


def _split(scale: float) -> tuple[float, float]:
    """Return ``(power, rest)`` with ``scale = power · rest``: a signed power of two, and 1 <= rest < 2."""
    if scale == 0:
        return 0.0, 1.0
    mantissa, exponent = math.frexp(scale)
    return math.copysign(2.0 ** max(exponent - 1, -126), mantissa), 2 * abs(mantissa)
