"""The devices of one session, each opened when a kernel first needs it."""

from __future__ import annotations

from engine.common.messages import sentence
from engine.devices import cpu
from engine.devices.device import Device, DeviceKind, DeviceUnavailable
from engine.records.plan import Plan


class OpenedDevices:
    """Opens what the plan asks for, once, and closes it at the end of the session."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._cpus: dict[int | None, cpu.CpuDevice] = {}
        self._gpus: dict[DeviceKind, Device | DeviceUnavailable] = {}  # the GPU, and the card that PyTorch sees

    def open(self, kind: DeviceKind, threads: int | None) -> Device:
        """Return the device of that kind. Raises DeviceUnavailable, the same again when asked again."""
        if kind == "cpu":
            if threads not in self._cpus:
                self._cpus[threads] = cpu.open_cpu(threads, self._plan.memory_limit)
            return self._cpus[threads]
        if kind not in self._gpus:
            self._gpus[kind] = self._open_gpu(kind)
        gpu = self._gpus[kind]
        if isinstance(gpu, DeviceUnavailable):
            raise gpu
        return gpu

    def gpu_bytes(self) -> int:
        """Return the bytes held on the GPU, whoever asked for them; 0 while it is not open."""
        return sum(gpu.memory_in_use() for gpu in self._gpus.values() if hasattr(gpu, "memory_in_use"))

    def close(self) -> None:
        """Close what was opened; the GPU stays open for the process, for each one dropped leaks a little."""
        for device in self._cpus.values():
            device.close()

    def _open_gpu(self, kind: DeviceKind) -> Device | DeviceUnavailable:
        plan = self._plan
        if plan.device == "cpu":
            return DeviceUnavailable("left out by --device cpu; choose auto or a GPU to run it")
        from engine.devices.cuda import open_cuda
        from engine.devices.gpu.device import choose, list_devices, open_gpu

        try:
            if kind == "gpu":
                return open_gpu(plan.device, plan.memory_limit, plan.checks)
            name = None if plan.device == "auto" else choose(list_devices(), plan.device).name
            return open_cuda(name, plan.memory_limit)
        except DeviceUnavailable as error:
            return error
        except Exception as error:
            return DeviceUnavailable(f"the GPU could not be opened: {sentence(error)}")
