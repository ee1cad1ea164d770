"""The GPU: listing adapters, choosing one, and the one opened device of the process."""

from __future__ import annotations

import contextlib
import threading
import time
from functools import cache
from typing import Any

import psutil

from engine.devices import tuning_store
from engine.devices.device import AdapterType, Device, DeviceInfo, DeviceUnavailable, Limits
from engine.devices.gpu.buffers import Part
from engine.devices.gpu.probe import subgroup_size

DEFAULT_MEMORY_BYTES = 8 << 30
_SOFTWARE = ("llvmpipe", "lavapipe", "swiftshader", "softpipe", "microsoft basic render")
_BACKENDS = {"Vulkan": "vulkan", "Metal": "metal", "D3D12": "d3d12", "OpenGL": "opengl", "OpenGLES": "opengl"}
_RANK: dict[str, int] = {"discrete": 0, "integrated": 1, "software": 2}
_WANTED_FEATURES = ("timestamp-query", "subgroup", "shader-f16")
_WANTED_LIMITS = (
    "max-storage-buffer-binding-size",
    "max-buffer-size",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroups-per-dimension",
)
NO_ADAPTER = (
    "no Vulkan, Metal or D3D12 adapter was found; install the GPU vendor's driver, or software Vulkan "
    "(Debian: apt install libvulkan1 mesa-vulkan-drivers)"
)


def list_devices() -> list[DeviceInfo]:
    """Return the adapters of this machine, best first; ``index`` is the place in this list.

    Empty where there is no usable driver. Nothing is opened, so ``limits.subgroup_size`` is still 0.
    """
    return [info for info, _ in _adapters()]


def choose(devices: list[DeviceInfo], selector: str) -> DeviceInfo:
    """Return the device that ``selector`` names: ``auto``, an index, or part of a name or backend.

    Raises DeviceUnavailable where ``auto`` finds nothing (OpenGL is never chosen by itself), ValueError with the list
    of devices where the selector matches none or several.
    """
    if selector == "auto":
        usable = [d for d in devices if d.backend != "opengl"]
        if not usable:
            raise DeviceUnavailable(NO_ADAPTER)
        return usable[0]
    if selector.isdecimal():
        found = [d for d in devices if d.index == int(selector)]
    else:
        found = [d for d in devices if selector.strip() and selector.lower() in f"{d.name} {d.backend}".lower()]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{d.index} = {d.name} ({d.backend})" for d in devices)
    listing = f"devices are: {known}, cpu" if devices else "the only device is: cpu"
    raise ValueError(f"device {selector!r} {'is ambiguous' if found else 'is unknown'}; {listing}")


