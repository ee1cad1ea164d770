"""What FlashScope needs of this machine, what is missing, and the exact command that mends it.

Qt is asked for by its package's version alone: a broken Qt must not keep the doctor from saying so.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import platformdirs
import psutil

from engine.common.units import size
from engine.devices.blas import blas_name, blas_threads
from engine.devices.device import DeviceInfo
from engine.devices.processor import processor_name, usable_cores

Family = Literal["debian", "fedora", "arch", "macos", "windows", "other"]

_REQUIREMENTS = {
    "PySide6-Essentials": "PySide6-Essentials!=6.12.*",
    "pyqtgraph": "pyqtgraph>=0.14",
    "numpy": "numpy>=2",
    "wgpu": "wgpu>=0.32,<0.33",
    **{name: name for name in ("jinja2", "msgspec", "typer", "rich", "platformdirs", "psutil", "threadpoolctl")},
    "safetensors": "safetensors",
}
_INSTALL = {"debian": "sudo apt-get install", "fedora": "sudo dnf install", "arch": "sudo pacman -S"}
_COLUMNS: tuple[Family, ...] = ("debian", "fedora", "arch")  # of the packages below
_VULKAN_LOADER = {"libvulkan.so.1": ("libvulkan1", "vulkan-loader", "vulkan-icd-loader")}
_VULKAN_DRIVERS = ("mesa-vulkan-drivers", "mesa-vulkan-drivers", "vulkan-swrast")
_QT_LIBRARIES = {
    "libEGL.so.1": ("libegl1", "libglvnd-egl", "libglvnd"),
    "libGL.so.1": ("libgl1", "libglvnd-glx", "libglvnd"),
    "libxkbcommon.so.0": ("libxkbcommon0", "libxkbcommon", "libxkbcommon"),
    "libdbus-1.so.3": ("libdbus-1-3", "dbus-libs", "dbus"),
    "libfontconfig.so.1": ("libfontconfig1", "fontconfig", "fontconfig"),
    "libglib-2.0.so.0": ("libglib2.0-0", "glib2", "glib2"),
}
_X11_LIBRARIES = {
    "libxcb-cursor.so.0": ("libxcb-cursor0", "xcb-util-cursor", "xcb-util-cursor"),
    "libxcb-icccm.so.4": ("libxcb-icccm4", "xcb-util-wm", "xcb-util-wm"),
    "libxcb-image.so.0": ("libxcb-image0", "xcb-util-image", "xcb-util-image"),
    "libxcb-keysyms.so.1": ("libxcb-keysyms1", "xcb-util-keysyms", "xcb-util-keysyms"),
    "libxcb-randr.so.0": ("libxcb-randr0", "libxcb", "libxcb"),
    "libxcb-render-util.so.0": ("libxcb-render-util0", "xcb-util-renderutil", "xcb-util-renderutil"),
    "libxcb-shape.so.0": ("libxcb-shape0", "libxcb", "libxcb"),
    "libxcb-xkb.so.1": ("libxcb-xkb1", "libxcb", "libxcb"),
    "libxkbcommon-x11.so.0": ("libxkbcommon-x11-0", "libxkbcommon-x11", "libxkbcommon-x11"),
}


class Check(msgspec.Struct, frozen=True):
    """One finding: ``missing`` keeps a part from working, ``warn`` is worth knowing; ``mend`` is the cure, or empty."""

    name: str
    status: Literal["ok", "warn", "missing"]
    detail: str
    mend: str = ""


def doctor(devices: Sequence[DeviceInfo] | None = None) -> list[Check]:
    """Examine this machine. ``devices`` are its adapters where the caller has listed them already."""
    family = _family()
    return [
        Check("system", "ok", platform.platform()),
        Check("processor", "ok", f"{processor_name()}, {usable_cores()} cores usable"),
        _memory(),
        _python(sys.version_info[:3]),
        *(_package(name) for name in _REQUIREMENTS),
        Check("matrix library", "ok", f"{blas_name()}, threads: {blas_threads() or 'unknown'}"),
        *_system_libraries(family),
        _adapters(devices, family),
        _display(),
        _cache_folder(Path(platformdirs.user_cache_dir("flashscope", appauthor=False))),
    ]


def _family() -> Family:
    if sys.platform == "darwin":
        return "macos"
    if sys.platform == "win32":
        return "windows"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "other"
    names = f"{release.get('ID', '')} {release.get('ID_LIKE', '')}".split()
    known: dict[str, Family] = {
        "debian": "debian", "ubuntu": "debian", "fedora": "fedora", "rhel": "fedora", "arch": "arch"
    }  # fmt: skip
    return next((known[name] for name in names if name in known), "other")


def _install_command(family: Family, packages: Sequence[tuple[str, str, str]]) -> str:
    """Return the command that installs packages, each named as Debian, Fedora and Arch name it."""
    column = _COLUMNS.index(family) if family in _COLUMNS else 0
    names = " ".join(dict.fromkeys(package[column] for package in packages))
    return f"{_INSTALL[family]} {names}" if family in _INSTALL else f"install what Debian calls {names}"


def _python(version: tuple[int, ...]) -> Check:
    text = ".".join(map(str, version))
    if version < (3, 11):
        return Check("Python", "missing", f"{text}, 3.11 or newer is needed", "install Python 3.11 or newer")
    return Check("Python", "ok", text)


def _package(name: str) -> Check:
    mend = f"{shlex.quote(sys.executable)} -m pip install {shlex.quote(_REQUIREMENTS[name])}"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "missing", "not installed", mend)
    if name == "PySide6-Essentials" and version.startswith("6.12.") and sys.version_info < (3, 12):
        detail = f"{version} aborts after some hundred signals on Python {platform.python_version()}"
        return Check(name, "missing", detail, mend)
    if name == "wgpu" and not version.startswith("0.32."):
        return Check(name, "warn", f"{version}, and 0.32 is what FlashScope was built on", mend)
    return Check(name, "ok", version)


def _system_libraries(family: Family) -> list[Check]:
    """Check what pip cannot install. macOS and Windows bring all of it."""
    if family in ("macos", "windows"):
        return []
    return [
        _libraries("Vulkan loader", _VULKAN_LOADER, family),
        _libraries("Qt libraries", _QT_LIBRARIES, family),
        _libraries("X11 libraries", _X11_LIBRARIES, family),
    ]


def _libraries(name: str, libraries: dict[str, tuple[str, str, str]], family: Family) -> Check:
    absent = [library for library in libraries if not _loads(library)]
    if not absent:
        return Check(name, "ok", f"{len(libraries)} of {len(libraries)} found")
    mend = _install_command(family, [libraries[library] for library in absent])
    return Check(name, "missing", f"not found: {', '.join(absent)}", mend)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)  # the very call that will need it; a search by name is fooled by other architectures
    except OSError:
        return False
    return True


def _adapters(devices: Sequence[DeviceInfo] | None, family: Family) -> Check:
    mend = {
        "macos": "update macOS: Metal comes with it",
        "windows": "install the GPU vendor's driver",
    }.get(family) or f"{_install_command(family, [*_VULKAN_LOADER.values(), _VULKAN_DRIVERS])}, or the vendor's driver"
    if devices is None:
        try:
            from engine.devices.gpu.device import list_devices

            devices = list_devices()
        except Exception as error:  # whatever a driver does, the doctor reports it
            return Check("GPU adapters", "missing", f"listing them failed: {error}", mend)
    found = ", ".join(f"{device.name} ({device.adapter_type}, {device.backend})" for device in devices) or "none"
    if all(device.backend == "opengl" for device in devices):  # never chosen by itself
        detail = f"no Vulkan, Metal or D3D12 adapter, so GPU kernels are skipped; found: {found}"
        return Check("GPU adapters", "missing", detail, mend)
    if all(device.adapter_type == "software" for device in devices):
        detail = f"only software: {found}; its times say nothing about a real GPU"
        return Check("GPU adapters", "warn", detail, "install the GPU vendor's driver, if there is a GPU")
    return Check("GPU adapters", "ok", found)


def _display() -> Check:
    if sys.platform in ("darwin", "win32"):
        return Check("display", "ok", "the system's own")
    named = [name for name in ("QT_QPA_PLATFORM", "WAYLAND_DISPLAY", "DISPLAY") if os.environ.get(name)]
    if not named:
        mend = "set DISPLAY or WAYLAND_DISPLAY, or race with `run`"
        return Check("display", "warn", "none, so no window can open; races run from the command line", mend)
    return Check("display", "ok", ", ".join(f"{name}={os.environ[name]}" for name in named))


def _memory() -> Check:
    memory = psutil.virtual_memory()
    return Check("memory", "ok", f"{size(memory.total)}, {size(memory.available)} free")


def _cache_folder(folder: Path) -> Check:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return Check("cache folder", "ok", str(folder))
    return Check("cache folder", "warn", f"{folder} cannot be written", f"make {existing} a folder you can write to")
