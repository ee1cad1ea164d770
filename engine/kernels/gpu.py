"""What the GPU kernels have in common: limits they all need, masks and results as buffers, running and reading back."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from engine.common.units import sizes_apart
from engine.devices.device import Limits
from engine.devices.gpu.buffers import Buffers, padded, read, write
from engine.devices.gpu.device import GpuDevice
from engine.devices.gpu.timing import Dispatch, Runner
from engine.kernels.base import Array, MemoryUse, Outputs, Prepared, ShouldStop, Timing, never_stop
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs

FAR = 1 << 30  # an offset beyond every row and key
CHUNK_BYTES = 16
_NAN_BITS, _NEG_INF_BITS = 0x7FC00000, 0xFF800000


def row_offsets(problem: AttentionProblem) -> tuple[int, int]:
    """Return (lo_offset, hi_offset): row i sees keys from ``i + lo_offset`` up to, not with, ``i + hi_offset``."""
    if not problem.causal:
        return -FAR, FAR
    hi = problem.offset + 1
    return (-FAR if problem.window is None else hi - min(problem.window, FAR)), hi


def special_bits() -> tuple[int, int]:
    """Return the bits of -inf and NaN: WGSL can write neither as a constant."""
    return _NEG_INF_BITS, _NAN_BITS


def mask_words(problem: AttentionProblem) -> int:
    """Return 32-bit words per batch entry of the packed key mask, 0 where there is none."""
    return 0 if problem.key_mask is None else (problem.seq_k + 31) // 32


def mask_bits(problem: AttentionProblem) -> NDArray[np.uint32]:
    """Return the key mask as words [batch, mask_words], bit 0 first; one zero word where there is no mask."""
    if problem.key_mask is None:
        return np.zeros(1, np.uint32)
    bits = np.zeros((problem.batch, mask_words(problem) * 32), np.bool_)
    bits[:, : problem.seq_k] = problem.key_mask.unpack()
    return np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)


def mask_bytes(problem: AttentionProblem) -> int:
    """Return the size of the key mask's buffer."""
    return padded(4 * problem.batch * mask_words(problem))


def tensor_buffers(problem: AttentionProblem) -> tuple[int, int, int, int]:
    """Return the sizes of the buffers of Q, K, V and the output, in bytes."""
    shapes = (problem.q_shape, problem.k_shape, problem.v_shape, problem.output_shape)
    q, k, v, o = (padded(problem.itemsize * int(np.prod(shape, dtype=np.int64))) for shape in shapes)
    return q, k, v, o


def lse_bytes(problem: AttentionProblem, want_lse: bool) -> int:
    """Return the size of the log-sum-exp buffer; a placeholder where it is not wanted."""
    return padded(4 * problem.pairs * problem.seq_q if want_lse else 0)


def value_power(problem: AttentionProblem, inputs: Inputs) -> int:
    """Return by which power of two V must be smaller for sums over all keys to stay within float32; mostly 0.

    Of values that are on a GPU already nothing is known here: their sums may overflow, to infinity.
    """
    if not isinstance(inputs.v, np.ndarray) or inputs.v.dtype != np.float32:
        return 0
    largest = float(np.abs(inputs.v).max(initial=0, where=np.isfinite(inputs.v)))
    room = float(np.finfo(np.float32).max) / 4 / problem.seq_k
    return max(0, math.frexp(largest / room)[1]) if largest > room else 0


def too_large(what: str, nbytes: int, limit: int, limit_name: str) -> str:
    """Return the sentence for a need that passes a limit, with both figures."""
    needed, allowed = sizes_apart(nbytes, limit)
    return f"{what} needs {needed}, {limit_name} is {allowed}"


def common_reason(name: str, problem: AttentionProblem, limits: Limits, predicted: int) -> str | None:
    """Return why no GPU kernel could run the problem within these limits, None where nothing stands against it."""
    for label, nbytes in zip(("Q", "K", "V", "the output"), tensor_buffers(problem), strict=True):
        if nbytes > limits.binding_bytes:
            return too_large(label, nbytes, limits.binding_bytes, "this device's binding limit")
    if problem.backward and (rows := 2 * lse_bytes(problem, True)) > limits.binding_bytes:
        return too_large("what its rows need", rows, limits.binding_bytes, "this device's binding limit")
    if predicted > limits.memory_bytes:
        return too_large(name, predicted, limits.memory_bytes, "the memory limit")
    return None


