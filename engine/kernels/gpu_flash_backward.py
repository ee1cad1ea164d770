"""gpu-flash, backward: gradients in WGSL by recomputation, five products without atomics, in rounds of many blocks.

A block is 64 queries by 128 keys of one (batch, head) pair. In a round as many blocks as the workspace holds, those of
a rectangle of queries and keys of some pairs, are worked on by two passes: shaders/gpu_flash_backward_weights writes
their weights P and gradients of scores dS; shaders/gpu_flash_backward_gradients multiplies them and adds to dQ, dK and
dV, of which every element has one workgroup as owner in a round. The workspace is so many bytes for each row of Q and
K: all scratch is O(N), and of the score matrices only a part exists at a time. Kept in registers instead, P and dS had
to be computed twice, once for each side, which took longer than writing and reading them. Before the rounds, layout
passes re-lay both sides: by tiles, transposed, for the scores, and as whole rows for the gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from engine.devices import Limits
from engine.gpu.buffers import Part, padded
from engine.gpu.device import GpuDevice
from engine.gpu.shaders import render
from engine.gpu.timing import Dispatch
from engine.inputs import Inputs
from engine.kernels.gpu import CHUNK_BYTES, mask_words, row_offsets, special_bits
from engine.kernels.gpu_backward import GpuBackward, common_bytes
from engine.kernels.gpu_flash_variant import power_of_two, round_up
from engine.masks import has_nonfinite, without_hidden_garbage
from engine.problem import AttentionProblem

ROWS, COLS = 64, 128  # queries and keys of a block
BLOCK_BYTES = 2 * 4 * ROWS * COLS  # P and dS
_ROW_BYTES = 512  # of workspace for each row of Q and of K: half of what tensors take whose heads are 64 wide
_MOST = 16 * ROWS, 8 * COLS  # queries and keys of a round, of one pair
_FEW = 16  # blocks, 1 MiB: with fewer a round is not worth its start
_SUMMED_APART = 512  # keys or queries whose sums are added to the gradients at once
_LARGEST_SLICE = 64  # elements of head_dim in workgroup memory at once
_PARAMS_BYTES = 112
_LAYOUT_PARAMS_BYTES = 16
_LAYOUT_THREADS = 64
_PASSES = 2  # of a round
_LOG2_E = float(np.log2(np.e))


class BackwardTiles(msgspec.Struct, frozen=True, kw_only=True):
    """The compiled form of both passes, and how much a round takes on.

    ``depth`` is the greater of head_dim and head_dim_v, padded to whole slices of ``slice`` elements, which are whole
    unrolled steps. ``stride`` is the vec4s of a whole row as it is laid: whole workgroups of ``col_groups`` vec4 a
    thread. ``pairs``, ``q_blocks`` and ``k_blocks`` are the most that a round has.
    """

    depth: int
    slice: int
    unroll: int
    col_groups: int
    stride: int
    pairs: int
    q_blocks: int
    k_blocks: int

    @property
    def blocks(self) -> int:
        """Blocks that the workspace holds."""
        return self.pairs * self.q_blocks * self.k_blocks

    @property
    def fetch(self) -> bool:
        """Whether the second pass fetches what it needs next into the cache; written for whole steps of 16."""
        return self.unroll == 16

    @property
    def workgroup_bytes(self) -> int:
        """Workgroup memory the first pass declares."""
        return 4 * ROWS * self.slice

    def __str__(self) -> str:
        return (
            f"{ROWS}x{COLS} block 8x8 slice {self.slice} unroll {self.unroll}, "
            f"rounds of {self.pairs}x{self.q_blocks}x{self.k_blocks}"
        )


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What two passes work on: pairs, and tiles of queries and keys, as first and number of each.

    ``new_queries`` and ``new_keys`` tell that no round before it has added to their gradients.
    """

    first_pair: int
    pairs: int
    q0: int
    q_blocks: int
    k0: int
    k_blocks: int
    new_queries: bool
    new_keys: bool


