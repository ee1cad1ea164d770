"""The CPU as a device: its description and limits, and the threads that CPU kernels work on."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

import msgspec
import numpy as np
import psutil

from engine.common.running import Cancelled, ShouldStop
from engine.devices import tuning_store
from engine.devices.blas import blas_name
from engine.devices.device import Device, DeviceInfo, Limits
from engine.devices.processor import cache_bytes, processor_name, usable_cores

_POLL_S = 0.02  # how often should_stop is asked while the last items of other threads run out

# work(worker, item, stopped): do one item on the buffers of one worker; return early when stopped() answers True.
Work = Callable[[int, int, ShouldStop], None]


def open_cpu(threads: int | None = None, memory_bytes: int | None = None) -> CpuDevice:
    """Open the CPU with so many threads (default: the cores this process may use) and so much memory for a kernel.

    ``memory_bytes`` defaults to half of the free RAM. Raises ValueError when a figure is below 1.
    """
    threads = usable_cores() if threads is None else threads
    memory_bytes = psutil.virtual_memory().available // 2 if memory_bytes is None else memory_bytes
    for name, value in (("threads", threads), ("memory limit", memory_bytes)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    info = DeviceInfo(
        index=None,
        name=processor_name(),
        adapter_type="cpu",
        backend="numpy",
        driver=f"numpy {np.__version__}, {blas_name()}",
        limits=Limits(memory_bytes=memory_bytes, threads=threads, l2_bytes=cache_bytes(2)),
    )
    return CpuDevice(tuning_store.tuned(info))


class CpuDevice(Device):
    """The opened CPU. Its threads start with the first work that needs them and end with ``close``."""

    def __init__(self, info: DeviceInfo, threads_of: CpuDevice | None = None) -> None:
        self.info = info
        self.limits = info.limits
        self._threads_of = threads_of
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> CpuDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def each(self, items: int, work: Work, should_stop: ShouldStop, workers: int | None = None) -> None:
        """Do ``work`` for every item below ``items``, handed out in order to ``workers`` threads, and wait for all.

        There are never more workers than the device has threads, which is also the default, or items. The calling
        thread is one of them, and ``should_stop`` is only ever called by it. NumPy's floating-point warnings are off
        in every worker. Raises Cancelled when ``should_stop`` answered True, else the first error of a
        worker; no item is still being worked on when this returns or raises.
        """
        next_item = itertools.count()
        lock = threading.Lock()
        halt = threading.Event()
        cancelled = False

        def asked_to_stop() -> bool:
            nonlocal cancelled
            if not halt.is_set() and should_stop():
                cancelled = True
                halt.set()
            return halt.is_set()

        def labour(worker: int, stopped: ShouldStop) -> None:
            try:
                with np.errstate(all="ignore"):
                    while not stopped():
                        with lock:
                            item = next(next_item)
                        if item >= items:
                            return
                        work(worker, item, stopped)
            except BaseException:
                halt.set()
                raise

        others: list[Future[None]] = []
        try:
            for number in range(1, min(self.limits.threads, items, workers or items)):
                others.append(self._executor().submit(labour, number, halt.is_set))  # noqa: PERF401 - see finally
            labour(0, asked_to_stop)
            while wait(others, timeout=_POLL_S).not_done:
                asked_to_stop()
        except BaseException:
            halt.set()
            raise
        finally:
            wait(others)
        for future in others:
            future.result()
        if cancelled:
            raise Cancelled

    def called(self, backend: str, driver: str) -> CpuDevice:
        """Return this device as kernels that go by another library name it; the threads are this one's."""
        return CpuDevice(msgspec.structs.replace(self.info, backend=backend, driver=driver), self)

    def close(self) -> None:
        """End the threads. Safe to call twice."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _executor(self) -> ThreadPoolExecutor:
        if self._threads_of is not None:
            return self._threads_of._executor()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.limits.threads - 1, thread_name_prefix="cpu-kernel")
        return self._pool
