"""The machine and the versions a session runs on, and what about them makes numbers doubtful."""

from __future__ import annotations

import contextlib
import platform
import time
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil

import engine
from engine.devices.blas import blas_name, blas_threads
from engine.devices.processor import processor_name
from engine.records.results import Environment

_CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq")
_LOAD_SHARE = 0.1  # of the machine's cores, used by others
_LOAD_WINDOW_S = 0.2  # processor times tick every 10 ms: a shorter look says nothing


def describe() -> Environment:
    """Return the environment; nothing is imported or opened for it that is not there already."""
    try:
        wgpu_version = metadata.version("wgpu")
    except metadata.PackageNotFoundError:
        wgpu_version = ""
    return Environment(
        app_version=engine.__version__,
        numpy_version=np.__version__,
        wgpu_version=wgpu_version,
        python_version=platform.python_version(),
        cpu=processor_name(),
        blas=blas_name(),
        blas_threads=blas_threads(),
        os=platform.platform(terse=True),
    )


def power_warning() -> str | None:
    """Return a warning where the processor is set to save power rather than to be quick (Linux)."""
    with contextlib.suppress(OSError):
        governor = (_CPUFREQ / "scaling_governor").read_text().strip()
        preference = "power"
        with contextlib.suppress(OSError):
            # Intel's and AMD's own drivers call their normal mode "powersave" too, and say here what they prefer
            preference = (_CPUFREQ / "energy_performance_preference").read_text().strip()
        if governor == "powersave" and preference in ("power", "balance_power"):
            return "power-save governor: the processor is not at full speed"
    return None


class OthersLoad:
    """Watches, from its creation on, how much of the machine other processes use."""

    def __init__(self) -> None:
        self._begin = _times()

    def warning(self) -> str | None:
        """Return a warning where others have used more than a tenth of all cores meanwhile."""
        elapsed, busy, own = (now - then for now, then in zip(_times(), self._begin, strict=True))
        cores = psutil.cpu_count() or 1
        share = (busy - own) / (elapsed * cores) if elapsed >= _LOAD_WINDOW_S else 0.0
        if share <= _LOAD_SHARE:
            return None
        return f"load by others: {min(share, 1):.0%} of the machine's {cores} cores"


def _times() -> tuple[float, float, float]:
    """Return seconds: the clock, all cores' busy time, this process's processor time."""
    cpu = psutil.cpu_times()
    own = psutil.Process().cpu_times()
    # guest time is counted in user time already; stolen time is lost to others as well
    busy = cpu.user + cpu.system + getattr(cpu, "nice", 0.0) + getattr(cpu, "steal", 0.0)
    return time.monotonic(), busy, own.user + own.system
