"""cpu-flash, backward: blocked gradients in NumPy, by recomputation, in scratch of O(N).

A work item is a strip of the keys of one head of K and V; one thread does it alone, in tiles of keys against blocks of
query rows, and so owns the dK and dV of its keys. Where heads are many a strip is a whole head, and the thread owns dQ
as well; where they are few, each strip but the first sums dQ in a tensor of its own, and these are added at the end. So
results do not depend on the number of threads. What a thread owns, for R rows and T keys (2·R·T scores fill L2):

    queries [R, head_dim + 1]      keys   [T, head_dim + 1]     weights     [R, T]    of_rows [R, head_dim]
    grads   [R, head_dim_v + 1]    values [T, head_dim_v + 1]   grad_scores [R, T]    dk, dv and one product, as K and V
                                                                slope [R, T] of a soft cap

The algorithm is the backward pass of FlashAttention-2 (Dao 2023, algorithm 2). Log-sum-exp and ``rowsum(dO ∘ O)`` are
one more column of queries and of grads, negated, against a column of ones in keys and values: the products come out
less what has to be subtracted, without another pass over them. Of the scale, sign and power of two are folded into the
queries, as in the forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

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
    largest_lse,
    needs_care,
    rows_of_gradients,
    run_timed,
    seen_product,
    split_scale,
    worthwhile_threads,
)
from engine.kernels.cpu_flash.blocks import Hidden, KeyNumbers, Sight, Tile, shown_keys
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import without_hidden_garbage

_KEYS, _MAX_ROWS, _MIN_ROWS = 256, 512, 64
_L2_SHARE = 1.0  # of L2, for weights and grad_scores
_ENOUGH_ITEMS = 16  # fewer heads are cut into strips; not by the number of threads, so that results do not depend on it
_MIN_KEYS = 256  # of a strip
_SIGHT_BYTES = 17  # of which keys a row sees
_Place = tuple[tuple[int, int], int, Sight, Tile]  # (batch, head), the first row of a block, what it sees, of a tile

_FOLDED = 16.0  # log-sum-exp that goes into the product as one more column; larger ones would round the scores there
_NOTHING = np.float32(1e30)  # log-sum-exp enough to leave no weight


def predict(problem: AttentionProblem, limits: Limits, forward: int) -> int:
    """Return the bytes held at the peak, which may be that of the ``forward`` pass."""
    rows, keys = _block(problem, limits)
    numbers = sum(keys.nbytes for keys in shown_keys(problem))
    partial = 4 * (_strips(problem) - 1) * math.prod(problem.q_shape)
    threads = worthwhile_threads(problem, limits, _items(problem))
    workspace = sum(4 * math.prod(shape) for shape in _shapes(problem, rows, keys).values())
    workspace += Hidden.nbytes(rows if problem.causal else 0, keys)
    if problem.key_mask is not None:
        workspace += 4 * keys * (problem.head_dim + problem.head_dim_v)  # gathered
    sights = _SIGHT_BYTES * problem.seq_q * (1 if problem.key_mask is None else problem.batch)
    held = problem.tensor_bytes + threads * workspace + partial + numbers + sights + problem.lse_bytes
    grad_output = 4 * math.prod(problem.output_shape)
    return max(held, forward + grad_output + problem.lse_bytes)


class PreparedFlashBackward(PreparedGradients):
    """The backward pass of cpu-flash ready for one problem; ``inputs`` hold output and log-sum-exp."""

    def __init__(self, problem: AttentionProblem, inputs: Inputs, device: CpuDevice) -> None:
        super().__init__(problem)
        self._problem = problem
        self._inputs = inputs = without_hidden_garbage(problem, inputs)
        self._device = device
        self._rows, self._keys = _block(problem, device.limits)
        self.variant = f"{self._rows}x{self._keys}"
        self._shown = shown_keys(problem)
        assert inputs.lse is not None
        self._careful = needs_care(inputs, problem.scale)
        self._exceed_one = exceed_one(inputs.lse)
        self._far = largest_lse(inputs.lse) > _FOLDED  # so that rounding it would tell
        self._power, self._rest = split_scale(float32_scale(problem.scale))
        self._strips = _strips(problem)
        blocks = [slice(row, min(row + self._rows, problem.seq_q)) for row in range(0, problem.seq_q, self._rows)]
        of_batches: list[KeyNumbers | None] = [*self._shown] or [None]  # one for all, without a mask
        self._sights = [[Sight(problem, shown, 1, rows) for rows in blocks] for shown in of_batches]
        self._sums: Array = np.empty((3, self._strips, *inputs.lse.shape) if self._far else 0, np.float32)
        self._relative_to: tuple[Array, Array] = (self._sums, self._sums)
        self._partial: Array = np.empty((self._strips - 1, *problem.q_shape), np.float32)
        threads = worthwhile_threads(problem, device.limits, _items(problem))
        self._workspaces = [_Workspace(problem, self._rows, self._keys) for _ in range(threads)]

    def run(self, repeat: int = 1, should_stop: ShouldStop = never_stop) -> Timing:
        """Run ``repeat`` times, one strip a thread at a time."""

        def once() -> None:
            self._deltas = rows_of_gradients(self._inputs)
            if self._far:
                self._sums[0], self._sums[1:] = -np.inf, 0
                self._device.each(_items(self._problem), self._sum, should_stop, len(self._workspaces))
                self._join_sums()
            self._device.each(_items(self._problem), self._strip, should_stop, len(self._workspaces))
            for partial in self._partial:
                self._dq += partial

        return run_timed(once, repeat)

    def close(self) -> None:
        """Free the buffers."""
        self._workspaces.clear()
        self._partial = np.empty(0, np.float32)

    def _slices(self, work: _Workspace, number: int) -> Iterator[tuple[slice | KeyNumbers, Iterator[_Place]]]:
        """The key slices of a strip, each taken into ``work``, and what the rows of each head see of it."""
        problem = self._problem
        strip, pair = divmod(number, problem.batch * problem.kv_heads)
        batch, kv_head = divmod(pair, problem.kv_heads)
        heads = range(kv_head * problem.group, (kv_head + 1) * problem.group)
        shown = self._shown[batch] if self._shown else None
        count = problem.seq_k if shown is None else len(shown)
        first, stop = (round(count * part / self._strips) for part in (strip, strip + 1))
        sights = self._sights[batch % len(self._sights)]
        for start in range(first, stop, self._keys):
            keys = slice(start, min(start + self._keys, stop))
            index: slice | KeyNumbers = keys if shown is None else shown[keys]
            work.take_keys(self._inputs.k[batch, kv_head][index], self._inputs.v[batch, kv_head][index])
            yield (
                index,
                (
                    ((batch, head), block * self._rows, sight, tile)
                    for head in heads
                    for block, sight in enumerate(sights)
                    if (tile := sight.tile(keys.start, keys.stop)) is not None
                ),
            )

    def _strip(self, worker: int, number: int, stopped: ShouldStop) -> None:
        """Compute what a strip of keys gives. Strips with the first keys come first: if causal they take longest."""
        problem, work = self._problem, self._workspaces[worker]
        strip, pair = divmod(number, problem.batch * problem.kv_heads)
        batch, kv_head = divmod(pair, problem.kv_heads)
        dq = self._dq if strip == 0 else self._partial[strip - 1]
        dq[batch, kv_head * problem.group : (kv_head + 1) * problem.group] = 0
        if self._shown and strip == 0:
            hidden = np.ones(problem.seq_k, np.bool_)
            hidden[self._shown[batch]] = False
            for gradient in (self._dk, self._dv):
                gradient[batch, kv_head, hidden] = 0  # and no other: other strips may be there before this one
        for index, places in self._slices(work, number):
            for place in places:
                if stopped():
                    return
                self._tile(work, *place, dq)
            np.multiply(work.dk[: len(work.k)], self._rest, out=work.dk[: len(work.k)])
            self._dk[batch, kv_head, index] = work.dk[: len(work.k)]
            self._dv[batch, kv_head, index] = work.dv[: len(work.k)]

    def _sum(self, worker: int, number: int, stopped: ShouldStop) -> None:
        """Find each row's maximum over a strip of keys, and relative to it the sums of weights and their gradients.

        Made of the very scores that the gradients are made of: those of the forward pass are rounded in another way.
        """
        work, strip = self._workspaces[worker], number // (self._problem.batch * self._problem.kv_heads)
        tops, totals, deltas = self._sums[:, strip]
        assert self._inputs.grad_output is not None
        for _, places in self._slices(work, number):
            for at, row, sight, tile in places:
                if stopped():
                    return
                rows = slice(row + tile.rows.start, row + tile.rows.stop)
                work.take_rows(self._inputs.q[*at, rows], self._inputs.grad_output[*at, rows], self._power)
                scores, grad_weights = work.scores(rows.stop - rows.start)
                self._far_scores(work, scores)
                sight.hide(scores, tile, work.hidden)
                top = np.maximum(tops[*at, rows], scores.max(axis=1))
                known = np.where(np.isfinite(top), top, 0)
                shrink = np.exp(tops[*at, rows] - known)
                np.exp(np.subtract(scores, known[:, None], out=scores), out=scores)
                totals[*at, rows] = totals[*at, rows] * shrink + scores.sum(axis=1)
                np.matmul(work.grads[: len(scores), :-1], work.values[: len(work.k), :-1].T, out=grad_weights)
                deltas[*at, rows] = deltas[*at, rows] * shrink + np.vecdot(scores, grad_weights)
                tops[*at, rows] = top

    def _join_sums(self) -> None:
        """Make one maximum, one log of the sum and one sum of the gradients of each row out of those of the strips."""
        tops, totals, deltas = self._sums
        top = tops.max(axis=0)
        known = np.where(np.isfinite(top), top, 0)
        shrink = np.exp(tops - known)
        total = (totals * shrink).sum(axis=0)
        total = np.where(total > 0, total, 1)
        self._relative_to = known, np.log(total)
        self._deltas = (deltas * shrink).sum(axis=0) / total

    def _far_scores(self, work: _Workspace, out: Array) -> None:
        """Write the scores of the rows and keys in ``work``, the same bits whenever it is called."""
        np.matmul(work.queries[: len(out), :-1], work.k.T, out=out)
        out *= np.float32(self._rest)
        if self._problem.softcap is not None:
            apply_softcap(out, self._problem.softcap)

    def _tile(self, work: _Workspace, at: tuple[int, int], row: int, sight: Sight, tile: Tile, dq: Array) -> None:
        """Add what the rows of a block and the keys of a tile give each other. ``row`` is the block's first one."""
        problem, inputs = self._problem, self._inputs
        rows = slice(row + tile.rows.start, row + tile.rows.stop)
        power, rest = self._power, self._rest
        assert inputs.grad_output is not None
        assert inputs.lse is not None
        lse = np.where(sight.blind[tile.rows], _NOTHING, inputs.lse[*at, rows])  # -inf too where all scores are
        work.take_rows(inputs.q[*at, rows], inputs.grad_output[*at, rows], power)
        queries, grads = work.queries[: len(lse)], work.grads[: len(lse)]
        grads[:, -1] = -self._deltas[*at, rows]
        weights, grad_scores = work.scores(len(lse))
        np.matmul(grads, work.values[: len(work.k)].T, out=grad_scores)
        if problem.softcap is None and not self._far:
            queries[:, -1] = -lse / np.float32(rest)
            np.matmul(queries, work.keys[: len(work.k)].T, out=weights)
            if rest != 1:
                weights *= np.float32(rest)
        else:
            self._far_scores(work, weights)
        if problem.softcap is not None:
            cap = float32_cap(problem.softcap)
            slope = np.divide(weights, np.float32(cap), out=work.slope(len(lse)))
            slope *= slope
            grad_scores *= np.subtract(1, slope, out=slope)
        if self._far:
            for part in self._relative_to:
                weights -= np.where(sight.blind[tile.rows], _NOTHING, part[*at, rows])[:, None]
        elif problem.softcap is not None:
            weights -= lse[:, None]
        sight.hide(weights, tile, work.hidden)
        if self._exceed_one:
            np.minimum(weights, 0, out=weights)
        np.exp(weights, out=weights)
        grad_scores *= weights
        products = (
            (grad_scores, work.k, dq[*at, rows], work.of_rows[: len(lse)], np.float32(power * rest)),
            (grad_scores.T, queries[:, :-1], work.dk[: len(work.k)], work.product_k[: len(work.k)], None),
            (weights.T, grads[:, :-1], work.dv[: len(work.k)], work.product_v[: len(work.k)], None),
        )
        seen: NDArray[np.bool_] | None = None
        if self._careful:
            seen = sight.sees(np.arange(tile.start, tile.stop))[tile.rows]
            for matrix in (weights, grad_scores):
                np.copyto(matrix, 0, where=~seen)
        for matrix, factor, total, product, scale in products:
            if seen is None:
                np.matmul(matrix, factor, out=product)
            else:
                product[:] = seen_product(matrix, factor, seen if matrix is grad_scores else seen.T)
            if scale is not None:
                product *= scale
            total += product


