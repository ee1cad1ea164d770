"""gpu-flash, backward, where there is much to do at once: five products, in rounds of many blocks.

A block is 64 queries by 128 keys of one (batch, head) pair. In a round as many blocks as the workspace holds, those of
a rectangle of queries and keys of some pairs, are worked on by two passes: shaders/gpu_flash/backward_rounds_weights
writes their weights P and gradients of scores dS; shaders/gpu_flash/backward_rounds_gradients multiplies them and adds
to dQ, dK and dV, of which every element has one workgroup as owner in a round. The workspace is so many bytes for each
row of Q and K: of the score matrices only a part exists at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import msgspec
import numpy as np

from engine.devices.device import Limits
from engine.devices.gpu.shaders import render
from engine.devices.gpu.timing import Dispatch
from engine.kernels.gpu import CHUNK_BYTES, mask_words
from engine.kernels.gpu_backward import GpuBackward, rule_words
from engine.kernels.gpu_flash.variant import Laid, power_of_two, round_up
from engine.problem.attention_problem import AttentionProblem

ROWS, COLS = 64, 128  # queries and keys of a block
BLOCK_BYTES = 2 * 4 * ROWS * COLS  # P and dS
_ROW_BYTES = {True: 512, False: 1024}  # of workspace for each row of Q and of K, by "is software"
_MOST = 1024  # keys of a round, and queries of all heads of a group; more where all pairs fit
_FEW = 16  # blocks, 1 MiB: with fewer a round is not worth its start
_FULL = (500, 350)  # blocks that are seen, and workgroups of the second pass, with which a round fills a large GPU
_SUMMED_APART = 512  # keys or queries whose sums are added to the gradients at once
_WORKSPACE = "weights of a round"
_LARGEST_SLICE = 64  # elements of head_dim in workgroup memory at once
_PARAMS_BYTES = 112


class Rounds(msgspec.Struct, frozen=True, kw_only=True):
    """The compiled form of both passes of a round, and how much a round takes on.

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
    def laid(self) -> Laid:
        """How both sides are re-laid."""
        return Laid(query_cols=ROWS, key_cols=COLS, depth=self.depth, stride=self.stride)

    @property
    def workgroup_bytes(self) -> int:
        """Workgroup memory the first pass declares."""
        return 4 * ROWS * self.slice

    def scratch_bytes(self) -> dict[str, int]:
        """Return scratch buffers beside what is re-laid, by name, in bytes."""
        return {_WORKSPACE: BLOCK_BYTES * self.blocks}

    def uniform_bytes(self, problem: AttentionProblem) -> int:
        """Bytes of the parameters of all passes."""
        of_rounds = len(_meetings(problem, self)) * -(-problem.pairs // self.pairs)
        return 2 * of_rounds * (_PARAMS_BYTES + CHUNK_BYTES)

    def dispatches(self, prepared: GpuBackward, scratch: dict[str, Any], careful: bool) -> Iterator[Dispatch]:
        """Yield the passes of all rounds; ``careful`` where values may not be finite."""
        for one in rounds(prepared.problem, self):
            yield from _passes(prepared, self, scratch, one, careful)

    def __str__(self) -> str:
        of_round = f"{self.pairs}x{self.q_blocks}x{self.k_blocks}"
        return f"{ROWS}x{COLS} block 8x8 slice {self.slice} unroll {self.unroll} rounds {of_round}"


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


def choose_rounds(problem: AttentionProblem, limits: Limits) -> Rounds | None:
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
    return Rounds(
        depth=round_up(width, of_slice),
        slice=of_slice,
        unroll=unroll,
        col_groups=col_groups,
        stride=round_up(width, 32 * col_groups) // 4,
        pairs=pairs,
        q_blocks=q_blocks,
        k_blocks=k_blocks,
    )


def fills_gpu(problem: AttentionProblem, tiles: Rounds) -> bool:
    """Whether the average round fills a large GPU. Pure."""
    all_seen = problem.heads * msgspec.structs.replace(problem, key_mask=None).visible_pairs() / (ROWS * COLS)
    times = -(-problem.pairs // tiles.pairs)
    pairs, kv_pairs = problem.pairs / times, max(problem.pairs / problem.group / times, 1.0)
    of_queries, of_keys = _workgroups(problem, tiles)
    blocks = all_seen / times / len(_meetings(problem, tiles))
    workgroups = pairs * tiles.q_blocks * of_queries + kv_pairs * tiles.k_blocks * of_keys
    return blocks >= _FULL[0] and workgroups >= _FULL[1]


def _workgroups(problem: AttentionProblem, tiles: Rounds) -> tuple[int, int]:
    """Return the workgroups of the second pass that a tile of queries needs, and a tile of keys."""
    of_q_or_k, of_v = (-(-width // (32 * tiles.col_groups)) for width in (problem.head_dim, problem.head_dim_v))
    return of_q_or_k, COLS // ROWS * (of_q_or_k + of_v)


def _most_of_a_round(problem: AttentionProblem, limits: Limits) -> tuple[int, int, int]:
    """Return (pairs, tiles of queries, tiles of keys) whose blocks are as many as rows of Q and K stand for, or few."""
    rows = problem.pairs * problem.seq_q + problem.batch * problem.kv_heads * problem.seq_k
    blocks = min(rows * _ROW_BYTES[limits.software], limits.binding_bytes) // BLOCK_BYTES
    blocks = max(1 << max(0, blocks.bit_length() - 1), min(problem.pairs, _FEW))  # twice the length, twice the blocks
    queries = keys = _MOST
    while queries < problem.group * problem.seq_q or keys < problem.seq_k:
        more = (queries, 2 * keys) if keys <= queries else (2 * queries, keys)
        if problem.pairs * prod(_sides(problem, *more)) > blocks:
            break
        queries, keys = more
    q_blocks, k_blocks = _sides(problem, queries, keys)
    while q_blocks * k_blocks > blocks:
        if q_blocks * ROWS >= k_blocks * COLS and q_blocks > 1:
            q_blocks = -(-q_blocks // 2)
        else:
            k_blocks = -(-k_blocks // 2)
    return min(problem.pairs, blocks // (q_blocks * k_blocks)), q_blocks, k_blocks


def _sides(problem: AttentionProblem, queries: int, keys: int) -> tuple[int, int]:
    """Return tiles of so many queries, of all heads of a group together, and of so many keys."""
    return (
        -(-min(problem.seq_q, max(queries // problem.group, ROWS)) // ROWS),
        -(-min(problem.seq_k, keys) // COLS),
    )


def rounds(problem: AttentionProblem, tiles: Rounds) -> Iterator[Round]:
    """Yield the rounds in order."""
    q_tiles, k_tiles = -(-problem.seq_q // ROWS), -(-problem.seq_k // COLS)
    meetings = _meetings(problem, tiles)
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


def _meetings(problem: AttentionProblem, tiles: Rounds) -> list[tuple[int, int]]:
    """Return the first tiles (of queries, of keys) of a pair's rounds.

    They are where some query sees some key, and for queries or keys that meet nobody one round, to write zeros.
    """
    k_firsts = range(0, -(-problem.seq_k // COLS), tiles.k_blocks)
    meetings = []
    for q0 in range(0, -(-problem.seq_q // ROWS), tiles.q_blocks):
        ends = np.array([q0 * ROWS, min((q0 + tiles.q_blocks) * ROWS, problem.seq_q) - 1])
        (first, _), (_, end) = problem.key_range(ends)
        met = [k0 for k0 in k_firsts if k0 * COLS < end and (k0 + tiles.k_blocks) * COLS > first]
        meetings += [(q0, k0) for k0 in met or [0]]
    keys_met = {k0 for _, k0 in meetings}
    return meetings + [(0, k0) for k0 in k_firsts if k0 not in keys_met]


def _passes(
    prepared: GpuBackward, tiles: Rounds, scratch: dict[str, Any], one: Round, careful: bool
) -> Iterator[Dispatch]:
    """Yield both passes of a round."""
    problem = prepared.problem
    params = np.zeros(_PARAMS_BYTES // 4, np.uint32)
    params[:12] = (
        problem.seq_q, problem.seq_k, problem.head_dim, problem.head_dim_v,
        problem.heads, problem.group, problem.pairs, problem.batch * problem.kv_heads,
        -(-problem.seq_q // ROWS), -(-problem.seq_k // COLS), mask_words(problem), tiles.blocks,
    )  # fmt: skip
    params[12:19] = rule_words(problem)
    params[19:27] = (
        one.first_pair, one.pairs, one.q0, one.k0, one.q_blocks, one.k_blocks, one.new_queries, one.new_keys,
    )  # fmt: skip
    common = {"rows": ROWS, "cols": COLS, "unroll": tiles.unroll, "careful": careful}
    blocks = one.pairs * one.q_blocks * one.k_blocks

    yield prepared.dispatch(
        render(
            "gpu_flash/backward_rounds_weights",
            **common,
            depth=tiles.depth,
            slice=tiles.slice,
            capped=problem.softcap is not None,
        ),
        "rrrrw",
        params,
        [
            scratch["Q and dO by tiles"], scratch["K and V by tiles"], prepared.rows, prepared.mask,
            scratch[_WORKSPACE],
        ],
        blocks,
        4.0 * tiles.depth * ROWS * COLS,
    )  # fmt: skip

    last_pair = one.first_pair + one.pairs - 1
    kv_pairs = last_pair // problem.group - one.first_pair // problem.group + 1
    of_queries, of_keys = _workgroups(problem, tiles)
    workgroups = one.pairs * one.q_blocks * of_queries + kv_pairs * one.k_blocks * of_keys
    yield prepared.dispatch(
        render(
            "gpu_flash/backward_rounds_gradients",
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
            scratch["rows of Q and dO"], scratch["rows of K"], scratch[_WORKSPACE],
            prepared.dq, prepared.dk, prepared.dv,
        ],
        workgroups,
        6.0 * 4 * tiles.stride * ROWS * COLS * blocks / workgroups,
    )  # fmt: skip
