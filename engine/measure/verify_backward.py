"""Right before fast, backward: compares dQ, dK and dV with the float64 reference, and says by how much they are off."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.common.running import ShouldStop, never_stop
from engine.kernels.base import Gradients, Prepared
from engine.measure.verdict import AFFORDABLE_SCORES, EPS, TINY, Verdict, difference, exceeds, finite_size, share_of
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import has_nonfinite, without_hidden_garbage
from engine.reference.backward import ReferenceGradients, all_groups, reference_gradients

_DEARER = 3  # than the forward pass, whose scores are what is affordable
_FACTOR = 3


@dataclass(frozen=True)
class ExpectedGradients:
    """The judge of a backward case: what is expected of the (batch, kv_head) ``groups`` that are compared.

    ``bounds`` are the largest absolute errors that count as right, element by element, of ``dq``, ``dk`` and ``dv``.
    """

    groups: list[tuple[int, int]]
    wanted: ReferenceGradients
    bounds: dict[str, NDArray[np.float64]]
    finite_input: bool

    def judge(self, prepared: Prepared) -> Verdict:
        """Compare the gradients of a kernel's last run."""
        return self.verdict(prepared.gradients())

    def verdict(self, got: Gradients) -> Verdict:
        """Compare all gradients. ``nonfinite`` counts their rows, of all groups, that hold a NaN or an infinity."""
        nonfinite = sum(int(np.count_nonzero(~np.isfinite(x).all(axis=3))) for x in (got.dq, got.dk, got.dv))
        stray = nonfinite if self.finite_input else 0
        batches, kv_heads = (np.array(numbers) for numbers in zip(*self.groups, strict=True))
        group = self.wanted.dq.shape[1]
        heads = kv_heads[:, None] * group + np.arange(group)
        compared = {
            "dq": (got.dq[batches[:, None], heads], self.wanted.dq),
            "dk": (got.dk[batches, kv_heads], self.wanted.dk),
            "dv": (got.dv[batches, kv_heads], self.wanted.dv),
        }
        off = {name: difference(*pair) for name, pair in compared.items()}
        shares = {name: share_of(off[name], self.bounds[name]) for name in off}
        worst = max(shares, key=lambda name: float(shares[name].max(initial=0.0)))
        max_abs, largest = max(float(array.max(initial=0.0)) for array in off.values()), _largest(self.wanted)
        right = not any(exceeds(off[name], self.bounds[name]).any() for name in off)
        comparable = any(np.isfinite(pair[1]).any() for pair in compared.values())
        rows = got.dq[..., 0].size + got.dk[..., 0].size + got.dv[..., 0].size
        verified: bool | None = right and not stray
        message = ""
        if not right:
            at = tuple(int(i) for i in np.unravel_index(int(shares[worst].argmax()), off[worst].shape))
            one, other = (array[at] for array in compared[worst])
            batch, kv_head = self.groups[at[0]]
            head = f"head {kv_head * group + at[1]}, query" if worst == "dq" else f"kv head {kv_head}, key"
            message = (
                f"{worst} is {one:.6g} where the reference has {other:.6g} (batch {batch}, {head} {at[-2]}, dim "
                f"{at[-1]}): off by {off[worst][at]:.2g}, allowed is {self.bounds[worst][at]:.2g}"
            )
        elif stray:
            message = f"{stray} rows of the gradients are not finite although the input is"
        elif not comparable:
            verified, message = None, f"nothing finite to compare: {nonfinite:,} of {rows:,} rows are not finite"
        elif nonfinite:
            message = f"{nonfinite:,} of {rows:,} rows are not finite; verified is what is"
        return Verdict(
            verified=verified,
            max_abs_err=max_abs,
            max_rel_err=max_abs / largest if largest else (math.inf if max_abs else 0.0),
            recorded_output_err=None,
            nonfinite=nonfinite,
            message=message,
        )


def expect_gradients(
    problem: AttentionProblem, inputs: Inputs, seed: int = 0, should_stop: ShouldStop = never_stop
) -> ExpectedGradients:
    """Compute what every kernel must give: all groups while that is affordable, else a seeded sample of them.

    Each element has a bound of its own: ``_FACTOR`` times what rounding of the scores, the weights, their gradients
    and what is subtracted from these makes of it in float32 (``ReferenceGradients.rounding``), and the rounding of the
    sum over n queries or keys, ``2⁻²³ · (4 + √n) · Σ|terms|``. Where all is next to nothing, a number below float32's
    smallest normal one may count as 0. Raises Cancelled when ``should_stop`` answers True on the way.
    """
    inputs = without_hidden_garbage(problem, inputs)
    groups = groups_to_compare(problem, seed)
    wanted = reference_gradients(problem, inputs, groups, should_stop)
    sums = {"dq": problem.seq_k, "dk": problem.group * problem.seq_q, "dv": problem.group * problem.seq_q}
    tiny = TINY * max(sums.values()) * problem.head_dim_v
    bounds = {
        name: EPS * (_FACTOR * wanted.rounding[name] + (4 + math.sqrt(n)) * wanted.terms[name]) + tiny
        for name, n in sums.items()
    }
    return ExpectedGradients(groups, wanted, bounds, not has_nonfinite(inputs))


def groups_to_compare(problem: AttentionProblem, seed: int) -> list[tuple[int, int]]:
    """Return the (batch, kv_head) groups to compare: all while affordable, else a sample that holds the last one."""
    groups = all_groups(problem)
    count = max(1, AFFORDABLE_SCORES // (_DEARER * problem.group * problem.seq_q * problem.seq_k))
    if count >= len(groups):
        return groups
    chosen = np.random.default_rng(seed).permutation(len(groups) - 1)[: count - 1]
    return [*(groups[n] for n in sorted(chosen)), groups[-1]]


def _largest(wanted: ReferenceGradients) -> float:
    return max(finite_size(array) for array in (wanted.dq, wanted.dk, wanted.dv))
