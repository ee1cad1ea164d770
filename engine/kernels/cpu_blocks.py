"""How cpu-flash cuts a problem: into blocks of query rows, and which keys the rows of a block see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.devices import Limits
from engine.kernels.base import Array
from engine.problem import AttentionProblem

_KEYS = 512  # keys of a tile
_ENOUGH_BLOCKS = 16  # cut finer below this; not by the number of threads, so that results do not depend on it
_MIN_ROWS, _MAX_ROWS = 32, 256  # query rows of a block

KeyNumbers = NDArray[np.intp]


@dataclass(frozen=True)
class Blocks:
    """The cut: a block is ``rows`` query rows of each of ``heads`` heads of one group, a tile is ``keys`` keys."""

    rows: int
    heads: int
    keys: int
    row_blocks: int
    head_blocks: int  # over the whole batch

    @classmethod
    def of(cls, problem: AttentionProblem, limits: Limits) -> Blocks:
        """Cut so that the scores of a block and a tile fit L2, with enough blocks to share out.

        Short heads of one group share a block, and with it the loading of keys and values.
        """
        most = _MAX_ROWS
        while most > _MIN_ROWS and (
            most * _KEYS * 4 > limits.l2_bytes or problem.pairs * -(-problem.seq_q // most) < _ENOUGH_BLOCKS
        ):
            most //= 2
        row_blocks = -(-problem.seq_q // most)
        rows = -(-problem.seq_q // row_blocks)
        heads = max(n for n in range(1, problem.group + 1) if problem.group % n == 0 and (n == 1 or n * rows <= most))
        return cls(rows, heads, min(problem.seq_k, _KEYS), row_blocks, problem.pairs // heads)

    @property
    def count(self) -> int:
        """Number of blocks."""
        return self.row_blocks * self.head_blocks

    def block(self, problem: AttentionProblem, number: int) -> tuple[int, slice, slice]:
        """Return batch, heads and rows of a block. The last rows come first: under a causal mask they take longest."""
        row_block, head_block = divmod(number, self.head_blocks)
        row = (self.row_blocks - 1 - row_block) * self.rows
        batch, head = divmod(head_block * self.heads, problem.heads)
        return batch, slice(head, head + self.heads), slice(row, min(row + self.rows, problem.seq_q))


def shown_keys(problem: AttentionProblem) -> list[KeyNumbers]:
    """Return for each batch entry the keys that ``key_mask`` shows, in order; an empty list without a mask."""
    if problem.key_mask is None:
        return []
    return [np.flatnonzero(row) for row in problem.key_mask.unpack()]


class Sight:
    """Which keys the rows of a block see: row r sees the keys from ``first[r]`` to before ``end[r]``.

    Keys are counted without those that ``key_mask`` hides, so that a row sees one unbroken range.
    """

    def __init__(self, problem: AttentionProblem, shown: KeyNumbers | None, heads: int, rows: slice) -> None:
        first, end = problem.key_range(np.arange(rows.start, rows.stop))
        if shown is not None:
            first, end = np.searchsorted(shown, first), np.searchsorted(shown, end)
        self.first, self.end = np.tile(first, heads), np.tile(end, heads)
        self.start, self.stop = int(first.min()), int(end.max())  # no row sees a key outside
        self._all_from, self._all_to = int(first.max()), int(end.min())  # every row sees the keys between

    def sees(self, keys: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Tell for every row whether it sees those keys: bool [rows, len(keys)]."""
        return (self.first[:, None] <= keys) & (keys < self.end[:, None])

    def blind(self) -> NDArray[np.bool_]:
        """Tell for every row whether it sees no key at all."""
        return self.first >= self.end

    def hide(self, scores: Array, start: int, scratch: NDArray[np.bool_]) -> None:
        """Set what a row does not see to -inf, in the scores [rows, keys] of the tile that begins at key ``start``."""
        stop = start + scores.shape[1]
        if start < self._all_from:
            edge = np.arange(start, min(stop, self._all_from))
            hidden = scratch[: len(scores) * len(edge)].reshape(len(scores), len(edge))
            np.less(edge, self.first[:, None], out=hidden)
            np.copyto(scores[:, : len(edge)], -np.inf, where=hidden)
        if self._all_to < stop:
            edge = np.arange(max(start, self._all_to), stop)
            hidden = scratch[: len(scores) * len(edge)].reshape(len(scores), len(edge))
            np.greater_equal(edge, self.end[:, None], out=hidden)
            np.copyto(scores[:, -len(edge) :], -np.inf, where=hidden)
