"""Right before fast, backward: compares dQ, dK and dV with the float64 reference, and says by how much they are off."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.inputs import Inputs
from engine.kernels.base import Gradients, Prepared
from engine.masks import has_nonfinite
from engine.measure.verdict import AFFORDABLE_SCORES, EPS, Verdict, difference
from engine.problem import AttentionProblem
from engine.reference_backward import ReferenceGradients, all_groups, reference_gradients
from engine.running import ShouldStop, never_stop

_DEARER = 3  # than the forward pass, whose scores are what is affordable
_FACTOR = 4  # of the forward pass's bound


@dataclass(frozen=True)
class ExpectedGradients:
    """The judge of a backward case: what is expected of the (batch, kv_head) ``groups`` that are compared.

    ``bound`` is the largest absolute error that counts as right.
    """

    groups: list[tuple[int, int]]
    wanted: ReferenceGradients
    bound: float
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
        worst = max(off, key=lambda name: float(off[name].max(initial=0.0)))
        max_abs = float(off[worst].max(initial=0.0))
        largest = _largest(self.wanted)
        verified = max_abs <= self.bound and not stray
        message = ""
        if max_abs > self.bound:
            at = tuple(int(i) for i in np.unravel_index(int(off[worst].argmax()), off[worst].shape))
            one, other = (array[at] for array in compared[worst])
            batch, kv_head = self.groups[at[0]]
            head = f"head {kv_head * group + at[1]}, query" if worst == "dq" else f"kv head {kv_head}, key"
            message = (
                f"{worst} is {one:.6g} where the reference has {other:.6g} (batch {batch}, {head} {at[-2]}, dim "
                f"{at[-1]}): off by {max_abs:.2g}, allowed is {self.bound:.2g}"
            )
        elif stray:
            message = f"{stray} rows of the gradients are not finite although the input is"
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

    The bound is four times that of the forward pass with max|gradient| in place of max|v|, and what rounding makes of
    the gradients of the weights, which may be much larger than what they come to: ``2⁻²³ · |scale| · B · max(|q|,
    |k|)`` with B the largest ``Σ|dO_d · v_d|``. Raises Cancelled when ``should_stop`` answers True on the way.
    """
    groups = groups_to_compare(problem, seed)
    wanted = reference_gradients(problem, inputs, groups, should_stop)
    bound = _FACTOR * EPS * (4 + wanted.largest / 2) * _largest(wanted)
    bound += EPS * abs(problem.scale) * wanted.largest_product * max(_finite_size(inputs.q), _finite_size(inputs.k))
    return ExpectedGradients(groups, wanted, bound, not has_nonfinite(inputs))


def groups_to_compare(problem: AttentionProblem, seed: int) -> list[tuple[int, int]]:
    """Return the (batch, kv_head) groups to compare: all while affordable, else a sample that holds the last one."""
    groups = all_groups(problem)
    count = max(1, AFFORDABLE_SCORES // (_DEARER * problem.group * problem.seq_q * problem.seq_k))
    if count >= len(groups):
        return groups
    chosen = np.random.default_rng(seed).permutation(len(groups) - 1)[: count - 1]
    return [*(groups[n] for n in sorted(chosen)), groups[-1]]


def _largest(wanted: ReferenceGradients) -> float:
    return max(_finite_size(array) for array in (wanted.dq, wanted.dk, wanted.dv))


def _finite_size(array: NDArray[np.floating]) -> float:
    """Return the largest finite absolute value."""
    size = np.abs(array)
    return float(size.max(initial=0.0, where=np.isfinite(size)))
