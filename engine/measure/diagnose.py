"""Wrong, and where: which elements are off, whether they follow a tile, and which usual mistake gives that result.

The mistakes are tried out: attention of one head is computed in float64 with each of them, and the one whose result is
what the kernel gave is named. Where none fits, what the wrong rows have in common is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import visible, without_hidden_garbage

TILES = (256, 128, 64, 32, 16, 8, 4)
_MOST_ROWS = 256  # of one head that mistakes are tried on
_MOST_SCORES = 1 << 21  # float64 scores of one head held at once
_ENOUGH = 0.9  # of the rows that a mistake must explain

Array = NDArray[np.float64]


class Worst(msgspec.Struct, frozen=True, kw_only=True):
    """The element that is furthest from what it should be, in units of what is allowed there."""

    batch: int
    head: int
    row: int
    column: int
    got: float
    want: float


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a result.

    ``cause`` is a word for a mistake that explains it (see ``_mistakes``), None where none does; ``sentences`` say all
    that is known, the most telling first. ``tile_rows`` and ``tile_columns`` are the tile that the wrong rows and
    columns keep to, None where they keep to none. ``deterministic`` tells whether a second run on the same input gave
    the same bits, None where there was none.
    """

    cause: str | None
    sentences: tuple[str, ...]
    worst: Worst | None
    wrong_rows: int
    compared_rows: int
    tile_rows: int | None = None
    tile_columns: int | None = None
    deterministic: bool | None = None

    @property
    def text(self) -> str:
        """All sentences as one line."""
        return "; ".join(self.sentences)


@dataclass(frozen=True)
class Comparison:
    """A result beside what it should be.

    ``got`` float32 [batch, heads, len(rows), head_dim_v], ``want`` float64 of the same shape, ``allowed`` the largest
    error that counts as right, broadcast to that shape; ``rows`` the query indices.
    """

    rows: NDArray[np.int64]
    got: NDArray[np.float32]
    want: Array
    allowed: NDArray[np.floating]

    @property
    def off_by(self) -> Array:
        """|got - want|, infinite where one side alone is finite, 0 where neither is."""
        here, there = np.isfinite(self.got), np.isfinite(self.want)
        with np.errstate(invalid="ignore"):
            off = np.abs(self.got - self.want)
        return np.where(here & there, off, np.where(here == there, 0.0, np.inf))

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Which elements are further off than is allowed."""
        return np.asarray(self.off_by > self.allowed)


def diagnose(
    problem: AttentionProblem,
    inputs: Inputs,
    compared: Comparison,
    again: NDArray[np.float32] | None = None,
) -> Diagnosis:
    """Say what is wrong with a forward result; ``again`` is the same rows' result of a second run on the same input."""
    off_by, wrong = compared.off_by, compared.wrong
    sentences: list[str] = []
    cause: str | None = None
    deterministic = None if again is None else bool(np.array_equal(_bits(compared.got), _bits(again)))
    if again is not None and not deterministic:
        second_wrong = Comparison(compared.rows, again, compared.want, compared.allowed).wrong
        if wrong.any() and not second_wrong.any():
            cause = "unset memory"
            sentences.append("only the first run is wrong: it reads memory that nothing has written yet")
        else:
            cause = "race"
            changed = int(np.count_nonzero(_bits(compared.got) != _bits(again)))
            sentences.append(
                f"two runs on the same input differ in {changed:,} of {again.size:,} elements: threads race, through a "
                "missing barrier or two writers of one element"
            )
    if not wrong.any():
        return Diagnosis(
            cause=cause, sentences=tuple(sentences), worst=None, wrong_rows=0, compared_rows=wrong[..., 0].size,
            deterministic=deterministic,
        )  # fmt: skip
    place = _worst(compared, off_by)
    pattern = _pattern(problem, compared, wrong)
    if cause is None:
        found = _unwritten(problem, compared) or _mistake(problem, inputs, compared, wrong)
        if found is not None:
            cause = found[0]
            sentences.append(found[1])
    sentences += pattern.sentences
    rows_wrong = wrong.any(axis=3)
    sentences.append(
        f"{int(np.count_nonzero(rows_wrong)):,} of {rows_wrong.size:,} compared rows are wrong, the worst at batch "
        f"{place.batch}, head {place.head}, row {place.row}, column {place.column}: {place.got:.6g} for "
        f"{place.want:.6g}"
    )
    return Diagnosis(
        cause=cause, sentences=tuple(sentences), worst=place, wrong_rows=int(np.count_nonzero(rows_wrong)),
        compared_rows=rows_wrong.size, tile_rows=pattern.tile_rows, tile_columns=pattern.tile_columns,
        deterministic=deterministic,
    )  # fmt: skip


