"""Attention in float64, the judge of every kernel: all rows or chosen rows, in blocks so that long sequences fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.common.running import Cancelled, ShouldStop, never_stop
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import visible, without_hidden_garbage

_BLOCK_SCORES = 1 << 20  # float64 scores held at once: 8 MiB

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class ReferenceOutput:
    """What attention gives for chosen query rows of every (batch, head) pair, in float64.

    ``output`` is [batch, heads, rows, head_dim_v], ``lse`` (natural log) [batch, heads, rows]. ``largest`` is the
    greatest ``|scale| · Σ|q_d · k_d|`` over the visible pairs that were compared. ``terms``, shaped as the output, is
    what it would be if no term cancelled another, Σ p·|v|; ``of_scores`` is how far it moves, in units of 2⁻²³, when
    each score is off by half of its ``|scale| · Σ|q_d · k_d|`` in those units; ``lost`` is the largest part of it that
    weights below 1 times the row's largest may add up to, Σ|v| / Σp, for weights that a device takes for 0.
    """

    output: F64
    lse: F64
    largest: float
    terms: F64
    of_scores: F64
    lost: F64


def reference(
    problem: AttentionProblem,
    inputs: Inputs,
    rows: NDArray[np.int64] | None = None,
    should_stop: ShouldStop = never_stop,
) -> tuple[F64, F64, float]:
    """Return ``(output, lse, largest)`` of ``reference_output``."""
    found = reference_output(problem, inputs, rows, should_stop)
    return found.output, found.lse, found.largest


def reference_output(
    problem: AttentionProblem,
    inputs: Inputs,
    rows: NDArray[np.int64] | None = None,
    should_stop: ShouldStop = never_stop,
) -> ReferenceOutput:
    """Return what attention gives for the chosen query rows of every (batch, head) pair.

    ``rows`` holds query indices (default all). A row that sees no key gives 0 and -inf. Non-finite input propagates as
    IEEE arithmetic has it, to the rows that see it and to no other. Raises Cancelled when ``should_stop``, asked
    between blocks, answers True.
    """
    inputs = without_hidden_garbage(problem, inputs)
    rows = np.arange(problem.seq_q) if rows is None else np.asarray(rows, np.int64)
    shape = (problem.batch, problem.heads, len(rows), problem.head_dim_v)
    output, terms, of_scores, lost = (np.zeros(shape) for _ in range(4))
    lse = np.full(shape[:3], -np.inf)
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
                    at = (b, h, slice(start, start + step))
                    made = softmax(problem, q, k, seen)
                    weights = made.weights / made.total[:, None]
                    sizes = np.abs(finite(v))
                    output[at] = product(made.weights, v, seen) / made.total[:, None]
                    lse[at] = made.lse
                    terms[at] = finite(weights) @ sizes
                    of_scores[at] = moved(finite(weights), made.sizes / 2) @ sizes
                    lost[at] = seen @ sizes / made.total[:, None]
                    largest = max(largest, made.largest)
    return ReferenceOutput(output, lse, largest, finite(terms), finite(of_scores), finite(lost))


def moved(weights: F64, errors: F64) -> F64:
    """Return how far the weights [rows, keys] of a softmax move when the scores are off by ``errors``.

    Weight j moves by ``p_j · (e_j - Σ p·e)``, which is next to nothing where one weight is nearly all there is.
    """
    common = (weights * errors).sum(axis=1, keepdims=True)
    found: F64 = weights * np.maximum(0, (1 - 2 * weights) * errors + common)
    return found


def finite(values: F64) -> F64:
    """Return ``values`` with 0 for what is not finite."""
    return np.where(np.isfinite(values), values, 0)


@dataclass(frozen=True)
class Softmax:
    """What a block of rows makes of some keys, in float64.

    ``scores`` after scale and soft cap and ``weights`` relative to the row's maximum, both [rows, keys], the weights 0
    where not seen; their sums ``total`` [rows], 1 for a row that sees nothing; the log-sum-exp ``lse`` [rows];
    ``sizes``, the ``|scale| · Σ|q_d · k_d|`` of what is seen and finite, and the largest of them.
    """

    scores: F64
    weights: F64
    total: F64
    lse: F64
    sizes: F64
    largest: float


def softmax(problem: AttentionProblem, q: F64, k: F64, seen: NDArray[np.bool_]) -> Softmax:
    """Return what a block of rows [rows, head_dim] makes of some keys [keys, head_dim]."""
    sizes = finite(np.where(seen, abs(problem.scale) * (np.abs(q) @ np.abs(k).T), 0))
    scores = problem.scale * (q @ k.T)
    if problem.softcap is not None:
        scores = problem.softcap * np.tanh(scores / problem.softcap)
    any_seen = seen.any(axis=1)
    top = np.where(any_seen, np.where(seen, scores, -np.inf).max(axis=1), 0)
    weights = np.where(seen, np.exp(scores - top[:, None]), 0)
    total = np.where(any_seen, weights.sum(axis=1), 1)
    lse = np.where(any_seen, top + np.log(total), -np.inf)
    return Softmax(scores, weights, total, lse, sizes, float(sizes.max(initial=0)))


def product(weights: F64, values: F64, seen: NDArray[np.bool_]) -> F64:
    """Return ``weights`` [rows, keys] times ``values`` [keys, n]; what is not finite is met only where it is ``seen``.

    0 · NaN is NaN, so a row must not even meet with weight 0 what it does not see.
    """
    sound = np.asarray(np.isfinite(values).all(axis=1))
    sums: F64 = weights @ np.where(sound[:, None], values, 0)
    for j in np.flatnonzero(~sound):
        sums[seen[:, j]] += weights[seen[:, j], j, None] * values[j]
    return sums
