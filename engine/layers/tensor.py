"""A tensor: numbers of one shape on the CPU or on a GPU, where they stay until they are asked for."""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from engine.common.units import size, sizes_apart
from engine.devices.gpu.buffers import Buffers, read, write
from engine.layers.gpu_context import GpuContext
from engine.problem.arrays import as_real

Place = Literal["cpu"] | GpuContext  # where a tensor is, or a layer computes


def place(device: str | GpuContext | None) -> Place:
    """Return what ``device`` names: None and ``gpu`` the process's GPU, ``cpu``, or a GPU by index or part of a name.

    Raises DeviceUnavailable with what to install where there is no usable GPU, ValueError where none is named so.
    """
    if device == "cpu":
        return "cpu"
    if isinstance(device, GpuContext):
        return device
    if device is not None and not isinstance(device, str):
        raise ValueError(f"device must be 'cpu', 'gpu', part of a GPU's name or a GpuContext, got {device!r}")
    return GpuContext("auto" if device is None or device == "gpu" else device)


class Tensor:
    """A C-contiguous array of float32 or float16, on the CPU or on a GPU. Made by ``from_numpy``, ``zeros``, layers.

    Its memory is freed by ``close``, at the end of a ``with`` block, or with the last reference; after that, shape and
    dtype can still be asked for, its numbers raise ValueError. A tensor on a GPU is for the thread that opened the
    GPU: on others its numbers raise RuntimeError.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: DTypeLike,
        device: str | GpuContext | None,
        array: NDArray[Any] | None = None,
    ) -> None:
        """For ``from_numpy``, ``zeros`` and layers: it holds ``array``, on the CPU the very same, or zeros."""
        self.shape = _shape(shape)
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float16):
            raise ValueError(f"a tensor holds float32 or float16, not {self.dtype}")
        self.device: Place = place(device)
        self._held: Any
        if isinstance(self.device, GpuContext):
            self._held, buffers = _allocate(self.device, self.nbytes)
            self._release = weakref.finalize(self, _free, self.device, buffers)
            self._release.atexit = False  # the driver goes with the process, perhaps before
            if array is not None:
                write(self.device.device, self._held, array)
                self.device.device.wait()
        else:
            self._held = np.zeros(self.shape, self.dtype) if array is None else array

    @classmethod
    def from_numpy(cls, array: ArrayLike, device: str | GpuContext | None = None) -> Tensor:
        """Return a tensor with a copy of the numbers: float16 stays, other real numbers become float32.

        ``device`` is ``cpu``, ``gpu`` (the default: the process's GPU), part of a GPU's name, or a GpuContext. Raises
        ValueError for what holds no real numbers or is too large for the GPU, DeviceUnavailable where there is none.
        """
        given, where = as_real("array", array), place(device)
        half = given.dtype.kind == "f" and given.dtype.itemsize == 2
        with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite
            values = given.astype(np.float16 if half else np.float32, order="C", copy=where == "cpu")
        return cls(values.shape, values.dtype, where, values)

    @classmethod
    def zeros(
        cls, shape: Sequence[int], dtype: DTypeLike = np.float32, device: str | GpuContext | None = None
    ) -> Tensor:
        """Return a tensor of zeros, float32 or float16; ``device`` and errors as in ``from_numpy``."""
        return cls(shape, dtype, device)

    def numpy(self) -> NDArray[Any]:
        """Return a copy of the numbers as an array of the same shape and dtype."""
        held = self.storage()
        if isinstance(self.device, GpuContext):
            return read(self.device.device, held, math.prod(self.shape), self.dtype).reshape(self.shape)
        copy: NDArray[Any] = held.copy()
        return copy

    def storage(self) -> Any:
        """Return what holds the numbers: an array, or a wgpu buffer. Raises ValueError once closed."""
        if self._held is None:
            raise ValueError(f"this tensor of shape {list(self.shape)} is closed; its numbers are gone")
        if isinstance(self.device, GpuContext):
            self.device.device.check_thread()
        return self._held

    def close(self) -> None:
        """Free the memory. Safe to call twice."""
        self._held = None
        if isinstance(self.device, GpuContext):
            self._release()

    @property
    def closed(self) -> bool:
        """Whether the memory is freed."""
        return self._held is None

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __enter__(self) -> Tensor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else size(self.nbytes)
        return f"Tensor({list(self.shape)}, {self.dtype}, {self.device}, {state})"


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(operator.index(n) for n in shape)
    except TypeError:
        raise ValueError(f"a shape must be a sequence of whole numbers, got {shape!r}") from None
    if any(n < 0 for n in sizes):
        raise ValueError(f"a shape has no negative sizes, got {list(sizes)}")
    return sizes


def _allocate(context: GpuContext, nbytes: int) -> tuple[Any, Buffers]:
    context.device.check_thread()
    while context.orphans:
        context.orphans.popleft().destroy()
    most = context.limits.binding_bytes
    if nbytes > most:
        needed, allowed = sizes_apart(nbytes, most)
        raise ValueError(f"a tensor of {needed} is too large for {context.adapter.name}: it takes {allowed}")
    buffers = Buffers(context.device)
    return buffers.storage("tensor", nbytes), buffers


def _free(context: GpuContext, buffers: Buffers) -> None:
    if context.device.owned_here():
        buffers.destroy()
    else:
        context.orphans.append(buffers)
