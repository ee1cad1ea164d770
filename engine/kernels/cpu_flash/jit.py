"""cpu-flash-jit: the algorithm of cpu-flash, compiled by Numba but for the matrix products, which NumPy's BLAS does.

Optional: Numba is imported when a kernel is prepared, never with this module. A work item is one block of query rows
or, where blocks are short, several in a row; a thread does it without Python, and so without waiting for the others.
What a thread owns, for R rows and T keys (R·T scores are at most four times L2), beside some numbers for each row:

    scores [R, T]     values [T, head_dim_v]     keys [T, head_dim], with a key_mask

Where BLAS multiplies small matrices without copying them first, a tile is gone through in steps of r rows, as many as
such a product may have. T is 192 there, R·T scores would be 0.4 times L2, and there are:

    scores [r, T]     values [T, head_dim_v]     keys [head_dim, T]
"""

from __future__ import annotations

import functools
import math
import time
from dataclasses import replace
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from engine.common.running import ShouldStop, Timing, never_stop
from engine.devices.blas import blas_name, sgemm, unpacked_product
from engine.devices.cpu import CpuDevice, open_cpu
from engine.devices.device import Device, Limits
from engine.kernels.base import Array, Kernel, Outputs, Prepared
from engine.kernels.cpu import aligned, float32_cap, float32_scale, run_timed, unsupported
from engine.kernels.cpu_flash.blocks import ENOUGH_BLOCKS, Blocks, BlockSizes, shown_keys
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs

_KEYS, _EDGE_KEYS, _L2_TIMES = 512, 128, 4.0
# where BLAS need not pack; keys are columns there, whose places in L1 coincide if they are a power of two apart
_FEW_KEYS, _FEW_EDGE_KEYS, _FEW_L2_TIMES = 192, 96, 0.4
_LEAST_ROWS = 16  # of a product, to be worth a call
_BLOCKS_A_THREAD = 4  # with fewer, threads may end far apart
_ENOUGH_FLOPS = 20_000_000  # of a block, some 150 to 300 µs of work
_ITEM_FLOPS = 4e6  # of a work item, where blocks are shorter: some 60 µs, a dozen times what handing it out costs
_SCORES_AT_ONCE = 1 << 22  # computed between two looks at should_stop: some 20 ms


