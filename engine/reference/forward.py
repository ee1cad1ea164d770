"""Attention in float64, the judge of every kernel: all rows or chosen rows, in blocks so that long sequences fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.common.running import Cancelled, ShouldStop, never_stop
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import visible, without_hidden_garbage

_BLOCK_SCORES = 1 << 20  # float64 scores held at once: 8 MiB


def reference(
    problem: AttentionProblem,
    inputs: Inputs,
    rows: NDArray[np.int64] | None = None,
    should_stop: ShouldStop = never_stop,
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return float64 ``(output, lse, largest)`` for the chosen query rows of every (batch, head) pair.

    ``rows`` holds query indices (default all). ``output`` is [batch, heads, len(rows), head_dim_v], ``lse`` (natural
    log) [batch, heads, len(rows)]. ``largest`` is the greatest ``|scale| · Σ|q_d · k_d|`` over the visible pairs that
    were compared: float32 scores can be no better than rounding relative to it. A row that sees no key gives 0 and
    -inf. Non-finite input propagates as IEEE arithmetic has it, to the rows that see it and to no other. Raises
    Cancelled when ``should_stop``, asked between blocks, answers True.
    """
    inputs = without_hidden_garbage(problem, inputs)
    rows = np.arange(problem.seq_q) if rows is None else np.asarray(rows, np.int64)
    output = np.zeros((problem.batch, problem.heads, len(rows), problem.head_dim_v))
    lse = np.full((problem.batch, problem.heads, len(rows)), -np.inf)
    largest = 0.0
    step = max(1, _BLOCK_SCORES // problem.seq_k)
    with np.errstate(all="ignore"):  # NaN and inf in the input are counted by the caller, not warned of here
        for b in range(problem.batch):
            for start in range(0, len(rows), step):
                block = rows[start : start + step]
                first, end = problem.key_range(block)
                lo, hi = int(first.min()), int(end.max())
                if hi <= lo:
                    continue
                seen = visible(problem, b, block, lo, hi)
                for h in range(problem.heads):
                    if should_stop():
                        raise Cancelled
                    k = inputs.k[b, h // problem.group, lo:hi].astype(np.float64)
                    v = inputs.v[b, h // problem.group, lo:hi].astype(np.float64)
                    q = inputs.q[b, h, block].astype(np.float64)
                    block_output, block_lse, block_largest = _rows(problem, q, k, v, seen)
                    output[b, h, start : start + step], lse[b, h, start : start + step] = block_output, block_lse
                    largest = max(largest, block_largest)
    return output, lse, largest


def softmax(
    problem: AttentionProblem, q: NDArray[np.float64], k: NDArray[np.float64], seen: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], float]:
    """Return what a block of rows [rows, head_dim] makes of some keys [keys, head_dim], in float64.

    The result is ``(scores, weights, total, lse, largest)``: scores after scale and soft cap and weights relative to
    the row's maximum, both [rows, keys], the weights 0 where not ``seen``; their sums ``total`` [rows], 1 for a row
    that sees nothing; the log-sum-exp [rows]; and the largest ``|scale| · Σ|q_d · k_d|`` that is seen and finite.
    """
    sizes = np.where(seen, abs(problem.scale) * (np.abs(q) @ np.abs(k).T), 0)
    scores = problem.scale * (q @ k.T)
    if problem.softcap is not None:
        scores = problem.softcap * np.tanh(scores / problem.softcap)
    any_seen = seen.any(axis=1)
    top = np.where(any_seen, np.where(seen, scores, -np.inf).max(axis=1), 0)
    weights = np.where(seen, np.exp(scores - top[:, None]), 0)
    total = np.where(any_seen, weights.sum(axis=1), 1)
    lse = np.where(any_seen, top + np.log(total), -np.inf)
    return scores, weights, total, lse, float(sizes.max(initial=0, where=np.isfinite(sizes)))


def _rows(
    problem: AttentionProblem,
    q: NDArray[np.float64],
    k: NDArray[np.float64],
    v: NDArray[np.float64],
    seen: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    _, weights, total, lse, largest = softmax(problem, q, k, seen)
    return product(weights, v, seen) / total[:, None], lse, largest


def product(weights: NDArray[np.float64], values: NDArray[np.float64], seen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return ``weights`` [rows, keys] times ``values`` [keys, n]; what is not finite is met only where it is ``seen``.

    0 · NaN is NaN, so a row must not even meet with weight 0 what it does not see.
    """
    finite = np.asarray(np.isfinite(values).all(axis=1))
    sums: NDArray[np.float64] = weights @ np.where(finite[:, None], values, 0)
    for j in np.flatnonzero(~finite):
        sums[seen[:, j]] += weights[seen[:, j], j, None] * values[j]
    return sums
