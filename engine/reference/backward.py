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
from engine.reference.forward import product, softmax

_BLOCK_SCORES = 1 << 20  # float64 scores held at once: 8 MiB

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class ReferenceGradients:
    """Gradients of the chosen (batch, kv_head) groups, float64.

    ``dq`` is [groups, heads of a group, seq_q, head_dim], ``dk`` [groups, seq_k, head_dim] and ``dv`` [groups, seq_k,
    head_dim_v]. ``largest`` is the greatest ``|scale| · Σ|q_d · k_d|`` over the visible pairs, ``dq_terms`` and
    ``dk_terms`` are the greatest elements that dQ and dK would have if none of the terms that they are sums of
    cancelled another: what float32 rounding of the scores and of their gradients is relative to.
    """

    dq: F64
    dk: F64
    dv: F64
    largest: float
    dq_terms: float
    dk_terms: float


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
    largest = dq_terms = dk_terms = 0.0
    step = max(1, _BLOCK_SCORES // problem.seq_k)
    with np.errstate(all="ignore"):  # NaN and inf in the input are counted by the caller, not warned of here
        for n, (b, kv_head) in enumerate(groups):
            k, v = (x[b, kv_head].astype(np.float64) for x in (inputs.k, inputs.v))
            terms = np.zeros(k.shape)
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
                    of_keys = dk[n, keys], dv[n, keys], terms[keys]
                    of_rows, sizes = _add_rows(problem, (q, k[keys], v[keys], grad), seen, of_keys)
                    dq[n, h, rows] = of_rows
                    largest, dq_terms = max(largest, sizes[0]), max(dq_terms, sizes[1])
            dk_terms = max(dk_terms, float(terms.max()))
    return ReferenceGradients(dq, dk, dv, largest, dq_terms, dk_terms)


def _add_rows(
    problem: AttentionProblem,
    tensors: tuple[F64, F64, F64, F64],
    seen: NDArray[np.bool_],
    of_keys: tuple[F64, F64, F64],
) -> tuple[F64, tuple[float, float]]:
    """Return dQ of a block of rows, the largest scores' size and that of the terms of dQ.

    What these rows give dK, dV and the terms of dK is added to ``of_keys``.
    """
    q, k, v, grad = tensors
    dk, dv, dk_terms = of_keys
    scores, weights, total, _, largest = softmax(problem, q, k, seen)
    weights = np.where(seen, weights / total[:, None], 0)
    grad_weights = grad @ v.T
    grad_scores = np.where(seen, weights * grad_weights, 0)
    grad_scores -= weights * grad_scores.sum(axis=1, keepdims=True)
    if problem.softcap is not None:
        grad_scores *= np.where(seen, 1 - (scores / problem.softcap) ** 2, 0)
    grad_scores *= problem.scale
    grad_scores = np.where(seen, grad_scores, 0)
    dv += product(weights.T, grad, seen.T)
    dk += product(grad_scores.T, q, seen.T)
    sizes = np.where(seen, weights * (np.abs(grad) @ np.abs(v).T), 0)
    sizes += weights * sizes.sum(axis=1, keepdims=True)
    sizes *= abs(problem.scale)
    dq_terms, more = _finite(sizes) @ _finite(np.abs(k)), _finite(sizes).T @ _finite(np.abs(q))
    dk_terms += more
    return product(grad_scores, k, seen), (largest, float(dq_terms.max()))


def _finite(values: F64) -> F64:
    return np.where(np.isfinite(values), values, 0)
