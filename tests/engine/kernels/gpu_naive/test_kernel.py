"""gpu-naive: score matrices split over buffers, and refused where one pair's does not fit."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from engine.devices.gpu.device import open_gpu
from engine.kernels.gpu_naive.cut import groups
from engine.kernels.gpu_naive.kernel import GpuNaive
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import seeded
from engine.reference.forward import reference


@pytest.mark.parametrize("pairs_in_a_buffer", [1, 4, 100])
@pytest.mark.parametrize("seq_k", [44, 45])
def test_pairs_split_over_buffers_are_right_and_counted(
    pairs_in_a_buffer: int, seq_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = AttentionProblem(batch=2, heads=3, kv_heads=1, seq_q=21, seq_k=seq_k, head_dim=12, causal=True)
    device = open_gpu()
    binding = pairs_in_a_buffer * (4 * 21 * seq_k + 15) // 16 * 16
    small = msgspec.structs.replace(device.limits, binding_bytes=max(binding, 8192))
    monkeypatch.setattr(device, "limits", small)
    grouped = list(groups(problem, small))
    assert sum(pairs for _, pairs in grouped) == problem.pairs
    inputs = seeded(problem, 8)
    prepared = GpuNaive().prepare(problem, inputs, device, want_lse=True)
    try:
        prepared.poison()
        prepared.run()
        got = prepared.outputs()
        memory = prepared.memory()
    finally:
        prepared.close()
    assert memory is not None
    assert memory.peak_bytes == GpuNaive().predict(problem, small, want_lse=True)
    output, lse, largest = reference(problem, inputs)
    assert np.abs(got.output - output).max() <= np.abs(inputs.v).max() * 2.0**-23 * (4 + largest / 2)
    assert got.lse is not None
    np.testing.assert_allclose(got.lse, lse, rtol=1e-6, atol=1e-5)


def test_one_pair_above_the_binding_limit_is_refused_with_both_figures() -> None:
    limits = msgspec.structs.replace(open_gpu().limits, binding_bytes=128 << 20)
    assert GpuNaive().supports(AttentionProblem(heads=1, seq_q=5_792, head_dim=8), limits) is None
    reason = GpuNaive().supports(AttentionProblem(heads=1, seq_q=5_793, head_dim=8), limits)
    assert reason is not None
    assert reason == "one pair's score matrix needs 128.02 MiB, this device's binding limit is 128.00 MiB"


def test_matrices_above_the_memory_limit_are_refused_with_both_figures() -> None:
    limits = msgspec.structs.replace(open_gpu().limits, memory_bytes=1 << 30)
    reason = GpuNaive().supports(AttentionProblem(heads=64, seq_q=4096, head_dim=64), limits)
    assert reason is not None
    assert "4.25 GiB" in reason
    assert "1.00 GiB" in reason
