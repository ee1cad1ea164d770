"""Submits: folded grids, pieces that cover everything once, and stopping between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.common.running import Cancelled
from engine.devices.device import Limits
from engine.devices.gpu import timing
from engine.devices.gpu.device import open_gpu
from engine.devices.gpu.timing import Dispatch, Runner, fold
from engine.kernels.registry import get_kernel
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import seeded

PROBLEM = AttentionProblem(heads=3, seq_q=70, head_dim=16, causal=True)


@given(st.integers(1, 65_535**2 // 2))
def test_a_folded_grid_holds_every_workgroup_within_the_limit(workgroups: int) -> None:
    x, y = fold(workgroups, 65_535)
    assert 1 <= x <= 65_535
    assert 1 <= y <= 65_535
    assert x * y >= workgroups
    assert x * y - workgroups < x  # less than a row is wasted


class FakeDevice:
    """As much of a device as a runner needs."""

    timestamp_period_ns = 0.0
    limits = Limits(memory_bytes=1 << 30, workgroups_per_dimension=65_535)


@given(
    st.lists(st.tuples(st.integers(1, 300_000), st.floats(1, 1e9)), min_size=1, max_size=4),
    st.floats(1e2, 1e12),
)
def test_pieces_cover_every_workgroup_once_in_order_and_in_time(work: list[tuple[int, float]], flops: float) -> None:
    dispatches = [Dispatch(None, None, None, workgroups, cost) for workgroups, cost in work]
    runner = Runner(FakeDevice(), dispatches)  # type: ignore[arg-type]
    seen: list[tuple[Dispatch, int, int]] = []

    def submit(piece: list[tuple[Dispatch, int, int]]) -> tuple[float, None]:
        assume(len(seen) < 2_000)
        seen.extend(piece)
        return sum((end - first) * d.cost for d, first, end in piece) / flops, None

    runner._submit = submit  # type: ignore[method-assign]
    timing_ = runner.run(1)
    assert timing_.wall_ms == pytest.approx(sum(n * cost for n, cost in work) / flops * 1e3)
    for dispatch in dispatches:
        mine = [(first, end) for d, first, end in seen if d is dispatch]
        assert [first for first, _ in mine] == [0] + [end for _, end in mine[:-1]]
        assert mine[-1][1] == dispatch.workgroups
        for first, end in mine[1:]:  # the first piece is a guess
            assert end - first == 1 or (end - first) * dispatch.cost / flops <= timing.PIECE_S * timing._GROWTH
    order = [next(i for i, other in enumerate(dispatches) if other is d) for d, _, _ in seen]
    assert order == sorted(order)


@pytest.mark.parametrize("name", ["gpu-flash", "gpu-naive"])
def test_many_small_pieces_give_the_bits_of_one_submit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = get_kernel(name).prepare(PROBLEM, seeded(PROBLEM, 1), open_gpu())
    try:
        prepared.run()
        prepared.poison()
        prepared.run()
        whole = prepared.outputs().output
        monkeypatch.setattr(timing, "WHOLE_S", 0.0)
        monkeypatch.setattr(timing, "_GROWTH", 1.0)
        slow_down(prepared)
        submits = count_submits(prepared, monkeypatch)
        prepared.poison()
        prepared.run()
        assert len(submits) > 5
        np.testing.assert_array_equal(prepared.outputs().output, whole)
    finally:
        prepared.close()


def slow_down(prepared: Any) -> None:
    """Make the runner believe that a piece has time for one workgroup only."""
    for dispatch in prepared._runner._dispatches:
        prepared._runner._flops[dispatch.pipeline] = dispatch.cost / timing.PIECE_S


def count_submits(prepared: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    submits: list[int] = []
    real = prepared._runner._submit

    def counted(piece: Any) -> Any:
        submits.append(len(piece))
        return real(piece)

    monkeypatch.setattr(prepared._runner, "_submit", counted)
    return submits


def test_repeats_share_a_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = get_kernel("gpu-flash").prepare(PROBLEM, seeded(PROBLEM, 1), open_gpu())
    try:
        prepared.run()
        monkeypatch.setattr(timing, "WHOLE_S", 1e9)
        submits = count_submits(prepared, monkeypatch)
        alone = prepared.run(1)
        repeated = prepared.run(5)
        passes = len(prepared._runner._dispatches)  # type: ignore[attr-defined]
        assert submits == [passes, 5 * passes]
        assert alone.wall_ms > 0
        assert repeated.gpu_ms is None or repeated.gpu_ms > 0
    finally:
        prepared.close()


@pytest.mark.parametrize("name", ["gpu-flash", "gpu-naive"])
def test_a_stop_ends_the_run_between_two_submits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = get_kernel(name).prepare(PROBLEM, seeded(PROBLEM, 1), open_gpu())
    try:
        slow_down(prepared)
        monkeypatch.setattr(timing, "_GROWTH", 1.0)
        submits = count_submits(prepared, monkeypatch)
        with pytest.raises(Cancelled):
            prepared.run(should_stop=lambda: len(submits) >= 3)
        assert len(submits) == 3
        monkeypatch.undo()
        prepared.run()
        assert np.isfinite(prepared.outputs().output).all()
    finally:
        prepared.close()


@pytest.mark.parametrize("ticks", [(5, 5), (9, 5), (0, 10**15)])
def test_a_clock_that_cannot_be_right_is_not_believed(ticks: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = timing.GpuClock(open_gpu())
    try:
        monkeypatch.setattr(timing, "read", lambda *_: np.array(ticks, np.uint64))
        assert clock.elapsed_ms(wall_s=0.001) is None
        monkeypatch.setattr(timing, "read", lambda *_: np.array([0, 1000], np.uint64))
        assert clock.elapsed_ms(wall_s=0.001) == pytest.approx(1e-3 * open_gpu().timestamp_period_ns)
    finally:
        clock.close()
