"""The kernels that can be raced, by name. A new kernel is a file beside this one and a line here."""

from __future__ import annotations

from importlib import import_module

from engine.kernels.base import Kernel

# name: where its class lives; imported when first asked for, so that listing the names costs nothing
_KERNELS = {
    "gpu-flash": "engine.kernels.gpu_flash.kernel:GpuFlash",
    "gpu-naive": "engine.kernels.gpu_naive.kernel:GpuNaive",
    "cpu-flash": "engine.kernels.cpu_flash.kernel:CpuFlash",
    "cpu-naive": "engine.kernels.cpu_naive.kernel:CpuNaive",
    "cpu-flash-jit": "engine.kernels.cpu_flash.jit:CpuFlashJit",
    "torch-sdpa": "engine.kernels.peers.torch_sdpa:TorchSdpa",
    "torch-sdpa-cuda": "engine.kernels.peers.torch_sdpa:TorchSdpaCuda",
}
DEFAULT_KERNELS = ("gpu-flash", "gpu-naive", "cpu-flash", "cpu-naive")


def kernel_names() -> tuple[str, ...]:
    """Return the names of all registered kernels, optional ones that are not installed among them."""
    return tuple(_KERNELS)


def installed_kernels() -> tuple[str, ...]:
    """Return the names of the kernels whose packages are there."""
    return tuple(name for name in _KERNELS if get_kernel(name).missing() is None)


def get_kernel(name: str) -> Kernel:
    """Return the kernel of that name. Raises ValueError that lists the known names."""
    if name not in _KERNELS:
        raise ValueError(f"unknown kernel {name!r}; known are {', '.join(_KERNELS)}")
    module, _, attribute = _KERNELS[name].partition(":")
    kernel: Kernel = getattr(import_module(module), attribute)()
    return kernel
