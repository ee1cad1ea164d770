"""gpu-naive, backward: the gradients as everyone writes them, in WGSL, through two whole matrices in memory.

Scores and gradients of the weights are tiled products like those of the forward pass, whose shaders they use; a pass
over both matrices makes weights P and gradients of the scores dS of them; dQ = dS K is the forward pass's second
product, dK = dSᵀ Q and dV = Pᵀ dO are products of their own, summed over the heads of a group. The matrices of all
(batch, head) pairs exist at once, in as few buffers of whole pairs as the device's binding limit allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.devices.device import Limits
from engine.devices.gpu.buffers import padded
from engine.devices.gpu.device import GpuDevice
from engine.devices.gpu.shaders import render
from engine.devices.gpu.timing import Dispatch
from engine.kernels.gpu import CHUNK_BYTES, mask_words, row_offsets, special_bits
from engine.kernels.gpu_backward import GpuBackward, common_bytes
from engine.kernels.gpu_naive.cut import PARAMS_BYTES, TILE, groups, unroll_for
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import has_nonfinite, without_hidden_garbage

_PASSES = 6  # for each group of pairs


def predict(problem: AttentionProblem, limits: Limits) -> int:
    """Return the bytes of all its buffers."""
    pair = 4 * problem.seq_q * problem.seq_k
    of_groups = sum(
        2 * padded(pairs * pair) + _PASSES * (PARAMS_BYTES + CHUNK_BYTES) for _, pairs in groups(problem, limits)
    )
    return common_bytes(problem) + of_groups


def prepare(problem: AttentionProblem, inputs: Inputs, device: GpuDevice) -> GpuBackward:
    """Compile the passes and upload the inputs, which hold output and log-sum-exp."""
    inputs = without_hidden_garbage(problem, inputs)
    prepared = GpuBackward(problem, device)
    try:
        dispatches = [prepared.common_buffers(inputs)]
        for first_pair, pairs in groups(problem, device.limits):
            dispatches += _passes(prepared, first_pair, pairs, has_nonfinite(inputs))
        prepared.ready(dispatches)
        prepared.variant = f"{TILE}x{TILE} block 4x4 unroll {unroll_for(device.limits)}"
    except BaseException:
        prepared.close()
        raise
    return prepared


def _passes(prepared: GpuBackward, first_pair: int, pairs: int, careful: bool) -> Iterator[Dispatch]:
    """Yield the dispatches for ``pairs`` pairs from ``first_pair`` on, with two matrices of their own."""
    problem, limits = prepared.problem, prepared.device.limits
    nbytes = 4 * pairs * problem.seq_q * problem.seq_k
    weights = prepared.buffers.storage("weights", nbytes)
    grad_scores = prepared.buffers.storage("grad_scores", nbytes)
    row_tiles, key_tiles = -(-problem.seq_q // TILE), -(-problem.seq_k // TILE)
    unroll = unroll_for(limits)

    for matrix, rows, keys, width, scale, softcap in (
        (weights, prepared.query, prepared.key, problem.head_dim, problem.scale, problem.softcap or 0.0),
        (grad_scores, prepared.grad_output, prepared.value, problem.head_dim_v, 1.0, 0.0),
    ):
        params = _params(problem.seq_q, problem.seq_k, width, row_tiles, key_tiles, problem.group, first_pair, pairs)
        params[8:10].view(np.float32)[:] = (scale, softcap)
        yield prepared.dispatch(
            render("gpu_naive/scores", aligned=problem.seq_k % 4 == 0, unroll=unroll),
            "rrw",
            params,
            [rows, keys, matrix],
            pairs * row_tiles * key_tiles,
            2.0 * TILE * TILE * max(width, 16),
        )

    params = _params(problem.seq_q, problem.seq_k, problem.heads, mask_words(problem))
    params[4:6].view(np.int32)[:] = row_offsets(problem)
    params[6:8] = (first_pair, pairs * problem.seq_q)
    params[8:10].view(np.float32)[:] = (problem.scale, problem.softcap or 0.0)
    params[10:12] = special_bits()
    yield prepared.dispatch(
        render("gpu_naive/backward_softmax", careful=careful),
        "rrww",
        params,
        [prepared.mask, prepared.rows, weights, grad_scores],
        pairs * problem.seq_q,
        16.0 * max(problem.seq_k, 1024),
    )

    cols = _columns(problem.head_dim)
    yield prepared.dispatch(
        render("gpu_naive/output", cols=cols, unroll=unroll, careful=careful),
        "rrw",
        _params(
            problem.seq_q,
            problem.seq_k,
            problem.head_dim,
            row_tiles,
            -(-problem.head_dim // cols),
            problem.group,
            first_pair,
            pairs,
        ),
        [grad_scores, prepared.key, prepared.dq],
        pairs * row_tiles * -(-problem.head_dim // cols),
        2.0 * TILE * cols * max(problem.seq_k, 16),
    )

    kv_pairs = (first_pair + pairs - 1) // problem.group - first_pair // problem.group + 1
    for matrix, rows, width, gradient in (
        (grad_scores, prepared.query, problem.head_dim, prepared.dk),
        (weights, prepared.grad_output, problem.head_dim_v, prepared.dv),
    ):
        cols = _columns(width)
        workgroups = key_tiles * -(-width // cols)
        yield prepared.dispatch(
            render("gpu_naive/backward_keys", cols=cols, unroll=unroll, careful=careful),
            "rrw",
            _params(
                problem.seq_q, problem.seq_k, width, key_tiles, -(-width // cols), problem.group, first_pair, pairs
            ),
            [matrix, rows, gradient],
            kv_pairs * workgroups,
            2.0 * TILE * cols * max(problem.seq_q, 16) * pairs / kv_pairs,
        )


def _params(*values: int) -> NDArray[Any]:
    params = np.zeros(PARAMS_BYTES // 4, np.uint32)
    params[: len(values)] = values
    return params


def _columns(width: int) -> int:
    """Return the columns of a tile of a product whose rows have that width."""
    return 32 if width <= 32 else TILE
