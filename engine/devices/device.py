"""What a device is and what it allows, as plain values: no driver is touched here."""

from __future__ import annotations

from typing import Literal

import msgspec

AdapterType = Literal["discrete", "integrated", "software", "cpu"]
DeviceKind = Literal["cpu", "gpu", "cuda"]  # what a kernel asks for; cuda is an NVIDIA card that PyTorch sees


class DeviceUnavailable(RuntimeError):  # noqa: N818 - a public name fixed by the design
    """The device asked for cannot be had; the message says what to install or choose."""


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """The variant of a kernel that was quickest for problems of one kind, field by field as the kernel names them."""

    kernel: str
    dtype: str
    head_dim: int
    causal: bool
    variant: tuple[tuple[str, int | bool], ...]

    @property
    def kind(self) -> tuple[str, str, int, bool]:
        """What it holds for: kernel, dtype, head_dim and causal."""
        return self.kernel, self.dtype, self.head_dim, self.causal


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a kernel may use on a device. Sizes are bytes; a GPU field is 0 on the CPU.

    ``subgroup_size`` is 0 where subgroup operations cannot be used. ``memory_bytes`` is what one kernel may hold,
    Q, K, V and output included. ``tuned`` holds the variants that were measured to be the quickest here.
    """

    memory_bytes: int
    threads: int = 1
    l2_bytes: int = 0
    binding_bytes: int = 0
    buffer_bytes: int = 0
    workgroup_bytes: int = 0
    workgroup_threads: int = 0
    workgroups_per_dimension: int = 0
    subgroup_size: int = 0
    f16: bool = False
    timestamps: bool = False
    software: bool = False
    integrated: bool = False
    tuned: tuple[Tuned, ...] = ()

    def variant_for(self, kernel: str, dtype: str, head_dim: int, causal: bool) -> dict[str, int | bool] | None:
        """Return the fields of the variant tuned for such problems, None where there is none."""
        kind = (kernel, dtype, head_dim, causal)
        return next((dict(tuned.variant) for tuned in self.tuned if tuned.kind == kind), None)


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One device a kernel can run on, as listed by ``devices`` and written in reports.

    ``index`` is what ``--device`` takes; what cannot be chosen has none. ``backend`` is ``vulkan``, ``metal``,
    ``d3d12`` or ``opengl``, for kernels of PyTorch ``cuda`` or ``pytorch``, for CPU kernels ``numpy`` or ``numba``.
    """

    index: int | None
    name: str
    adapter_type: AdapterType
    backend: str
    driver: str
    limits: Limits
    features: tuple[str, ...] = ()
    notice: str = ""  # what whoever opens it should hear


class Device:
    """An opened device: its description, and its limits for this run."""

    info: DeviceInfo
    limits: Limits
