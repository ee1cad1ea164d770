"""cpu-flash: blocked attention in NumPy with an online softmax, in scratch that does not grow with the sequence.

A work item is a block of query rows of one head (of several whole heads, where they are short); one thread does it
alone, from the first visible key to the last, in tiles of keys. What a thread owns, for G groups of heads (1 unless
they are short), R rows and T keys (G·R·T scores are at most four times L2: larger blocks load keys and values less
often, and NumPy is called less):

    queries [G, R, head_dim + 1]     keys   [T, head_dim + 1]      scores [G, R, T]
    sums    [G, R, head_dim_v]       values [G, T, head_dim_v]     tile_sums, as sums     if causal, hidden [R, T]

The algorithm is the forward pass of FlashAttention-2 (Dao 2023, algorithm 1), changed where NumPy asks for it, since
each pass over the scores costs a good part of a matrix product:

- The softmax is relative to a maximum that need not be exact, and is 0 to begin with. The sums of weights, which come
  anyway, tell if scores are far from it; only then is a maximum looked for.
- A maximum other than 0 becomes one more column of the queries, negated, against a column of ones in a copy of the
  keys, so that the product comes out shifted.
- The sums of weights are a product with ones, which BLAS does in a third of the time of NumPy's sum.
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

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.cpu import CpuDevice
from engine.devices import Limits
from engine.inputs import Inputs
from engine.kernels import cpu_flash_backward as backward
from engine.kernels.base import Array, Kernel, Outputs, Prepared
from engine.kernels.cpu_blocks import Blocks, BlockSizes, Hidden, KeyNumbers, Sight, Tile, shown_keys
from engine.kernels.cpu_common import (
    add_nonfinite,
    apply_softcap,
    bounds,
    float32_scale,
    run_timed,
    split_scale,
    take_nonfinite,
    unsupported,
    worthwhile_threads,
)
from engine.problem import AttentionProblem
from engine.running import ShouldStop, Timing, never_stop

_KEYS, _EDGE_KEYS = 512, 256
_L2_TIMES = 4
_SLACK = 8.0  # how far scores may be from the running maximum; times a factor below 2, e^16 is far from overflow
_MOST = 1e6  # sum of a row's weights in a tile above which scores exceed the maximum by far
_LEAST = 1e-20  # sum of all its weights below which they fall short of it by so far that the least ones are lost


class CpuFlash(Kernel):
    """Blocked attention with an online softmax in NumPy, threaded over (batch, head, query block)."""

    name = "cpu-flash"
    summary = "NumPy, blocked, online softmax"
    device_kind = "cpu"
    naive = "cpu-naive"

    def candidates(self, problem: AttentionProblem, limits: Limits) -> list[msgspec.Struct]:
        """Return the block sizes worth measuring, those for this L2 first; backward there is no choice."""
        return [] if problem.backward else [*_default(limits).candidates(problem)]

    def supports(self, problem: AttentionProblem, limits: Limits) -> str | None:
        """Return None, or why the problem cannot run: not float32, or more memory than the limit."""
        return unsupported(problem, limits, "its tensors and tiles need", self.predict(problem, limits))

    def predict(self, problem: AttentionProblem, limits: Limits) -> int:
        """Return the bytes of Q, K, V, output, every thread's buffers and the numbers of the keys shown."""
        if problem.backward:
            return backward.predict(problem, limits, self.predict(problem.forward, limits))
        blocks = _blocks(problem, limits)
        heads, width, width_v = blocks.groups, problem.head_dim + 1, problem.head_dim_v
        rows, keys = blocks.rows * blocks.heads, blocks.keys
        workspace = 4 * (heads * rows * (keys + width + 2 * width_v) + keys * (width + heads * width_v + 1))
        workspace += Hidden.nbytes(rows if problem.causal else 0, keys)
        if problem.key_mask is not None:
            workspace += 4 * heads * keys * (problem.head_dim + problem.head_dim_v)  # gathered
        numbers = sum(keys.nbytes for keys in shown_keys(problem))
        return problem.tensor_bytes + worthwhile_threads(problem, limits, blocks.count) * workspace + numbers

    def prepare(
        self, problem: AttentionProblem, inputs: Inputs, device: CpuDevice, *, want_lse: bool = False
    ) -> Prepared:
        """Allocate the result and every thread's buffers, and number the keys shown."""
        if problem.backward:
            return backward.PreparedFlashBackward(problem, self.with_forward(problem, inputs, device), device)
        return _PreparedFlash(problem, inputs, device, want_lse)


