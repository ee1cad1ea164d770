"""How the blocked CPU kernels cut a problem: into blocks of query rows, and which keys the rows of a block see."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.devices.device import Limits
from engine.kernels.base import Array
from engine.problem.attention_problem import AttentionProblem

_TRIED_ROWS, _TRIED_KEYS, _TRIED_EDGES = (128, 256, 512, 1024), (256, 512, 1024), (64, 128, 256)
_MIN_ROWS, _MAX_ROWS = 64, 1024  # query rows of a block
ENOUGH_BLOCKS = 16  # cut finer below this; not by the number of threads, so that results do not depend on it

KeyNumbers = NDArray[np.intp]


_Size = Annotated[int, msgspec.Meta(ge=1, le=2048)]


class BlockSizes(msgspec.Struct, frozen=True):
    """What can be tuned: the most query rows of a block, the keys of a tile, those of a tile that not all rows see."""

    rows: _Size
    keys: _Size
    edge_keys: _Size

    def __str__(self) -> str:
        return f"{self.rows}x{self.keys}, {self.edge_keys} on edges"

    @classmethod
    def default(cls, limits: Limits, *, keys: int, edge_keys: int, l2_times: float) -> BlockSizes:
        """Return sizes for which the scores of a block and a tile are at most so many times L2."""
        rows = _MAX_ROWS
        while rows > _MIN_ROWS and rows * keys * 4 > l2_times * limits.l2_bytes:
            rows //= 2
        return cls(rows, keys, edge_keys)

    def or_tuned(self, kernel: str, problem: AttentionProblem, limits: Limits) -> BlockSizes:
        """Return the sizes tuned for such problems where there are any that make sense, else these."""
        found = limits.variant_for(kernel, problem.dtype, problem.head_dim, problem.causal)
        with contextlib.suppress(msgspec.ValidationError):
            return self if found is None else msgspec.convert(found, BlockSizes)
        return self

    def candidates(self, problem: AttentionProblem, enough_flops: int) -> list[BlockSizes]:
        """Return these sizes, then others that cut the problem otherwise, those with as many scores a tile first."""
        edges = _TRIED_EDGES if problem.causal else (self.edge_keys,)
        tried = sorted(
            (BlockSizes(*sizes) for sizes in itertools.product(_TRIED_ROWS, _TRIED_KEYS, edges)),
            key=lambda sizes: abs(math.log2(sizes.rows * sizes.keys / (self.rows * self.keys))),
        )
        cuts: dict[Blocks, BlockSizes] = {}
        for sizes in (self, *tried):
            cuts.setdefault(Blocks.of(problem, sizes, enough_flops), sizes)
        return list(cuts.values())


@dataclass(frozen=True)
class Blocks:
    """The cut: a block is ``rows`` query rows of each of ``heads`` heads of one group, a tile is ``keys`` keys.

    A block may span ``groups`` groups, each with keys and values of its own, where all of their rows are short.
    """

    rows: int
    heads: int
    groups: int
    keys: int
    edge_keys: int  # of a tile where not every row sees all
    row_blocks: int
    head_blocks: int  # over the whole batch

    @classmethod
    def of(
        cls, problem: AttentionProblem, sizes: BlockSizes, enough_flops: int, enough_blocks: int = ENOUGH_BLOCKS
    ) -> Blocks:
        """Cut into blocks of those sizes, smaller ones where there would be few to share out.

        ``enough_flops`` is the work that is worth a block of its own: smaller ones are not made for that. Short heads
        of one group share a block, and with it the loading of keys and values.
        """
        most = sizes.rows
        while (
            most > _MIN_ROWS
            and problem.pairs * -(-problem.seq_q // most) < enough_blocks
            and _flops(problem, most // 2) >= enough_flops
        ):
            most //= 2
        row_blocks = -(-problem.seq_q // most)
        rows = -(-problem.seq_q // row_blocks)
        heads = max(n for n in range(1, problem.group + 1) if problem.group % n == 0 and (n == 1 or n * rows <= most))
        keys = min(problem.seq_k, sizes.keys)
        return cls(rows, heads, 1, keys, min(keys, sizes.edge_keys), row_blocks, problem.pairs // heads)

    def joined(self, problem: AttentionProblem, sizes: BlockSizes, enough_flops: int) -> Blocks:
        """Return the cut with several groups to a block, where one has so little work that handing it out counts."""
        if self.row_blocks > 1 or self.heads < problem.group:
            return self
        rows = self.rows * self.heads
        most = min(enough_flops // _flops(problem, rows), sizes.rows * sizes.keys // (rows * self.keys))
        groups = max(n for n in range(1, problem.kv_heads + 1) if problem.kv_heads % n == 0 and (n == 1 or n <= most))
        return replace(self, groups=groups, head_blocks=self.head_blocks // groups)

    @property
    def count(self) -> int:
        """Number of blocks."""
        return self.row_blocks * self.head_blocks

    def block(self, problem: AttentionProblem, number: int) -> tuple[int, slice, slice]:
        """Return batch, heads and rows of a block. The last rows come first: under a causal mask they take longest."""
        row_block, head_block = divmod(number, self.head_blocks)
        row = (self.row_blocks - 1 - row_block) * self.rows
        heads = self.heads * self.groups
        batch, head = divmod(head_block * heads, problem.heads)
        return batch, slice(head, head + heads), slice(row, min(row + self.rows, problem.seq_q))


def _flops(problem: AttentionProblem, rows: int) -> int:
    """Return the work of so many rows that see every key."""
    return 2 * rows * problem.seq_k * (problem.head_dim + problem.head_dim_v)


def shown_keys(problem: AttentionProblem) -> list[KeyNumbers]:
    """Return for each batch entry the keys that ``key_mask`` shows, in order; an empty list without a mask."""
    if problem.key_mask is None:
        return []
    return [np.flatnonzero(row) for row in problem.key_mask.unpack()]


class Tile(NamedTuple):
    """Keys ``start`` to before ``stop``, and the rows of a block that see any of them."""

    start: int
    stop: int
    rows: slice
    whole: bool = False  # whether every row of the block sees all of them


class Sight:
    """Which keys the rows of a block see: row r sees the keys from ``first[r]`` to before ``end[r]``.

    Keys are counted without those that ``key_mask`` hides, so that a row sees one unbroken range. What was found of a
    tile on an edge is kept: heads that see alike follow one another, and each small call of NumPy may make a thread
    wait for another one.
    """

    def __init__(self, problem: AttentionProblem, shown: KeyNumbers | None, heads: int, rows: slice) -> None:
        first, end = problem.key_range(np.arange(rows.start, rows.stop))
        self._diagonal = shown is None and heads == 1  # a row sees one key further than the row before
        if shown is not None:
            first, end = np.searchsorted(shown, first), np.searchsorted(shown, end)
        self.first, self.end = np.tile(first, heads), np.tile(end, heads)
        self._start, self._stop = int(first.min()), int(end.max())  # no row sees a key outside
        self._all_from, self._all_to = int(first.max()), int(end.min())  # every row sees the keys between
        self._all = slice(0, len(self.first))
        self.blind = self.first >= self.end  # rows that see no key at all
        self.any_blind = bool(self.blind.any())
        self._cuts: dict[tuple[int, int, int], tuple[list[Tile], range, list[Tile]]] = {}
        self._tiles: dict[tuple[int, int, int], Tile | None] = {}
        self._hidden: dict[tuple[int, int, float, int, bool], list[tuple[slice, NDArray[Any]]]] = {}

    def tiles(self, keys: int, edge_keys: int, stack: int = 1) -> Iterator[Tile]:
        """Go through the keys that any row sees, in tiles of ``keys``, ``edge_keys`` where not every row sees all.

        The rows of a tile begin and end with a whole stack of so many rows, the last of which may be a shorter one.
        """
        if (cut := self._cuts.get((keys, edge_keys, stack))) is None:
            cut = self._cuts[keys, edge_keys, stack] = self._cut(keys, edge_keys, stack)
        before, starts, after = cut
        yield from before
        for start in starts:
            yield Tile(start, start + keys, self._all, whole=True)
        yield from after

    def _cut(self, keys: int, edge_keys: int, stack: int) -> tuple[list[Tile], range, list[Tile]]:
        """Return the tiles before the first that all rows see, where those begin, and the tiles behind the last."""
        before: list[Tile] = []
        after: list[Tile] = []
        start, starts = self._start, range(0)
        while start < self._stop:
            if self._all_from <= start and start + keys <= self._all_to:
                starts = range(start, self._all_to - keys + 1, keys)
                start = starts[-1] + keys
                continue
            edge = start if start < self._all_from else max(start, self._all_to - 1)
            stop = min(start + keys, edge + edge_keys, self._stop)
            if (tile := self.tile(start, stop, stack)) is not None:
                (after if starts else before).append(tile)
            start = stop
        return before, starts, after

    def tile(self, start: int, stop: int, stack: int = 1) -> Tile | None:
        """Return the tile of those keys with the stacks of rows that see any of them; None where no row does."""
        if self._all_from <= start and stop <= self._all_to:
            return Tile(start, stop, self._all, whole=True)
        if stop <= self._start or self._stop <= start:
            return None
        if (start, stop, stack) not in self._tiles:
            seeing, tile = np.flatnonzero((self.first < stop) & (self.end > start)), None
            if len(seeing):
                begin, end = int(seeing[0]) // stack * stack, (int(seeing[-1]) // stack + 1) * stack
                tile = Tile(start, stop, slice(begin, min(end, self._all.stop)))
            self._tiles[start, stop, stack] = tile
        return self._tiles[start, stop, stack]

    def sees(self, keys: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Tell for every row whether it sees those keys: bool [rows, len(keys)]."""
        return (self.first[:, None] <= keys) & (keys < self.end[:, None])

    def hide(self, scores: Array, tile: Tile, scratch: Hidden) -> None:
        """Set what a row does not see to -inf in the ``scores`` [..., rows, keys] of a tile."""
        for rows, hidden in self.hidden(tile, scratch, -np.inf):
            cover(scores[..., rows.start - tile.rows.start : rows.stop - tile.rows.start, :], hidden, -np.inf)

    def hidden(
        self, tile: Tile, scratch: Hidden, value: float, stack: int = 1, *, turned: bool = False
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield rows of a tile that do not see all of it, and the mask [rows, keys] to ``cover`` their scores with.

        As those of ``tiles``, the rows are whole stacks, so there may be some that see all among them. ``turned`` says
        that the scores of a key lie side by side, not those of a row.
        """
        keys, at, key = tile.stop - tile.start, tile.rows, (tile.start, tile.stop, value, stack, turned)
        if key in self._hidden:
            yield from self._hidden[key]
            return
        found = []
        for before in (True, False):
            if tile.start >= self._all_from if before else tile.stop <= self._all_to:
                continue
            bound = (self.first if before else self.end)[at] - tile.start
            rows = np.flatnonzero(bound > 0 if before else bound < keys)
            if len(rows):
                begin, end = int(rows[0]) // stack * stack, min((int(rows[-1]) // stack + 1) * stack, len(bound))
                hidden = scratch.of(bound[begin:end], keys, before, self._diagonal, turned, value)
                found.append((slice(at.start + begin, at.start + end), hidden))
                yield found[-1]
        if all(scratch.lasts(hidden) for _, hidden in found):
            self._hidden[key] = found


def cover(scores: Array, hidden: NDArray[Any], value: float) -> None:
    """Set to a value, in place, the scores or weights that a mask of ``Hidden`` for that value says are hidden."""
    if hidden.dtype == np.bool_:
        np.copyto(scores, value, where=hidden)
    else:
        np.fmin(scores, hidden, out=scores)  # in half the time; of a number and NaN, it takes the number


class Hidden:
    """Makes masks of hidden keys in memory of its own, for blocks of so many rows and tiles of so many keys.

    A mask is bool, or where it is made of a ramp, float32: where a key is hidden, the least value of what it is for,
    -inf of scores and 0 of weights, and NaN elsewhere.
    """

    def __init__(self, rows: int, keys: int) -> None:
        self._compared = np.zeros(rows * keys, np.bool_)
        self._middle = rows + keys
        self._ramps: dict[float, tuple[Array, Array]] = {}  # by value: one that rises to what is hidden, one that falls
        for value in (-np.inf, 0.0):
            ramp = np.full(2 * self._middle, np.nan, np.float32)
            ramp[self._middle :] = value
            self._ramps[value] = ramp, ramp[::-1].copy()

    def lasts(self, mask: NDArray[Any]) -> bool:
        """Tell whether a mask stays as it is when others are made."""
        return mask.base is not self._compared

    @staticmethod
    def nbytes(rows: int, keys: int) -> int:
        """Return the bytes that it holds."""
        return rows * keys + 32 * (rows + keys)

    def of(
        self, bound: NDArray[np.int64], keys: int, before: bool, diagonal: bool, turned: bool, value: float
    ) -> NDArray[Any]:
        """Return a mask [len(bound), keys]: of each row the keys ``before`` its bound, or those from there on.

        Where bounds are one apart from row to row, as ``diagonal`` promises but for bounds cut off at the ends of the
        sequence, nothing is compared: each row of the mask is a row of the same ramp, read from one place further. It
        is the quicker to use if what it is for is read forwards as well: the keys of a row, or the rows if ``turned``.
        """
        count, middle = len(bound), self._middle
        if diagonal and bound[-1] - bound[0] == count - 1:
            ramp = self._ramps[value][0 if before == turned else 1]
            start, steps = (middle + int(bound[0]) - 1, (4, -4)) if turned else (middle - int(bound[0]), (-4, 4))
            return np.ndarray((count, keys), np.float32, ramp, 4 * start, steps)
        hidden = self._compared[: count * keys].reshape(count, keys)
        compare = np.less if before else np.greater_equal
        mask: NDArray[Any] = compare(np.arange(keys, dtype=np.int32), bound.astype(np.int32)[:, None], out=hidden)
        return mask
