"""Re-lays tensors on the GPU between [batch, seq, heads, head_dim] and [batch, heads, seq, head_dim]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.devices.gpu.buffers import Buffers
from engine.devices.gpu.device import GpuDevice
from engine.devices.gpu.shaders import render
from engine.devices.gpu.timing import Dispatch, Runner
from engine.problem.attention_problem import Dtype

_THREADS = 256
_UNIFORM_BYTES = 16  # of the parameters of a swap, and of its chunk


class Swap(NamedTuple):
    """A buffer that holds a tensor [batch, x, y, width], and the one that gets it as [batch, y, x, width]."""

    source: Any
    shape: tuple[int, int, int, int]
    target: Any


def swap_bytes(count: int) -> int:
    """Return what so many swaps at once hold beside the tensors, while they run."""
    return count * 2 * _UNIFORM_BYTES


def swap_heads(device: GpuDevice, swaps: Sequence[Swap], dtype: Dtype, nonfinite: Any) -> None:
    """Do the swaps, and set the first word of the buffer ``nonfinite`` to 1 where they meet a NaN or an infinity."""
    buffers = Buffers(device)
    try:
        pipeline, _ = device.pipeline(render("common/heads", stored=dtype, threads=_THREADS), "uurww")
        dispatches = []
        for swap in swaps:
            count = math.prod(swap.shape)
            params = buffers.uniform("params", np.array([*swap.shape[1:], count], np.uint32))
            chunk = buffers.uniform("chunk", np.zeros(_UNIFORM_BYTES // 4, np.uint32))
            group = device.bind_group(pipeline, [params, chunk, swap.source, swap.target, nonfinite])
            dispatches.append(Dispatch(pipeline, group, chunk, -(-count // _THREADS), 16.0 * _THREADS))
        Runner(device, dispatches, timed=False).run(1)
    finally:
        buffers.destroy()
