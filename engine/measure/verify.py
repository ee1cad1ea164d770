"""Right before fast: compares a kernel's output with the float64 reference, and says by how much it is off."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.common.running import ShouldStop, never_stop
from engine.kernels.base import Prepared
from engine.measure.verdict import AFFORDABLE_SCORES, EPS, TINY, Verdict, difference, exceeds, finite_size, share_of
from engine.problem.attention_problem import AttentionProblem, Dtype
from engine.problem.inputs import Inputs
from engine.problem.masks import has_nonfinite, without_hidden_garbage
from engine.reference.forward import finite, reference_output

MIN_ROWS = 8  # compared however long the sequence is
_TILES = (16, 32, 64)
_OF_SCORES = 6.0  # times what an average score's rounding makes of the element
_HALF_EPS, _HALF_TINY = 2.0**-10, 2.0**-24


@dataclass(frozen=True)
class Expected:
    """The judge of one case, computed once and shared by its kernels.

    ``output`` is float64 [batch, heads, len(rows), head_dim_v] for the query indices ``rows``, ``bound`` the largest
    absolute error that counts as right, element by element; ``recorded`` float32 [batch, heads, seq_q, head_dim_v]
    where the input holds one.
    """

    rows: NDArray[np.int64]
    output: NDArray[np.float64]
    bound: NDArray[np.float64]
    finite_input: bool
    recorded: NDArray[np.float32] | None
    dtype: Dtype

    def judge(self, prepared: Prepared) -> Verdict:
        """Compare the output of a kernel's last run."""
        return verify(self, prepared.outputs().output)


def expect(problem: AttentionProblem, inputs: Inputs, seed: int = 0, should_stop: ShouldStop = never_stop) -> Expected:
    """Compute what every kernel must give: all rows while that is affordable, else a seeded sample of them.

    Each element has a bound of its own, so that no head, row or column with small numbers hides behind a large one. It
    is what float32 arithmetic can be off by, with p the weights and n the keys that the row sees:

    - each score by half of ``2⁻²³ · |scale| · Σ|q_d·k_d|``, which moves the weights as a softmax is moved (a row with
      one dominant weight hardly is): ``_OF_SCORES`` times what that makes of the element;
    - weights, products and the division: ``2⁻²³ · 4 · Σ p·|v|``;
    - the sum: ``2⁻²³ · √n/4 · Σ p·|v|``, and where terms are alike, so that rounding errs the same way each time,
      ``2⁻²³ · min(n, 1024)/16 · |output|`` (kernels sum at most some 1,024 terms in one chain);
    - weights below float32's smallest normal number may count as 0, and so may an output below it.

    For float16 storage the reference works from the rounded inputs, and the bound grows by what a weight and an output
    of float16 may be off. Raises Cancelled when ``should_stop`` answers True on the way.
    """
    inputs = without_hidden_garbage(problem, inputs)
    rows = rows_to_compare(problem, seed)
    wanted = reference_output(problem, inputs, rows, should_stop)
    first, end = problem.key_range(rows)
    n = np.maximum(end - first, 1)[:, None]
    bound = _OF_SCORES * wanted.of_scores + (4 + np.sqrt(n) / 4) * wanted.terms
    bound += np.minimum(n, 1024) / 16 * np.abs(finite(wanted.output))
    bound = EPS * bound + TINY * (1 + wanted.lost)
    if problem.dtype == "f16":
        bound += _HALF_EPS * wanted.terms + _HALF_TINY * (1 + wanted.lost)
    return Expected(rows, wanted.output, bound, not has_nonfinite(inputs), inputs.recorded_output, problem.dtype)


def verify(expected: Expected, output: NDArray[np.float32]) -> Verdict:
    """Compare ``output`` [batch, heads, seq_q, head_dim_v] with what is expected.

    A position where one side alone is finite fails, one where neither is passes and is counted; so does a non-finite
    row that was not compared when the input is finite: it was never written. Where no position is finite, nothing is
    verified.
    """
    finite_rows: NDArray[np.bool_] = np.asarray(np.isfinite(output).all(axis=3))
    nonfinite = finite_rows.size - int(np.count_nonzero(finite_rows))
    got = output[:, :, expected.rows]
    off_by = difference(got, expected.output, expected.dtype)
    wrong = exceeds(off_by, expected.bound)
    comparable = np.isfinite(expected.output)
    max_abs = float(off_by.max(initial=0.0))
    largest = finite_size(expected.output)
    stray = 0
    if expected.finite_input:
        compared = finite_rows[:, :, expected.rows]
        stray = nonfinite - (compared.size - int(np.count_nonzero(compared)))
    if wrong.any() or stray:
        verified, message = False, _complaint(expected, got, off_by, wrong, stray)
    elif not comparable.any():
        verified, message = (
            None,
            f"nothing finite to compare: {nonfinite:,} of {finite_rows.size:,} rows are not finite",
        )
    else:
        verified, message = True, ""
        if nonfinite:
            message = f"{nonfinite:,} of {finite_rows.size:,} rows are not finite; verified is what is"
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
        message=message,
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


def _complaint(
    expected: Expected,
    got: NDArray[np.float32],
    off_by: NDArray[np.float64],
    wrong: NDArray[np.bool_],
    stray: int,
) -> str:
    if not wrong.any():
        return f"{stray} output rows are not finite although the input is"
    share = share_of(off_by, expected.bound)
    b, h, i, d = np.unravel_index(int(share.argmax()), off_by.shape)
    off = int(np.count_nonzero(wrong.any(axis=3)))
    return (
        f"output is {got[b, h, i, d]:.6g} where the reference has {expected.output[b, h, i, d]:.6g} "
        f"(batch {b}, head {h}, query {expected.rows[i]}, dim {d}): off by {off_by[b, h, i, d]:.2g}, allowed is "
        f"{expected.bound[b, h, i, d]:.2g}; {off} of {off_by[..., 0].size} compared rows are wrong"
    )
