"""Right before fast: compares a kernel's output with the float64 reference, and says by how much it is off."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.common.running import ShouldStop, never_stop
from engine.kernels.base import Prepared
from engine.measure.verdict import AFFORDABLE_SCORES, EPS, TINY, Verdict, difference, finite_size
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import has_nonfinite, without_hidden_garbage
from engine.reference.forward import reference

MIN_ROWS = 8  # compared however long the sequence is
_TILES = (16, 32, 64)
_HALF_EPS = 2.0**-10


@dataclass(frozen=True)
class Expected:
    """The judge of one case, computed once and shared by its kernels.

    ``output`` is float64 [batch, heads, len(rows), head_dim_v] for the query indices ``rows``, ``bound`` the largest
    absolute error that counts as right, ``recorded`` float32 [batch, heads, seq_q, head_dim_v] where the input holds
    one.
    """

    rows: NDArray[np.int64]
    output: NDArray[np.float64]
    bound: float
    finite_input: bool
    recorded: NDArray[np.float32] | None

    def judge(self, prepared: Prepared) -> Verdict:
        """Compare the output of a kernel's last run."""
        return verify(self, prepared.outputs().output)


def expect(problem: AttentionProblem, inputs: Inputs, seed: int = 0, should_stop: ShouldStop = never_stop) -> Expected:
    """Compute what every kernel must give: all rows while that is affordable, else a seeded sample of them.

    The bound is ``max|v| · 2⁻²³ · (4 + A/2)`` with A the largest ``|scale| · Σ|q_d·k_d|``: float32 rounding of the
    scores cannot do better. Where values do not cancel one another, the sum of n of them rounds more:
    ``max|output| · 2⁻²³ · √n/4``. Float16 storage adds ``max|v| · 2⁻¹⁰``; its inputs are already rounded. A number
    below float32's smallest normal one may count as 0. Raises Cancelled when ``should_stop`` answers True on the way.
    """
    inputs = without_hidden_garbage(problem, inputs)
    rows = rows_to_compare(problem, seed)
    output, _, largest = reference(problem, inputs, rows, should_stop)
    bound = _max_visible_v(problem, inputs) * (EPS * (4 + largest / 2) + (_HALF_EPS if problem.dtype == "f16" else 0.0))
    bound += EPS * math.sqrt(problem.seq_k) / 4 * finite_size(output) + TINY
    return Expected(rows, output, bound, not has_nonfinite(inputs), inputs.recorded_output)


def verify(expected: Expected, output: NDArray[np.float32]) -> Verdict:
    """Compare ``output`` [batch, heads, seq_q, head_dim_v] with what is expected.

    A position where one side alone is finite fails, one where neither is passes and is counted; so does a non-finite
    row that was not compared when the input is finite: it was never written.
    """
    finite = np.isfinite(output).all(axis=3)
    nonfinite = finite.size - int(np.count_nonzero(finite))
    got = output[:, :, expected.rows]
    off_by = difference(got, expected.output)
    max_abs = float(off_by.max(initial=0.0))
    largest = finite_size(expected.output)
    stray = nonfinite if expected.finite_input else 0
    verified = max_abs <= expected.bound and not stray
    return Verdict(
        verified=verified,
        max_abs_err=max_abs,
        max_rel_err=max_abs / largest if largest else (math.inf if max_abs else 0.0),
        recorded_output_err=(
            None
            if expected.recorded is None
            else float(difference(output, expected.recorded.astype(np.float64)).max(initial=0.0))
        ),
        nonfinite=nonfinite,
        message="" if verified else _complaint(expected, got, off_by, stray),
    )


def rows_to_compare(problem: AttentionProblem, seed: int) -> NDArray[np.int64]:
    """Return the query indices to compare, ascending: all while affordable, else a seeded sample.

    A sample always holds the first and the last row; half of the others are rows at the edge of a tile (a multiple of
    16, 32 or 64, and its neighbours), where kernels go wrong.
    """
    n = problem.seq_q
    count = max(MIN_ROWS, AFFORDABLE_SCORES // (problem.pairs * max(problem.seq_k, problem.head_dim_v)))
    if count >= n:
        return np.arange(n)
    rng = np.random.default_rng(seed)
    chosen = {0, n - 1}
    for tile in _TILES:  # a share for each size: every multiple of 64 is one of 16 too
        edges = np.unique(np.arange(tile, n, tile)[:, None] + (-1, 0, 1))
        edges = edges[edges < n]
        chosen.update(rng.choice(edges, min(len(edges), count // (2 * len(_TILES))), replace=False).tolist())
    others = np.setdiff1d(np.arange(n), list(chosen))
    chosen.update(rng.choice(others, max(0, count - len(chosen)), replace=False).tolist())
    return np.array(sorted(chosen), np.int64)


def _max_visible_v(problem: AttentionProblem, inputs: Inputs) -> float:
    """Return the largest finite |v| that any query may see: what is hidden must not widen the bound."""
    first, end = problem.key_range(np.arange(problem.seq_q))
    lo, hi = int(first.min()), int(end.max())
    v = np.abs(inputs.v[:, :, lo:hi].astype(np.float64))
    seen = np.isfinite(v)
    if problem.key_mask is not None:
        seen &= problem.key_mask.unpack()[:, None, lo:hi, None]
    return float(v.max(initial=0.0, where=seen))


def _complaint(expected: Expected, got: NDArray[np.float32], off_by: NDArray[np.float64], stray: int) -> str:
    if not off_by.max(initial=0.0) > expected.bound:
        return f"{stray} output rows are not finite although the input is"
    b, h, i, d = np.unravel_index(int(off_by.argmax()), off_by.shape)
    off = int(np.count_nonzero((off_by > expected.bound).any(axis=3)))
    return (
        f"output is {got[b, h, i, d]:.6g} where the reference has {expected.output[b, h, i, d]:.6g} "
        f"(batch {b}, head {h}, query {expected.rows[i]}, dim {d}): off by {off_by[b, h, i, d]:.2g}, allowed is "
        f"{expected.bound:.2g}; {off} of {off_by[..., 0].size} compared rows are wrong"
    )