class _Workspace:
    """The buffers of one thread. The last column of keys and values stays 1."""

    def __init__(self, problem: AttentionProblem, rows: int, keys: int) -> None:
        buffers = {name: np.zeros(shape, np.float32) for name, shape in _shapes(problem, rows, keys).items()}
        self.queries, self.grads, self.keys, self.values = (
            buffers[name] for name in ("queries", "grads", "keys", "values")
        )
        self.of_rows, self.dk, self.dv = (buffers[name] for name in ("of_rows", "dk", "dv"))
        self.product_k, self.product_v = buffers["product_k"], buffers["product_v"]
        self._weights, self._grad_scores = buffers["weights"].reshape(-1), buffers["grad_scores"].reshape(-1)
        self._slope = buffers["slope"].reshape(-1)
        self.keys[:, -1] = self.values[:, -1] = 1
        self.hidden = Hidden(rows if problem.causal else 0, keys)
        self.k = self.keys[:, :-1]

    def take_keys(self, keys: Array, values: Array) -> None:
        """Begin with the keys and values of a tile."""
        self.k = self.keys[: len(keys), :-1]
        self.k[:] = keys
        self.values[: len(keys), :-1] = values
        self.dk[: len(keys)] = 0
        self.dv[: len(keys)] = 0

    def take_rows(self, queries: Array, grads: Array, power: float) -> None:
        """Take the rows of a block, queries times ``power``."""
        np.multiply(queries, np.float32(power), out=self.queries[: len(queries), :-1])
        self.grads[: len(grads), :-1] = grads

    def scores(self, rows: int) -> tuple[Array, Array]:
        """Return the weights and the gradients of the scores [rows, keys of the tile], contiguous."""
        return self._tile(self._weights, rows), self._tile(self._grad_scores, rows)

    def slope(self, rows: int) -> Array:
        """Return room for the derivative of the soft cap, shaped as the weights."""
        return self._tile(self._slope, rows)

    def _tile(self, buffer: Array, rows: int) -> Array:
        return buffer[: rows * len(self.k)].reshape(rows, len(self.k))


