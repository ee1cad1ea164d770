"""The compiled forms of gpu-flash, and which of them a problem gets on a device: values and pure functions."""

from __future__ import annotations

import msgspec
import numpy as np

from engine.devices.device import Limits
from engine.devices.gpu.buffers import padded
from engine.devices.gpu.probe import MIN_LANES
from engine.problem.attention_problem import AttentionProblem

NAME = "gpu-flash"
_REGISTERS = 208  # of a thread: GPUs give up to 255, and addresses and loads under way need some
_FULL = 2048  # workgroups that fill a large GPU: with fewer, the keys are split among more
_FULL_DECODE = 512  # the same for decoding, whose workgroups are larger and each leave something to combine
_FEW_KEYS = 32  # a tile of more would be mostly padding
_DECODE_QUERIES = 16  # up to so many queries, reading K and V once is what counts
_DECODE_KEYS = 128  # from so many keys on; also the fewest of a split
_SPLIT_TILES = 4  # the fewest key tiles of a split
_FULL_LARGE, _ENOUGH_LARGE = 384, 128  # workgroups of large blocks: that fill a large GPU, that are worth it
_LARGE_TIME = 0.9, 48  # of a score in a large block, and of the start of a row there; 1 is that of one in a small block
_STREAMS = 8  # of a decode workgroup, 8 lanes each


class Tiles(msgspec.Struct, frozen=True, kw_only=True):
    """Tiles of query rows against tiles of keys (shaders/gpu_flash/tiles).

    ``depth`` is head_dim as Q is held; ``unroll`` divides it. A ``lean`` variant reads Q where it is re-laid and shares
    the weights of one group of columns at a time, so that large blocks need little workgroup memory and many
    workgroups stay on a processor. ``splits`` parts of the keys go to workgroups of their own.
    """

    rows: int
    lanes: int
    row_groups: int
    col_groups: int
    depth: int
    unroll: int
    value_groups: int
    value_unroll: int
    subgroups: bool
    lean: bool = False
    splits: int = 1

    @property
    def cols(self) -> int:
        """Keys of a tile."""
        return 4 * self.lanes * self.col_groups

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.rows // (4 * self.row_groups) * self.lanes

    @property
    def workgroup_bytes(self) -> int:
        """Workgroup memory the shader declares."""
        partial = 0 if self.subgroups else 16 * self.threads * self.row_groups
        wide = 4 * self.lanes if self.lean else self.depth + self.cols
        return 4 * self.rows * wide + partial

    @property
    def value_stride(self) -> int:
        """vec4s of a row of V as it is read: whole turns of the threads that share it."""
        return self.lanes * self.value_groups

    def depth_stored(self, head_dim: int) -> int:
        """Return head_dim padded to whole unrolled steps: how deep K's tiles are stored."""
        return round_up(head_dim, self.unroll)

    def __str__(self) -> str:
        block = f"{4 * self.row_groups}x{4 * self.col_groups}"
        reduce = ("subgroup" if self.subgroups else "workgroup") + (" lean" if self.lean else "")
        split = f" split {self.splits}" if self.splits > 1 else ""
        unroll = f"{self.unroll}/{4 * self.value_unroll * (1 if self.lean else self.col_groups)}"  # of the two products
        return f"{self.rows}x{self.cols} block {block} lanes {self.lanes} unroll {unroll} {reduce}{split}"


