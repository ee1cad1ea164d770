"""Measured peaks."""

from __future__ import annotations

from engine.devices.gpu.device import open_gpu
from engine.devices.gpu.peaks import measure


def test_peaks_are_measured_and_leave_nothing_behind() -> None:
    device = open_gpu()
    before = device.memory_in_use()
    gflops, gbytes_per_s = measure(device)
    assert 0.1 < gflops < 1e6
    assert 0.01 < gbytes_per_s < 1e5
    assert device.memory_in_use() == before
