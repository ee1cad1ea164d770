"""gpu-flash: tiled flash attention in WGSL with an online softmax, register-blocked; split keys where rows are few.

Tiles (most problems): a workgroup owns ``rows`` query rows and walks over tiles of ``cols`` keys. A thread owns a block
of 4·row_groups rows by 4·col_groups columns of scores, and of the output the same rows by value_groups vec4 of columns:
``lanes`` threads side by side share a row. Workgroup memory holds Q transposed (depth × rows), the softmax weights
(cols × rows) and, without subgroups, a vec4 of partial maxima a thread. A layout pass re-lays K by tiles first (and V,
where its rows do not fill the lanes or its keys not whole tiles), so that the loops read both at constant offsets; it
converts to float32 where storage is half precision. Large blocks, for much work, have Q re-laid as well and hold
weights alone, of half a tile's columns at a time.

Decode (few queries, a long cache): a workgroup owns rows of all heads of a group and a part of the keys, which it
streams once; see shaders/gpu_flash/decode. Where keys are split, a combining pass joins the parts (flash decoding).
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.devices.device import Limits
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
from engine.kernels.gpu_flash import backward as backward
from engine.kernels.gpu_flash.variant import (
    NAME,
    Decode,
    Tiles,
    Variant,
    abreast,
    candidates,
    choose_variant,
    power_of_two,
    scratch_bytes,
)
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import has_nonfinite, without_hidden_garbage

_PARAMS_BYTES = 80  # of the tiles and decode passes
_LAYOUT_PARAMS_BYTES = 16
_COMBINE_PARAMS_BYTES = 32
_LAYOUT_THREADS = 64
_LOG2_E = float(np.log2(np.e))


class GpuFlash(Kernel):
    """Flash attention in WGSL."""

    name = NAME
    summary = "WGSL, tiled, online softmax: no score matrix in memory"
    device_kind = "gpu"
    naive = "gpu-naive"
    honours = ("causal", "window", "softcap", "scale", "key_mask")

    def supports(self, problem: AttentionProblem, limits: Limits) -> str | None:
        """Return None when the problem fits, else the reason with the figures that clash."""
        if problem.dtype == "f16" and not limits.f16:
            return "this device does not offer shader-f16; run it with dtype f32"
        if problem.backward and problem.dtype != "f32":
            return f"{self.name} is raced backward in f32 only, not {problem.dtype}"
        scratch = _scratch_of(problem, limits)
        if scratch is None:
            return f"no tile fits this device's {limits.workgroup_bytes} bytes of workgroup memory"
        for label, nbytes in scratch.items():
            if nbytes > limits.binding_bytes:
                return too_large(label, nbytes, limits.binding_bytes, "this device's binding limit")
        return common_reason(self.name, problem, limits, self.predict(problem, limits))

    def predict(self, problem: AttentionProblem, limits: Limits, *, want_lse: bool = False) -> int:
        """Return the bytes of all its buffers."""
        if problem.backward:
            form = backward.choose_form(problem, limits)
            return 0 if form is None else backward.predict(problem, form)
        variant = choose_variant(problem, limits)
        if variant is None:
            return 0
        return (
            sum(tensor_buffers(problem)) + mask_bytes(problem) + lse_bytes(problem, want_lse)
            + sum(scratch_bytes(problem, variant).values()) + _uniform_bytes(problem, variant)
        )  # fmt: skip

    def candidates(self, problem: AttentionProblem, limits: Limits) -> list[msgspec.Struct]:
        """Return the variants worth measuring, what is chosen untuned first; backward there is no choice. Pure."""
        return [] if problem.backward else list(candidates(problem, limits))

    def prepare(
        self, problem: AttentionProblem, inputs: Inputs, device: GpuDevice, *, want_lse: bool = False
    ) -> Prepared:
        """Compile the passes and upload the inputs."""
        if problem.backward:
            form = backward.choose_form(problem, device.limits)
            if form is None:
                raise ValueError(self.supports(problem, device.limits))
            return backward.prepare(problem, self.with_forward(problem, inputs, device), device, form)
        variant = choose_variant(problem, device.limits)
        if variant is None:
            raise ValueError(self.supports(problem, device.limits))
        prepared = GpuForward(problem, device, want_lse)
        try:
            inputs = without_hidden_garbage(problem, inputs)
            prepared.variant = str(variant)
            prepared.common_buffers(inputs)
            scratch = {name: prepared.buffers.storage(name, n) for name, n in scratch_bytes(problem, variant).items()}
            careful = has_nonfinite(inputs)
            passes: list[Dispatch] = []
            if isinstance(variant, Tiles):
                passes += _layouts(prepared, variant, scratch)
                passes.append(_tiles(prepared, variant, scratch, careful))
            else:
                passes.append(_decode(prepared, variant, scratch, careful))
            if "partial outputs" in scratch:
                passes.append(_combine(prepared, variant, scratch))
            prepared.ready(passes)
        except BaseException:
            prepared.close()
            raise
        return prepared


def _scratch_of(problem: AttentionProblem, limits: Limits) -> dict[str, int] | None:
    """Return the scratch buffers the problem needs, by name, in bytes; None where no variant fits."""
    if problem.backward:
        form = backward.choose_form(problem, limits)
        return None if form is None else backward.scratch_bytes(problem, form)
    variant = choose_variant(problem, limits)
    return None if variant is None else scratch_bytes(problem, variant)


def _uniform_bytes(problem: AttentionProblem, variant: Variant) -> int:
    """Return the bytes of the parameters of all passes."""
    scratch = scratch_bytes(problem, variant)
    passes = [_PARAMS_BYTES]
    passes += [_LAYOUT_PARAMS_BYTES for name in ("K by tiles", "V by tiles", "Q by tiles") if name in scratch]
    passes += [_COMBINE_PARAMS_BYTES for name in ("partial outputs",) if name in scratch]
    return sum(params + CHUNK_BYTES for params in passes)


def _layouts(prepared: GpuForward, variant: Tiles, scratch: dict[str, Any]) -> list[Dispatch]:
    """Return the passes that re-lay K and, where need be, V and Q."""
    problem = prepared.problem
    depth, keys = variant.depth_stored(problem.head_dim), (problem.seq_k, variant.cols)
    work = {
        "K by tiles": ("keys", prepared.key, keys, (problem.head_dim, depth)),
        "V by tiles": ("values", prepared.value, keys, (problem.head_dim_v, variant.value_stride)),
        "Q by tiles": ("keys", prepared.query, (problem.seq_q, variant.rows), (problem.head_dim, depth)),
    }
    passes = []
    for name, (what, source, (length, cols), (width, stride)) in work.items():
        if name in scratch:
            target = scratch[name]
            code = render("gpu_flash/layout", what=what, cols=cols, stored=problem.dtype)
            params = np.array([length, width, -(-length // cols), stride], np.uint32)
            workgroups = -(-target.size // (16 * _LAYOUT_THREADS))
            passes.append(prepared.dispatch(code, "rw", params, [source, target], workgroups, 16.0 * _LAYOUT_THREADS))
    return passes


def _tiles(prepared: GpuForward, variant: Tiles, scratch: dict[str, Any], careful: bool) -> Dispatch:
    """Return the main pass over tiles."""
    problem = prepared.problem
    source = render(
        "gpu_flash/tiles",
        **msgspec.structs.asdict(variant),
        cols=variant.cols,
        threads=variant.threads,
        workgroup_bytes=variant.workgroup_bytes,
        value_groups_at_once=4,  # vec4 columns of a tile's sum held in registers beside the running ones
        shuffles=[1 << i for i in range(variant.lanes.bit_length() - 1)],
        stored=problem.dtype,
        split=variant.splits > 1,
        careful=careful,
    )
    row_tiles = -(-problem.seq_q // variant.rows)
    params = _params(
        prepared,
        (problem.pairs, problem.heads, problem.group, row_tiles),
        (
            -(-problem.seq_k // variant.cols),
            variant.depth_stored(problem.head_dim) // variant.unroll,
            mask_words(problem),
            prepared.want_lse,
        ),
    )
    params[18:20] = variant.splits, abreast(problem, prepared.device.limits, variant)
    values = scratch.get("V by tiles", prepared.value)
    queries = scratch.get("Q by tiles", prepared.query)
    buffers = [queries, scratch["K by tiles"], values, prepared.mask, *_results(prepared, scratch)]
    workgroups = problem.pairs * row_tiles * variant.splits
    return prepared.dispatch(source, "rrrrww", params, buffers, workgroups, _workgroup_flops(problem, variant))


def _decode(prepared: GpuForward, variant: Decode, scratch: dict[str, Any], careful: bool) -> Dispatch:
    """Return the main pass over streams of keys."""
    problem = prepared.problem
    source = render(
        "gpu_flash/decode",
        **msgspec.structs.asdict(variant),
        keys=variant.keys,
        workgroup_bytes=variant.workgroup_bytes,
        stored=problem.dtype,
        careful=careful,
    )
    rows = problem.group * problem.seq_q
    row_tiles = -(-rows // variant.rows)
    kv_pairs = problem.batch * problem.kv_heads
    share = variant.share(problem.seq_k)
    params = _params(
        prepared,
        (problem.heads, kv_pairs, rows, row_tiles),
        (variant.splits, share, mask_words(problem), problem.kv_heads),
    )
    buffers = [prepared.query, prepared.key, prepared.value, prepared.mask, *_results(prepared, scratch)]
    cost = 2.0 * share * variant.rows * 32 * (variant.key_groups + variant.value_groups)
    return prepared.dispatch(source, "rrrrww", params, buffers, kv_pairs * row_tiles * variant.splits, cost)


def _combine(prepared: GpuForward, variant: Variant, scratch: dict[str, Any]) -> Dispatch:
    """Return the pass that joins the parts of split keys."""
    problem = prepared.problem
    columns = max(8, power_of_two(-(-problem.head_dim_v // 4)))
    params = np.zeros(_COMBINE_PARAMS_BYTES // 4, np.uint32)
    rows = problem.pairs * problem.seq_q
    params[:6] = (rows, problem.head_dim_v, variant.splits, prepared.want_lse, *special_bits())
    buffers = [scratch["partial outputs"], scratch["partial sums"], prepared.output, prepared.lse]
    source = render("gpu_flash/combine", columns=columns, stored=problem.dtype)
    return prepared.dispatch(source, "rrww", params, buffers, rows, 256.0 * variant.splits)


def _results(prepared: GpuForward, scratch: dict[str, Any]) -> list[Any]:
    """Return the two buffers a main pass writes: output and log-sum-exp, or the parts of them."""
    if "partial outputs" in scratch:
        return [scratch["partial outputs"], scratch["partial sums"]]
    return [prepared.output, prepared.lse]


def _params(prepared: GpuForward, second: tuple[int, ...], third: tuple[int, ...]) -> NDArray[np.uint32]:
    """Return the parameters of a main pass: shapes, two rows of four of its own, masks, bits, scale and softcap."""
    problem = prepared.problem
    params = np.zeros(_PARAMS_BYTES // 4, np.uint32)
    params[:12] = (problem.seq_q, problem.seq_k, problem.head_dim, problem.head_dim_v, *second, *third)
    params[12:14].view(np.int32)[:] = row_offsets(problem)
    params[14:16] = special_bits()
    log2_e = 1.0 if problem.softcap else _LOG2_E  # with softcap it comes in after the tanh
    params[16:18].view(np.float32)[:] = (problem.scale * log2_e, problem.softcap or 0.0)
    return params


def _workgroup_flops(problem: AttentionProblem, variant: Tiles) -> float:
    """Return the multiply-adds of an average workgroup, times two, padding and partly masked tiles included."""
    row0 = np.arange(0, problem.seq_q, variant.rows)
    first, _ = problem.key_range(row0)
    _, end = problem.key_range(np.minimum(row0 + variant.rows, problem.seq_q) - 1)
    tiles = np.maximum(-(-end // variant.cols) - first // variant.cols, 0).mean() / variant.splits
    tiles += 1  # loading Q, storing O
    return float(2 * tiles * variant.rows * variant.cols * (variant.depth + 4 * variant.value_stride))
