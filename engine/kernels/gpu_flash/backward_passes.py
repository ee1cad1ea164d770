"""gpu-flash, backward, where there is little to do at once: two passes that need no workspace, seven products.

Both are shaders/gpu_flash/backward_passes: in the first a workgroup owns query rows, walks over tiles of keys and gives
dQ; in the second it owns keys, walks over tiles of queries of all heads of its group and gives dK and dV. Each computes
weights and gradients of scores again, which then never leave the workgroup. A thread owns a 4×4 block of scores and of
gradients of weights; ``lanes`` threads side by side share a row, and of the gradients each has every ``lanes``th vec4
of columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from engine.devices.device import Limits
from engine.devices.gpu.probe import MIN_LANES
from engine.devices.gpu.shaders import render
from engine.devices.gpu.timing import Dispatch
from engine.kernels.gpu import CHUNK_BYTES, mask_words
from engine.kernels.gpu_backward import GpuBackward, rule_words
from engine.kernels.gpu_flash.variant import Laid, power_of_two, round_up, unroll_of
from engine.problem.attention_problem import AttentionProblem

_PARAMS_BYTES = 80
_GROUPS_AT_ONCE = 4  # vec4 columns of a tile's sum held in registers beside the running ones


class Passes(msgspec.Struct, frozen=True, kw_only=True):
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
    def laid(self) -> Laid:
        """How both sides are re-laid: rows as whole turns of the threads that share one."""
        return Laid(query_cols=self.cols, key_cols=self.cols, depth=self.depth, stride=self.lanes * self.value_groups)

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.rows // 4 * self.lanes

    def workgroup_bytes(self, own: str) -> int:
        """Workgroup memory the shader declares where it owns ``queries`` or ``keys``."""
        return 4 * self.rows * (2 * self.depth + self.cols * (1 if own == "queries" else 2))

    def scratch_bytes(self) -> dict[str, int]:
        """Return scratch buffers beside what is re-laid: none."""
        return {}

    def uniform_bytes(self, problem: AttentionProblem) -> int:
        """Bytes of the parameters of both passes."""
        return 2 * (_PARAMS_BYTES + CHUNK_BYTES)

    def dispatches(self, prepared: GpuBackward, scratch: dict[str, Any], careful: bool) -> Iterator[Dispatch]:
        """Yield both passes; ``careful`` where values may not be finite."""
        for own in ("queries", "keys"):
            yield _pass(prepared, self, scratch, own, careful)

    def __str__(self) -> str:
        return f"{self.rows}x{self.cols} block 4x4 lanes {self.lanes} unroll {self.unroll}/{4 * self.value_unroll}"


def choose_passes(problem: AttentionProblem, limits: Limits) -> Passes | None:
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
        unroll = unroll_of(depth, 32)
        value_unroll = 4
    value_groups = -(-width // (4 * lanes))
    if limits.software:
        value_groups = power_of_two(value_groups)
    for rows in (32, 16, 8, 4):
        tiles = Passes(
            rows=rows, lanes=lanes, depth=depth, unroll=unroll, value_groups=value_groups, value_unroll=value_unroll
        )
        if tiles.threads <= threads and tiles.workgroup_bytes("keys") <= limits.workgroup_bytes:
            return tiles
    return None


def _pass(prepared: GpuBackward, tiles: Passes, scratch: dict[str, Any], own: str, careful: bool) -> Dispatch:
    """Return the pass whose workgroups own ``queries``, or ``keys``."""
    problem, of_queries = prepared.problem, own == "queries"
    source = render(
        "gpu_flash/backward_passes",
        **msgspec.structs.asdict(tiles),
        own=own,
        cols=tiles.cols,
        threads=tiles.threads,
        workgroup_bytes=tiles.workgroup_bytes(own),
        stride=tiles.laid.stride,
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
    params[12:19] = rule_words(problem)
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
