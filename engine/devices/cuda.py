"""The NVIDIA card that PyTorch sees, as a device: what it is, its two clocks, its memory, and what it can do at most.

PyTorch is an optional package: it is imported when the card is opened, and its absence is a DeviceUnavailable.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from collections.abc import Callable

from engine.common.running import Timing
from engine.devices.device import Device, DeviceInfo, DeviceUnavailable, Limits
from engine.problem.attention_problem import Dtype

DEFAULT_MEMORY_BYTES = 8 << 30
_PEAK_S = 0.1  # for each of the two peaks
_PRODUCT = {"f32": 4096, "f16": 8192}  # rows and columns: enough for the matrix library to be at its best
_COPY_BYTES = 512 << 20  # several times the last-level cache
_DRIVER_TEXT_BYTES = 96  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE, and some


def open_cuda(name: str | None = None, memory_bytes: int | None = None) -> CudaDevice:
    """Open the card of that name, or PyTorch's current one; a kernel may hold ``memory_bytes`` (default 8 GiB).

    Raises DeviceUnavailable where there is no such card, with what would be needed.
    """
    try:
        import torch
    except ImportError as error:
        raise DeviceUnavailable(f"PyTorch could not be imported: {error}") from error
    if torch.version.cuda is None:
        raise DeviceUnavailable(f"PyTorch {torch.__version__} is built without CUDA; install one that is built with it")
    if not torch.cuda.is_available():
        raise DeviceUnavailable("PyTorch sees no NVIDIA card; install NVIDIA's driver")
    cards = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    index = torch.cuda.current_device() if name is None else _find(name, cards)
    limits = Limits(memory_bytes=DEFAULT_MEMORY_BYTES if memory_bytes is None else memory_bytes, f16=True)
    versions = (_driver_version(), f"CUDA {torch.version.cuda}", f"PyTorch {torch.__version__}")
    integrated = getattr(torch.cuda.get_device_properties(index), "is_integrated", False)
    info = DeviceInfo(
        index=None,
        name=cards[index],
        adapter_type="integrated" if integrated else "discrete",
        backend="cuda",
        driver=", ".join(filter(None, versions)),
        limits=limits,
    )
    return CudaDevice(info, index)


class CudaDevice(Device):
    """An opened card. ``index`` is PyTorch's number for it."""

    def __init__(self, info: DeviceInfo, index: int) -> None:
        self.info = info
        self.limits = info.limits
        self.index = index

    def memory_in_use(self) -> int:
        """Return the bytes of all tensors on this card."""
        import torch

        return int(torch.cuda.memory_allocated(self.index))

    def timed(self, work: Callable[[], object]) -> Timing:
        """Do ``work``, which submits to the current stream, wait for it, and return what both clocks say."""
        import torch

        with torch.cuda.device(self.index):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start = time.perf_counter()
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            return Timing(wall_ms=(time.perf_counter() - start) * 1e3, gpu_ms=begin.elapsed_time(end))

    def bytes_of(self, work: Callable[[], object]) -> int:
        """Do ``work`` and return the most bytes it held at once beyond what was held before."""
        import torch

        with torch.cuda.device(self.index):
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            work()
            torch.cuda.synchronize()
            return int(torch.cuda.max_memory_allocated() - before)


def measure(device: CudaDevice, dtype: Dtype) -> tuple[float, float]:
    """Return (GFLOP/s of a matrix product in ``dtype``, GB/s of a copy, bytes read plus written), the best seen.

    float32 is true float32, without TensorFloat-32; float16 is what the tensor cores do.
    """
    import torch

    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        return _product(device, dtype), _copy(device)
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.cuda.empty_cache()


def _product(device: CudaDevice, dtype: Dtype) -> float:
    import torch

    n = _PRODUCT[dtype]
    factor = torch.rand(n, n, device=f"cuda:{device.index}", dtype=torch.float16 if dtype == "f16" else torch.float32)
    product = torch.empty_like(factor)
    return 2 * n**3 / _shortest_s(device, lambda: torch.mm(factor, factor, out=product)) / 1e9


def _copy(device: CudaDevice) -> float:
    import torch

    count = min(_COPY_BYTES, device.limits.memory_bytes // 4)
    source, target = (torch.ones(count, device=f"cuda:{device.index}", dtype=torch.uint8) for _ in range(2))
    return 2 * count / _shortest_s(device, lambda: target.copy_(source)) / 1e9


def _shortest_s(device: CudaDevice, work: Callable[[], object]) -> float:
    """Return the shortest GPU time of one ``work`` in seconds, after one that warms up, within the time allowed."""
    device.timed(work)
    best_ms = float("inf")
    end = time.perf_counter() + _PEAK_S
    while best_ms == float("inf") or time.perf_counter() < end:
        timing = device.timed(work)
        best_ms = min(best_ms, timing.gpu_ms or timing.wall_ms)
    return best_ms / 1e3


def _find(name: str, cards: list[str]) -> int:
    """Return the number of the card of that name; other interfaces to it may name it a little longer or shorter."""
    for index, card in enumerate(cards):
        if name.lower() in card.lower() or card.lower() in name.lower():
            return index
    raise DeviceUnavailable(f"{name} is no card that PyTorch sees; it sees {', '.join(cards)}")


def _driver_version() -> str:
    """Return the version of NVIDIA's driver as its management library tells it; empty where that does not answer."""
    text = ctypes.create_string_buffer(_DRIVER_TEXT_BYTES)
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
        if library.nvmlInit_v2() == 0 and library.nvmlSystemGetDriverVersion(text, _DRIVER_TEXT_BYTES) == 0:
            return text.value.decode("ascii", "replace")
    return ""
