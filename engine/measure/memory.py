"""Counts memory: what a CPU kernel allocates, what the process holds, and the system's high-water mark."""

from __future__ import annotations

import contextlib
import platform
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import psutil

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = b"5"  # proc(5): sets VmHWM to the current resident size


class Traced:
    """Bytes allocated since tracing began: ``peak_bytes`` is final once the block has ended."""

    peak_bytes = 0


@contextlib.contextmanager
def traced() -> Iterator[Traced]:
    """Trace NumPy's and Python's allocations during a ``with`` block. Slows small allocations: never time in it."""
    nested = tracemalloc.is_tracing()
    if not nested:
        tracemalloc.start()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    result = Traced()
    try:
        yield result
    finally:
        result.peak_bytes = tracemalloc.get_traced_memory()[1] - before
        if not nested:
            tracemalloc.stop()


def resident_bytes() -> int:
    """Return the resident bytes of this process."""
    return int(psutil.Process().memory_info().rss)


def reset_high_water() -> None:
    """Start the process's high-water mark anew where the system allows it (Linux); else it is of its whole life."""
    with contextlib.suppress(OSError):
        _CLEAR_REFS.write_bytes(_RESET_PEAK)


def high_water_bytes() -> int | None:
    """Return the process's largest resident size since the last reset, None where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    peak = getattr(psutil.Process().memory_info(), "peak_wset", None)  # Windows
    if peak is not None:
        return int(peak)
    with contextlib.suppress(ImportError):
        import resource

        maximum = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return maximum if platform.system() == "Darwin" else maximum << 10  # macOS counts bytes, others KiB
    return None
