"""Adapters: how they are listed, chosen and opened, and what happens where there is none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engine.devices.device import DeviceInfo, DeviceUnavailable, Limits
from engine.devices.gpu.device import choose, list_devices, open_gpu


def adapter(index: int, name: str, backend: str = "vulkan", kind: str = "discrete") -> DeviceInfo:
    return DeviceInfo(
        index=index, name=name, adapter_type=kind, backend=backend, driver="1", limits=Limits(memory_bytes=1 << 30)
    )


DEVICES = [
    adapter(0, "Radiant 9000"),
    adapter(1, "Humble iGPU", kind="integrated"),
    adapter(2, "llvmpipe", kind="software"),
    adapter(3, "Radiant 9000", backend="opengl"),
]


@pytest.mark.parametrize(
    ("selector", "index"), [("auto", 0), ("1", 1), ("humble", 1), ("LLVM", 2), ("opengl", 3), ("9000 opengl", 3)]
)
def test_a_selector_names_one_device(selector: str, index: int) -> None:
    assert choose(DEVICES, selector).index == index


@pytest.mark.parametrize(
    ("selector", "words"), [("radiant", "ambiguous"), ("nothing", "unknown"), ("4", "unknown"), (" ", "unknown")]
)
def test_a_selector_that_matches_none_or_several_lists_the_devices(selector: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        choose(DEVICES, selector)
    assert "1 = Humble iGPU (vulkan)" in str(error.value)
    assert "\n" not in str(error.value)


def test_auto_never_takes_opengl() -> None:
    with pytest.raises(DeviceUnavailable, match="mesa-vulkan-drivers"):
        choose([adapter(0, "llvmpipe", "opengl", "software")], "auto")


def test_this_machine_lists_the_device_that_auto_opens_first() -> None:
    device = open_gpu()
    assert device.info == list_devices()[0]
    assert device.limits.binding_bytes >= 128 << 20
    assert device.limits.workgroup_bytes >= 16 << 10
    assert open_gpu() is device  # one a process: a device leaks a little when dropped


def test_the_memory_limit_is_the_callers() -> None:
    assert open_gpu(memory_bytes=123 << 20).limits.memory_bytes == 123 << 20
    assert 123 << 20 < open_gpu().limits.memory_bytes <= 8 << 30


def test_without_a_vulkan_driver_auto_says_what_to_install() -> None:
    code = """
from engine.devices.device import DeviceUnavailable
from engine.devices.gpu.device import list_devices, open_gpu
assert all(d.backend == "opengl" for d in list_devices()), list_devices()
try:
    open_gpu()
except DeviceUnavailable as error:
    print(error)
"""
    hidden = {"VK_ICD_FILENAMES": "/nowhere/icd.json", "VK_DRIVER_FILES": "/nowhere/icd.json"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | hidden, capture_output=True, text=True, check=True, timeout=60
    )
    assert "install" in result.stdout
    assert "Traceback" not in result.stderr
