"""The GPU that tensors live on and layers compute on."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from engine.devices.device import DeviceInfo, Limits
from engine.devices.gpu.device import open_gpu

if TYPE_CHECKING:
    from engine.devices.gpu.buffers import Buffers
    from engine.devices.gpu.device import GpuDevice


class GpuContext:
    """An opened GPU. Each adapter is opened once a process, so ``GpuContext() is GpuContext()``.

    ``selector`` is ``auto`` (discrete, integrated, then software adapters), an index, or part of a name. A GPU is used
    on the thread that opened it alone. Raises DeviceUnavailable with what to install where there is no usable adapter,
    ValueError with a list where the selector names none or several.
    """

    device: GpuDevice
    orphans: deque[Buffers]  # of tensors that ended on another thread: freed with the next allocation on the GPU's own

    def __new__(cls, selector: str = "auto") -> GpuContext:
        """Return the context of that adapter."""
        if not isinstance(selector, str):
            raise ValueError(f"selector must be 'auto', an index in quotes or part of a GPU's name, got {selector!r}")
        if selector == "cpu":
            raise ValueError("a GpuContext is of a GPU; for the CPU give a Tensor or a layer device='cpu'")
        if selector not in _opened:
            device = open_gpu(selector)
            context = next((known for known in _opened.values() if known.device is device), None)
            if context is None:
                context = super().__new__(cls)
                context.device, context.orphans = device, deque()
            _opened[selector] = context
        return _opened[selector]

    @property
    def adapter(self) -> DeviceInfo:
        """What the GPU is: name, type, backend, driver, features."""
        return self.device.info

    @property
    def limits(self) -> Limits:
        """What a kernel may use on it, in bytes and counts."""
        return self.device.limits

    def __repr__(self) -> str:
        return f"GpuContext({self.adapter.name!r}, {self.adapter.adapter_type}, {self.adapter.backend})"


_opened: dict[str, GpuContext] = {}  # by selector; opening again would set the device's limits back