class CpuFlashJit(Kernel):
    """Blocked attention with an online softmax, compiled by Numba, threaded over (batch, head, query block)."""

    name = "cpu-flash-jit"
    summary = "Numba, blocked, online softmax"
    device_kind = "cpu"
    naive = "cpu-naive"
    honours = ("causal", "window", "softcap", "scale", "key_mask")
    needs = ("numba", "jit")

    def missing(self) -> str | None:
        """Return None, or what is missing: Numba, or a BLAS that can be called from compiled code."""
        if sgemm() is None:
            return f"not available: {blas_name()} has no cblas_sgemm to call"
        return super().missing()

    def on(self, device: Device) -> Device:
        """Return the CPU with Numba in NumPy's place."""
        assert isinstance(device, CpuDevice)
        return device.called("numba", f"numba {metadata.version('numba')}, {blas_name()}")

    def candidates(self, problem: AttentionProblem, limits: Limits) -> list[msgspec.Struct]:
        """Return the block sizes worth measuring, those for this L2 first."""
        return [*_default(problem, limits).candidates(problem, _ENOUGH_FLOPS)]

    def supports(self, problem: AttentionProblem, limits: Limits) -> str | None:
        """Return None, or why the problem cannot run: backward, not float32, or more memory than the limit."""
        if problem.backward:
            return f"{self.name} has no backward pass"
        return unsupported(problem, limits, "its tensors and tiles need", self.predict(problem, limits))

    def predict(self, problem: AttentionProblem, limits: Limits) -> int:
        """Return the bytes of Q, K, V, output, every thread's buffers and the numbers of the keys shown."""
        blocks = _blocks(problem, limits)
        threads = min(limits.threads, -(-blocks.count // _blocks_of_item(problem, blocks)))
        workspace = sum(math.prod(shape) * np.dtype(kind).itemsize for shape, kind in _buffers(problem, blocks))
        numbers = sum(keys.nbytes for keys in shown_keys(problem))
        return problem.tensor_bytes + threads * workspace + numbers

    def load(self) -> None:
        """Have Numba compile, or find what it compiled before on disk."""
        _compile()

    def prepare(
        self, problem: AttentionProblem, inputs: Inputs, device: CpuDevice, *, want_lse: bool = False
    ) -> Prepared:
        """Compile where that has not been done; allocate the output and every thread's buffers."""
        compile_ms = _compile()
        prepared = _PreparedJit(problem, inputs, device, want_lse)
        prepared.compile_ms = compile_ms
        return prepared


class _PreparedJit(Prepared):
    """cpu-flash-jit ready for one problem."""

    def __init__(self, problem: AttentionProblem, inputs: Inputs, device: CpuDevice, want_lse: bool) -> None:
        from engine.kernels.cpu_flash import compiled as compiled

        self._device = device
        self._inputs = inputs  # whose memory is lent to ``_tensors``
        self._blocks = _blocks(problem, device.limits)
        self.variant = f"{self._blocks.rows * self._blocks.heads}x{self._blocks.keys}"
        self._output: Array = np.empty(problem.output_shape, np.float32)
        self._lse: Array | None = np.empty(problem.output_shape[:3], np.float32) if want_lse else None
        self._blas = _blas()
        self._cut = _cut(problem, self._blocks)
        self._rule = _rule(problem)
        self._tensors = _tensors(problem, inputs, self._output, self._lse)
        self._blocks_of_item = _blocks_of_item(problem, self._blocks)
        self._items = -(-self._blocks.count // self._blocks_of_item)
        self._works = [
            compiled.Work(*(aligned(*shape, kind=kind) for shape, kind in _buffers(problem, self._blocks)))
            for _ in range(min(device.limits.threads, self._items))
        ]
        self._attend = compiled.attend

    def run(self, repeat: int = 1, should_stop: ShouldStop = never_stop) -> Timing:
        return run_timed(lambda: self._device.each(self._items, self._item, should_stop, len(self._works)), repeat)

    def poison(self) -> None:
        self._output.fill(np.nan)
        if self._lse is not None:
            self._lse.fill(np.nan)

    def outputs(self) -> Outputs:
        return Outputs(self._output, self._lse)

    def close(self) -> None:
        self._works.clear()

    def _item(self, worker: int, number: int, stopped: ShouldStop) -> None:
        """Compute the blocks of one work item."""
        work = self._works[worker]
        stop = min((number + 1) * self._blocks_of_item, self._blocks.count)
        work.at[0], work.at[1] = number * self._blocks_of_item, -1
        while work.at[0] < stop and not stopped():
            self._attend(self._blas, self._tensors, self._cut, self._rule, work, stop, _SCORES_AT_ONCE)


def _default(problem: AttentionProblem, limits: Limits) -> BlockSizes:
    if _few_rows(problem, _FEW_KEYS):
        return BlockSizes.default(limits, keys=_FEW_KEYS, edge_keys=_FEW_EDGE_KEYS, l2_times=_FEW_L2_TIMES)
    return BlockSizes.default(limits, keys=_KEYS, edge_keys=_EDGE_KEYS, l2_times=_L2_TIMES)


def _blocks(problem: AttentionProblem, limits: Limits) -> Blocks:
    sizes = _default(problem, limits).or_tuned(CpuFlashJit.name, problem, limits)
    blocks = Blocks.of(problem, sizes, _ENOUGH_FLOPS)
    step = _few_rows(problem, blocks.keys)
    if not step or problem.causal or blocks.heads > 1:
        return blocks
    # A block turns all keys, so with few threads it may be a large one. Where rows see the same keys and products begin
    # at the same rows, they are computed alike however they are cut: results do not depend on the number of threads.
    larger = Blocks.of(problem, sizes, _ENOUGH_FLOPS, min(ENOUGH_BLOCKS, _BLOCKS_A_THREAD * limits.threads))
    rows = -(-larger.rows // step) * step
    return replace(blocks, rows=rows, row_blocks=-(-problem.seq_q // rows))


def _few_rows(problem: AttentionProblem, keys: int) -> int:
    """Return how many rows BLAS multiplies with so many keys, and weights with values, without packing, or 0.

    Keys and columns of values must fill vectors of 16, else what is left takes another, slower path.
    """
    rows = unpacked_product() // (keys * max(problem.head_dim, problem.head_dim_v)) // 4 * 4
    return rows if rows >= _LEAST_ROWS and keys % 16 == problem.head_dim_v % 16 == 0 else 0


def _blocks_of_item(problem: AttentionProblem, blocks: Blocks) -> int:
    """Return how many blocks in a row make a work item."""
    flops = 2 * problem.pairs * problem.seq_q * problem.seq_k * (problem.head_dim + problem.head_dim_v)
    return max(1, min(blocks.count, int(_ITEM_FLOPS * blocks.count / flops)))


def _buffers(problem: AttentionProblem, blocks: Blocks) -> list[tuple[tuple[int, ...], type[np.generic]]]:
    """Return shape and dtype of the buffers of one thread, in the order of ``Work``."""
    rows, keys = blocks.rows * blocks.heads, blocks.keys
    few_rows = _few_rows(problem, keys)
    copied = keys if few_rows or problem.key_mask is not None else 0
    return [
        ((min(rows, few_rows or rows) * keys,), np.float32),
        ((copied * problem.head_dim,), np.float32),
        ((keys, problem.head_dim_v), np.float32),
        ((2, problem.head_dim_v), np.float32),
        *[((rows,), np.int64)] * 2,
        *[((rows,), np.float32)] * 3,
        ((6,), np.int64),
    ]


def _cut(problem: AttentionProblem, blocks: Blocks) -> Any:
    from engine.kernels.cpu_flash.compiled import Cut

    return Cut(
        rows=blocks.rows,
        heads=blocks.heads,
        row_blocks=blocks.row_blocks,
        head_blocks=blocks.head_blocks,
        keys=blocks.keys,
        edge_keys=blocks.edge_keys,
        few_rows=_few_rows(problem, blocks.keys),
        heads_of_batch=problem.heads,
        group=problem.group,
        seq_q=problem.seq_q,
        seq_k=problem.seq_k,
    )


def _rule(problem: AttentionProblem) -> Any:
    from engine.kernels.cpu_flash.compiled import Rule

    scale, cap = float32_scale(problem.scale), 0.0
    if problem.softcap is not None:
        cap = float32_cap(problem.softcap)
    to_exponent = (1.0 if cap else scale) / math.log(2)
    return Rule(
        before=np.float32(float32_scale(scale / cap if cap else 0.0)),
        cap=np.float32(cap),
        factor=np.float32(to_exponent),
        flip=np.int32(-1 if to_exponent < 0 else 0),
        causal=problem.causal,
        offset=problem.offset,
        window=problem.seq_q + problem.seq_k if problem.window is None else problem.window,
    )


def _tensors(problem: AttentionProblem, inputs: Inputs, output: Array, lse: Array | None) -> Any:
    from engine.kernels.cpu_flash.compiled import Tensors

    shown = shown_keys(problem)
    return Tensors(
        q=_lent(inputs.q, problem.head_dim),
        k=_lent(inputs.k, problem.head_dim),
        v=_lent(inputs.v, problem.head_dim_v),
        output=output.reshape(-1, problem.head_dim_v),
        lse=np.empty(0, np.float32) if lse is None else lse.reshape(-1),
        shown=np.concatenate([np.empty(0, np.int64), *shown]),
        shown_from=np.cumsum([0, *map(len, shown)]) if shown else np.empty(0, np.int64),
    )


def _lent(array: Any, width: int) -> Array:
    """Return the array as rows of that width, of the one type that was compiled for: read-only is another to Numba."""
    rows = np.require(array, np.float32, ("C", "A")).reshape(-1, width)
    if rows.flags.writeable:
        return rows
    interface = rows.__array_interface__ | {"data": (rows.ctypes.data, False)}
    lent: Array = np.asarray(SimpleNamespace(__array_interface__=interface, memory_of=rows))
    return lent


def _blas() -> Any:
    from engine.kernels.cpu_flash.compiled import Blas

    found = sgemm()
    assert found is not None
    return Blas(address=np.uintp(found.address), wide=found.wide)


@functools.cache
def _compile() -> float:
    """Have the compiled part made, or found, by a call; return the milliseconds that took, once a process.

    Whatever the problem, the arguments are of the same types, so this serves for all.
    """
    begin = time.perf_counter()
    problem = AttentionProblem(heads=1, seq_q=1, head_dim=1)
    one = np.ones(problem.q_shape, np.float32)
    with open_cpu(threads=1) as device:
        _PreparedJit(problem, Inputs(one, one, one), device, want_lse=False).run()
    return (time.perf_counter() - begin) * 1e3
