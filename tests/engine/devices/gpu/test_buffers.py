"""Buffers: what is written comes back, and every byte is counted."""

from __future__ import annotations

import numpy as np
import pytest

from engine.devices.gpu import buffers
from engine.devices.gpu.buffers import Buffers, padded, read
from engine.devices.gpu.device import open_gpu


@pytest.mark.parametrize("count", [1, 3, 4, 1000, 4099])
@pytest.mark.parametrize("step", [64, 1 << 20])
def test_an_upload_comes_back(count: int, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_UPLOAD_STEP", step)
    device = open_gpu()
    held = Buffers(device)
    try:
        data = np.arange(count, dtype=np.float32)
        np.testing.assert_array_equal(read(device, held.upload("data", data), count), data)
        odd = np.arange(count, dtype=np.float16)
        np.testing.assert_array_equal(read(device, held.upload("odd", odd), count, np.float16), odd)
    finally:
        held.destroy()


def test_every_buffer_is_counted_and_given_back() -> None:
    device = open_gpu()
    before = device.memory_in_use()
    held = Buffers(device)
    held.storage("a", 1000)
    held.uniform("b", np.zeros(3, np.float32))
    held.upload("c", np.zeros(5, np.float32))
    assert held.total == padded(1000) + 16 + 32
    assert device.memory_in_use() == before + held.total
    held.destroy()
    held.destroy()
    assert held.total == 0
    assert device.memory_in_use() == before
