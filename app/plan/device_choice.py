"""Which devices a plan runs on, told from the list of devices alone: no driver is touched."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from engine.devices.device import DeviceInfo, DeviceUnavailable
from engine.devices.gpu.device import choose
from engine.kernels.registry import get_kernel
from engine.records.plan import Plan


def devices_of(plan: Plan, devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Return the devices that the plan's kernels will run on, the GPU first; those that cannot be had are left out."""
    kinds = {get_kernel(kernel).device_kind for kernel in plan.kernels}
    found = []
    if "gpu" in kinds and plan.device != "cpu":
        with contextlib.suppress(ValueError, DeviceUnavailable):
            found.append(choose([device for device in devices if device.index is not None], plan.device))
    if "cpu" in kinds:
        found += [device for device in devices if device.index is None]
    return found


def in_words(devices: Sequence[DeviceInfo]) -> str:
    """Return the devices as a status bar names them, a software adapter as such."""
    return "  +  ".join(
        device.name + (" (software)" if device.adapter_type == "software" else "") for device in devices
    )


def any_software(devices: Sequence[DeviceInfo]) -> bool:
    """Return whether one of the devices is a GPU played by the processor."""
    return any(device.adapter_type == "software" for device in devices)