class Decode(msgspec.Struct, frozen=True, kw_only=True):
    """Few queries against a long cache: keys split over workgroups, K and V read once (shaders/gpu_flash/decode)."""

    rows: int
    key_groups: int  # vec4s of head_dim a lane holds
    value_groups: int
    aligned: bool  # rows of K and V are whole vec4
    wide: bool  # half precision, read 8 elements at a time
    splits: int

    keys = 4  # a stream takes at a time

    @property
    def workgroup_bytes(self) -> int:
        """Workgroup memory the shader declares."""
        return 16 * 8 * (self.rows * self.key_groups + _STREAMS * self.value_groups) + 16 * _STREAMS

    def share(self, seq_k: int) -> int:
        """Return the keys of a split: whole words of the key mask."""
        return round_up(-(-seq_k // self.splits), 32)

    def __str__(self) -> str:
        return f"decode {self.rows} rows split {self.splits} subgroup"


Variant = Tiles | Decode


class Laid(msgspec.Struct, frozen=True, kw_only=True):
    """How backward has both sides re-laid: tiles of so many rows, ``depth`` elements deep; ``stride`` vec4s a row."""

    query_cols: int
    key_cols: int
    depth: int
    stride: int


def choose_variant(problem: AttentionProblem, limits: Limits) -> Variant | None:
    """Return the variant to compile for the problem within these limits, None where none fits. Pure."""
    if problem.seq_q <= _DECODE_QUERIES and problem.seq_k >= _DECODE_KEYS and limits.subgroup_size >= MIN_LANES:
        decode = _decode(problem, limits)
        if decode.workgroup_bytes <= limits.workgroup_bytes:
            return decode
    return _tuned(problem, limits) or _tiles(problem, limits)


def _decode(problem: AttentionProblem, limits: Limits) -> Decode:
    rows = problem.group * problem.seq_q  # over the same keys
    wide = problem.dtype == "f16" and problem.head_dim % 8 == 0 and problem.head_dim_v % 8 == 0
    step = 64 if wide else 32  # elements the 8 lanes of a stream load at once
    key_groups, value_groups = (step // 32 * -(-width // step) for width in (problem.head_dim, problem.head_dim_v))
    most = 8 if value_groups <= 2 else 4  # a row's sum takes 4 · value_groups registers of each thread
    rows_at_once = min(most, power_of_two(rows))
    workgroups = problem.batch * problem.kv_heads * -(-rows // rows_at_once)
    wanted = 1 if limits.software else -(-_FULL_DECODE // workgroups)
    return Decode(
        rows=rows_at_once,
        key_groups=key_groups,
        value_groups=value_groups,
        aligned=problem.head_dim % 4 == 0 and problem.head_dim_v % 4 == 0,
        wide=wide,
        splits=max(1, min(wanted, problem.seq_k // _DECODE_KEYS)),
    )


def _tiles(problem: AttentionProblem, limits: Limits) -> Tiles | None:
    """Return a variant of tiles: small blocks, or large ones where the problem is large enough for them.

    Large blocks need many registers, which processors with graphics built in may lack: there only tuning chooses them.
    """
    large = _large_blocks(problem, limits)
    apt = not limits.integrated and _suits(problem, limits, large)
    found = large if apt else _small_blocks(problem, limits)
    return found and _split(problem, limits, found)


def _small_blocks(problem: AttentionProblem, limits: Limits) -> Tiles | None:
    """Return a variant that suits every shape, None where no rows fit.

    On software adapters a compile costs seconds when unrolled, so head_dim goes by power-of-two buckets and loops are
    unrolled by 4 only; 4×8 blocks and 64 threads were fastest on llvmpipe. A GPU gets a shader of its own for each
    head_dim, and one subgroup of 32 threads a workgroup with as many lanes a row as the output has vec4: with Q in
    workgroup memory few rows were fastest on an NVIDIA H200.
    """
    if limits.software:
        lanes, unroll, value_unroll = 8, 4, 1
        threads = min(64, 2 * max(4, power_of_two(problem.seq_q)))  # half as many rows
        col_groups = 1 if problem.seq_k <= _FEW_KEYS else 2
        depth = max(32, power_of_two(problem.head_dim))
    else:
        lanes = MIN_LANES if problem.seq_k <= _FEW_KEYS else _lanes(problem.head_dim_v, 4, limits)
        threads, col_groups = 32, 1
        depth = round_up(problem.head_dim, 4)
        unroll = unroll_of(depth, 32)
        value_unroll = max(8, lanes // 2)
    value_groups = -(-problem.head_dim_v // (4 * lanes))
    for rows in (32, 16, 8, 4):
        variant = Tiles(
            rows=rows,
            lanes=lanes,
            row_groups=1,
            col_groups=col_groups,
            depth=depth,
            unroll=unroll,
            value_groups=power_of_two(value_groups) if limits.software else value_groups,
            value_unroll=value_unroll,
            subgroups=limits.subgroup_size >= lanes,
        )
        if variant.threads <= threads and variant.workgroup_bytes <= limits.workgroup_bytes:
            return variant
    return None


def _large_blocks(problem: AttentionProblem, limits: Limits) -> Tiles:
    """Return a lean variant, whose threads own 8×8 blocks, which need half the loads."""
    lanes = _lanes(problem.head_dim_v, 8 if problem.head_dim_v > 64 else 4, limits)
    value_groups = -(-problem.head_dim_v // (4 * lanes))
    depth = round_up(problem.head_dim, 4)
    return Tiles(
        rows=64,
        lanes=lanes,
        row_groups=2,
        col_groups=2,
        depth=depth,
        unroll=unroll_of(depth, 16),
        value_groups=value_groups,
        value_unroll=max(1, 4 // value_groups),
        subgroups=limits.subgroup_size >= lanes,
        lean=True,
    )


def _lanes(head_dim_v: int, columns: int, limits: Limits) -> int:
    """Return how many threads share a row of the output where each takes at least so many columns, as a rule."""
    widest = limits.subgroup_size if limits.subgroup_size >= MIN_LANES else 32
    return min(max(MIN_LANES, power_of_two(-(-head_dim_v // columns))), 32, widest)


def unroll_of(depth: int, most: int) -> int:
    """Return how many of ``depth`` elements to spell out at a time: at most so many, and without a rest."""
    return next(unroll for unroll in (32, 16, 8, 4) if unroll <= most and depth % unroll == 0)


def _pays(problem: AttentionProblem, limits: Limits, large: Tiles) -> bool:
    """Whether large blocks are the faster ones: enough of them, and with little beyond the ends and behind the mask."""
    small = _small_blocks(problem, limits)
    row_tiles = -(-problem.seq_q // large.rows)
    enough = problem.pairs * row_tiles * _splits(problem, limits, large) >= _ENOUGH_LARGE
    of_score, of_row = _LARGE_TIME
    time = of_score * _computed(problem, large) + of_row * row_tiles * large.rows
    return enough and (small is None or time < _computed(problem, small))


def _computed(problem: AttentionProblem, tiles: Tiles) -> int:
    """Return how many scores of a pair are computed, which is whole tiles."""
    rows = np.arange(0, problem.seq_q, tiles.rows)
    first, _ = problem.key_range(rows)
    _, end = problem.key_range(np.minimum(rows + tiles.rows, problem.seq_q) - 1)
    return tiles.rows * tiles.cols * int(np.maximum(-(-end // tiles.cols) - first // tiles.cols, 0).sum())


def candidates(problem: AttentionProblem, limits: Limits) -> list[Tiles]:
    """Return the variants of tiles worth timing here: the untuned choice, then the cheapest to compile first. Pure.

    Rows, lanes (and so keys a tile), the block of a thread and unrolling vary within the device's limits; pruned are
    forms with over 1.7 times the columns the output has, too many registers a thread by count of the values it holds,
    or more workgroup memory than the device gives. Empty where decoding is chosen, which leaves nothing to tune.
    """
    default = _tiles(problem, limits)
    if default is None or not isinstance(choose_variant(problem, limits), Tiles):
        return []
    found = set()
    exact = round_up(problem.head_dim, 4)
    unrolls = [4] if limits.software else [u for u in (8, 16, 32, 64) if exact % u == 0] or [4]
    for lanes in (8, 16, 32):
        value_groups = -(-problem.head_dim_v // (4 * lanes))
        if limits.software:
            value_groups = power_of_two(value_groups)
        if limits.subgroup_size >= MIN_LANES and lanes > limits.subgroup_size:
            continue
        if 4 * lanes * value_groups > max(32, 1.7 * problem.head_dim_v):
            continue
        for row_groups, col_groups, lean in ((1, 1, False), (2, 1, False), (1, 2, False), (2, 2, True)):
            value_unrolls = {2, 4} if lean else {1} if limits.software else {4, 8, lanes // 2}
            for threads in (32, 64, 128):
                for unroll in unrolls:
                    for value_unroll in value_unrolls:
                        variant = Tiles(
                            rows=threads // lanes * 4 * row_groups,
                            lanes=lanes,
                            row_groups=row_groups,
                            col_groups=col_groups,
                            depth=max(32, power_of_two(exact)) if limits.software else exact,
                            unroll=unroll,
                            value_groups=value_groups,
                            value_unroll=value_unroll,
                            subgroups=limits.subgroup_size >= lanes,
                            lean=lean,
                        )
                        if _suits(problem, limits, variant):
                            found.add(_split(problem, limits, variant))
    return [default, *sorted(found - {default}, key=lambda variant: (_statements(variant), str(variant)))]


def _suits(problem: AttentionProblem, limits: Limits, variant: Tiles) -> bool:
    """Whether registers, a workgroup's threads and memory, and the device's memory suffice, and large blocks would pay.

    How much is re-laid depends on the variant, and large blocks re-lay Q too: another may fit where this one does not.
    """
    scores = 16 * variant.row_groups * (variant.col_groups - variant.lean)  # live beside the sums of the second product
    sums = 2 * 16 * variant.row_groups * variant.value_groups
    return (
        4 * variant.row_groups <= variant.rows <= 512
        and scores + sums + 40 <= _REGISTERS
        and variant.threads <= limits.workgroup_threads
        and variant.workgroup_bytes <= limits.workgroup_bytes
        and _fits(problem, limits, _split(problem, limits, variant))
        and (not variant.lean or (not limits.software and _pays(problem, limits, variant)))
    )


def _fits(problem: AttentionProblem, limits: Limits, variant: Tiles) -> bool:
    """Whether the device has the memory for scratch buffers, each and all of them beside the tensors."""
    scratch = scratch_bytes(problem, variant).values()
    return max(scratch) <= limits.binding_bytes and problem.tensor_bytes + sum(scratch) <= limits.memory_bytes


def _statements(variant: Tiles) -> int:
    """Return how many multiply-adds the shader spells out: what its compile time goes by."""
    scores = variant.unroll * variant.row_groups * variant.col_groups
    return 16 * (scores + 4 * variant.value_unroll * variant.row_groups * variant.col_groups * variant.value_groups)


def _tuned(problem: AttentionProblem, limits: Limits) -> Tiles | None:
    """Return the variant tuned for such problems, None where there is none or what is stored makes no sense here."""
    found = limits.variant_for(NAME, problem.dtype, problem.head_dim, problem.causal)
    try:
        variant = msgspec.convert(found, Tiles)
    except msgspec.ValidationError:
        return None
    sound = (
        min(variant.lanes, variant.row_groups, variant.col_groups, variant.unroll, variant.value_unroll) >= 1
        and variant.depth >= variant.depth_stored(problem.head_dim)
        and variant.depth % variant.unroll == 0
        and variant.lanes == power_of_two(variant.lanes)
        and variant.lanes % variant.value_unroll == 0
        and variant.rows % (4 * variant.row_groups) == 0
        and 4 * variant.value_stride >= problem.head_dim_v
        and (not variant.subgroups or variant.lanes <= limits.subgroup_size)
    )
    return _split(problem, limits, variant) if sound and _suits(problem, limits, variant) else None


def abreast(problem: AttentionProblem, limits: Limits, variant: Tiles) -> int:
    """Return how many pairs are worked on at a time.

    The heads of a group share their keys. When causal, more pairs leave shorter rows for the end, where they fill a GPU
    better; but the fewer rows a workgroup has, the more it depends on others to have the same keys in the cache.
    """
    if limits.software:
        return 1
    most = 16 if variant.lean else 8 if variant.rows >= 8 else 1
    return max(problem.group, most if problem.causal else 1)


def _split(problem: AttentionProblem, limits: Limits, variant: Tiles) -> Tiles:
    """Return the variant with as many splits as the problem needs."""
    return msgspec.structs.replace(variant, splits=_splits(problem, limits, variant))


def _splits(problem: AttentionProblem, limits: Limits, variant: Tiles) -> int:
    """Return how many parts of the keys get workgroups of their own, so that few heads still fill a GPU."""
    if limits.software:
        return 1
    workgroups = problem.pairs * -(-problem.seq_q // variant.rows)
    tiles = -(-problem.seq_k // variant.cols)
    wanted = power_of_two(max(1, _FULL_LARGE // workgroups)) if variant.lean else _FULL // workgroups
    return max(1, min(wanted, tiles // _SPLIT_TILES))


def scratch_bytes(problem: AttentionProblem, variant: Variant) -> dict[str, int]:
    """Return the scratch buffers a variant needs, by name, in bytes."""
    scratch = {}
    if isinstance(variant, Tiles):
        rows = problem.batch * problem.kv_heads * round_up(problem.seq_k, variant.cols)
        depth = variant.depth_stored(problem.head_dim)
        scratch["K by tiles"] = padded(4 * rows * depth)
        as_it_is = problem.seq_k % variant.cols == 0 and problem.head_dim_v == 4 * variant.value_stride
        if not as_it_is or problem.dtype != "f32":
            scratch["V by tiles"] = padded(16 * rows * variant.value_stride)
        if variant.lean:
            scratch["Q by tiles"] = padded(4 * problem.pairs * round_up(problem.seq_q, variant.rows) * depth)
    if variant.splits > 1 or isinstance(variant, Decode):
        rows = variant.splits * problem.pairs * problem.seq_q
        scratch["partial outputs"] = 16 * rows * -(-problem.head_dim_v // 4)
        scratch["partial sums"] = 16 * rows
    return scratch


def power_of_two(value: int) -> int:
    """Return the least power of two that is no less than ``value``."""
    return 1 << (value - 1).bit_length()


def round_up(value: int, step: int) -> int:
    """Return the least multiple of ``step`` that is no less than ``value``."""
    return -(-value // step) * step