def open_gpu(selector: str = "auto", memory_bytes: int | None = None, checks: bool = True) -> GpuDevice:
    """Return the opened device for ``selector``, one per process and adapter: a device leaks a little when dropped.

    ``memory_bytes`` is what one kernel may hold (default 8 GiB, but on a software adapter, whose memory is the
    machine's, no more than half of the free RAM). With ``checks`` off our own shaders are compiled without bounds
    checks. Raises DeviceUnavailable with what to install, ValueError for an unknown selector.
    """
    chosen = choose(list_devices(), selector)
    assert chosen.index is not None
    device = _open(chosen.index)
    if memory_bytes is None:
        memory_bytes = DEFAULT_MEMORY_BYTES
        if device.limits.software:
            memory_bytes = min(memory_bytes, psutil.virtual_memory().available // 2)
    device.configure(memory_bytes, checks)
    return device


@cache
def _open(index: int) -> GpuDevice:
    info, adapter = _adapters()[index]
    return GpuDevice(info, adapter)


class GpuDevice(Device):
    """An opened wgpu device. It must stay on one thread: the one that opened it."""

    def __init__(self, info: DeviceInfo, adapter: Any) -> None:
        self.info = info
        self.checks = True
        self._buffer_bytes = 0
        self._pipelines: dict[Any, Any] = {}
        self._thread = threading.get_ident()
        try:
            self.raw = adapter.request_device_sync(
                required_features=[f for f in _WANTED_FEATURES if f in adapter.features],
                required_limits={name: adapter.limits[name] for name in _WANTED_LIMITS if name in adapter.limits},
            )
        except Exception as error:
            raise DeviceUnavailable(f"{info.name} ({info.backend}) could not be opened: {first_line(error)}") from error
        self.queue: Any = self.raw.queue
        self._base = _limits(self.raw.limits, set(self.raw.features), info.adapter_type)
        if "subgroup" in self.raw.features:
            self._base = _replace(self._base, subgroup_size=subgroup_size(self.raw))
        known = tuning_store.tuned(info)
        self.info = _replace(info, notice=known.notice)
        self._base = _replace(self._base, tuned=known.limits.tuned)
        self.timestamp_period_ns = self._timestamp_period()
        self.configure(DEFAULT_MEMORY_BYTES, checks=True)

    def configure(self, memory_bytes: int, checks: bool) -> None:
        """Set what one kernel may hold, in bytes, and whether shaders keep their bounds checks."""
        self.limits = _replace(self._base, memory_bytes=memory_bytes)
        self.checks = checks

    def memory_in_use(self) -> int:
        """Return the bytes of all buffers we hold on this device."""
        return self._buffer_bytes

    def count(self, nbytes: int) -> None:
        """Add a buffer's bytes to what is held (negative when it is freed)."""
        self._buffer_bytes += nbytes

    def check_thread(self) -> None:
        """Raise RuntimeError on any thread but the one that opened the device."""
        if not self.owned_here():
            raise RuntimeError(
                f"{self.info.name} was opened on another thread, and a GPU is used on that one alone; move the data "
                "with numpy() there"
            )

    def owned_here(self) -> bool:
        """Whether the calling thread is the one that opened the device."""
        return threading.get_ident() == self._thread

    def wait(self) -> None:
        """Block until everything submitted has completed."""
        self.raw._poll_wait()  # wgpu-py has no public call: on_submitted_work_done_sync raises TypeError in 0.32

    def pipeline(self, source: str, bindings: str) -> tuple[Any, float]:
        """Return ``(compute pipeline, compile milliseconds)`` for WGSL with entry point ``main``, cached per source.

        ``bindings`` describes bind group 0, a letter each: u uniform, r read-only storage, w storage. The time is 0
        when the pipeline was already there.
        """
        key = (source, bindings, self.checks)
        if key in self._pipelines:
            return self._pipelines[key], 0.0
        kinds = {"u": "uniform", "r": "read-only-storage", "w": "storage"}
        start = time.perf_counter()
        layout = self.raw.create_bind_group_layout(
            entries=[
                {"binding": i, "visibility": 4, "buffer": {"type": kinds[letter]}} for i, letter in enumerate(bindings)
            ]
        )
        module = self.raw.create_shader_module(code=source) if self.checks else self._module_without_checks(source)
        pipeline = self.raw.create_compute_pipeline(
            layout=self.raw.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={"module": module, "entry_point": "main"},
        )
        self._pipelines[key] = pipeline
        return pipeline, (time.perf_counter() - start) * 1e3

    def bind_group(self, pipeline: Any, buffers: list[Any]) -> Any:
        """Return bind group 0 of a pipeline over whole buffers or a ``Part`` of them, in binding order."""
        parts = [b if isinstance(b, Part) else Part(b, 0, b.size) for b in buffers]
        return self.raw.create_bind_group(
            layout=pipeline.get_bind_group_layout(0),
            entries=[{"binding": i, "resource": part._asdict()} for i, part in enumerate(parts)],
        )

    def _module_without_checks(self, source: str) -> Any:
        """Return a shader module without bounds checks or loop bounding; only for our own fixed kernels."""
        from wgpu.backends.wgpu_native import _api, ffi, lib

        chain = ffi.new("WGPUShaderSourceWGSL *")
        text = _api.to_c_string_view(source)
        chain.chain.sType = lib.WGPUSType_ShaderSourceWGSL
        chain.code = text
        descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", chain)
        checks = ffi.new("WGPUShaderRuntimeChecks *")[0]  # all false: none are made
        handle = _api.libf.wgpuDeviceCreateShaderModuleTrusted(self.raw._internal, descriptor, checks)
        return _api.GPUShaderModule("", handle, self.raw)

    def _timestamp_period(self) -> float:
        """Return nanoseconds per timestamp tick, 0 where the device has no timestamps."""
        if not self._base.timestamps:
            return 0.0
        from wgpu.backends.wgpu_native import lib

        return float(lib.wgpuQueueGetTimestampPeriod(self.queue._internal))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type where it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


@cache
def _adapters() -> list[tuple[DeviceInfo, Any]]:
    with contextlib.suppress(Exception):  # a broken driver or no native library: there is no GPU, and doctor says why
        import wgpu

        found = [(_describe(a), a) for a in wgpu.gpu.enumerate_adapters_sync()]
        found.sort(key=lambda pair: (pair[0].backend == "opengl", _RANK[pair[0].adapter_type]))
        return [(_replace(info, index=i), adapter) for i, (info, adapter) in enumerate(found)]
    return []


def _describe(adapter: Any) -> DeviceInfo:
    raw = adapter.info
    name = raw["device"] or raw["vendor"] or "unnamed adapter"
    kind: AdapterType
    if raw["adapter_type"] == "CPU" or any(word in name.lower() for word in _SOFTWARE):
        kind = "software"
    else:
        kind = "discrete" if raw["adapter_type"] == "DiscreteGPU" else "integrated"
    return DeviceInfo(
        index=None,
        name=name,
        adapter_type=kind,
        backend=_BACKENDS.get(raw["backend_type"], raw["backend_type"].lower()),
        driver=raw["description"],
        limits=_limits(adapter.limits, set(adapter.features), kind),
        features=tuple(sorted(adapter.features)),
    )


def _limits(raw: Any, features: set[str], adapter_type: str) -> Limits:
    return Limits(
        memory_bytes=DEFAULT_MEMORY_BYTES,
        binding_bytes=raw["max-storage-buffer-binding-size"] // 4 * 4,
        buffer_bytes=raw["max-buffer-size"] // 4 * 4,
        workgroup_bytes=raw["max-compute-workgroup-storage-size"],
        workgroup_threads=min(raw["max-compute-invocations-per-workgroup"], raw["max-compute-workgroup-size-x"]),
        workgroups_per_dimension=raw["max-compute-workgroups-per-dimension"],
        f16="shader-f16" in features,
        timestamps="timestamp-query" in features,
        software=adapter_type == "software",
        integrated=adapter_type == "integrated",
    )


def _replace(value: Any, **changes: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(value, **changes)