class _Workspace:
    """The buffers of one thread, kept from run to run. The last column of keys stays 1."""

    def __init__(self, problem: AttentionProblem, blocks: Blocks) -> None:
        groups, rows, keys = blocks.groups, blocks.rows * blocks.heads, blocks.keys
        self.queries = np.zeros((groups, rows, problem.head_dim + 1), np.float32)
        self.keys = np.ones((keys, problem.head_dim + 1), np.float32)
        self.values = np.zeros((groups, keys, problem.head_dim_v), np.float32)
        self.scores = np.zeros(groups * rows * keys, np.float32)
        self.hidden = Hidden(rows if problem.causal else 0, keys)
        self.sums = np.zeros((groups, rows, problem.head_dim_v), np.float32)
        self.tile_sums = np.zeros((groups, rows, problem.head_dim_v), np.float32)
        self.ones = np.ones(keys, np.float32)
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
        self.variant = f"{self._blocks.rows * self._blocks.heads * self._blocks.groups}x{self._blocks.keys}"
        self._output: Array = np.empty(problem.output_shape, np.float32)
        self._lse: Array | None = np.empty(problem.output_shape[:3], np.float32) if want_lse else None
        self._shown = shown_keys(problem)
        groups = self._blocks.groups
        self._bounds = np.empty((2, problem.batch * problem.kv_heads // groups, groups, problem.head_dim_v), np.float32)
        self._bounded = np.zeros(self._bounds.shape[1], np.bool_)  # whether found in this run
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

    def _bounds_of(self, batch: int, kv_heads: slice) -> tuple[Array, Array]:
        """Return the least and the greatest of each column of some heads' values; the first block to ask finds them."""
        number = (batch * self._problem.kv_heads + kv_heads.start) // self._blocks.groups
        low, high = self._bounds[:, number]
        if not self._bounded[number]:
            v = self._inputs.v[batch, kv_heads]
            low[:], high[:] = np.inf, -np.inf
            keys, step = (len(self._shown[batch]), self._blocks.keys) if self._shown else (v.shape[1], v.shape[1])
            for start in range(0, keys, step):  # hidden values leave gaps, so a mask costs a copy, tile by tile
                tile_low, tile_high = bounds(v[:, self._keys(batch, start, start + step)])
                np.minimum(low, tile_low, out=low)
                np.maximum(high, tile_high, out=high)
            self._bounded[number] = True  # last, for blocks of the same heads in other threads
        return low, high

    def _block(self, worker: int, number: int, stopped: ShouldStop) -> None:
        """Compute one block of query rows."""
        problem, work, groups = self._problem, self._workspaces[worker], self._blocks.groups
        batch, heads, rows = self._blocks.block(problem, number)
        kv_heads = slice(heads.start // problem.group, heads.start // problem.group + groups)
        sight = work.sight(problem, self._shown, self._blocks.heads, batch, rows)
        low, high = self._bounds_of(batch, kv_heads)
        finite = bool(np.isfinite(low).all() and np.isfinite(high).all())
        q = self._inputs.q[batch, heads, rows].reshape(groups, -1, problem.head_dim)
        softmax = _OnlineSoftmax(problem, work, q)

        for exact in (False, True):
            softmax.begin(~sight.blind if exact else None)
            for tile in sight.tiles(self._blocks.keys, self._blocks.edge_keys):
                if stopped():
                    return
                self._tile(softmax, sight, tile, (batch, kv_heads), work, finite)
            if not (softmax.totals < _LEAST)[:, ~sight.blind].any():
                break

        output = self._output[batch, heads, rows].reshape(groups, -1, problem.head_dim_v)
        np.divide(softmax.sums, softmax.totals[..., None], out=output)
        if finite:
            np.maximum(output, low[:, None], out=output)
            np.minimum(output, high[:, None], out=output)
        output[:, sight.blind] = 0
        if self._lse is not None:
            lse = np.where(sight.blind, -np.inf, softmax.lse())
            self._lse[batch, heads, rows] = lse.reshape(heads.stop - heads.start, -1)

    def _tile(
        self, softmax: _OnlineSoftmax, sight: Sight, tile: Tile, at: tuple[int, slice], work: _Workspace, finite: bool
    ) -> None:
        """Add one tile of keys, of the batch entry and the heads that ``at`` names, to the softmax of a block."""
        index = self._keys(at[0], tile.start, tile.stop)
        keys, values = self._inputs.k[at][:, index], self._inputs.v[at][:, index]
        hide = partial(sight.hide, tile=tile, scratch=work.hidden)
        if finite:
            softmax.add(tile.rows, keys, values, hide)
            return
        zeroed = work.values[:, : tile.stop - tile.start]
        zeroed[:] = values
        taken = [take_nonfinite(of_head) for of_head in zeroed]
        weights = softmax.add(tile.rows, keys, zeroed, hide)
        for head, (bad, held) in enumerate(taken):
            seen = sight.sees(tile.start + bad)[tile.rows]
            add_nonfinite(softmax.sums[head, tile.rows], weights[head], bad, held, seen)


class _OnlineSoftmax:
    """The softmax of a block of rows while its tiles go by: weighted sums of values, relative to a running maximum.

    ``totals`` [groups, rows] are the sums of the weights ``exp(factor · (score - maximum))``; scores are kept in units
    of ``factor``, which is what is left of the scale.
    """

    def __init__(self, problem: AttentionProblem, work: _Workspace, q: Array) -> None:
        count = q.shape[1]
        power, rest = split_scale(float32_scale(problem.scale))
        self._softcap = problem.softcap
        # the cap wants whole scores, so before it the rest of the scale must be in, and after it nothing is left
        self._before_cap, self._factor = (1.0, rest) if problem.softcap is None else (rest, 1.0)
        self._queries, self._keys, self._scores, self._ones = work.queries[:, :count], work.keys, work.scores, work.ones
        self.sums, self._tile_sums = work.sums[:, :count], work.tile_sums[:, :count]
        self.totals: Array = np.zeros(self.sums.shape[:2], np.float32)
        self._maximum: Array = np.zeros(self.sums.shape[:2], np.float32)
        np.multiply(q, power, out=self._queries[..., :-1])

    def begin(self, seeing: NDArray[np.bool_] | None) -> None:
        """Begin, or begin again with a maximum from each row's first tile on; ``seeing`` [rows] see any key at all."""
        self._careful = seeing is not None  # while some row has no score yet, and once a tile has exceeded a maximum
        self._exceeded = False
        self._shifted = False  # whether any maximum is not 0
        self._fresh = np.broadcast_to(False if seeing is None else seeing, self.totals.shape).copy()  # without a score
        for array in (self.totals, self.sums, self._maximum, self._queries[..., -1]):
            array.fill(0)

    def add(self, rows: slice, keys: Array, values: Array, hide: Callable[[Array], None]) -> Array:
        """Add a tile for some rows, and return its weights [groups, rows, keys].

        ``keys`` is [groups, keys, head_dim], ``values`` [groups, keys, head_dim_v]; ``hide`` sets to -inf the scores
        of keys that a row does not see.
        """
        careful = self._careful
        weights = self._scores_of(rows, keys)
        hide(weights)
        if careful:
            self._move_maximum(rows, weights)
        if self._factor != 1:
            weights *= self._factor
        np.exp(weights, out=weights)
        totals = np.matmul(weights, self._ones[: weights.shape[2]])
        if not careful and not totals.max() <= _MOST:
            self._careful = self._exceeded = True
            return self.add(rows, keys, values, hide)
        self.totals[:, rows] += totals
        self.sums[:, rows] += np.matmul(weights, values, out=self._tile_sums[:, rows])
        return weights

    def lse(self) -> Array:
        """Return the log-sum-exp of each row's scores, natural log [groups, rows]."""
        return self._factor * self._maximum + np.log(self.totals)

    def _scores_of(self, rows: slice, keys: Array) -> Array:
        """Return the scores of some rows, less the maximum so far."""
        queries = self._queries[:, rows]
        shape = *queries.shape[:2], keys.shape[1]
        scores: Array = self._scores[: math.prod(shape)].reshape(shape)
        if self._shifted and self._softcap is None:
            for of_head in range(len(keys)):
                shifted = self._keys[: shape[2]]
                shifted[:, :-1] = keys[of_head]
                np.matmul(queries[of_head], shifted.T, out=scores[of_head])
            return scores
        np.matmul(queries[..., :-1], keys.transpose(0, 2, 1), out=scores)
        if self._softcap is not None:  # it is not linear, so the maximum cannot enter the product
            scores *= self._before_cap
            apply_softcap(scores, self._softcap)
            if self._shifted:
                scores -= self._maximum[:, rows, None]
        return scores

    def _move_maximum(self, rows: slice, scores: Array) -> None:
        """Where the scores of a tile are far from the row's maximum so far, move it, and scores and sums with it."""
        top, fresh = scores.max(axis=2), self._fresh[:, rows]
        moved = (top > _SLACK) | (fresh & (top < -_SLACK) & (top > -np.inf))
        if moved.any():
            before = self._maximum[:, rows]
            maximum = np.where(moved, before + top, before)
            step = maximum - before  # as float32 has it, so that tiles before and after agree
            scores -= step[..., None]
            shrink = np.where(fresh, 1, np.exp(-self._factor * step))
            self.sums[:, rows] *= shrink[..., None]
            self.totals[:, rows] *= shrink
            self._maximum[:, rows] = maximum
            self._queries[:, rows, -1] = -maximum
            self._shifted = True
        fresh &= top == -np.inf
        self._careful = self._exceeded or bool(self._fresh.any())


def _default(limits: Limits) -> BlockSizes:
    return BlockSizes.default(limits, keys=_KEYS, edge_keys=_EDGE_KEYS, l2_times=_L2_TIMES)


def _blocks(problem: AttentionProblem, limits: Limits) -> Blocks:
    sizes = _default(limits).or_tuned(CpuFlash.name, problem, limits)
    return Blocks.of(problem, sizes).joined(problem, sizes)
