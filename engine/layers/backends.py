"""Where a layer computes: its tensors are split into heads for a kernel, on the CPU or a GPU, and the result is joined.

A layer's tensors are [batch, seq, heads, width] in memory, whatever their shape says; kernels read [batch, heads, seq,
width]. Log-sum-exps are [batch, heads, seq] on both sides.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from engine.common.units import sizes_apart
from engine.devices.cpu import open_cpu
from engine.devices.device import Limits
from engine.devices.gpu.buffers import Buffers, copy, padded, read
from engine.devices.gpu.heads import Swap, swap_bytes, swap_heads
from engine.kernels.gpu import GpuForward
from engine.kernels.gpu_backward import GpuBackward
from engine.kernels.registry import get_kernel
from engine.layers.gpu_context import GpuContext
from engine.layers.tensor import Place, Tensor
from engine.problem.arrays import as_float32
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs

_FLAG_BYTES = 16


def backend(device: Place) -> Backend:
    """Return the backend of a device."""
    return GpuBackend(device) if isinstance(device, GpuContext) else CpuBackend()


class Backend(ABC):
    """A device and its kernels."""

    flash: ClassVar[str]
    naive: ClassVar[str]

    @abstractmethod
    def limits(self) -> Limits:
        """Return what a kernel may use here, now."""

    def compute(self, problem: AttentionProblem, given: Mapping[str, Tensor], want_lse: bool = False) -> list[Tensor]:
        """Return output and, where wanted, lse of a forward problem; dq, dk and dv of a backward one.

        ``given`` are q, k and v, and of a backward problem output, grad_output and lse; all of them on this device. A
        result has the shape and dtype of what it answers to. Raises ValueError where it cannot be done here.
        """
        limits = self.limits()
        reason = get_kernel(self.flash).refusal(problem, limits)
        if reason is not None:
            raise ValueError(f"{self.flash} cannot run this problem: {reason}")
        held = self.held_bytes(self.flash, problem, limits)
        if held > limits.memory_bytes:
            needed, allowed = sizes_apart(held, limits.memory_bytes)
            raise ValueError(f"with its copies this call needs {needed}, the limit is {allowed}")
        return self._compute(problem, given, want_lse)

    def held_bytes(self, kernel: str, problem: AttentionProblem, limits: Limits) -> int:
        """Return the bytes of a whole call with that kernel, at its peak."""
        return get_kernel(kernel).predict(problem, limits) + self._joined_bytes(problem)

    @abstractmethod
    def _joined_bytes(self, problem: AttentionProblem) -> int:
        """Return what a call holds beside its kernel: tensors before they are split, and results after joining."""

    @abstractmethod
    def _compute(self, problem: AttentionProblem, given: Mapping[str, Tensor], want_lse: bool) -> list[Tensor]: ...


class CpuBackend(Backend):
    """The CPU, with as many threads as cores. Computes in float32."""

    flash, naive = "cpu-flash", "cpu-naive"

    def limits(self) -> Limits:
        """Return what a kernel may use here, now."""
        with open_cpu() as cpu:
            return cpu.limits

    def held_bytes(self, kernel: str, problem: AttentionProblem, limits: Limits) -> int:
        """Return the bytes of a whole call with that kernel, at its peak."""
        held = super().held_bytes(kernel, problem, limits)
        if problem.backward:
            return held
        scratch = get_kernel(kernel).predict(problem, limits) - problem.tensor_bytes
        return held - min(scratch, _copy_bytes(problem.output_shape))  # joined when the kernel's scratch is freed

    def _joined_bytes(self, problem: AttentionProblem) -> int:
        return sum(_copy_bytes(_sizes(problem, name)) for name in _operands(problem))

    def _compute(self, problem: AttentionProblem, given: Mapping[str, Tensor], want_lse: bool) -> list[Tensor]:
        split: dict[str, Any] = {}
        for name, tensor in given.items():
            batch, heads, seq, width = _sizes(problem, name)
            array = tensor.storage()
            if name == "lse":
                split[name] = array.reshape(batch, heads, seq)
            else:
                split[name] = as_float32(array.reshape(batch, seq, heads, width).swapaxes(1, 2))
        inputs, kernel = Inputs(**split), get_kernel(self.flash)
        with open_cpu() as cpu, closing(kernel.prepare(problem, inputs, cpu, want_lse=want_lse)) as prepared:
            prepared.run()
            if problem.backward:
                gradients = prepared.gradients()
                results = {"q": gradients.dq, "k": gradients.dk, "v": gradients.dv}
                return [_joined(array, given[name]) for name, array in results.items()]
            outputs = prepared.outputs()
        output = _joined(outputs.output, given["q"])
        if outputs.lse is None:
            return [output]
        shape = _lse_shape(problem, given["q"])
        return [output, Tensor(shape, np.float32, "cpu", outputs.lse.reshape(shape))]


class GpuBackend(Backend):
    """A GPU. Of what tensors hold one word is read back: whether there is a NaN or an infinity among it."""

    flash, naive = "gpu-flash", "gpu-naive"

    def __init__(self, context: GpuContext) -> None:
        self._context = context

    def limits(self) -> Limits:
        """Return what a kernel may use here, now."""
        return self._context.limits

    def _joined_bytes(self, problem: AttentionProblem) -> int:
        sizes = (padded(problem.itemsize * math.prod(_sizes(problem, name))) for name in _operands(problem))
        return sum(sizes) + _FLAG_BYTES + swap_bytes(3 if problem.backward else 1)

    def _compute(self, problem: AttentionProblem, given: Mapping[str, Tensor], want_lse: bool) -> list[Tensor]:
        device, held = self._context.device, Buffers(self._context.device)
        try:
            flag = held.storage("nonfinite", _FLAG_BYTES)
            split, swaps = {}, []
            for name, tensor in given.items():
                if name == "lse":
                    split[name] = tensor.storage()
                    continue
                batch, heads, seq, width = _sizes(problem, name)
                split[name] = held.storage(name, tensor.nbytes)
                swaps.append(Swap(tensor.storage(), (batch, seq, heads, width), split[name]))
            swap_heads(device, swaps, problem.dtype, flag)
            inputs = Inputs(**split, nonfinite=bool(read(device, flag, 1, np.uint32)[0]))
            kernel = get_kernel(self.flash)
            with closing(kernel.prepare(problem, inputs, device, want_lse=want_lse)) as prepared:
                assert isinstance(prepared, GpuForward | GpuBackward)
                prepared.launch()
                results, swaps = [], []
                for name, buffer in _results(prepared).items():
                    results.append(Tensor(given[name].shape, given[name].dtype, self._context))
                    swaps.append(Swap(buffer, _sizes(problem, name), results[-1].storage()))
                swap_heads(device, swaps, problem.dtype, flag)
                if isinstance(prepared, GpuForward) and want_lse:
                    results.append(Tensor(_lse_shape(problem, given["q"]), np.float32, self._context))
                    copy(device, prepared.lse, results[-1].storage())
                return results
        finally:
            held.destroy()


def _results(prepared: GpuForward | GpuBackward) -> dict[str, Any]:
    """Return the buffers that a kernel leaves its result in, under the names of what they answer to."""
    if isinstance(prepared, GpuBackward):
        return {"q": prepared.dq, "k": prepared.dk, "v": prepared.dv}
    return {"q": prepared.output}


def _operands(problem: AttentionProblem) -> tuple[str, ...]:
    """Return the names of what is split and joined, gradients under the names of what they answer to."""
    forward = ("q", "k", "v", "output")
    return (*forward, "grad_output", "q", "k", "v") if problem.backward else forward


def _copy_bytes(shape: tuple[int, int, int, int]) -> int:
    """Return the bytes of a copy on the CPU, which a single head, or a single row, needs none of."""
    return 4 * math.prod(shape) if shape[1] > 1 and shape[2] > 1 else 0


def _sizes(problem: AttentionProblem, name: str) -> tuple[int, int, int, int]:
    """Return batch, heads, seq and width of an operand."""
    shapes = {"q": problem.q_shape, "k": problem.k_shape, "v": problem.v_shape}
    return shapes.get(name, problem.output_shape)


def _lse_shape(problem: AttentionProblem, q: Tensor) -> tuple[int, ...]:
    """Return the shape of the log-sum-exp: [batch, heads, seq_q], or [heads, seq_q] where q has no batch."""
    return problem.output_shape[1:3] if len(q.shape) == 2 else problem.output_shape[:3]


def _joined(result: NDArray[np.float32], like: Tensor) -> Tensor:
    """Return a result [batch, heads, seq, width] as a tensor of the shape and dtype of ``like``, on the CPU."""
    with np.errstate(over="ignore"):  # a gradient too large for float16 becomes infinite
        array = np.ascontiguousarray(result.swapaxes(1, 2), like.dtype).reshape(like.shape)
    return Tensor(like.shape, like.dtype, "cpu", array)
