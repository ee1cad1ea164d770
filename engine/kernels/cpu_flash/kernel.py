"""cpu-flash: blocked attention in NumPy with an online softmax, in scratch that does not grow with the sequence.

A work item is a block of query rows of one head (of several whole heads, where they are short); one thread does it
alone, from the first visible key to the last, in tiles of keys. Its rows lie in stacks, the rows of a stack side by
side in memory. What a thread owns, for G groups of heads (1 unless they are short), S stacks of R rows and T keys:

    queries [G, S, head_dim + 1, R]     keys   [T, head_dim + 1]     scores [G, S, T, R]
    sums    [G, S, head_dim_v, R]       values [G, T, head_dim_v]    tile_sums, as sums     if causal, hidden [S·R, T]
    totals  [G, S, R], behind sums in memory, as those of a tile behind tile_sums

How many those are depends on BLAS. Where it multiplies small matrices without copying them first, stacks and tiles
are that small (a tile may be several products long), and the scores at most half of L2. Elsewhere all rows are one
stack, and the scores at most four times L2. Larger blocks load keys and values less often, and NumPy is called less.

The algorithm is the forward pass of FlashAttention-2 (Dao 2023, algorithm 1), changed where NumPy asks for it, since
each pass over the scores costs a good part of a matrix product:

- Scores are keys times queries, so that keys and values are read as they lie, and only queries and output are turned.
- The softmax is relative to a maximum that need not be exact, and is 0 to begin with. The sums of weights, which come
  anyway, tell if scores are far from it; only then is a maximum looked for.
- A maximum other than 0 becomes one more column of the queries, negated, against a column of ones in a copy of the
  keys, so that the product comes out shifted.
- The sums of weights are a product with ones, which BLAS does in a third of the time of NumPy's sum.
- Of the scale, sign and power of two are folded into the queries, which rounds nothing, so equal scores stay equal;
  the rest, a factor in [1, 2) that is 1 for head_dim 16, 64 and 256, multiplies the product. Where queries and keys
  are too short for large scores, it is folded in as well: rounding it changes no weight by more than the product does.
- Such scores become exponents of 2, by log2(e) in the queries, where NumPy's exp2 takes half the time of its exp. With
  results that are subnormal or 0 it takes a hundred times as long, so scores must be modest, and what is hidden is set
  to 0 only then.
- Keys hidden by ``key_mask`` are never loaded: the visible ones are numbered through and a row sees a range of them.
  Nothing hidden can leak. On the edge of a causal or window range, stacks that see nothing of a tile are left out, and
  rows that see a part of it are masked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.common.running import ShouldStop, Timing, never_stop
from engine.devices.blas import unpacked_product
from engine.devices.cpu import CpuDevice
from engine.devices.device import Limits
from engine.devices.processor import cache_bytes
from engine.kernels.base import Array, Kernel, Outputs, Prepared
from engine.kernels.cpu import (
    add_nonfinite,
    aligned,
    apply_softcap,
    bounds,
    float32_scale,
    has_quick_exp2,
    run_timed,
    split_scale,
    take_nonfinite,
    unsupported,
    worthwhile_threads,
)
from engine.kernels.cpu_flash import backward as backward
from engine.kernels.cpu_flash.blocks import Blocks, BlockSizes, Hidden, KeyNumbers, Sight, Tile, cover, shown_keys
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs

_KEYS, _EDGE_KEYS, _L2_TIMES = 512, 256, 4.0
_STACK = 64  # rows: four vectors of AVX-512, what its kernels for small products go by
_VECTOR = 16  # rows in a vector of AVX-512
_FEW_TOGETHER, _FEW_L2_TIMES = 256, 0.5  # with stacks: keys of a tile, of several products, for fewer calls of NumPy
_LEAST_KEYS = 32  # of a product; with fewer, calling NumPy costs more than packing
_ENOUGH_FLOPS = 150_000_000  # of a block; threads with less to do at a time wait for one another's Python
_ALL = slice(None)
_SIGHT_BYTES, _TOTALS_BYTES = 48, 24  # of each row: which keys it sees; its maximum and totals, and their making
_FOUND_BYTES = 464  # of what is known of the keys of a group of heads, beside the bounds of their values' columns
_KEPT_SIGHT_BYTES, _VIEWS_BYTES = 17, 2_600  # of each row, which keys it sees once that is made; of a tile, its views
_SIGHTS_KEPT = 4  # of so many blocks of rows; where there are more, what they see is found in little of their time
_SLACK = 8.0  # how far scores may be from the running maximum; times a factor below 2, e^16 is far from overflow
_MOST = 1e6  # sum of a row's weights in a tile above which scores exceed the maximum by far
_MOST_IN_ALL = 1e30  # sum of all its weights above which they may be beyond float32, or times their values
_FAR_FROM_OVERFLOW, _FAR_FROM_UNDERFLOW = 1e38, 1e-30
_ORDINARY = 1e15  # values up to this, and down to its inverse, are far from both with any weights of an exact pass
_FLOOR = -80.0  # of exponents: e^-80 is next to nothing, yet not subnormal, which costs BLAS a hundred times as long
_MODEST = 24.0  # scores that a rounded scale changes by at most 1.5e-6; 2 to their power is no subnormal number
_LEAST = 1e-20  # sum of all its weights below which they fall short of it by so far that the least ones are lost


class CpuFlash(Kernel):
    """Blocked attention with an online softmax in NumPy, threaded over (batch, head, query block)."""

    name = "cpu-flash"
    summary = "NumPy, blocked, online softmax"
    device_kind = "cpu"
    naive = "cpu-naive"
    honours = ("causal", "window", "softcap", "scale", "key_mask")

    def candidates(self, problem: AttentionProblem, limits: Limits) -> list[msgspec.Struct]:
        """Return the block sizes worth measuring, those for this L2 first; backward there is no choice."""
        return [] if problem.backward else [*_default(problem, limits).candidates(problem, _ENOUGH_FLOPS)]

    def supports(self, problem: AttentionProblem, limits: Limits) -> str | None:
        """Return None, or why the problem cannot run: not float32, or more memory than the limit."""
        return unsupported(problem, limits, "its tensors and tiles need", self.predict(problem, limits))

    def predict(self, problem: AttentionProblem, limits: Limits) -> int:
        """Return the bytes of Q, K, V, output, every thread's buffers and the numbers of the keys shown."""
        if problem.backward:
            return backward.predict(problem, limits, self.predict(problem.forward_pass, limits))
        blocks = _blocks(problem, limits)
        heads, width, width_v = blocks.groups, problem.head_dim + 1, problem.head_dim_v
        (stacks, rows), keys = _stacks(problem, blocks), blocks.keys
        workspace = 4 * (heads * stacks * rows * (keys + width + 2 * width_v) + keys * (width + heads * width_v + 1))
        workspace += Hidden.nbytes(blocks.rows * blocks.heads if problem.causal else 0, keys)
        workspace += (_SIGHT_BYTES + _TOTALS_BYTES * heads) * stacks * rows
        if problem.key_mask is not None:
            workspace += 4 * heads * keys * (problem.head_dim + problem.head_dim_v)  # gathered
        numbers = sum(keys.nbytes for keys in shown_keys(problem))
        threads = worthwhile_threads(problem, limits, blocks.count)
        return problem.tensor_bytes + threads * workspace + _kept_bytes(problem, blocks, threads) + numbers

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
        groups, keys = blocks.groups, blocks.keys
        stacks, rows = _stacks(problem, blocks)
        self.queries = aligned(groups, stacks, problem.head_dim + 1, rows)
        self.keys = np.ones((keys, problem.head_dim + 1), np.float32)
        self.values = aligned(groups, keys, problem.head_dim_v)
        self.scores = aligned(groups * stacks * rows * keys)
        self.hidden = Hidden(blocks.rows * blocks.heads if problem.causal else 0, keys)
        self.sums = aligned(groups * stacks * (problem.head_dim_v + 1) * rows)
        self.tile_sums = aligned(groups * stacks * (problem.head_dim_v + 1) * rows)
        self.ones = np.ones(keys, np.float32)
        self.few = _few_keys(problem) or keys
        self.parts = _parts(problem.head_dim_v, keys, self.few)
        self._views: WeakKeyDictionary[Sight, dict[tuple[int, int], _Views]] = WeakKeyDictionary()

    def views(self, sight: Sight) -> dict[tuple[int, int], _Views]:
        """Return the views of tiles that came by so far, kept as long as that of which keys the rows see."""
        return self._views.setdefault(sight, {})


