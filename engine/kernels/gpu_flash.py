"""gpu-flash: tiled flash attention in WGSL with an online softmax, register-blocked.

A workgroup owns ``rows`` query rows and walks over tiles of ``cols`` keys. A thread owns a block of 4·row_groups rows
by 4·col_groups columns of scores, and of the output the same rows by value_groups vec4 of columns: ``lanes`` threads
side by side share a row. Workgroup memory holds Q transposed (depth × rows), the softmax weights (cols × rows) and,
without subgroups, a vec4 of partial maxima a thread. A layout pass re-lays K by tiles first (and V, where its rows do
not fill the lanes or its keys not whole tiles), so that the loops read both from storage at constant offsets.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from engine.devices import Limits
from engine.gpu.buffers import padded
from engine.gpu.device import GpuDevice
from engine.gpu.probe import MIN_LANES
from engine.gpu.shaders import render
from engine.inputs import Inputs
from engine.kernels.base import Kernel, Prepared
from engine.kernels.gpu import (
    CHUNK_BYTES,
    GpuPrepared,
    common_reason,
    lse_bytes,
    mask_bytes,
    mask_words,
    row_offsets,
    special_bits,
    tensor_buffers,
    too_large,
)
from engine.masks import has_nonfinite, without_hidden_garbage
from engine.problem import AttentionProblem

_THREADS = 32  # of a workgroup, at most
_VALUE_GROUPS_AT_ONCE = 4  # vec4 columns of a tile's sum held in registers beside the running ones
_PARAMS_BYTES = 80
_LAYOUT_PARAMS_BYTES = 16
_LAYOUT_THREADS = 64


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One compiled form of the kernel. ``depth`` is head_dim as held in workgroup memory, ``unroll`` divides it."""

    rows: int
    cols: int
    lanes: int
    row_groups: int
    col_groups: int
    depth: int
    unroll: int
    value_groups: int
    value_unroll: int
    subgroups: bool

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.rows // (4 * self.row_groups) * self.lanes

    @property
    def workgroup_bytes(self) -> int:
        """Workgroup memory the shader declares."""
        partial = 0 if self.subgroups else 16 * self.threads * self.row_groups
        return 4 * self.rows * (self.depth + self.cols) + partial

    @property
    def value_stride(self) -> int:
        """vec4s of a row of V as it is read: whole turns of the threads that share it."""
        return self.lanes * self.value_groups

    def depth_stored(self, head_dim: int) -> int:
        """Return head_dim padded to whole unrolled steps: how deep K's tiles are stored."""
        return _round_up(head_dim, self.unroll)

    def __str__(self) -> str:
        block = f"{4 * self.row_groups}x{4 * self.col_groups}"
        reduce = "subgroup" if self.subgroups else "workgroup"
        return f"{self.rows}x{self.cols} block {block} lanes {self.lanes} unroll {self.unroll} {reduce}"


