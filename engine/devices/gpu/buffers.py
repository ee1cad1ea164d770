"""GPU buffers of one prepared kernel, each counted in a ledger."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

if TYPE_CHECKING:
    from engine.devices.gpu.device import GpuDevice

_UPLOAD_STEP = 64 << 20  # bytes staged at once
_USAGE = {"storage": 128 | 8 | 4, "uniform": 64 | 8}  # STORAGE | COPY_DST | COPY_SRC, UNIFORM | COPY_DST


def padded(nbytes: int) -> int:
    """Return the size of the buffer that holds ``nbytes``: a multiple of 16, never empty."""
    return max(16, (nbytes + 15) // 16 * 16)


class Part(NamedTuple):
    """A part of a buffer to bind: ``offset``, a multiple of 256, and ``size``, in bytes."""

    buffer: Any
    offset: int
    size: int


class Buffers:
    """All buffers of one kernel: ``total`` is their exact size in bytes. Freed together by ``destroy``."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._held: list[Any] = []
        self.total = 0
        self.upload_ms = 0.0

    def storage(self, label: str, nbytes: int) -> Any:
        """Return a new storage buffer of at least ``nbytes``, zeroed."""
        return self._create(label, nbytes, "storage")

    def upload(self, label: str, array: Any) -> Any:
        """Return a storage buffer that holds the array's bytes; its time counts as upload.

        What is a buffer already comes back as it is: it counts in ``total`` and stays its owner's to free.
        """
        if not isinstance(array, np.ndarray):
            self.total += array.size
            return array
        buffer = self._create(label, array.nbytes, "storage")
        start = time.perf_counter()
        write(self._device, buffer, array)
        self._device.wait()
        self.upload_ms += (time.perf_counter() - start) * 1e3
        return buffer

    def uniform(self, label: str, array: NDArray[Any]) -> Any:
        """Return a uniform buffer that holds the array's bytes."""
        buffer = self._create(label, array.nbytes, "uniform")
        write(self._device, buffer, array)
        return buffer

    def destroy(self) -> None:
        """Free every buffer. Safe to call twice."""
        for buffer in self._held:
            self._device.count(-buffer.size)
            buffer.destroy()
        self._held.clear()
        self.total = 0

    def _create(self, label: str, nbytes: int, kind: str) -> Any:
        buffer = self._device.raw.create_buffer(label=label, size=padded(nbytes), usage=_USAGE[kind])
        self._held.append(buffer)
        self.total += buffer.size
        self._device.count(buffer.size)
        return buffer


def write(device: GpuDevice, buffer: Any, array: NDArray[Any]) -> None:
    """Copy the array's bytes to the start of a buffer, in steps that keep the staging memory small."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if flat.size % 4:  # a copy is whole words
        flat = np.concatenate([flat, np.zeros(4 - flat.size % 4, np.uint8)])
    for start in range(0, flat.size, _UPLOAD_STEP):
        device.queue.write_buffer(buffer, start, flat[start : start + _UPLOAD_STEP])
        if flat.size > _UPLOAD_STEP:
            device.queue.submit([])
            device.wait()


def copy(device: GpuDevice, source: Any, target: Any) -> None:
    """Copy a buffer into another of the same size, on the GPU."""
    encoder = device.raw.create_command_encoder()
    encoder.copy_buffer_to_buffer(source, 0, target, 0, target.size)
    device.queue.submit([encoder.finish()])
    device.wait()


def read(device: GpuDevice, buffer: Any, count: int, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return the first ``count`` elements of a buffer."""
    nbytes = count * np.dtype(dtype).itemsize
    out = np.empty(padded(nbytes), np.uint8)
    for start in range(0, out.size, _UPLOAD_STEP):
        size = min(_UPLOAD_STEP, out.size - start)
        out[start : start + size] = np.frombuffer(device.queue.read_buffer(buffer, start, size), np.uint8)
    return out[:nbytes].view(dtype)
