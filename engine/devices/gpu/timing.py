"""Submits a kernel's dispatches in pieces short enough for a desktop, and times them by both clocks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.common.running import Cancelled, ShouldStop, Timing, never_stop
from engine.devices.gpu.buffers import read, write

if TYPE_CHECKING:
    from engine.devices.gpu.device import GpuDevice

# A desktop resets a GPU whose dispatch runs for about 2 s, and stutters long before: keep a submit under 100 ms.
PIECE_S = 0.04  # aimed at by a piece; the dearest workgroups of a causal problem cost twice the average
WHOLE_S = 0.08  # a run, or all its repeats, up to this long goes in one submit
_FIRST_FLOPS = {True: 2e8, False: 1e11}  # flop/s assumed before anything is measured, by "is software"
_GROWTH = 4.0  # of the rate, at most, from one piece to the next


@dataclass
class Dispatch:
    """``workgroups`` of one pipeline, folded into a grid; the shader reads ``chunk`` = (first, end, 0, 0)."""

    pipeline: Any
    bind_group: Any
    chunk: Any
    workgroups: int
    cost: float  # flop of an average workgroup
    written: tuple[int, int] | None = None  # what ``chunk`` holds


def fold(workgroups: int, limit: int) -> tuple[int, int]:
    """Return a near-square grid (x, y) of at least ``workgroups``, each side within ``limit``; one row if it fits."""
    if workgroups <= limit:
        return workgroups, 1
    x = math.isqrt(workgroups - 1) + 1
    return x, -(-workgroups // x)


class Runner:
    """Runs a list of dispatches in order, learning from each submit how much fits into the next.

    Not ``timed``, the GPU's clock is never looked at: reading it takes longer than a small kernel.
    """

    def __init__(self, device: GpuDevice, dispatches: list[Dispatch], *, timed: bool = True) -> None:
        self._device = device
        self._dispatches = dispatches
        self._flops = {d.pipeline: _FIRST_FLOPS[device.limits.software] for d in dispatches}  # a second, last measured
        self._whole_s: float | None = None  # the last whole run
        self.longest_submit_s = 0.0
        self._clock = GpuClock(device) if timed and device.timestamp_period_ns else None

    def run(self, repeat: int, should_stop: ShouldStop = never_stop) -> Timing:
        """Run everything ``repeat`` times; milliseconds of all submits together, by both clocks."""
        if self._whole_s is not None and self._whole_s * repeat <= WHOLE_S:
            if should_stop():
                raise Cancelled
            wall_s, gpu_ms = self._submit([(d, 0, d.workgroups) for d in self._dispatches] * repeat)
            return Timing(wall_ms=wall_s * 1e3, gpu_ms=gpu_ms)
        total = Timing(wall_ms=0.0, gpu_ms=0.0 if self._clock else None)
        for _ in range(repeat):
            run = self._run_in_pieces(should_stop)
            self._whole_s = run.wall_ms / 1e3
            both = None if total.gpu_ms is None or run.gpu_ms is None else total.gpu_ms + run.gpu_ms
            total = Timing(wall_ms=total.wall_ms + run.wall_ms, gpu_ms=both)
        return total

    def _run_in_pieces(self, should_stop: ShouldStop) -> Timing:
        wall_ms, gpu_ms = 0.0, 0.0 if self._clock else None
        for piece, expected_s in self._pieces():
            if should_stop():
                raise Cancelled
            wall_s, piece_ms = self._submit(piece)
            wall_ms += wall_s * 1e3
            gpu_ms = None if gpu_ms is None or piece_ms is None else gpu_ms + piece_ms
            faster = min(expected_s / max(wall_s, 1e-6), _GROWTH)
            for pipeline in {dispatch.pipeline for dispatch, _, _ in piece}:
                self._flops[pipeline] *= faster
        return Timing(wall_ms=wall_ms, gpu_ms=gpu_ms)

    def _pieces(self) -> Iterator[tuple[list[tuple[Dispatch, int, int]], float]]:
        """Yield what goes into each submit and the seconds it should take, by what is known when it is asked for."""
        piece: list[tuple[Dispatch, int, int]] = []
        expected_s = 0.0
        for dispatch in self._dispatches:
            first = 0
            while first < dispatch.workgroups:
                rate = self._flops[dispatch.pipeline] / dispatch.cost
                fit = int(rate * (PIECE_S - expected_s))
                if piece and fit < min(dispatch.workgroups - first, 1):
                    yield piece, expected_s
                    piece, expected_s = [], 0.0
                    continue
                end = min(first + max(1, fit), dispatch.workgroups)
                piece.append((dispatch, first, end))
                expected_s += (end - first) / rate
                first = end
                if end < dispatch.workgroups:  # a dispatch has one chunk a submit
                    yield piece, expected_s
                    piece, expected_s = [], 0.0
        if piece:
            yield piece, expected_s

    def close(self) -> None:
        """Free the clock's buffers."""
        if self._clock:
            self._clock.close()

    def _submit(self, piece: list[tuple[Dispatch, int, int]]) -> tuple[float, float | None]:
        device = self._device
        for dispatch, first, end in piece:
            if dispatch.written != (first, end):
                write(device, dispatch.chunk, np.array([first, end, 0, 0], np.uint32))
                dispatch.written = (first, end)
        encoder = device.raw.create_command_encoder()
        compute = encoder.begin_compute_pass(timestamp_writes=self._clock.writes if self._clock else None)
        for dispatch, first, end in piece:
            compute.set_pipeline(dispatch.pipeline)
            compute.set_bind_group(0, dispatch.bind_group)
            compute.dispatch_workgroups(*fold(end - first, device.limits.workgroups_per_dimension))
        compute.end()
        if self._clock:
            self._clock.resolve(encoder)
        commands = encoder.finish()
        start = time.perf_counter()
        device.queue.submit([commands])
        device.wait()
        wall = time.perf_counter() - start
        self.longest_submit_s = max(self.longest_submit_s, wall)
        return wall, self._clock.elapsed_ms(wall) if self._clock else None


class GpuClock:
    """Two timestamps around a compute pass."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._queries = device.raw.create_query_set(type="timestamp", count=2)
        self._ticks = device.raw.create_buffer(size=16, usage=512 | 4)  # QUERY_RESOLVE | COPY_SRC
        self.writes = {
            "query_set": self._queries,
            "beginning_of_pass_write_index": 0,
            "end_of_pass_write_index": 1,
        }

    def resolve(self, encoder: Any) -> None:
        """Have the timestamps written to their buffer, after the pass."""
        encoder.resolve_query_set(self._queries, 0, 2, self._ticks, 0)

    def elapsed_ms(self, wall_s: float) -> float | None:
        """Return milliseconds between the timestamps; None where they cannot be right (zero, negative, over wall)."""
        begin, end = (int(t) for t in read(self._device, self._ticks, 2, np.uint64))
        elapsed = (end - begin) * self._device.timestamp_period_ns * 1e-9
        return elapsed * 1e3 if 0 < elapsed <= wall_s * 1.05 + 1e-4 else None

    def close(self) -> None:
        """Free the queries."""
        self._ticks.destroy()
        self._queries.destroy()