def choose_variant(problem: AttentionProblem, limits: Limits) -> Variant | None:
    """Return the variant to compile for the problem within these limits, None where none fits. Pure.

    On software adapters a compile costs seconds when unrolled, so head_dim goes by power-of-two buckets and loops are
    unrolled by 4 only. A GPU gets a shader of its own for each head_dim, and one subgroup of 32 threads a workgroup
    with as many lanes a row as the output has vec4: small blocks and few registers were fastest on an NVIDIA H200.
    """
    if limits.software:
        lanes, unroll, value_unroll = 8, 4, 1
        depth = max(32, _power_of_two(problem.head_dim))
    else:
        widest = limits.subgroup_size if limits.subgroup_size >= MIN_LANES else 32
        lanes = min(max(8, _power_of_two(-(-problem.head_dim_v // 4))), 32, widest)
        depth = _round_up(problem.head_dim, 4)
        unroll = next(u for u in (32, 16, 8, 4) if depth % u == 0)
        value_unroll = 8
    value_groups = -(-problem.head_dim_v // (4 * lanes))
    for rows in (16, 8, 4):
        variant = Variant(
            rows=rows,
            cols=4 * lanes,
            lanes=lanes,
            row_groups=1,
            col_groups=1,
            depth=depth,
            unroll=unroll,
            value_groups=_power_of_two(value_groups) if limits.software else value_groups,
            value_unroll=value_unroll,
            subgroups=limits.subgroup_size >= lanes,
        )
        if variant.threads <= _THREADS and variant.workgroup_bytes <= limits.workgroup_bytes:
            return variant
    return None


class GpuFlash(Kernel):
    """Flash attention in WGSL."""

    name = "gpu-flash"
    summary = "WGSL, tiled, online softmax: no score matrix in memory"
    device_kind = "gpu"
    naive = "gpu-naive"

    def supports(self, problem: AttentionProblem, limits: Limits) -> str | None:
        """Return None when the problem fits, else the reason with the figures that clash."""
        variant = choose_variant(problem, limits)
        if variant is None:
            return f"no tile fits this device's {limits.workgroup_bytes} bytes of workgroup memory"
        for label, nbytes in zip(("K by tiles", "V by tiles"), _laid_bytes(problem, variant), strict=True):
            if nbytes > limits.binding_bytes:
                return too_large(label, nbytes, limits.binding_bytes, "this device's binding limit")
        return common_reason(self.name, problem, limits, self.predict(problem, limits))

    def predict(self, problem: AttentionProblem, limits: Limits, *, want_lse: bool = False) -> int:
        """Return the bytes of all its buffers."""
        variant = choose_variant(problem, limits)
        if variant is None:
            return 0
        keys, values = _laid_bytes(problem, variant)
        passes = [_PARAMS_BYTES, _LAYOUT_PARAMS_BYTES] + ([_LAYOUT_PARAMS_BYTES] if values else [])
        return (
            sum(tensor_buffers(problem)) + mask_bytes(problem) + lse_bytes(problem, want_lse) + keys + values
            + sum(params + CHUNK_BYTES for params in passes)
        )  # fmt: skip

    def prepare(
        self, problem: AttentionProblem, inputs: Inputs, device: GpuDevice, *, want_lse: bool = False
    ) -> Prepared:
        """Compile the passes and upload the inputs."""
        variant = choose_variant(problem, device.limits)
        if variant is None:
            raise ValueError(self.supports(problem, device.limits))
        prepared = GpuPrepared(problem, device, want_lse)
        try:
            _fill(prepared, variant, without_hidden_garbage(problem, inputs))
        except BaseException:
            prepared.close()
            raise
        return prepared


def _fill(prepared: GpuPrepared, variant: Variant, inputs: Inputs) -> None:
    problem, buffers = prepared.problem, prepared.buffers
    prepared.variant = str(variant)
    prepared.common_buffers(inputs.q, inputs.k, inputs.v)
    keys_bytes, values_bytes = _laid_bytes(problem, variant)
    keys = buffers.storage("keys by tiles", keys_bytes)
    tiles = -(-problem.seq_k // variant.cols)
    depth = variant.depth_stored(problem.head_dim)

    def layout(what: str, width: int, stride: int, source: Any, target: Any) -> Any:
        code = render("gpu_flash_layout", what=what, cols=variant.cols)
        params = np.array([problem.seq_k, width, tiles, stride], np.uint32)
        workgroups = -(-target.size // (16 * _LAYOUT_THREADS))
        return prepared.dispatch(code, "rw", params, [source, target], workgroups, cost=16.0 * _LAYOUT_THREADS)

    dispatches = [layout("keys", problem.head_dim, depth, prepared.key, keys)]
    values = prepared.value
    if values_bytes:
        values = buffers.storage("values by tiles", values_bytes)
        dispatches.append(layout("values", problem.head_dim_v, variant.value_stride, prepared.value, values))

    source = render(
        "gpu_flash",
        **msgspec.structs.asdict(variant),
        threads=variant.threads,
        workgroup_bytes=variant.workgroup_bytes,
        value_groups_at_once=_VALUE_GROUPS_AT_ONCE,
        shuffles=[1 << i for i in range(variant.lanes.bit_length() - 1)],
        careful=has_nonfinite(inputs),
    )
    row_tiles = -(-problem.seq_q // variant.rows)
    params = np.zeros(_PARAMS_BYTES // 4, np.uint32)
    params[:12] = (
        problem.seq_q, problem.seq_k, problem.head_dim, problem.head_dim_v,
        problem.pairs, problem.heads, problem.group, row_tiles,
        tiles, depth // variant.unroll, mask_words(problem), prepared.want_lse,
    )  # fmt: skip
    params[12:14].view(np.int32)[:] = row_offsets(problem)
    params[14:16] = special_bits()
    log2e = 1.0 if problem.softcap else np.log2(np.e)  # with softcap it comes in after the tanh
    params[16:18].view(np.float32)[:] = (problem.scale * log2e, problem.softcap or 0.0)
    dispatches.append(
        prepared.dispatch(
            source,
            "rrrrww",
            params,
            [prepared.query, keys, values, prepared.mask, prepared.output, prepared.lse],
            problem.pairs * row_tiles,
            _workgroup_flops(problem, variant),
        )
    )
    prepared.ready(dispatches)


def _laid_bytes(problem: AttentionProblem, variant: Variant) -> tuple[int, int]:
    """Return the bytes of K by tiles, and of V by tiles (0 where V is read as it is)."""
    pairs = problem.batch * problem.kv_heads
    tiles = -(-problem.seq_k // variant.cols)
    keys = 4 * pairs * tiles * variant.cols * variant.depth_stored(problem.head_dim)
    as_it_is = problem.seq_k % variant.cols == 0 and 4 * variant.value_stride == problem.head_dim_v
    return padded(keys), 0 if as_it_is else padded(16 * pairs * tiles * variant.cols * variant.value_stride)


def _workgroup_flops(problem: AttentionProblem, variant: Variant) -> float:
    """Return the multiply-adds of an average workgroup, times two, padding and partly masked tiles included."""
    row0 = np.arange(0, problem.seq_q, variant.rows)
    first, _ = problem.key_range(row0)
    _, end = problem.key_range(np.minimum(row0 + variant.rows, problem.seq_q) - 1)
    tiles = np.maximum(-(-end // variant.cols) - first // variant.cols, 0).mean() + 1  # 1: loading Q, storing O
    return float(2 * tiles * variant.rows * variant.cols * (variant.depth + 4 * variant.value_stride))


def _power_of_two(value: int) -> int:
    """Return the least power of two that is no less than ``value``."""
    return 1 << (value - 1).bit_length()


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
