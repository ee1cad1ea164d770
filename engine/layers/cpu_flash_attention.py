"""Single-head flash attention of vectors on the CPU as a layer: its block size, its temperature, and what it saves."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.devices.cpu import CpuDevice, open_cpu
from engine.devices.device import Tuned
from engine.kernels.base import Prepared
from engine.kernels.registry import get_kernel
from engine.layers.memory import MemoryEstimate
from engine.measure import sampler
from engine.measure.sampler import Rule, Runner
from engine.measure.statistics import summarise
from engine.measure.verify import expect, verify
from engine.problem.arrays import as_float32, as_positive, as_real, as_whole
from engine.problem.attention_problem import MAX_HEAD_DIM, AttentionProblem
from engine.problem.inputs import Inputs, seeded

Array = NDArray[np.float32]

_FLASH, _NAIVE = "cpu-flash", "cpu-naive"
_ROWS = 256  # of a block of queries: keys and values are loaded once for so many
_MOST_KEYS = 2048  # of a tile, however large the block size


class CpuFlashAttentionConfig(msgspec.Struct, frozen=True):
    """How a CpuFlashAttention computes.

    ``block_size`` is the number of keys that are taken at a time, 2,048 at most. ``dimensions`` is the length D of
    queries and keys, up to 256. The scale of the scores is ``1 / (temperature · sqrt(D))``. Raises ValueError.
    """

    block_size: int
    dimensions: int
    temperature: float = 1.0

    def __post_init__(self) -> None:
        fill = msgspec.structs.force_setattr
        for name in ("block_size", "dimensions"):
            fill(self, name, as_whole(name, getattr(self, name)))
        if self.dimensions > MAX_HEAD_DIM:
            raise ValueError(f"dimensions must be at most {MAX_HEAD_DIM}, got {self.dimensions}")
        fill(self, "temperature", as_positive("temperature", self.temperature))
        if math.isinf(self.scale):
            raise ValueError(f"temperature must not be so small that the scale is infinite, got {self.temperature!r}")

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return 1 / (self.temperature * math.sqrt(self.dimensions))


class BenchmarkResult(msgspec.Struct, frozen=True, kw_only=True):
    """Naive against flash self-attention over ``num_queries`` seeded normal vectors.

    Times are medians of interleaved samples after a warm-up; ``speedup`` is naive over flash, NaN unless
    ``equivalent``: both outputs are those of the float64 reference within float32 rounding. ``max_abs_error`` is the
    largest difference between the two. ``memory_reduction`` is the ``reduction_ratio`` of ``memory_estimate``.
    """

    naive_time_ms: float
    flash_time_ms: float
    speedup: float
    memory_reduction: float
    num_queries: int
    dimensions: int
    max_abs_error: float
    equivalent: bool


class CpuFlashAttention:
    """``softmax(scale · Q Kᵀ) V`` of vectors, in blocks of keys with an online softmax, in float32.

    Vectors are rows of arrays, or nested lists, of real numbers; results are float32. No input is changed.
    """

    def __init__(self, config: CpuFlashAttentionConfig) -> None:
        if not isinstance(config, CpuFlashAttentionConfig):
            raise ValueError(f"config must be a CpuFlashAttentionConfig, got {config!r}")
        self.config = config

    @classmethod
    def with_dimensions(cls, dimensions: int) -> CpuFlashAttention:
        """Return a layer for vectors of that length, with block size 64 and temperature 1."""
        return cls(CpuFlashAttentionConfig(block_size=64, dimensions=dimensions))

    def attention(self, queries: ArrayLike, keys: ArrayLike, values: ArrayLike) -> Array:
        """Return the attention of ``queries`` [N_q, D] to ``keys`` [N_k, D] and ``values`` [N_k, D_v]: [N_q, D_v].

        Raises ValueError for ragged lists, for shapes that do not fit together or the config, and for empty ones.
        """
        return self._run(_FLASH, queries, keys, values)

    def naive_attention(self, queries: ArrayLike, keys: ArrayLike, values: ArrayLike) -> Array:
        """Return the same through the whole score matrix [N_q, N_k]."""
        return self._run(_NAIVE, queries, keys, values)

    def self_attention(self, sequence: ArrayLike) -> Array:
        """Return the attention of a sequence [N, D] to itself."""
        return self.attention(sequence, sequence, sequence)

    def cross_attention(self, queries: ArrayLike, kv_sequence: ArrayLike) -> Array:
        """Return the attention of ``queries`` [N_q, D] to a sequence [N_k, D], which is keys and values."""
        return self.attention(queries, kv_sequence, kv_sequence)

    def memory_estimate(self, seq_len: int) -> MemoryEstimate:
        """Return the bytes that ``naive_attention`` and ``attention`` allocate at their peak over ``seq_len`` vectors.

        Counted is all that a call allocates beyond the vectors given, with D_v = D: the output, and the score matrix
        or the buffers of all threads. Vectors that are not float32 rows one after the other are copied first; that is
        not counted.
        """
        problem = self._problem(as_whole("seq_len", seq_len))
        with self._device() as device:
            given = 4 * sum(math.prod(shape) for shape in (problem.q_shape, problem.k_shape, problem.v_shape))
            naive, flash = (get_kernel(name).predict(problem, device.limits) - given for name in (_NAIVE, _FLASH))
        return MemoryEstimate.of(naive, flash)

    def benchmark(self, num_vectors: int, *, seconds: float = 1.0) -> BenchmarkResult:
        """Race naive against flash over that many vectors for at most about ``seconds`` each.

        Both outputs are judged by the float64 reference before anything is timed. Raises ValueError for ``seconds`` not
        above 0, and where one of the two needs more memory than the device gives.
        """
        problem, seconds = self._problem(as_whole("num_vectors", num_vectors)), as_positive("seconds", seconds)
        with ExitStack() as stack:
            device = stack.enter_context(self._device())
            for name in (_NAIVE, _FLASH):
                _check(name, problem, device)  # before vectors are drawn that might not fit either
            inputs = seeded(problem, 0)
            expected = expect(problem, inputs)
            runners, outputs = [], []
            for name in (_NAIVE, _FLASH):
                prepared = stack.enter_context(closing(_prepare(name, problem, inputs, device)))
                prepared.poison()
                first_run_s = prepared.run().wall_ms / 1e3
                outputs.append(prepared.outputs().output.copy())
                runners.append(Runner(prepared.run, first_run_s))
            for runner in runners:
                sampler.warm_up(runner, seconds)
            sampler.race(runners, Rule(seconds=seconds, samples=None, min_samples=10), began=time.perf_counter())
        for runner in runners:
            if runner.error is not None:
                raise runner.error
        naive_ms, flash_ms = (summarise(runner.walls).median for runner in runners)
        difference = np.abs(outputs[0] - outputs[1]).max()
        equivalent = all(verify(expected, output).verified for output in outputs)
        return BenchmarkResult(
            naive_time_ms=naive_ms,
            flash_time_ms=flash_ms,
            speedup=naive_ms / flash_ms if equivalent else math.nan,
            memory_reduction=self.memory_estimate(num_vectors).reduction_ratio,
            num_queries=problem.seq_q,
            dimensions=problem.head_dim,
            max_abs_error=float(difference),
            equivalent=equivalent,
        )

    def __repr__(self) -> str:
        return f"CpuFlashAttention({self.config})"

    def _run(self, kernel: str, queries: ArrayLike, keys: ArrayLike, values: ArrayLike) -> Array:
        q, k, v = _vectors("queries", queries), _vectors("keys", keys), _vectors("values", values)
        for name, array in (("queries", q), ("keys", k)):
            if array.shape[1] != self.config.dimensions:
                raise ValueError(f"{name} must have {self.config.dimensions} dimensions, got {array.shape[1]}")
        if len(k) != len(v):
            raise ValueError(f"keys and values must be equally many, got {len(k)} and {len(v)}")
        problem = self._problem(len(q), len(k), v.shape[1])
        inputs = Inputs(q[None, None], k[None, None], v[None, None])
        with self._device() as device, closing(_prepare(kernel, problem, inputs, device)) as prepared:
            prepared.run()
            output: Array = prepared.outputs().output[0, 0]
            return output

    def _problem(self, seq_q: int, seq_k: int | None = None, head_dim_v: int | None = None) -> AttentionProblem:
        return AttentionProblem(
            heads=1,
            seq_q=seq_q,
            seq_k=seq_q if seq_k is None else seq_k,
            head_dim=self.config.dimensions,
            head_dim_v=self.config.dimensions if head_dim_v is None else head_dim_v,
            scale=self.config.scale,
        )

    @contextmanager
    def _device(self) -> Iterator[CpuDevice]:
        """Open the CPU, with blocks of the config's size as what is tuned for it."""
        keys = min(self.config.block_size, _MOST_KEYS)
        blocks = (("rows", _ROWS), ("keys", keys), ("edge_keys", keys))
        tuned = Tuned(kernel=_FLASH, dtype="f32", head_dim=self.config.dimensions, causal=False, variant=blocks)
        with open_cpu() as device:
            device.limits = msgspec.structs.replace(device.limits, tuned=(tuned,))
            yield device


def _check(kernel: str, problem: AttentionProblem, device: CpuDevice) -> None:
    reason = get_kernel(kernel).refusal(problem, device.limits)
    if reason is not None:
        raise ValueError(f"{kernel} cannot run this problem: {reason}")


def _prepare(kernel: str, problem: AttentionProblem, inputs: Inputs, device: CpuDevice) -> Prepared:
    _check(kernel, problem, device)
    return get_kernel(kernel).prepare(problem, inputs, device)


def _vectors(name: str, value: ArrayLike) -> Array:
    array = as_real(name, value)
    if array.size == 0:
        raise ValueError(f"{name} must not be empty, got shape {list(array.shape)}")
    if array.ndim != 2:
        raise ValueError(f"{name} must be rows of numbers, [count, dimensions], got shape {list(array.shape)}")
    return as_float32(array)