def _bits(array: NDArray[np.float32]) -> NDArray[np.uint32]:
    return np.ascontiguousarray(array, np.float32).view(np.uint32)


def _worst(compared: Comparison, off_by: Array) -> Worst:
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(off_by > 0, off_by / np.broadcast_to(compared.allowed, off_by.shape), 0)
    b, h, i, d = (int(n) for n in np.unravel_index(int(np.argmax(share)), share.shape))
    return Worst(
        batch=b, head=h, row=int(compared.rows[i]), column=d,
        got=float(compared.got[b, h, i, d]), want=float(compared.want[b, h, i, d]),
    )  # fmt: skip


# where


@dataclass(frozen=True)
class _Pattern:
    tile_rows: int | None
    tile_columns: int | None
    sentences: tuple[str, ...]


def _pattern(problem: AttentionProblem, compared: Comparison, wrong: NDArray[np.bool_]) -> _Pattern:
    """What the places of the wrong elements have in common: heads, rows, columns, and a factor."""
    said: list[str] = []
    heads = wrong.any(axis=(0, 2, 3))
    if not heads.all():
        said.append(f"only {_named('head', np.flatnonzero(heads), problem.heads)} wrong")
    batches = wrong.any(axis=(1, 2, 3))
    if not batches.all():
        said.append(f"only {_named('batch entry', np.flatnonzero(batches), problem.batch)} wrong")
    rows = compared.rows[wrong.any(axis=(0, 1, 3))]
    tile_rows = None
    if len(rows) < len(compared.rows):
        tile_rows = _tile(rows, compared.rows)
        along = f", from a multiple of {tile_rows} on" if tile_rows else ""
        said.append(f"the wrong rows are {_ranges(rows)}{along}")
    columns = np.flatnonzero(wrong.any(axis=(0, 1, 2)))
    tile_columns = None
    if len(columns) < problem.head_dim_v:
        tile_columns = _tile(columns, np.arange(problem.head_dim_v))
        along = f", from a multiple of {tile_columns} on" if tile_columns else ""
        said.append(f"the wrong columns are {_ranges(columns)}{along}")
    factor = _row_factors(compared, wrong)
    if factor is not None:
        said.append(factor)
    return _Pattern(tile_rows, tile_columns, tuple(said))


def _tile(wrong: NDArray[np.int64], every: NDArray[np.int64]) -> int | None:
    """Return the largest tile at whose multiples all runs of wrong indices begin, None where they begin elsewhere."""
    places = np.searchsorted(every, wrong)
    starts = wrong[np.concatenate(([True], np.diff(places) > 1))]
    starts = starts[starts > every[0]]
    return next((tile for tile in TILES if len(starts) and not (starts % tile).any()), None)


def _ranges(indices: NDArray[np.int64]) -> str:
    """The indices in words: ``96 to 99``, ``1, 3, 5 and 29 more``."""
    cuts = np.flatnonzero(np.diff(indices) > 1) + 1
    runs = np.split(indices, cuts)
    words = [f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:3]]
    rest = len(runs) - len(words)
    return ", ".join(words) + (f" and {rest} more" if rest else "")


def _named(word: str, which: NDArray[np.int64], of: int) -> str:
    plural = {"batch entry": "batch entries"}.get(word, word + "s")
    return f"{word} {which[0]} of {of} is" if len(which) == 1 else f"{plural} {_ranges(which)} of {of} are"


