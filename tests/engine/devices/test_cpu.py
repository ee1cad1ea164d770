"""The CPU as a device: what it tells of itself, its threads, and BLAS held for them."""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from collections.abc import Callable

import numpy as np
import pytest

from engine.common.running import Cancelled, never_stop
from engine.devices import processor
from engine.devices.blas import blas_name, blas_threads, hold_blas
from engine.devices.cpu import open_cpu


def test_the_device_describes_itself() -> None:
    with open_cpu() as device:
        assert device.info.adapter_type == "cpu"
        assert device.info.backend == "numpy"
        assert device.info.index is None
        assert device.info.name
        assert np.__version__ in device.info.driver
        assert blas_name() in device.info.driver
        assert device.limits.threads == processor.usable_cores()
        assert device.limits.memory_bytes > 1 << 20
        assert 64 << 10 <= device.limits.l2_bytes <= 1 << 30
        assert not device.limits.f16


def test_threads_and_memory_can_be_chosen() -> None:
    with open_cpu(threads=3, memory_bytes=1000) as device:
        assert device.limits.threads == 3
        assert device.limits.memory_bytes == 1000


@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": -1}, {"memory_bytes": 0}])
def test_figures_below_one_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1, got"):
        open_cpu(**options)


def test_affinity_is_respected_where_the_system_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 8}, raising=False)
    assert processor.usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processor.usable_cores() == 1


@pytest.mark.parametrize(("text", "count"), [("512K", 512 << 10), ("32M", 32 << 20), ("1024", 1024)])
def test_cache_sizes_are_read(text: str, count: int) -> None:
    assert processor._bytes(text) == count


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("items", [0, 1, 3, 100])
def test_every_item_is_done_once_by_a_worker_in_range(threads: int, items: int) -> None:
    done: list[tuple[int, int]] = []
    with open_cpu(threads) as device:
        device.each(items, lambda worker, item, stopped: done.append((worker, item)), never_stop)
    assert all(worker < max(min(threads, items), 1) for worker, _ in done)
    assert sorted(item for _, item in done) == list(range(items))


def test_fewer_workers_can_be_asked_for() -> None:
    workers: set[int] = set()
    with open_cpu(threads=3) as device:
        device.each(50, lambda worker, item, stopped: workers.add(worker), never_stop, workers=1)
    assert workers == {0}


def test_threads_work_at_the_same_time() -> None:
    """Two items that each wait for the other are only ever done by two threads."""
    barrier = threading.Barrier(2, timeout=30)
    with open_cpu(threads=2) as device:
        device.each(2, lambda worker, item, stopped: barrier.wait() and None, never_stop)
    assert not barrier.broken


def test_no_thread_is_left_and_closing_twice_is_safe() -> None:
    before = threading.enumerate()
    device = open_cpu(threads=4)
    device.each(8, lambda worker, item, stopped: None, never_stop)
    device.close()
    device.close()
    assert threading.enumerate() == before


def test_an_error_in_any_thread_stops_the_others_and_is_raised() -> None:
    started: list[int] = []

    def work(worker: int, item: int, stopped: Callable[[], bool]) -> None:
        started.append(item)
        if item == 3:
            raise ZeroDivisionError("item 3")

    with open_cpu(threads=2) as device:
        with pytest.raises(ZeroDivisionError, match="item 3"):
            device.each(100_000, work, never_stop)
        assert len(started) < 100_000
        device.each(3, work, never_stop)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_stop_ends_all_threads_and_is_asked_for_by_the_caller_alone(threads: int) -> None:
    asking: set[int] = set()
    looks = itertools.count()

    def should_stop() -> bool:
        asking.add(threading.get_ident())
        return next(looks) >= 5

    def work(worker: int, item: int, stopped: Callable[[], bool]) -> None:
        while worker and not stopped():  # the other thread works until it hears of the stop
            pass

    with open_cpu(threads) as device, pytest.raises(Cancelled):
        device.each(1_000_000, work, should_stop)
    assert asking == {threading.get_ident()}


def test_workers_give_no_floating_point_warnings() -> None:
    def work(worker: int, item: int, stopped: Callable[[], bool]) -> None:
        np.log(np.zeros(3)) * 0 + np.float32(1e38) * np.ones(3, np.float32) * 1e9

    with warnings.catch_warnings(), open_cpu(threads=2) as device:
        warnings.simplefilter("error")
        device.each(10, work, never_stop)


def test_blas_comes_back_in_whatever_order_holders_leave() -> None:
    found = blas_threads()
    first, second = hold_blas(1), hold_blas(2)
    first.__enter__()
    assert blas_threads() == 1
    second.__enter__()
    assert blas_threads() == 2
    first.__exit__(None, None, None)
    assert blas_threads() == 2
    second.__exit__(None, None, None)
    assert blas_threads() == found


def test_blas_comes_back_after_an_error() -> None:
    found = blas_threads()
    with pytest.raises(KeyError), hold_blas(1):
        raise KeyError
    assert blas_threads() == found