def _shapes(problem: AttentionProblem, rows: int, keys: int) -> dict[str, tuple[int, int]]:
    """Return the shapes of a thread's buffers."""
    width, width_v = problem.head_dim, problem.head_dim_v
    return {
        "queries": (rows, width + 1),
        "grads": (rows, width_v + 1),
        "keys": (keys, width + 1),
        "values": (keys, width_v + 1),
        "weights": (rows, keys),
        "grad_scores": (rows, keys),
        "slope": (0 if problem.softcap is None else rows, keys),
        "of_rows": (rows, width),
        "dk": (keys, width),
        "dv": (keys, width_v),
        "product_k": (keys, width),
        "product_v": (keys, width_v),
    }


def _block(problem: AttentionProblem, limits: Limits) -> tuple[int, int]:
    """Return the rows of a block and the keys of a tile."""
    rows = _MAX_ROWS
    while rows > _MIN_ROWS and 8 * rows * _KEYS > _L2_SHARE * limits.l2_bytes:
        rows //= 2
    return min(rows, problem.seq_q), min(_KEYS, problem.seq_k)


def _strips(problem: AttentionProblem) -> int:
    """Return the strips that the keys of a head are cut into."""
    return max(1, min(_ENOUGH_ITEMS // (problem.batch * problem.kv_heads), problem.seq_k // _MIN_KEYS))


def _items(problem: AttentionProblem) -> int:
    return problem.batch * problem.kv_heads * _strips(problem)
