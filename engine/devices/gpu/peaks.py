"""What this GPU can do at most, measured: float32 multiply-adds and copies through memory."""

from __future__ import annotations

import time

import numpy as np

from engine.devices.gpu.buffers import Buffers
from engine.devices.gpu.device import GpuDevice
from engine.devices.gpu.shaders import render
from engine.devices.gpu.timing import Dispatch, Runner

_SECONDS = 0.1  # for each of the two; the rest of the 0.3 s is for compiling
# by "is software": steps of a chain, chains a thread, steps unrolled (a software adapter compiles slowly)
_MULTIPLY_ADD = {True: (256, 4, 1), False: (1024, 16, 4)}
_COPY_BYTES = {True: 16 << 20, False: 512 << 20}  # several times the last-level cache
_PER_THREAD = 4


def measure(device: GpuDevice) -> tuple[float, float]:
    """Return (GFLOP/s of float32 multiply-adds, GB/s of a copy counting bytes read plus written), the best seen.

    Takes about 0.3 s. The GPU's clock is used where it is sound, else wall time.
    """
    return _multiply_add(device), _copy(device)


def _multiply_add(device: GpuDevice) -> float:
    steps, chains, unroll = _MULTIPLY_ADD[device.limits.software]
    flop = 256 * chains * 4 * 2 * steps
    buffers = Buffers(device)
    try:
        pipeline, _ = device.pipeline(render("peaks/multiply_add", steps=steps, chains=chains, unroll=unroll), "uuw")
        factor = buffers.uniform("factor", np.array([0.999, 0.001, 0, 0], np.float32))
        chunk = buffers.uniform("chunk", np.zeros(4, np.uint32))
        group = device.bind_group(pipeline, [factor, chunk, buffers.storage("result", 1 << 20)])
        workgroups = 64 if device.limits.software else 8192
        return flop * workgroups / _best_s(device, [Dispatch(pipeline, group, chunk, workgroups, flop)]) / 1e9
    finally:
        buffers.destroy()


def _copy(device: GpuDevice) -> float:
    limits = device.limits
    nbytes = min(_COPY_BYTES[limits.software], limits.binding_bytes, limits.memory_bytes // 4) // 4096 * 4096
    count = nbytes // 16
    buffers = Buffers(device)
    try:
        pipeline, _ = device.pipeline(render("peaks/copy", per_thread=_PER_THREAD), "uurw")
        params = buffers.uniform("params", np.array([count, 0, 0, 0], np.uint32))
        chunk = buffers.uniform("chunk", np.zeros(4, np.uint32))
        pair = [buffers.storage(name, nbytes) for name in ("source", "target")]
        group = device.bind_group(pipeline, [params, chunk, *pair])
        workgroups = -(-count // (256 * _PER_THREAD))
        return 2 * nbytes / _best_s(device, [Dispatch(pipeline, group, chunk, workgroups, 4096.0)]) / 1e9
    finally:
        buffers.destroy()


def _best_s(device: GpuDevice, dispatches: list[Dispatch]) -> float:
    """Return the shortest time of a run in seconds, after one that warms up, within the time allowed."""
    runner = Runner(device, dispatches)
    try:
        runner.run(1)
        best = float("inf")
        end = time.perf_counter() + _SECONDS
        while best == float("inf") or time.perf_counter() < end:
            timing = runner.run(1)
            best = min(best, (timing.gpu_ms or timing.wall_ms) / 1e3)
        return best
    finally:
        runner.close()