class GpuPrepared(Prepared):
    """Buffers and dispatches of a GPU kernel that is ready to run."""

    def __init__(self, problem: AttentionProblem, device: GpuDevice) -> None:
        self.problem = problem
        self.device = device
        self.buffers = Buffers(device)
        self.compile_ms = 0.0
        self._dispatches: list[Dispatch] = []
        self._runner: Runner | None = None

    def upload(self, inputs: Inputs) -> None:
        """Upload Q, K, V and the key mask."""
        self.query = self.buffers.upload("query", inputs.q)
        self.key = self.buffers.upload("key", inputs.k)
        self.value = self.buffers.upload("value", inputs.v)
        self.upload_ms = self.buffers.upload_ms
        self.mask = self.buffers.upload("key_mask", mask_bits(self.problem))

    def dispatch(
        self, source: str, bindings: str, params: NDArray[Any], buffers: list[Any], workgroups: int, cost: float
    ) -> Dispatch:
        """Return a dispatch of WGSL whose first two bindings are its parameters and its chunk of the grid."""
        pipeline, compile_ms = self.device.pipeline(source, "uu" + bindings)
        self.compile_ms = (self.compile_ms or 0.0) + compile_ms
        uniform = self.buffers.uniform("params", params)
        chunk = self.buffers.uniform("chunk", np.zeros(CHUNK_BYTES // 4, np.uint32))
        group = self.device.bind_group(pipeline, [uniform, chunk, *buffers])
        return Dispatch(pipeline, group, chunk, workgroups, cost)

    def ready(self, dispatches: list[Dispatch]) -> None:
        """Set what a run does, in order."""
        self._dispatches = dispatches
        self._runner = Runner(self.device, dispatches)

    @property
    def longest_submit_ms(self) -> float:
        """Wall milliseconds of the longest submit so far."""
        return self._runner.longest_submit_s * 1e3 if self._runner else 0.0

    def run(self, repeat: int = 1, should_stop: ShouldStop = never_stop) -> Timing:
        """Run ``repeat`` times in submits of at most about 100 ms. Raises Cancelled between two of them."""
        assert self._runner is not None
        return self._runner.run(repeat, should_stop)

    def launch(self) -> None:
        """Run once, without looking at the GPU's clock."""
        Runner(self.device, self._dispatches, timed=False).run(1)

    def memory(self) -> MemoryUse:
        """Return the ledger: every buffer this kernel holds, and of it what is not one of the problem's tensors."""
        return MemoryUse(self.buffers.total - self.problem.tensor_bytes, self.buffers.total)

    def close(self) -> None:
        """Free all buffers."""
        if self._runner:
            self._runner.close()
            self._runner = None
        self.buffers.destroy()

    def _read(self, buffer: Any, shape: tuple[int, ...], stored: DTypeLike = np.float32) -> Array:
        """Return a buffer's elements in float32."""
        return read(self.device, buffer, math.prod(shape), stored).astype(np.float32, copy=False).reshape(shape)

    def _fill_with_nan(self, buffer: Any, stored: DTypeLike = np.float32) -> None:
        write(self.device, buffer, np.full(buffer.size // np.dtype(stored).itemsize, np.nan, stored))


class GpuForward(GpuPrepared):
    """A forward pass that is ready to run."""

    def __init__(self, problem: AttentionProblem, device: GpuDevice, want_lse: bool) -> None:
        super().__init__(problem, device)
        self.want_lse = want_lse
        self._power = 0  # of two, that the values are smaller by
        self._stored = np.dtype(np.float16 if problem.dtype == "f16" else np.float32)

    def common_buffers(self, inputs: Inputs) -> None:
        """Upload Q, K, V and the key mask, and allocate the output and log-sum-exp.

        Weights are divided by their sum at the end alone, so sums of values may pass float32's largest number where
        their mean does not: such values go in smaller by a power of two, and the output comes out larger by it.
        """
        self._power = value_power(self.problem, inputs)
        if self._power:
            inputs = replace(inputs, v=np.ldexp(inputs.v, -self._power))
        self.upload(inputs)
        self.output = self.buffers.storage("output", tensor_buffers(self.problem)[3])
        self.lse = self.buffers.storage("lse", lse_bytes(self.problem, self.want_lse))

    def poison(self) -> None:
        """Fill the output and log-sum-exp with NaN."""
        self._fill_with_nan(self.output, self._stored)
        self._fill_with_nan(self.lse)

    def outputs(self) -> Outputs:
        """Read the output, and the log-sum-exp where it was asked for, back from the GPU."""
        start = time.perf_counter()
        output = self._read(self.output, self.problem.output_shape, self._stored)
        if self._power:
            with np.errstate(over="ignore"):  # a mean beyond float32 is infinite there
                output = np.ldexp(output, self._power)
        self.readback_ms = (time.perf_counter() - start) * 1e3
        return Outputs(output, self._read(self.lse, self.problem.output_shape[:3]) if self.want_lse else None)
