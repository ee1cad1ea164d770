"""The peaks: plausible, measured once a session and device, and never a reason to fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest

from engine.devices.blas import blas_threads
from engine.devices.device import AdapterType, Device, DeviceInfo, Limits
from engine.measure import peaks
from engine.measure.peaks import Peak, Peaks


class Opened(Device):
    def __init__(self, kind: AdapterType = "cpu", threads: int = 1) -> None:
        self.limits = Limits(memory_bytes=1 << 30, threads=threads)
        self.info = DeviceInfo(index=None, name="x", adapter_type=kind, backend="numpy", driver="", limits=self.limits)


def test_the_cpus_peak_is_a_matrix_product_and_a_copy() -> None:
    threads_before = blas_threads()
    peak = peaks.measure_cpu(1)
    assert 0.1 < peak.gflops < 10_000
    assert 0.1 < peak.gbytes_per_s < 10_000
    assert blas_threads() == threads_before


def test_the_peak_is_the_best_of_several_tries_and_counts_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    products, copies = (0.04, 0.02, 0.07), (0.05, 0.03, 0.09)  # seconds; 0.12 and 0.25 s are over with the last ones
    ticks = iter(np.cumsum([0.0] + [step for took in products + copies for step in (0.0, took)]).tolist())
    monkeypatch.setattr(peaks, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    peak = peaks.measure_cpu(1)
    assert peak.gflops == pytest.approx(2 * 768**3 / 0.02 / 1e9)
    assert peak.gbytes_per_s == pytest.approx(2 * (64 << 20) / 0.03 / 1e9)


def test_each_device_and_thread_count_is_measured_once_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def measure(threads: int) -> Peak:
        asked.append(threads)
        return Peak(threads, 1.0)

    monkeypatch.setattr(peaks, "measure_cpu", measure)
    known = Peaks()
    assert [known.of(Opened(threads=n)) for n in (1, 2, 1)] == [Peak(1, 1.0), Peak(2, 1.0), Peak(1, 1.0)]
    assert asked == [1, 2]
    Peaks().of(Opened())
    assert asked == [1, 2, 1]


def test_a_gpu_is_measured_by_its_own_shaders(monkeypatch: pytest.MonkeyPatch) -> None:
    import engine.devices.gpu.peaks

    gpu = Opened("discrete")
    monkeypatch.setattr(engine.devices.gpu.peaks, "measure", lambda device: (5.0, 7.0) if device is gpu else (0.0, 0.0))
    assert Peaks().of(gpu) == Peak(5.0, 7.0)


def test_a_peak_that_cannot_be_measured_is_unknown_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def measure(threads: int) -> NoReturn:
        tries.append(threads)
        raise MemoryError

    monkeypatch.setattr(peaks, "measure_cpu", measure)
    known = Peaks()
    assert known.of(Opened()) is None
    assert known.of(Opened()) is None
    assert tries == [1]