def _row_factors(compared: Comparison, wrong: NDArray[np.bool_]) -> str | None:
    """A sentence where every wrong row is the right one times a factor of its own."""
    which = wrong.any(axis=3)
    got, want = compared.got[which].astype(np.float64), compared.want[which]
    finite = np.isfinite(got).all(axis=1) & np.isfinite(want).all(axis=1)
    got, want = got[finite], want[finite]
    if got.shape[0] == 0 or got.shape[1] < 2:
        return None
    size = (want * want).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.where(size > 0, (got * want).sum(axis=1) / size, 1)
    allowed = np.broadcast_to(compared.allowed, compared.want.shape)[which][finite]
    close = (np.abs(got - factors[:, None] * want) <= 8 * allowed * np.maximum(1, np.abs(factors))[:, None]).all(axis=1)
    if close.mean() < _ENOUGH or np.abs(factors - 1).max() < 1e-6:
        return None
    low, high = np.percentile(factors, (0, 100))
    spread = f"by {low:.4g}" if math.isclose(low, high, rel_tol=1e-3) else f"by factors from {low:.4g} to {high:.4g}"
    return f"each wrong row is the right one multiplied {spread}: its normaliser is off"


def _unwritten(problem: AttentionProblem, compared: Comparison) -> tuple[str, str] | None:
    """A cause where all that is wrong was never written: still the NaN, or left 0."""
    missing = ~np.isfinite(compared.got) & np.isfinite(compared.want)
    if not missing.any() or not np.array_equal(missing, compared.wrong):
        return None
    rows = np.flatnonzero(missing.any(axis=(0, 1, 3)))
    whole_rows = bool((missing.all(axis=3) == missing.any(axis=3)).all())
    if whole_rows:
        where = compared.rows[rows]
        tile = _tile(where, compared.rows)
        if where[-1] == problem.seq_q - 1 and tile and len(rows) == np.count_nonzero(compared.rows >= where[0]):
            return "last rows not written", (
                f"rows {where[0]} to {where[-1]} are never written: the last tile of {tile} query rows is skipped"
            )
        return "rows not written", f"rows {_ranges(where)} are never written, or computed as NaN"
    columns = np.flatnonzero(missing.any(axis=(0, 1, 2)))
    return "columns not written", f"columns {_ranges(columns)} are never written, or computed as NaN"


# why


@dataclass(frozen=True)
class _Head:
    """One head and the rows looked at, in float64: q [rows, head_dim], k, v [seq_k, ...], seen [rows, seq_k]."""

    problem: AttentionProblem
    inputs: Inputs
    batch: int
    head: int
    rows: NDArray[np.int64]
    q: Array
    k: Array
    v: Array
    seen: NDArray[np.bool_]

    def scores(self, scale: float | None = None, q: Array | None = None, k: Array | None = None) -> Array:
        raw: Array = (self.q if q is None else q) @ (self.k if k is None else k).T
        scores = raw * (self.problem.scale if scale is None else scale)
        cap = self.problem.softcap
        return scores if cap is None else cap * np.tanh(scores / cap)

    def attend(self, scores: Array, seen: NDArray[np.bool_] | None = None, v: Array | None = None) -> Array:
        weights, _, total = self.weights(scores, self.seen if seen is None else seen)
        return weights @ (self.v if v is None else v) / total[:, None]

    @staticmethod
    def weights(scores: Array, seen: NDArray[np.bool_]) -> tuple[Array, Array, Array]:
        """Return the weights relative to each row's maximum, that maximum, and their sums (1 where nothing is seen)."""
        any_seen = seen.any(axis=1)
        top = np.where(any_seen, np.where(seen, scores, -np.inf).max(axis=1), 0)
        weights = np.where(seen, np.exp(np.minimum(scores - top[:, None], 0)), 0)
        return weights, top, np.where(any_seen, weights.sum(axis=1), 1)


_Made = tuple[str, str, Array]