class _Scale(NamedTuple):
    """Where the scale goes: what multiplies queries, scores before a soft cap, and scores to be exponents.

    Natural scores are ``factor`` times those that are kept.
    """

    queries: float
    before_cap: float
    factor: float
    exponents: float
    exponential: np.ufunc  # exp or exp2


class _Found(NamedTuple):
    """What is known of the keys and values that a block may see."""

    low: Array  # the least of each column of values [groups, head_dim_v]
    high: Array  # and the greatest
    largest: float  # of all values without sign; infinite or NaN where one is not finite
    constant: bool  # whether a column of values is the same for all keys
    longest: float  # of the keys as vectors, if that matters; infinite or NaN where one is not finite


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
        self._scale = split_scale(float32_scale(problem.scale))
        self._measured = has_quick_exp2() or self._scale[1] != 1  # whether it helps to know that scores are modest
        self._found: dict[int, _Found] = {}  # in this run, of each group of heads
        self._kept: dict[tuple[int, int], Sight] = {}
        self._last: tuple[tuple[int, int], Sight] | None = None
        threads = worthwhile_threads(problem, device.limits, self._blocks.count)
        self._workspaces = [_Workspace(problem, self._blocks) for _ in range(threads)]

    def run(self, repeat: int = 1, should_stop: ShouldStop = never_stop) -> Timing:
        def once() -> None:
            self._found.clear()
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

    def _sight_of(self, batch: int, rows: slice) -> Sight:
        """Return what the rows see; the first answers are kept for the next run, the last for the next block."""
        at, last = (batch if self._shown else 0, rows.start), self._last
        if (sight := self._kept.get(at)) is not None:
            return sight
        if last is None or last[0] != at:
            last = at, Sight(self._problem, self._shown[batch] if self._shown else None, self._blocks.heads, rows)
            self._last = last
            if len(self._kept) < _SIGHTS_KEPT:
                self._kept[at] = last[1]
        return last[1]

    def _find(self, batch: int, kv_heads: slice) -> _Found:
        """Return what there is to know of some heads' keys and values; the first block to ask finds it."""
        number = (batch * self._problem.kv_heads + kv_heads.start) // self._blocks.groups
        if number not in self._found:
            k, v = self._inputs.k[batch, kv_heads], self._inputs.v[batch, kv_heads]
            high: Array = np.full((len(v), v.shape[2]), -np.inf, np.float32)
            low, longest = -high, 0.0
            keys, step = (len(self._shown[batch]), self._blocks.keys) if self._shown else (v.shape[1], v.shape[1])
            for start in range(0, keys, step):  # hidden values leave gaps, so a mask costs a copy, tile by tile
                index = self._keys(batch, start, start + step)
                tile_low, tile_high = bounds(v[:, index])
                np.minimum(low, tile_low, out=low)
                np.maximum(high, tile_high, out=high)
                if self._measured:
                    longest = float(np.maximum(longest, _longest(k[:, index])))  # which keeps NaN
            largest, constant = float(np.maximum(high, -low).max()), bool((low == high).any())
            self._found[number] = _Found(low, high, largest, constant, longest)
        return self._found[number]

    def _scale_of(self, q: Array, found: _Found) -> _Scale:
        """Return where the scale goes for those queries: all of it into them where no score is large."""
        power, rest = self._scale
        capped = self._problem.softcap is not None  # which wants natural scores
        if not (self._measured and abs(power * rest) * _longest(q) * found.longest <= _MODEST):
            return _Scale(power, rest, 1.0, 1.0, np.exp) if capped else _Scale(power, 1.0, rest, rest, np.exp)
        unit, exponential = (1 / math.log(2), np.exp2) if has_quick_exp2() else (1.0, np.exp)
        if capped:
            return _Scale(power * rest, 1.0, 1.0, unit, exponential)
        return _Scale(power * rest * unit, 1.0, 1 / unit, 1.0, exponential)

    def _block(self, worker: int, number: int, stopped: ShouldStop) -> None:
        """Compute one block of query rows."""
        problem, work, groups = self._problem, self._workspaces[worker], self._blocks.groups
        batch, heads, rows = self._blocks.block(problem, number)
        kv_heads = slice(heads.start // problem.group, heads.start // problem.group + groups)
        sight = self._sight_of(batch, rows)
        found = self._find(batch, kv_heads)
        finite = found.largest < math.inf
        q = self._inputs.q[batch, heads, rows].reshape(groups, -1, problem.head_dim)
        k, v = self._inputs.k[batch, kv_heads], self._inputs.v[batch, kv_heads]
        softmax = _OnlineSoftmax(problem, work, sight, q, self._scale_of(q, found))
        columns = softmax.columns_of(v)

        unit = 1.0  # what values are multiplied by
        for exact in (False, True):
            if exact and finite:
                unit = _unit_of(found.largest)
            softmax.begin(~sight.blind if exact else None)
            for tile in sight.tiles(self._blocks.keys, self._blocks.edge_keys, softmax.stack):
                if stopped():
                    return
                index = self._keys(batch, tile.start, tile.stop)
                if finite and unit == 1:
                    softmax.add(tile, k[:, index], columns[..., index])
                else:
                    values = np.multiply(v[:, index], unit, out=work.values[:, : tile.stop - tile.start])
                    self._add_copied(softmax, sight, tile, k[:, index], values)
            if softmax.sound(found.largest):
                break

        output = self._output[batch, heads, rows].reshape(groups, -1, problem.head_dim_v)
        softmax.totals[softmax.fresh] = np.nan  # all scores there are -inf: a mean of nothing
        means = np.divide(softmax.sums, softmax.totals[:, :, None], out=softmax.sums)
        if unit != 1:
            means /= unit
        if finite and (found.constant or unit != 1):
            np.maximum(means, found.low[:, None, :, None], out=means)
            np.minimum(means, found.high[:, None, :, None], out=means)
        for by_row, by_stack in _alike(output, means):
            by_row[...] = by_stack
        if sight.any_blind:
            output[:, sight.blind] = 0
        if self._lse is not None:
            lse = np.where(sight.blind, -np.inf, softmax.lse())
            self._lse[batch, heads, rows] = lse.reshape(heads.stop - heads.start, -1)

    def _add_copied(self, softmax: _OnlineSoftmax, sight: Sight, tile: Tile, keys: Array, values: Array) -> None:
        """Add a tile by a copy of its values; those that are NaN or infinite reach only rows that see them.

        In ``values`` these are set to 0.
        """
        taken = [take_nonfinite(of_head) for of_head in values]
        weights = softmax.add(tile, keys, softmax.columns_of(values))
        sums = softmax.sums[softmax.place(tile.rows)]
        for head, (bad, held) in enumerate(taken):
            seen = sight.sees(tile.start + bad)
            for stack, lanes, rows in softmax.stacks_of(tile.rows, tile.rows):
                add_nonfinite(sums[head, stack, :, lanes].T, weights[head, stack, :, lanes].T, bad, held, seen[rows])


class _Views(NamedTuple):
    """What a tile needs of a thread's buffers, cut out once for all tiles alike.

    Scores are made by ``products``, each of which says which keys it multiplies, in what shape, and where to. Sums of
    values are made in ``parts`` of so many columns each.
    """

    at: tuple[slice, ...]  # where its rows are in sums and the like
    queries: Array  # [groups, stacks, 1, head_dim, rows]
    shifted: Array  # the same with the maximum [groups, stacks, 1, head_dim + 1, rows]
    products: list[tuple[slice, tuple[int, ...], Array]]  # to [groups, stacks, products, keys of one, rows]
    scores: Array  # [groups, stacks, keys, rows]
    weights: Array  # the same, [groups, stacks, 1, keys, rows]
    ones: Array  # [keys]
    tile_totals: Array  # [groups, stacks, rows]
    parts: Array  # of the tile's sums, [groups, stacks, parts, columns of one, rows]
    added: list[tuple[Array, Array]]  # sums and totals of all tiles and of this one, together where they lie so
    hidden: list[tuple[Array, NDArray[Any]]]  # weights and the mask to cover them with, where masks last


class _OnlineSoftmax:
    """The softmax of a block of rows while its tiles go by: weighted sums of values, relative to a running maximum.

    ``totals`` [groups, stacks, rows] are the sums of the weights ``exp(factor · (score - maximum))``; scores are kept
    in units of ``factor``, which is what is left of the scale, or ln 2 where they are exponents of 2. Rows that fill up
    the last stack have queries of 0.
    """

    def __init__(self, problem: AttentionProblem, work: _Workspace, sight: Sight, q: Array, scale: _Scale) -> None:
        self._count, self._rows = q.shape[1], work.queries.shape[-1]  # of the block, of a stack
        stacks = -(-self._count // self._rows)
        self._softcap, self._scale, self._factor = problem.softcap, scale, scale.factor
        self._sight, self._hidden = sight, work.hidden
        self._keys, self._scores, self._ones = work.keys, work.scores, work.ones
        self._few, self._parts = work.few, work.parts
        self._queries, self._tile_sums = work.queries[:, :stacks], work.tile_sums
        self._all, self.sums, self.totals = _sums_and_totals(work.sums, len(q), stacks, problem.head_dim_v, self._rows)
        self._views = work.views(sight)
        self._maximum = np.zeros_like(self.totals)
        self.stack = self._rows if stacks > 1 else 1  # whole stacks are added, unless there is only one
        self._queries[:, -1].fill(0)
        for by_row, by_stack in _alike(q, self._queries[:, :, :-1]):
            np.multiply(by_row, scale.queries, out=by_stack)

    def begin(self, seeing: NDArray[np.bool_] | None) -> None:
        """Begin, or begin again with a maximum from each row's first tile on; ``seeing`` [rows] see any key at all."""
        self._exact = seeing is not None  # else ``sound`` tells at the end whether it went well
        self._careful = self._exact  # while some row has no score yet, and once a tile has exceeded a maximum
        self._exceeded = False
        self._shifted = False  # whether any maximum is not 0
        self.fresh = np.zeros(self.totals.shape, np.bool_)  # rows without a score so far
        if seeing is not None:
            self.by_row(self.fresh)[:] = seeing
        for array in (self._all, self._maximum, self._queries[:, :, -1]):
            array.fill(0)

    def by_row(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return a view [groups, rows of the block] of numbers that are one for each row of each stack."""
        return numbers.reshape(len(numbers), -1)[:, : self._count]

    def place(self, rows: slice) -> tuple[slice, slice, slice, slice]:
        """Return where the rows of a tile are in ``sums`` and the like."""
        if self.stack == 1:
            return _ALL, _ALL, _ALL, rows
        return _ALL, slice(rows.start // self._rows, -(-rows.stop // self._rows)), _ALL, slice(0, self._rows)

    def stacks_of(self, tile_rows: slice, rows: slice) -> Iterator[tuple[int, slice, slice]]:
        """Go through ``rows`` by stack: its number and its lanes among the scores of a tile, and the rows there."""
        _, stacks, _, lanes = self.place(tile_rows)
        for stack in range(rows.start // self._rows, -(-rows.stop // self._rows)):
            begin, end = max(rows.start, stack * self._rows), min(rows.stop, (stack + 1) * self._rows)
            at = stack * self._rows + lanes.start
            yield stack - (stacks.start or 0), slice(begin - at, end - at), slice(begin, end)

    def columns_of(self, values: Array) -> Array:
        """Return values [groups, keys, head_dim_v] as [groups, 1, parts, columns of one, keys]."""
        return values.reshape(*values.shape[:2], self._parts, -1).transpose(0, 2, 3, 1)[:, None]

    def add(self, tile: Tile, keys: Array, columns: Array) -> Array:
        """Add a tile, and return its weights [groups, stacks, keys, rows of a stack].

        ``keys`` is [groups, keys, head_dim], ``columns`` are those of its values.
        """
        careful, views = self._careful, self._views_of(tile)
        weights = self._scores_of(views, keys)
        if careful:
            self._hide(tile, views, -np.inf)
            self._move_maximum(views.at, weights)
        if self._scale.exponents != 1:
            weights *= self._scale.exponents
        if self._exact:
            np.maximum(weights, _FLOOR, out=weights)
        self._scale.exponential(weights, out=weights)
        self._hide(tile, views, 0.0)
        np.matmul(views.ones, weights, out=views.tile_totals)
        if self._exact and not careful and not views.tile_totals.max() <= _MOST:
            self._careful = self._exceeded = True
            return self.add(tile, keys, columns)
        np.matmul(columns, views.weights, out=views.parts)
        for sums, of_tile in views.added:
            np.add(sums, of_tile, out=sums)
        return weights

    def sound(self, largest: float) -> bool:
        """Tell whether no row that sees a key has lost anything; ``largest`` is that of the values, without sign."""
        totals = self.by_row(self.totals)
        if self._sight.any_blind:
            totals = totals[:, ~self._sight.blind]
        if not totals.size:
            return True
        least, most = float(totals.min()), float(totals.max())
        if not (least >= _LEAST and most <= _MOST_IN_ALL) or 0 < least * largest < _FAR_FROM_UNDERFLOW:
            return False
        return most * largest <= _FAR_FROM_OVERFLOW or not largest < math.inf or bool(np.isfinite(self.sums).all())

    def lse(self) -> Array:
        """Return the log-sum-exp of each row's scores, natural log [groups, rows]."""
        return self.by_row(self._factor * self._maximum + np.log(self.totals))

    def _views_of(self, tile: Tile) -> _Views:
        """Return what a tile needs of the buffers; the first of its kind cuts it out."""
        count = tile.stop - tile.start
        kind = -1 if tile.whole else tile.start, count
        if (views := self._views.get(kind)) is None:
            at = self.place(tile.rows)
            queries, sums = self._queries[at][:, :, None], self.sums[at]
            (groups, stacks, _, rows), few = sums.shape, self._few
            scores = self._scores[: groups * stacks * count * rows].reshape(groups, stacks, count, rows)
            products: list[tuple[slice, tuple[int, ...], Array]] = []
            whole = count - count % few
            for keys, size in ((slice(0, whole), few), (slice(whole, count), count - whole)):
                if keys.start < keys.stop:
                    out = scores[:, :, keys].reshape(groups, stacks, -1, size, rows)
                    products.append((keys, (groups, 1, -1, size, queries.shape[3] - 1), out))
            both, tile_sums, tile_totals = _sums_and_totals(self._tile_sums, *sums.shape)
            apart = [(sums, tile_sums), (self.totals[at[:2] + at[3:]], tile_totals)]
            views = self._views[kind] = _Views(
                at=at,
                queries=queries[..., :-1, :],
                shifted=queries,
                products=products,
                scores=scores,
                weights=scores[:, :, None],
                ones=self._ones[:count],
                tile_totals=tile_totals,
                parts=tile_sums.reshape(groups, stacks, self._parts, -1, rows),
                added=[(self._all, both)] if len(both) == len(self._all) else apart,
                hidden=[],
            )
        return views

    def _scores_of(self, views: _Views, keys: Array) -> Array:
        """Return the scores of some rows, less the maximum so far."""
        scores = views.scores
        if self._shifted and self._softcap is None:
            for of_head, queries in enumerate(views.shifted):
                shifted = self._keys[: scores.shape[2]]
                shifted[:, :-1] = keys[of_head]
                for few, shape, out in views.products:
                    np.matmul(shifted[few].reshape(1, -1, shape[3], shifted.shape[1]), queries, out=out[of_head])
            return scores
        for few, shape, out in views.products:
            np.matmul(keys[:, few].reshape(shape), views.queries, out=out)
        if self._softcap is not None:  # it is not linear, so the maximum cannot enter the product
            if self._scale.before_cap != 1:
                scores *= self._scale.before_cap
            apply_softcap(scores, self._softcap)
            if self._shifted:
                scores -= self._maximum[views.at[:2] + views.at[3:]][:, :, None]
        return scores

    def _hide(self, tile: Tile, views: _Views, value: float) -> None:
        """Set to -inf the scores of a tile that rows do not see, or their weights to 0."""
        if tile.whole:
            return
        if views.hidden and value == 0:
            for scores, hidden in views.hidden:
                cover(scores, hidden, value)
            return
        covered = []
        for rows, mask in self._sight.hidden(tile, self._hidden, value, self.stack, turned=True):
            at = self.place(slice(rows.start - tile.rows.start, rows.stop - tile.rows.start))
            for hidden, scores in _alike(mask[None], views.scores[at]):
                cover(scores, hidden, value)
                covered.append((scores, hidden))
        if value == 0 and all(self._hidden.lasts(hidden) for _, hidden in covered):  # scores are hidden far less often
            views.hidden.extend(covered)

    def _move_maximum(self, at: tuple[slice, ...], scores: Array) -> None:
        """Where the scores of a tile are far from the row's maximum so far, move it, and scores and sums with it."""
        of_rows = at[:2] + at[3:]
        top, fresh = scores.max(axis=2), self.fresh[of_rows]
        moved = (top > _SLACK) | (fresh & (top < -_SLACK) & (top > -np.inf))
        if moved.any():
            before = self._maximum[of_rows]
            maximum = np.where(moved, before + top, before)
            step = maximum - before  # as float32 has it, so that tiles before and after agree
            step = np.where(moved & (np.abs(top - step) > _SLACK), top, step)  # unless that rounds scores out of range
            scores -= step[:, :, None]
            shrink = np.where(fresh, 1, np.exp(-self._factor * step))
            self.sums[at] *= shrink[:, :, None]
            self.totals[of_rows] *= shrink
            self._maximum[of_rows] = maximum
            self._queries[:, :, -1][of_rows] = -maximum
            self._shifted = True
        fresh &= top == -np.inf
        self._careful = self._exceeded or bool(self.fresh.any())


def _default(problem: AttentionProblem, limits: Limits) -> BlockSizes:
    if few := _few_keys(problem):
        keys = few * max((n for n in range(1, _FEW_TOGETHER // few + 1) if problem.head_dim_v % n == 0), default=1)
        return BlockSizes.default(limits, keys=keys, edge_keys=keys, l2_times=_FEW_L2_TIMES)
    return BlockSizes.default(limits, keys=_KEYS, edge_keys=_EDGE_KEYS, l2_times=_L2_TIMES)


def _blocks(problem: AttentionProblem, limits: Limits) -> Blocks:
    sizes = _default(problem, limits).or_tuned(CpuFlash.name, problem, limits)
    return Blocks.of(problem, sizes, _ENOUGH_FLOPS).joined(problem, sizes, _ENOUGH_FLOPS)


def _stacks(problem: AttentionProblem, blocks: Blocks) -> tuple[int, int]:
    """Return how many stacks a block has, and the rows of one: few where that spares packing, or all."""
    rows = blocks.rows * blocks.heads
    if rows <= _STACK or not _few_keys(problem):
        return 1, rows
    stacks = -(-rows // _STACK)
    return stacks, -(-rows // (stacks * _VECTOR)) * _VECTOR


def _kept_bytes(problem: AttentionProblem, blocks: Blocks, threads: int) -> int:
    """Return the bytes of what is kept: what is known of keys, what blocks of rows see, every thread's views."""
    sights = min(_SIGHTS_KEPT + 1, blocks.row_blocks * (1 if problem.key_mask is None else problem.batch))
    edges = 0 if not problem.causal else 1 if problem.window is None else 2
    tiles = 2 + min(edges * (1 + -(-blocks.rows // blocks.edge_keys)), -(-problem.seq_k // blocks.edge_keys))
    groups = problem.batch * problem.kv_heads // blocks.groups
    found = groups * (_FOUND_BYTES + 8 * blocks.groups * problem.head_dim_v)
    return found + sights * (_KEPT_SIGHT_BYTES * blocks.rows * blocks.heads + threads * tiles * _VIEWS_BYTES)


def _few_keys(problem: AttentionProblem) -> int:
    """Return how many keys a product with a stack may have for BLAS not to pack, and scores to fit in L1, or 0."""
    widest = max(problem.head_dim + 1, problem.head_dim_v)
    few = min(unpacked_product() // (_STACK * widest), cache_bytes(1) // (_STACK * 4)) // 4 * 4
    return few if few >= _LEAST_KEYS else 0


def _unit_of(largest: float) -> float:
    """Return the power of two to multiply values by, the largest of them given, so that they are ordinary."""
    if largest == 0 or 1 / _ORDINARY <= largest <= _ORDINARY:
        return 1.0
    return 2.0 ** min(max(-math.frexp(largest)[1], -126), 126)


def _longest(vectors: Array) -> float:
    """Return the length of the longest of some vectors [..., n]."""
    return float(np.sqrt(np.vecdot(vectors, vectors).max(initial=0)))


def _sums_and_totals(memory: Array, groups: int, stacks: int, width: int, rows: int) -> tuple[Array, Array, Array]:
    """Return the memory that sums [groups, stacks, width, rows] take and behind them totals, and both of them in it."""
    end = groups * stacks * rows * (width + 1)
    behind = end - groups * stacks * rows
    sums, totals = memory[:behind], memory[behind:end]
    return memory[:end], sums.reshape(groups, stacks, width, rows), totals.reshape(groups, stacks, rows)


def _parts(width: int, keys: int, few: int) -> int:
    """Return in how many parts of equally many columns BLAS sums so many keys as fast as all columns of ``few``."""
    return next((n for n in range(-(-keys // few), width // _VECTOR + 1) if width % n == 0), 1)


def _alike(by_row: NDArray[Any], by_stack: Array) -> Iterator[tuple[NDArray[Any], Array]]:
    """Yield views of the same numbers in ``by_row`` [groups, rows, n] and in ``by_stack`` [groups, stacks, n, rows]."""
    (groups, count, width), size = by_row.shape, by_stack.shape[-1]
    whole, rest = divmod(count, size)
    if whole:
        stacks = by_row[:, : whole * size].reshape(groups, whole, size, width)
        yield stacks.swapaxes(2, 3), by_stack[:, :whole]
    if rest:
        yield by_row[:, whole * size :].swapaxes(1, 2), by_stack[:, whole, :, :rest]
