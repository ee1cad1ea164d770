"""The most a device can do, measured here and now: multiply-adds and bytes moved, in at most 0.3 s each time."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np

from engine.devices.blas import hold_blas
from engine.devices.device import Device
from engine.problem.attention_problem import Dtype

_SGEMM = 768  # rows and columns: large enough for BLAS to be at its best, 0.9 GFLOP
_COPY_BYTES = 64 << 20  # beyond the caches of all but the largest processors
_SGEMM_END_S, _COPY_END_S = 0.12, 0.25  # since the beginning; touching the buffers counts, the last try may pass it


class Peak(msgspec.Struct, frozen=True):
    """GFLOP/s of a float32 multiply-add loop or matrix product, and GB/s of a copy, bytes read plus bytes written."""

    gflops: float
    gbytes_per_s: float


class Peaks:
    """The peaks of one session, each measured when first asked for."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int, Dtype | None], Peak | None] = {}

    def of(self, device: Device, dtype: Dtype = "f32") -> Peak | None:
        """Return the peak of a device with its number of threads; None where measuring it failed.

        ``dtype`` matters through CUDA alone, where float16 has tensor cores.
        """
        kind = "cpu" if device.info.adapter_type == "cpu" else device.info.backend  # whatever library it goes by
        key = (device.info.name, kind, device.limits.threads, dtype if kind == "cuda" else None)
        if key not in self._known:
            try:
                self._known[key] = _measure(kind, device, dtype)
            except Exception:  # percent of peak is left empty; the kernels themselves are measured all the same
                self._known[key] = None
        return self._known[key]


def _measure(kind: str, device: Device, dtype: Dtype) -> Peak:
    if kind == "cpu":
        return measure_cpu(device.limits.threads)
    return measure_cuda(device, dtype) if kind == "cuda" else measure_gpu(device)


def measure_gpu(device: Any) -> Peak:
    """Return a GPU's peak by multiply-add and copy shaders."""
    from engine.devices.gpu.peaks import measure

    gflops, gbytes_per_s = measure(device)
    return Peak(gflops, gbytes_per_s)


def measure_cuda(device: Any, dtype: Dtype) -> Peak:
    """Return a card's peak by PyTorch's matrix product, in that dtype, and by copying."""
    from engine.devices.cuda import measure

    gflops, gbytes_per_s = measure(device, dtype)
    return Peak(gflops, gbytes_per_s)


def measure_cpu(threads: int) -> Peak:
    """Return the CPU's peak by sgemm and by copying memory, with so many threads."""
    begin = time.perf_counter()
    a = np.full((_SGEMM, _SGEMM), 0.5, np.float32)
    product = np.empty_like(a)
    with hold_blas(threads):
        np.matmul(a, a, out=product)  # wakes BLAS's threads
        sgemm_s = _shortest(lambda: np.matmul(a, a, out=product), begin + _SGEMM_END_S)
    source = np.ones(_COPY_BYTES // 8 // threads * threads).reshape(threads, -1)
    target = np.ones_like(source)
    with ThreadPoolExecutor(threads) as pool:
        copy_s = _shortest(lambda: list(pool.map(np.copyto, target, source)), begin + _COPY_END_S)
    return Peak(2 * _SGEMM**3 / sgemm_s / 1e9, 2 * source.nbytes / copy_s / 1e9)


def _shortest(work: Callable[[], object], end: float) -> float:
    """Return the shortest time of one ``work``, tried at least once and until the clock shows ``end``, in seconds."""
    best = float("inf")
    while True:
        start = time.perf_counter()
        work()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return max(best, 1e-9)
