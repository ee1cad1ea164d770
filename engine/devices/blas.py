"""The matrix library behind NumPy: its name, and how many threads it may use while a kernel runs."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_held: list[int] = []  # the thread counts asked for by those who hold BLAS now, latest last
_original: list[int] = []  # each library's own setting, to go back to when the last holder leaves
_UNPACKED = {"SkylakeX", "Cooperlake", "SapphireRapids"}  # OpenBLAS's kernels for AVX-512


@functools.cache
def _controller() -> ThreadpoolController:
    # Looking for loaded libraries takes milliseconds, so it is done once a process.
    return ThreadpoolController().select(user_api="blas")


@functools.cache
def blas_name() -> str:
    """Return the library's name and version, for example ``openblas 0.3.31``."""
    for library in _controller().info():
        return f"{library['internal_api']} {library['version'] or ''}".strip()
    # a library threadpoolctl does not know, such as Accelerate
    blas: Any = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown BLAS')} {blas.get('version', '')}".strip()


@functools.cache
def unpacked_product() -> int:
    """Return up to which m · n · k a float32 product is done on the operands as they lie in memory, 0 if never.

    As a rule BLAS first copies its operands into panels, which costs a tenth to a third of a product as thin as those
    of attention. OpenBLAS for AVX-512 leaves it out below a fixed size, unless the second operand is transposed.
    """
    return 100**3 if any(library.get("architecture") in _UNPACKED for library in _controller().info()) else 0


class Sgemm(NamedTuple):
    """Where ``cblas_sgemm`` is in memory, and whether the sizes it takes are ``wide``, of 64 bits, or of 32."""

    address: int
    wide: bool


@functools.cache
def sgemm() -> Sgemm | None:
    """Return the float32 matrix product of NumPy's library, for compiled code to call; None where it shows none."""
    libraries: list[Any] = [library.dynlib for library in _controller().lib_controllers]
    if accelerate := ctypes.util.find_library("Accelerate"):  # macOS; threadpoolctl does not know it
        libraries.append(ctypes.CDLL(accelerate))
    for library in libraries:
        for name, wide in (("cblas_sgemm64_", True), ("cblas_sgemm", False)):
            for prefix in ("scipy_", ""):  # of the OpenBLAS in NumPy's wheels
                with contextlib.suppress(AttributeError):
                    function = getattr(library, prefix + name)
                    return Sgemm(ctypes.cast(function, ctypes.c_void_p).value or 0, wide)
    return None


def blas_threads() -> int | None:
    """Return how many threads BLAS uses now, or None where it does not tell."""
    return next((library["num_threads"] for library in _controller().info()), None)


@contextlib.contextmanager
def hold_blas(threads: int) -> Iterator[None]:
    """Hold BLAS to so many threads for the length of a ``with`` block.

    The setting belongs to the process, so holders share it: the latest holder's count is in force, and the setting
    found by the first comes back when the last one leaves, in whatever order they leave.
    """
    libraries = _controller().lib_controllers
    with _lock:
        if not _held:
            _original[:] = [library.num_threads for library in libraries]
        _held.append(threads)
        for library in libraries:
            library.set_num_threads(threads)
    try:
        yield
    finally:
        with _lock:
            _held.remove(threads)
            for library, original in zip(libraries, _original, strict=True):
                library.set_num_threads(_held[-1] if _held else original)