def choose_tiles(problem: AttentionProblem, limits: Limits) -> BackwardTiles | None:
    """Return the form to compile for the problem within these limits, None where none fits. Pure.

    A software adapter, which compiles slowly, gets few forms and little unrolling.
    """
    width = max(problem.head_dim, problem.head_dim_v)
    unroll = 4 if limits.software else 16
    largest = min(_LARGEST_SLICE, limits.workgroup_bytes // (4 * ROWS) // 16 * 16)
    if largest == 0:
        return None
    if limits.software:
        width = max(32, power_of_two(width))
    of_slice = round_up(-(-width // -(-width // largest)), 16)
    col_groups = 1 if width <= 32 else 2
    pairs, q_blocks, k_blocks = _most_of_a_round(problem, limits)
    return BackwardTiles(
        depth=round_up(width, of_slice),
        slice=of_slice,
        unroll=unroll,
        col_groups=col_groups,
        stride=round_up(width, 32 * col_groups) // 4,
        pairs=pairs,
        q_blocks=q_blocks,
        k_blocks=k_blocks,
    )


def _most_of_a_round(problem: AttentionProblem, limits: Limits) -> tuple[int, int, int]:
    """Return (pairs, tiles of queries, tiles of keys) whose blocks are as many as rows of Q and K stand for, or few."""
    room = _ROW_BYTES * (problem.pairs * problem.seq_q + problem.batch * problem.kv_heads * problem.seq_k)
    blocks = min(room, limits.binding_bytes) // BLOCK_BYTES
    blocks = max(1 << max(0, blocks.bit_length() - 1), min(problem.pairs, _FEW))  # twice the length, twice the blocks
    q_blocks, k_blocks = -(-min(problem.seq_q, _MOST[0]) // ROWS), -(-min(problem.seq_k, _MOST[1]) // COLS)
    while q_blocks * k_blocks > blocks:
        if q_blocks * ROWS >= k_blocks * COLS and q_blocks > 1:
            q_blocks = -(-q_blocks // 2)
        else:
            k_blocks = -(-k_blocks // 2)
    return min(problem.pairs, blocks // (q_blocks * k_blocks)), q_blocks, k_blocks


def rounds(problem: AttentionProblem, tiles: BackwardTiles) -> Iterator[Round]:
    """Yield the rounds in order: where some query sees some key, and once each where none does, to write zeros."""
    q_tiles, k_tiles = -(-problem.seq_q // ROWS), -(-problem.seq_k // COLS)
    meetings = []
    keys_met = set()
    for q0 in range(0, q_tiles, tiles.q_blocks):
        ends = np.array([q0 * ROWS, min((q0 + tiles.q_blocks) * ROWS, problem.seq_q) - 1])
        (first, _), (_, end) = problem.key_range(ends)
        met = [
            k0 for k0 in range(0, k_tiles, tiles.k_blocks) if k0 * COLS < end and (k0 + tiles.k_blocks) * COLS > first
        ]
        meetings += [(q0, k0) for k0 in met or [0]]
        keys_met.update(met or [0])
    meetings += [(0, k0) for k0 in range(0, k_tiles, tiles.k_blocks) if k0 not in keys_met]
    for first_pair in range(0, problem.pairs, tiles.pairs):
        queries, keys = set(), set()
        for q0, k0 in meetings:
            yield Round(
                first_pair=first_pair,
                pairs=min(tiles.pairs, problem.pairs - first_pair),
                q0=q0,
                q_blocks=min(tiles.q_blocks, q_tiles - q0),
                k0=k0,
                k_blocks=min(tiles.k_blocks, k_tiles - k0),
                new_queries=q0 not in queries,
                new_keys=k0 not in keys,
            )
            queries.add(q0)
            keys.add(k0)


def scratch_bytes(problem: AttentionProblem, tiles: BackwardTiles) -> dict[str, int]:
    """Return the scratch buffers of the passes, by name, in bytes: two planes each, but one of whole rows of K."""
    queries = problem.pairs * round_up(problem.seq_q, ROWS)
    keys = problem.batch * problem.kv_heads * round_up(problem.seq_k, COLS)
    return {
        "K and V by tiles": padded(2 * 4 * keys * tiles.depth),
        "rows of K": padded(16 * keys * tiles.stride),
        "Q and dO by tiles": padded(2 * 4 * queries * tiles.depth),
        "rows of Q and dO": padded(2 * 16 * queries * tiles.stride),
        "weights of a round": BLOCK_BYTES * tiles.blocks,
    }


def predict(problem: AttentionProblem, tiles: BackwardTiles) -> int:
    """Return the bytes of all buffers."""
    of_rounds = _PASSES * sum(1 for _ in rounds(problem, tiles)) * (_PARAMS_BYTES + CHUNK_BYTES)
    of_layouts = 7 * (_LAYOUT_PARAMS_BYTES + CHUNK_BYTES)
    return common_bytes(problem) + sum(scratch_bytes(problem, tiles).values()) + of_rounds + of_layouts


def prepare(problem: AttentionProblem, inputs: Inputs, device: GpuDevice, tiles: BackwardTiles) -> GpuBackward:
    """Compile the passes and upload the inputs, which hold output and log-sum-exp."""
    inputs = without_hidden_garbage(problem, inputs)
    prepared = GpuBackward(problem, device)
    try:
        prepared.variant = str(tiles)
        passes = [prepared.common_buffers(inputs)]
        scratch = {name: prepared.buffers.storage(name, n) for name, n in scratch_bytes(problem, tiles).items()}
        passes += _layouts(prepared, tiles, scratch)
        careful = has_nonfinite(inputs)
        for one in rounds(problem, tiles):
            passes += _passes(prepared, tiles, scratch, one, careful)
        prepared.ready(passes)
    except BaseException:
        prepared.close()
        raise
    return prepared


def _layouts(prepared: GpuBackward, tiles: BackwardTiles, scratch: dict[str, Any]) -> Iterator[Dispatch]:
    """Yield the passes that re-lay both sides, each into its plane of a buffer."""
    problem = prepared.problem
    k, v = (prepared.key, problem.head_dim), (prepared.value, problem.head_dim_v)
    q, grad = (prepared.query, problem.head_dim), (prepared.grad_output, problem.head_dim_v)
    for what, name, length, cols, planes in (
        ("keys", "K and V by tiles", problem.seq_k, COLS, (k, v)),
        ("values", "rows of K", problem.seq_k, COLS, (k,)),
        ("keys", "Q and dO by tiles", problem.seq_q, ROWS, (q, grad)),
        ("values", "rows of Q and dO", problem.seq_q, ROWS, (q, grad)),
    ):
        nbytes = scratch[name].size // len(planes)
        stride = tiles.depth if what == "keys" else tiles.stride
        for plane, (source, width) in enumerate(planes):
            yield prepared.dispatch(
                render("gpu_flash_layout", what=what, cols=cols, stored="f32"),
                "rw",
                np.array([length, width, -(-length // cols), stride], np.uint32),
                [source, Part(scratch[name], plane * nbytes, nbytes)],
                -(-nbytes // (16 * _LAYOUT_THREADS)),
                16.0 * _LAYOUT_THREADS,
            )


def _passes(
    prepared: GpuBackward, tiles: BackwardTiles, scratch: dict[str, Any], one: Round, careful: bool
) -> Iterator[Dispatch]:
    """Yield both passes of a round."""
    problem = prepared.problem
    params = np.zeros(_PARAMS_BYTES // 4, np.uint32)
    params[:12] = (
        problem.seq_q, problem.seq_k, problem.head_dim, problem.head_dim_v,
        problem.heads, problem.group, problem.pairs, problem.batch * problem.kv_heads,
        -(-problem.seq_q // ROWS), -(-problem.seq_k // COLS), mask_words(problem), tiles.blocks,
    )  # fmt: skip
    params[12:14].view(np.int32)[:] = row_offsets(problem)
    params[14:16] = special_bits()
    score_scale = problem.scale if problem.softcap else problem.scale * _LOG2_E
    params[16:19].view(np.float32)[:] = (problem.scale, score_scale, problem.softcap or 0.0)
    params[19:27] = (
        one.first_pair, one.pairs, one.q0, one.k0, one.q_blocks, one.k_blocks, one.new_queries, one.new_keys,
    )  # fmt: skip
    common = {"rows": ROWS, "cols": COLS, "unroll": tiles.unroll, "careful": careful}
    blocks = one.pairs * one.q_blocks * one.k_blocks

    yield prepared.dispatch(
        render(
            "gpu_flash_backward_weights",
            **common,
            depth=tiles.depth,
            slice=tiles.slice,
            capped=problem.softcap is not None,
        ),
        "rrrrw",
        params,
        [
            scratch["Q and dO by tiles"], scratch["K and V by tiles"], prepared.rows, prepared.mask,
            scratch["weights of a round"],
        ],
        blocks,
        4.0 * tiles.depth * ROWS * COLS,
    )  # fmt: skip

    last_pair = one.first_pair + one.pairs - 1
    kv_pairs = last_pair // problem.group - one.first_pair // problem.group + 1
    of_q_or_k, of_v = (-(-width // (32 * tiles.col_groups)) for width in (problem.head_dim, problem.head_dim_v))
    of_keys = kv_pairs * one.k_blocks * (COLS // ROWS)
    workgroups = one.pairs * one.q_blocks * of_q_or_k + of_keys * (of_q_or_k + of_v)
    yield prepared.dispatch(
        render(
            "gpu_flash_backward_gradients",
            **common,
            col_groups=tiles.col_groups,
            stride=tiles.stride,
            fetch=tiles.fetch,
            apart=_SUMMED_APART,
            aligned=problem.head_dim % 4 == problem.head_dim_v % 4 == 0,
        ),
        "rrrwww",
        params,
        [
            scratch["rows of Q and dO"], scratch["rows of K"], scratch["weights of a round"],
            prepared.dq, prepared.dk, prepared.dv,
        ],
        workgroups,
        6.0 * 4 * tiles.stride * ROWS * COLS * blocks / workgroups,
    )  # fmt: skip
