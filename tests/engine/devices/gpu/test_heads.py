"""Re-laying by heads: every element arrives, and no NaN or infinity passes unseen."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from engine.devices.gpu.buffers import Buffers, read
from engine.devices.gpu.device import open_gpu
from engine.devices.gpu.heads import Swap, swap_bytes, swap_heads


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 5, 3, 7), (1, 300, 2, 4), (3, 1, 4, 5)])
@pytest.mark.parametrize("bad", [None, np.nan, -np.nan, np.inf, -np.inf])
def test_the_middle_axes_are_swapped(dtype: str, shape: tuple[int, int, int, int], bad: float | None) -> None:
    device = open_gpu()
    kind = np.float16 if dtype == "f16" else np.float32
    array = np.random.default_rng(0).standard_normal(shape, np.float32).astype(kind)
    array.flat[0] = np.finfo(kind).max
    if bad is not None:
        array.flat[-1] = bad
    held = Buffers(device)
    try:
        before = device.memory_in_use()
        source, target = held.upload("source", array), held.storage("target", array.nbytes)
        flag = held.storage("flag", 16)
        swap_heads(device, [Swap(source, shape, target)], dtype, flag)
        assert device.memory_in_use() == before + source.size + target.size + flag.size
        swapped = read(device, target, array.size, kind).reshape(shape[0], shape[2], shape[1], shape[3])
        assert swapped.tobytes() == np.ascontiguousarray(array.swapaxes(1, 2)).tobytes()
        assert read(device, flag, 1, np.uint32)[0] == (bad is not None)
    finally:
        held.destroy()
    assert swap_bytes(3) == 96


def test_a_grid_wider_than_the_device_takes_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "limits", replace(device.limits, workgroups_per_dimension=7))
    array = np.arange(11 * 500 * 2, dtype=np.float32).reshape(1, 11, 500, 2)
    held = Buffers(device)
    try:
        target = held.storage("target", array.nbytes)
        swap = Swap(held.upload("source", array), array.shape, target)
        swap_heads(device, [swap], "f32", held.storage("flag", 16))
        np.testing.assert_array_equal(read(device, target, array.size), array.swapaxes(1, 2).ravel())
    finally:
        held.destroy()
