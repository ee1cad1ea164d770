"""gpu-naive: attention as everyone writes it, in WGSL: whole score matrices in memory, three passes.

Scores and output are tiled products (64×64 tiles, 4×4 blocks a thread, 8 KiB of workgroup memory), the softmax takes a
workgroup a row. The matrices of all (batch, head) pairs exist at once, in as few buffers of whole pairs as the device's
binding limit allows.
"""

from __future__ import annotations

import numpy as np

from engine.devices.device import Limits
from engine.devices.gpu.buffers import padded
from engine.devices.gpu.device import GpuDevice
from engine.devices.gpu.shaders import render
from engine.devices.gpu.timing import Dispatch
from engine.kernels.base import Kernel, Prepared
from engine.kernels.gpu import (
    CHUNK_BYTES,
    GpuForward,
    common_reason,
    lse_bytes,
    mask_bytes,
    mask_words,
    row_offsets,
    special_bits,
    tensor_buffers,
    too_large,
)
from engine.kernels.gpu_naive import backward as backward
from engine.kernels.gpu_naive.cut import PARAMS_BYTES, TILE, groups, unroll_for
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import has_nonfinite, without_hidden_garbage


class GpuNaive(Kernel):
    """Naive attention in WGSL."""

    name = "gpu-naive"
    summary = "WGSL, whole score matrices in memory, tiled products"
    device_kind = "gpu"
    naive = "gpu-naive"
    honours = ("causal", "window", "softcap", "scale", "key_mask")

    def supports(self, problem: AttentionProblem, limits: Limits) -> str | None:
        """Return None when the problem fits, else the reason with the figures that clash."""
        if problem.dtype != "f32":
            return f"{self.name} computes and stores float32 only; run it with dtype f32"
        one_pair = 4 * problem.seq_q * problem.seq_k
        largest = min(limits.binding_bytes, limits.buffer_bytes)
        if one_pair > largest:
            return too_large("one pair's score matrix", one_pair, largest, "this device's binding limit")
        return common_reason(self.name, problem, limits, self.predict(problem, limits))

    def predict(self, problem: AttentionProblem, limits: Limits, *, want_lse: bool = False) -> int:
        """Return the bytes of all its buffers."""
        if problem.backward:
            return backward.predict(problem, limits)
        pair = 4 * problem.seq_q * problem.seq_k
        grouped = list(groups(problem, limits)) if pair <= limits.binding_bytes else [(0, problem.pairs)]
        return (
            sum(tensor_buffers(problem)) + mask_bytes(problem) + lse_bytes(problem, want_lse)
            + sum(padded(pairs * pair) + 3 * (PARAMS_BYTES + CHUNK_BYTES) for _, pairs in grouped)
        )  # fmt: skip

    def prepare(
        self, problem: AttentionProblem, inputs: Inputs, device: GpuDevice, *, want_lse: bool = False
    ) -> Prepared:
        """Compile the passes and upload the inputs."""
        if problem.backward:
            return backward.prepare(problem, self.with_forward(problem, inputs, device), device)
        prepared = GpuForward(problem, device, want_lse)
        try:
            inputs = without_hidden_garbage(problem, inputs)
            prepared.common_buffers(inputs)
            dispatches: list[Dispatch] = []
            for first_pair, pairs in groups(problem, device.limits):
                dispatches += _passes(prepared, first_pair, pairs, careful=has_nonfinite(inputs))
            prepared.ready(dispatches)
        except BaseException:
            prepared.close()
            raise
        return prepared


def _passes(prepared: GpuForward, first_pair: int, pairs: int, careful: bool) -> list[Dispatch]:
    """Return the three dispatches for ``pairs`` pairs from ``first_pair`` on, with a score buffer of their own."""
    problem, limits = prepared.problem, prepared.device.limits
    scores = prepared.buffers.storage("scores", 4 * pairs * problem.seq_q * problem.seq_k)
    unroll = unroll_for(limits)
    threads = 64 if problem.seq_k <= 1024 else 256
    cols = 32 if problem.head_dim_v <= 32 else TILE
    row_tiles, key_tiles = -(-problem.seq_q // TILE), -(-problem.seq_k // TILE)
    column_tiles = -(-problem.head_dim_v // cols)
    prepared.variant = f"{TILE}x{TILE} block 4x4 unroll {unroll}"

    products = np.zeros(PARAMS_BYTES // 4, np.uint32)
    products[:8] = (
        problem.seq_q, problem.seq_k, problem.head_dim, row_tiles, key_tiles, problem.group, first_pair, pairs,
    )  # fmt: skip
    products[8:10].view(np.float32)[:] = (problem.scale, problem.softcap or 0.0)
    softmax = np.zeros(PARAMS_BYTES // 4, np.uint32)
    softmax[:4] = (problem.seq_q, problem.seq_k, problem.heads, mask_words(problem))
    softmax[4:6].view(np.int32)[:] = row_offsets(problem)
    softmax[6:11] = (first_pair, pairs * problem.seq_q, *special_bits(), prepared.want_lse)
    combined = np.zeros(PARAMS_BYTES // 4, np.uint32)
    combined[:8] = (
        problem.seq_q, problem.seq_k, problem.head_dim_v, row_tiles, column_tiles, problem.group, first_pair, pairs,
    )  # fmt: skip
    return [
        prepared.dispatch(
            render("gpu_naive/scores", aligned=problem.seq_k % 4 == 0, unroll=unroll),
            "rrw",
            products,
            [prepared.query, prepared.key, scores],
            pairs * row_tiles * key_tiles,
            2.0 * TILE * TILE * max(problem.head_dim, 16),
        ),
        prepared.dispatch(
            render("gpu_naive/softmax", threads=threads, careful=careful),
            "rww",
            softmax,
            [prepared.mask, scores, prepared.lse],
            pairs * problem.seq_q,
            16.0 * max(problem.seq_k, 4 * threads),
        ),
        prepared.dispatch(
            render("gpu_naive/output", cols=cols, unroll=unroll, careful=careful),
            "rrw",
            combined,
            [scores, prepared.value, prepared.output],
            pairs * row_tiles * column_tiles,
            2.0 * TILE * cols * max(problem.seq_k, 16),
        ),
    ]
