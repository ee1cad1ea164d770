"""Attention in float64, the judge of every kernel: all rows or chosen rows, in blocks so that long sequences fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.inputs import Inputs
from engine.masks import visible, without_hidden_garbage
from engine.problem import AttentionProblem
from engine.running import Cancelled, ShouldStop, never_stop

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


def _rows(
    problem: AttentionProblem,
    q: NDArray[np.float64],
    k: NDArray[np.float64],
    v: NDArray[np.float64],
    seen: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    sizes = np.where(seen, abs(problem.scale) * (np.abs(q) @ np.abs(k).T), 0)
    scores = problem.scale * (q @ k.T)
    if problem.softcap is not None:
        scores = problem.softcap * np.tanh(scores / problem.softcap)
    any_seen = seen.any(axis=1)
    top = np.where(any_seen, np.where(seen, scores, -np.inf).max(axis=1), 0)
    weights = np.where(seen, np.exp(scores - top[:, None]), 0)
    total = np.where(any_seen, weights.sum(axis=1), 1)
    finite_keys = np.asarray(np.isfinite(v).all(axis=1))
    output = weights @ np.where(finite_keys[:, None], v, 0)
    for j in np.flatnonzero(~finite_keys):  # 0 · NaN is NaN: only the rows that see such a key may meet it
        output[seen[:, j]] += weights[seen[:, j], j, None] * v[j]
    lse = np.where(any_seen, top + np.log(total), -np.inf)
    return output / total[:, None], lse, float(sizes.max(initial=0, where=np.isfinite(sizes)))
