"""What the processor is: its name, the cores this process may use, the sizes of its caches."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
import sys
from pathlib import Path

# Where the system does not tell: what the smallest common desktop core has.
_FALLBACK_CACHE_BYTES = {1: 32 << 10, 2: 512 << 10, 3: 8 << 20}
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@functools.cache
def processor_name() -> str:
    """Return the processor's name as its maker writes it, or the machine's type where that is unknown."""
    name = ""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
            name = next((line.partition(":")[2] for line in lines if line.startswith("model name")), "")
    elif sys.platform == "darwin":
        name = _sysctl("machdep.cpu.brand_string")
    return " ".join(name.split()) or platform.processor() or platform.machine() or "unknown processor"


def usable_cores() -> int:
    """Return how many logical cores this process may run on, its affinity respected."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def cache_bytes(level: int) -> int:
    """Return the bytes of one data cache of level 1, 2 or 3, or a cautious constant where the system does not tell."""
    found = 0
    if sys.platform == "linux":
        for cache in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
            with contextlib.suppress(OSError, ValueError, KeyError):
                kind = (cache / "type").read_text().strip()
                if int((cache / "level").read_text()) == level and kind != "Instruction":
                    found = _bytes((cache / "size").read_text().strip())
    elif sys.platform == "darwin":
        data = "d" if level == 1 else ""
        for key in (f"hw.perflevel0.l{level}{data}cachesize", f"hw.l{level}{data}cachesize"):
            with contextlib.suppress(ValueError):
                found = found or int(_sysctl(key))
    return found or _FALLBACK_CACHE_BYTES[level]


def _bytes(text: str) -> int:
    return int(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else int(text)


def _sysctl(key: str) -> str:
    try:
        return subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
