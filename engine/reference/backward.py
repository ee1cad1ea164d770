"""The gradients of attention in float64, the judge of every backward pass: by definition, in blocks of query rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.common.running import Cancelled, ShouldStop, never_stop
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import visible, without_hidden_garbage
from engine.reference.forward import F64, finite, moved, product, softmax

_BLOCK_SCORES = 1 << 20  # float64 scores held at once: 8 MiB

_PARTS = 4  # units of 2⁻²³ that a weight, a product or the difference of two is off by


@dataclass(frozen=True)
class ReferenceGradients:
    """Gradients of the chosen (batch, kv_head) groups, float64.

    ``dq`` is [groups, heads of a group, seq_q, head_dim], ``dk`` [groups, seq_k, head_dim] and ``dv`` [groups, seq_k,
    head_dim_v]. ``terms`` holds, shaped like each, what it would be if none of the terms that it is a sum of cancelled
    another; ``rounding`` how far float32 rounding moves each, in units of 2⁻²³: of scores by half of their
    ``|scale| · Σ|q_d · k_d|``, of the log-sum-exp by half of its size, of weights, of their gradients and of what is
    subtracted from these by ``_PARTS``.
    """

    dq: F64
    dk: F64
    dv: F64
    terms: dict[str, F64]
    rounding: dict[str, F64]


def all_groups(problem: AttentionProblem) -> list[tuple[int, int]]:
    """Return every (batch, kv_head)."""
    return list(np.ndindex(problem.batch, problem.kv_heads))


def reference_gradients(
    problem: AttentionProblem,
    inputs: Inputs,
    groups: Sequence[tuple[int, int]] | None = None,
    should_stop: ShouldStop = never_stop,
) -> ReferenceGradients:
    """Return dQ, dK and dV of ``Σ grad_output · output`` for the chosen (batch, kv_head) groups (default all).

    With P the weights, dP = dO Vᵀ and dS = P ∘ (dP - rowsum(P ∘ dP)), times the derivative of the soft cap:
    dV = Pᵀ dO, dQ = scale · dS K, dK = scale · dSᵀ Q (FlashAttention-2, Dao 2023, section 2.2), dK and dV summed over
    the query heads of the group. A row that sees no key has gradient 0 and adds nothing. Non-finite input propagates
    to what depends on it and to nothing else. Raises Cancelled when ``should_stop``, asked between blocks, answers
    True.
    """
    inputs = without_hidden_garbage(problem, inputs)
    assert inputs.grad_output is not None
    groups = all_groups(problem) if groups is None else groups
    dq = np.zeros((len(groups), problem.group, problem.seq_q, problem.head_dim))
    dk = np.zeros((len(groups), problem.seq_k, problem.head_dim))
    dv = np.zeros((len(groups), problem.seq_k, problem.head_dim_v))
    terms = {"dq": np.zeros(dq.shape), "dk": np.zeros(dk.shape), "dv": np.zeros(dv.shape)}
    rounding = {name: np.zeros(array.shape) for name, array in terms.items()}
    step = max(1, _BLOCK_SCORES // problem.seq_k)
    with np.errstate(all="ignore"):  # NaN and inf in the input are counted by the caller, not warned of here
        for n, (b, kv_head) in enumerate(groups):
            k, v = (x[b, kv_head].astype(np.float64) for x in (inputs.k, inputs.v))
            for h in range(problem.group):
                head = kv_head * problem.group + h
                for start in range(0, problem.seq_q, step):
                    if should_stop():
                        raise Cancelled
                    rows = np.arange(start, min(start + step, problem.seq_q))
                    first, end = problem.key_range(rows)
                    keys = slice(int(first.min()), int(end.max()))
                    if keys.stop <= keys.start:
                        continue
                    q, grad = (x[b, head, rows].astype(np.float64) for x in (inputs.q, inputs.grad_output))
                    seen = visible(problem, b, rows, keys.start, keys.stop)
                    made = _rows(problem, (q, k[keys], v[keys], grad), seen)
                    dq[n, h, rows], dk[n, keys], dv[n, keys] = made.dq, dk[n, keys] + made.dk, dv[n, keys] + made.dv
                    for all_, of_rows in ((terms, made.terms), (rounding, made.rounding)):
                        all_["dq"][n, h, rows] = of_rows["dq"]
                        for name in ("dk", "dv"):
                            all_[name][n, keys] += of_rows[name]
    return ReferenceGradients(dq, dk, dv, terms, rounding)


def _rows(problem: AttentionProblem, tensors: tuple[F64, F64, F64, F64], seen: NDArray[np.bool_]) -> ReferenceGradients:
    """Return dQ of a block of rows, and what these rows give dK and dV; ``tensors`` are q, k, v and grad_output."""
    q, k, v, grad = tensors
    made = softmax(problem, q, k, seen)
    weights = np.where(seen, made.weights / made.total[:, None], 0)
    grad_weights = grad @ v.T
    grad_scores = np.where(seen, weights * grad_weights, 0)
    grad_scores -= weights * grad_scores.sum(axis=1, keepdims=True)
    slope: F64 = np.ones(seen.shape)
    if problem.softcap is not None:
        slope = np.where(seen, 1 - (made.scores / problem.softcap) ** 2, 0)
        off_slope = _PARTS + slope * made.sizes / problem.softcap
        off_slope *= np.abs(finite(grad_scores)) * abs(problem.scale)
    grad_scores = np.where(seen, grad_scores * slope * problem.scale, 0)

    sure = finite(weights)
    kept = np.abs(finite(made.lse)) / 2  # a float32 log-sum-exp, which weights are made from again, is off by so much
    off_weights = moved(sure, made.sizes / 2) + (_PARTS + kept[:, None]) * sure
    sizes = np.where(seen, np.abs(finite(grad)) @ np.abs(finite(v)).T, 0)  # of grad_weights, with nothing cancelled
    of_row = ((off_weights + _PARTS * sure) * sizes).sum(axis=1, keepdims=True)
    difference = np.abs(finite(grad_weights - (weights * grad_weights).sum(axis=1, keepdims=True)))
    off_scores = off_weights * np.where(seen, difference, 0) + sure * (_PARTS * sizes + of_row)
    off_scores *= abs(problem.scale) * slope
    if problem.softcap is not None:
        off_scores += off_slope
    sizes_q, sizes_k, sizes_grad, size = (np.abs(finite(array)) for array in (q, k, grad, grad_scores))
    return ReferenceGradients(
        product(grad_scores, k, seen),
        product(grad_scores.T, q, seen.T),
        product(weights.T, grad, seen.T),
        {"dq": size @ sizes_k, "dk": size.T @ sizes_q, "dv": sure.T @ sizes_grad},
        {"dq": finite(off_scores) @ sizes_k, "dk": finite(off_scores).T @ sizes_q, "dv": off_weights.T @ sizes_grad},
    )