def _mistake(
    problem: AttentionProblem, inputs: Inputs, compared: Comparison, wrong: NDArray[np.bool_]
) -> tuple[str, str] | None:
    """Return the cause and sentence of the mistake that explains most, None where none explains enough."""
    per_head = wrong.any(axis=3).sum(axis=2)
    ranked = np.argsort(-per_head, axis=None, kind="stable")
    places = [np.unravel_index(int(place), per_head.shape) for place in ranked[:3] if per_head.flat[place]]
    best: tuple[float, tuple[str, str]] | None = None
    for b, h in places:
        chosen = _rows_to_try(problem, wrong[b, h].any(axis=1))
        head = _head(problem, inputs, int(b), int(h), compared.rows[chosen])
        got = compared.got[b, h, chosen].astype(np.float64)
        want = compared.want[b, h, chosen]
        allowed = np.broadcast_to(compared.allowed, compared.want.shape)[b, h, chosen]
        with np.errstate(all="ignore"):
            for cause, sentence, made in _mistakes(head, compared, chosen):
                share = _explained(got, want, made, allowed)
                if share >= _ENOUGH and (best is None or share > best[0] + 1e-9):
                    best = share, (cause, sentence)
        if best is not None:
            return best[1]
    return None


def _rows_to_try(problem: AttentionProblem, wrong: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Places of the rows to look at: wrong ones first, spread evenly, then right ones."""
    most = max(4, min(_MOST_ROWS, _MOST_SCORES // max(1, problem.seq_k)))
    bad, good = np.flatnonzero(wrong), np.flatnonzero(~wrong)
    picked = bad[np.unique(np.linspace(0, len(bad) - 1, min(len(bad), most)).astype(np.int64))]
    left = most - len(picked)
    if left > 0 and len(good):
        more = good[np.unique(np.linspace(0, len(good) - 1, min(len(good), left)).astype(np.int64))]
        picked = np.concatenate((picked, more))
    return np.sort(picked)


def _head(problem: AttentionProblem, inputs: Inputs, batch: int, head: int, rows: NDArray[np.int64]) -> _Head:
    clean = without_hidden_garbage(problem, inputs)
    kv = head // problem.group
    return _Head(
        problem, clean, batch, head, rows,
        clean.q[batch, head, rows].astype(np.float64),
        clean.k[batch, kv].astype(np.float64),
        clean.v[batch, kv].astype(np.float64),
        visible(problem, batch, rows, 0, problem.seq_k),
    )  # fmt: skip


def _explained(got: Array, want: Array, made: Array, allowed: NDArray[np.floating]) -> float:
    """Return the share of rows that hold what the mistake would give; 0 where it gives what is right."""
    off = np.abs(got - want)
    was_wrong = ((off > allowed) | ~np.isfinite(got)).any(axis=1)
    would_be = (np.abs(made - want) > allowed).any(axis=1) | ~np.isfinite(made).all(axis=1)
    if not (was_wrong & would_be).any():
        return 0.0
    bound = np.maximum(16 * allowed, 0.01 * np.where(np.isfinite(off), off, 0).max(axis=1, keepdims=True))
    same = (np.abs(got - made) <= bound) | (~np.isfinite(got) & ~np.isfinite(made))
    fits = same.all(axis=1)
    return float(min(fits[was_wrong].mean(), fits.mean()))


def _mistakes(head: _Head, compared: Comparison, chosen: NDArray[np.int64]) -> Iterator[_Made]:
    """The usual mistakes, likeliest first: a word, a sentence, and what the rows would hold."""
    yield from _scale_mistakes(head)
    yield from _mask_mistakes(head)
    yield from _tile_mistakes(head)
    yield from _normaliser_mistakes(head)
    yield from _place_mistakes(head, compared, chosen)


def _scale_mistakes(head: _Head) -> Iterator[_Made]:
    p = head.problem
    for cause, sentence, scale in (
        ("scale forgotten", "the scores are not scaled: multiply them by scale", 1.0),
        ("scale twice", "the scale is applied twice", p.scale**2),
        ("scale without root", "the scores are divided by head_dim, not by its square root", 1 / p.head_dim),
        ("scale inverted", "the scores are multiplied by the square root of head_dim", math.sqrt(p.head_dim)),
        ("scale without log2 e", "exp2 is taken of scores without the factor log2 e", p.scale * math.log(2)),
        ("scale with log2 e", "exp is taken of scores that already hold the factor log2 e", p.scale / math.log(2)),
    ):
        yield cause, sentence, head.attend(head.scores(scale))
    if p.softcap is not None:
        raw = head.q @ head.k.T
        yield "softcap forgotten", "the soft cap is not applied", head.attend(p.scale * raw)
        late = p.scale * p.softcap * np.tanh(raw / p.softcap)
        yield "softcap before scale", "the soft cap is applied before the scale", head.attend(late)
    for tile in (4, 8, 16, 32):
        cut = p.head_dim // tile * tile
        if 0 < cut < p.head_dim:
            sentence = f"the dot products leave out dims {cut} to {p.head_dim - 1}: head_dim is no multiple of {tile}"
            yield "last dims left out", sentence, head.attend(head.scores(q=head.q[:, :cut], k=head.k[:, :cut]))


def _mask_mistakes(head: _Head) -> Iterator[_Made]:
    p, scores = head.problem, head.scores()
    keys, last = np.arange(p.seq_k), head.rows[:, None] + p.offset  # the last key that a row sees
    everything = np.ones(scores.shape, np.bool_)
    shown = everything if p.key_mask is None else everything & p.key_mask.unpack()[head.batch]
    recent = everything if p.window is None else keys > last - p.window
    if p.causal:
        for cause, sentence, seen in (
            ("causal off by one", "causal is off by one: a row does not see its own key", (keys < last) & recent),
            ("causal off by one", "causal is off by one: a row sees one key too many", (keys <= last + 1) & recent),
            ("causal ignored", "the causal mask is ignored", recent),
            (
                "causal aligned to the first key",
                "causal is aligned to the first key: row i must see keys up to i + seq_k - seq_q",
                (keys <= last - p.offset) & recent,
            ),
        ):
            yield cause, sentence, head.attend(scores, seen & shown)
    else:
        yield (
            "causal unasked",
            "a causal mask is applied that is not asked for",
            head.attend(scores, (keys <= last) & shown),
        )
    if p.window is not None:
        yield "window ignored", "the window is ignored", head.attend(scores, (keys <= last) & shown)
        for change, words in ((1, "one key too many"), (-1, "one key too few")):
            seen = (keys <= last) & (keys > last - p.window - change) & shown
            yield "window off by one", f"the window is off by one: a row sees {words}", head.attend(scores, seen)
    if p.key_mask is not None:
        rule = visible(msgspec.structs.replace(p, key_mask=None), head.batch, head.rows, 0, p.seq_k)
        yield "key_mask ignored", "key_mask is ignored", head.attend(scores, rule)
        inverted = "key_mask is taken the wrong way round: a 1 means visible"
        yield "key_mask inverted", inverted, head.attend(scores, rule & ~shown)


def _tile_mistakes(head: _Head) -> Iterator[_Made]:
    p, scores = head.problem, head.scores()
    keys = np.arange(p.seq_k)
    cuts: dict[int, int] = {}
    for tile in TILES:
        cuts.setdefault(p.seq_k // tile * tile, tile)
    for cut, tile in cuts.items():
        if 0 < cut < p.seq_k:
            sentence = f"keys {cut} to {p.seq_k - 1} are left out: the last partial tile of {tile} keys is skipped"
            yield "last keys left out", sentence, head.attend(scores, head.seen & (keys < cut))
    for tile in TILES:
        if tile < p.seq_k:
            sentence = f"keys 0 to {tile - 1} are left out: the first tile of {tile} keys is skipped"
            yield "first keys left out", sentence, head.attend(scores, head.seen & (keys >= tile))
    for tile in TILES:
        if p.seq_k % tile and not p.causal:
            extra = -p.seq_k % tile
            sentence = (
                f"{extra} keys beyond the last count as zeros: the last partial tile of {tile} keys is not masked"
            )
            yield "padding counted", sentence, _with_padding(head, scores, extra)
    for tile in TILES:
        if tile < p.seq_k:
            for sentence, made in _uncarried(head, scores, tile):
                yield "maximum not carried", f"{sentence}, from one tile of {tile} keys to the next", made


def _with_padding(head: _Head, scores: Array, extra: int) -> Array:
    """What comes of ``extra`` keys of score 0 and value 0."""
    weights, top, total = head.weights(scores, head.seen)
    higher = np.maximum(top, 0)
    keep = np.exp(top - higher)
    out: Array = (weights @ head.v) * keep[:, None] / (total * keep + extra * np.exp(-higher))[:, None]
    return out


def _uncarried(head: _Head, scores: Array, tile: int) -> Iterator[tuple[str, Array]]:
    """Online softmax whose earlier sums are not rescaled, in its four forms."""
    right = head.weights(scores, head.seen)[0]
    seen_scores = np.where(head.seen, scores, -np.inf)
    starts = range(0, scores.shape[1], tile)
    tops = np.stack([seen_scores[:, at : at + tile].max(axis=1) for at in starts], axis=1)

    def weights(tops: Array) -> Array:
        """The weights as each tile makes them, relative to its maximum in ``tops`` [rows, tiles]."""
        each = np.repeat(np.where(np.isfinite(tops), tops, 0), tile, axis=1)[:, : scores.shape[1]]
        made: Array = np.where(head.seen, np.exp(np.minimum(scores - each, 0)), 0)
        return made

    def ratio(above: Array, below: Array) -> Array:
        sums = below.sum(axis=1)
        out: Array = above @ head.v / np.where(sums > 0, sums, 1)[:, None]
        return out

    own, running = weights(tops), weights(np.maximum.accumulate(tops, axis=1))
    yield "the maximum is not carried", ratio(own, own)
    yield "sum and output are not rescaled when the maximum grows", ratio(running, running)
    yield "the sum is not rescaled when the maximum grows", ratio(right, running)
    yield "the output is not rescaled when the maximum grows", ratio(running, right)


def _normaliser_mistakes(head: _Head) -> Iterator[_Made]:
    weights, top, _ = head.weights(head.scores(), head.seen)
    above = weights @ head.v
    yield "not normalised", "the rows are not divided by the sums of their weights", above
    for which, rows in (
        ("next row", head.rows + 1),
        ("row before", head.rows - 1),
        ("other row of a pair", head.rows ^ 1),
    ):
        rows = np.where((rows < 0) | (rows >= head.problem.seq_q), head.rows, rows)
        other = _head(head.problem, head.inputs, head.batch, head.head, rows)
        _, other_top, other_total = other.weights(other.scores(), other.seen)
        sentence = f"each row is divided by the sum of the {which}"
        yield "normaliser of the neighbouring row", sentence, above / other_total[:, None]
        reached = np.exp(top - other_top) / other_total  # both relative to one maximum
        yield "normaliser of the neighbouring row", sentence, above * reached[:, None]


def _place_mistakes(head: _Head, compared: Comparison, chosen: NDArray[np.int64]) -> Iterator[_Made]:
    p, index = head.problem, head.head
    own = index // p.group
    for words, kv in (("head % kv_heads", index % p.kv_heads), ("head / kv_heads", index // p.kv_heads), ("0", 0)):
        if kv < p.kv_heads and kv != own:
            sentence = f"query head {index} attends to key-value head {kv} ({words}); it is head / group = {own}"
            k, v = (array[head.batch, kv].astype(np.float64) for array in (head.inputs.k, head.inputs.v))
            yield "wrong key-value head", sentence, head.attend(head.scores(k=k), v=v)
    for other in range(p.heads):
        if other != index:
            made = compared.want[head.batch, other, chosen]
            yield "heads mixed up", f"head {index} holds what head {other} should", made
    for other in range(p.batch):
        if other != head.batch:
            made = compared.want[other, index, chosen]
            yield "batch entries mixed up", f"batch entry {head.batch} holds what entry {other} should", made
    if p.head_dim == p.head_dim_v:
        yield "keys for values", "the weights are applied to K instead of V", head.attend(head.scores(), v=head.k)
