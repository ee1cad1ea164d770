"""gpu-flash, backward: tiled gradients in WGSL by recomputation; every row of dQ, dK and dV has one workgroup as owner.

Two passes without atomics, both shaders/gpu_flash_backward: in the first a workgroup owns query rows, walks over tiles
of keys and gives dQ; in the second it owns keys, walks over tiles of queries of all heads of its group and gives dK and
dV. A thread owns a 4×4 block of scores and of gradients of weights; ``lanes`` threads side by side share a row, and of
the gradients each has every ``lanes``th vec4 of columns. Before them, layout passes re-lay each side for the other: by
tiles, transposed, for the scores, and as whole rows for the gradients. All scratch is O(N).
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from engine.devices import Limits
from engine.gpu.buffers import Part, padded
from engine.gpu.device import GpuDevice
from engine.gpu.probe import MIN_LANES
from engine.gpu.shaders import render
from engine.gpu.timing import Dispatch
from engine.inputs import Inputs
from engine.kernels.gpu import CHUNK_BYTES, mask_words, row_offsets, special_bits
from engine.kernels.gpu_backward import GpuBackward, common_bytes
from engine.kernels.gpu_flash_variant import power_of_two, round_up
from engine.masks import has_nonfinite, without_hidden_garbage
from engine.problem import AttentionProblem

_PARAMS_BYTES = 80  # of the two passes
_LAYOUT_PARAMS_BYTES = 16
_LAYOUT_THREADS = 64
_LOG2_E = float(np.log2(np.e))
_GROUPS_AT_ONCE = 4  # vec4 columns of a tile's sum held in registers beside the running ones


class BackwardTiles(msgspec.Struct, frozen=True, kw_only=True):
    """The compiled form of both passes.

    ``depth`` is the greater of head_dim and head_dim_v, padded to whole unrolled steps: how deep tiles are held.
    """

    rows: int
    lanes: int
    depth: int
    unroll: int
    value_groups: int
    value_unroll: int

    @property
    def cols(self) -> int:
        """Keys, or queries, of a tile."""
        return 4 * self.lanes

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.rows // 4 * self.lanes

    @property
    def value_stride(self) -> int:
        """vec4s of a whole row as it is laid: whole turns of the threads that share it."""
        return self.lanes * self.value_groups

    def workgroup_bytes(self, own: str) -> int:
        """Workgroup memory the shader declares where it owns ``queries`` or ``keys``."""
        return 4 * self.rows * (2 * self.depth + self.cols * (1 if own == "queries" else 2))

    def __str__(self) -> str:
        return f"{self.rows}x{self.cols} block 4x4 lanes {self.lanes} unroll {self.unroll}/{4 * self.value_unroll}"


def choose_tiles(problem: AttentionProblem, limits: Limits) -> BackwardTiles | None:
    """Return the form to compile for the problem within these limits, None where none fits. Pure.

    As in the forward pass a GPU gets one subgroup of 32 threads a workgroup and as many lanes a row as the gradients
    have vec4; a software adapter, which compiles slowly, few forms and little unrolling.
    """
    width = max(problem.head_dim, problem.head_dim_v)
    if limits.software:
        lanes, unroll, value_unroll, threads = MIN_LANES, 4, 1, 32
        depth = max(32, power_of_two(width))
    else:
        lanes, threads = min(max(MIN_LANES, power_of_two(-(-width // 4))), 32), 32
        depth = round_up(width, 4)
        unroll = next(u for u in (32, 16, 8, 4) if depth % u == 0)
        value_unroll = 4
    value_groups = -(-width // (4 * lanes))
    if limits.software:
        value_groups = power_of_two(value_groups)
    for rows in (32, 16, 8, 4):
        tiles = BackwardTiles(
            rows=rows, lanes=lanes, depth=depth, unroll=unroll, value_groups=value_groups, value_unroll=value_unroll
        )
        if tiles.threads <= threads and tiles.workgroup_bytes("keys") <= limits.workgroup_bytes:
            return tiles
    return None


def scratch_bytes(problem: AttentionProblem, tiles: BackwardTiles) -> dict[str, int]:
    """Return the scratch buffers of the passes, by name, in bytes: two planes each, but one of whole rows of K."""
    queries = problem.pairs * round_up(problem.seq_q, tiles.cols)
    keys = problem.batch * problem.kv_heads * round_up(problem.seq_k, tiles.cols)
    return {
        "K and V by tiles": padded(2 * 4 * keys * tiles.depth),
        "rows of K": padded(16 * keys * tiles.value_stride),
        "Q and dO by tiles": padded(2 * 4 * queries * tiles.depth),
        "rows of Q and dO": padded(2 * 16 * queries * tiles.value_stride),
    }


def predict(problem: AttentionProblem, tiles: BackwardTiles) -> int:
    """Return the bytes of all buffers."""
    uniforms = 2 * (_PARAMS_BYTES + CHUNK_BYTES) + 7 * (_LAYOUT_PARAMS_BYTES + CHUNK_BYTES)
    return common_bytes(problem) + sum(scratch_bytes(problem, tiles).values()) + uniforms


def prepare(problem: AttentionProblem, inputs: Inputs, device: GpuDevice, tiles: BackwardTiles) -> GpuBackward:
    """Compile the passes and upload the inputs, which hold output and log-sum-exp."""
    inputs = without_hidden_garbage(problem, inputs)
    prepared = GpuBackward(problem, device)
    try:
        prepared.variant = str(tiles)
        passes = [prepared.common_buffers(inputs)]
        scratch = {name: prepared.buffers.storage(name, n) for name, n in scratch_bytes(problem, tiles).items()}
        passes += _layouts(prepared, tiles, scratch)
        passes += [_pass(prepared, tiles, scratch, own, has_nonfinite(inputs)) for own in ("queries", "keys")]
        prepared.ready(passes)
    except BaseException:
        prepared.close()
        raise
    return prepared


def _layouts(prepared: GpuBackward, tiles: BackwardTiles, scratch: dict[str, Any]) -> list[Dispatch]:
    """Return the passes that re-lay both sides, each into its plane of a buffer."""
    problem = prepared.problem
    k, v = (prepared.key, problem.seq_k, problem.head_dim), (prepared.value, problem.seq_k, problem.head_dim_v)
    q = (prepared.query, problem.seq_q, problem.head_dim)
    grad = (prepared.grad_output, problem.seq_q, problem.head_dim_v)
    passes = []
    for what, name, planes in (
        ("keys", "K and V by tiles", (k, v)),
        ("values", "rows of K", (k,)),
        ("keys", "Q and dO by tiles", (q, grad)),
        ("values", "rows of Q and dO", (q, grad)),
    ):
        nbytes = scratch[name].size // len(planes)
        stride = tiles.depth if what == "keys" else tiles.value_stride
        for plane, (source, length, width) in enumerate(planes):
            passes.append(
                prepared.dispatch(
                    render("gpu_flash_layout", what=what, cols=tiles.cols, stored="f32"),
                    "rw",
                    np.array([length, width, -(-length // tiles.cols), stride], np.uint32),
                    [source, Part(scratch[name], plane * nbytes, nbytes)],
                    -(-nbytes // (16 * _LAYOUT_THREADS)),
                    16.0 * _LAYOUT_THREADS,
                )
            )
    return passes


def _pass(
    prepared: GpuBackward, tiles: BackwardTiles, scratch: dict[str, Any], own: str, careful: bool
) -> Dispatch:
    """Return the pass whose workgroups own ``queries``, or ``keys``."""
    problem, of_queries = prepared.problem, own == "queries"
    source = render(
        "gpu_flash_backward",
        **msgspec.structs.asdict(tiles),
        own=own,
        cols=tiles.cols,
        threads=tiles.threads,
        workgroup_bytes=tiles.workgroup_bytes(own),
        value_groups_at_once=_GROUPS_AT_ONCE,
        careful=careful,
    )
    heads, other_heads = (problem.heads, problem.kv_heads) if of_queries else (problem.kv_heads, problem.heads)
    length, other_length = (problem.seq_q, problem.seq_k) if of_queries else (problem.seq_k, problem.seq_q)
    row_tiles, col_tiles = -(-length // tiles.rows), -(-other_length // tiles.cols)
    pairs, col_tiles_in_all = problem.batch * heads, problem.batch * other_heads * col_tiles
    steps = tiles.depth // tiles.unroll
    params = np.zeros(_PARAMS_BYTES // 4, np.uint32)
    params[:12] = (
        problem.seq_q, problem.seq_k, problem.head_dim, problem.head_dim_v,
        pairs, heads, problem.group, row_tiles,
        col_tiles, steps, mask_words(problem), steps * col_tiles_in_all,
    )  # fmt: skip
    params[12:14].view(np.int32)[:] = row_offsets(problem)
    params[14:16] = special_bits()
    score_scale = problem.scale if problem.softcap else problem.scale * _LOG2_E
    params[16:19].view(np.float32)[:] = (problem.scale, score_scale, problem.softcap or 0.0)
    params[19] = col_tiles_in_all
    gradients = [prepared.dq] if of_queries else [prepared.dk, prepared.dv]
    mine = [prepared.query, prepared.grad_output] if of_queries else [prepared.key, prepared.value]
    others = ("K and V by tiles", "rows of K") if of_queries else ("Q and dO by tiles", "rows of Q and dO")
    products = 3 if of_queries else 4
    met = problem.visible_pairs() * problem.heads / (pairs * row_tiles) + tiles.rows * tiles.cols
    return prepared.dispatch(
        source,
        "rrrrrr" + "w" * len(gradients),
        params,
        [*mine, *(scratch[name] for name in others), prepared.mask, prepared.rows, *gradients],
        pairs * row_tiles,
        2.0 * products * tiles.depth * met,
    )
