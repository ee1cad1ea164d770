"""The devices of one session, each opened when a kernel first needs it."""

from __future__ import annotations

from typing import Literal

from engine import cpu
from engine.devices import Device, DeviceUnavailable
from engine.messages import sentence
from engine.plan import Plan


class OpenedDevices:
    """Opens what the plan asks for, once, and closes it at the end of the session."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._cpus: dict[int | None, cpu.CpuDevice] = {}
        self._gpu: Device | DeviceUnavailable | None = None

    def open(self, kind: Literal["cpu", "gpu"], threads: int | None) -> Device:
        """Return the device of that kind. Raises DeviceUnavailable, the same again when asked again."""
        if kind == "gpu":
            if self._gpu is None:
                self._gpu = self._open_gpu()
            if isinstance(self._gpu, DeviceUnavailable):
                raise self._gpu
            return self._gpu
        if threads not in self._cpus:
            self._cpus[threads] = cpu.open_cpu(threads, self._plan.memory_limit)
        return self._cpus[threads]

    def gpu_bytes(self) -> int:
        """Return the bytes held on the GPU, 0 while it is not open."""
        in_use = getattr(self._gpu, "memory_in_use", None)
        return in_use() if in_use else 0

    def close(self) -> None:
        """Close what was opened; the GPU stays open for the process, for each one dropped leaks a little."""
        for device in self._cpus.values():
            device.close()

    def _open_gpu(self) -> Device | DeviceUnavailable:
        if self._plan.device == "cpu":
            return DeviceUnavailable("left out by --device cpu; choose auto or a GPU to run it")
        from engine.gpu.device import open_gpu

        try:
            return open_gpu(self._plan.device, self._plan.memory_limit, self._plan.checks)
        except DeviceUnavailable as error:
            return error
        except Exception as error:
            return DeviceUnavailable(f"the GPU could not be opened: {sentence(error)}")
