"""gpu-flash: which variant is chosen, what it holds, and the paths that only some devices take."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from engine.devices import Limits
from engine.gpu.device import GpuDevice, open_gpu
from engine.inputs import Inputs, seeded
from engine.kernels.gpu_flash import GpuFlash, choose_variant
from engine.problem import AttentionProblem
from engine.reference import reference

KIB = 1 << 10


def limits(**changes: object) -> Limits:
    return msgspec.structs.replace(open_gpu().limits, **changes)


def error_and_bound(problem: AttentionProblem, inputs: Inputs, device: GpuDevice) -> tuple[float, float]:
    prepared = GpuFlash().prepare(problem, inputs, device)
    try:
        prepared.poison()
        prepared.run()
        output = prepared.outputs().output
        memory = prepared.memory()
    finally:
        prepared.close()
    assert memory is not None
    assert memory.peak_bytes == GpuFlash().predict(problem, device.limits)
    assert memory.scratch_bytes == memory.peak_bytes - problem.tensor_bytes
    expected, _, largest = reference(problem, inputs)
    return float(np.abs(output - expected).max()), float(np.abs(inputs.v).max() * 2.0**-23 * (4 + largest / 2))


@pytest.mark.parametrize("kib", [16, 32, 48])
@pytest.mark.parametrize("software", [False, True])
@pytest.mark.parametrize("subgroup_size", [0, 8, 32, 128])
def test_every_head_dim_finds_a_variant_within_the_workgroup_memory(
    kib: int, software: bool, subgroup_size: int
) -> None:
    device = limits(workgroup_bytes=kib * KIB, software=software, subgroup_size=subgroup_size)
    for head_dim in range(1, 257):
        variant = choose_variant(AttentionProblem(seq_q=8, head_dim=head_dim), device)
        assert variant is not None
        assert variant.workgroup_bytes <= kib * KIB
        assert variant.threads <= device.workgroup_threads
        assert variant.depth >= variant.depth_stored(head_dim) >= head_dim
        assert variant.depth % variant.unroll == 0
        assert variant.lanes % variant.value_unroll == 0
        assert 4 * variant.value_stride >= head_dim
        assert variant.subgroups == (subgroup_size >= 8)
        assert not variant.subgroups or variant.lanes <= subgroup_size


def test_the_count_of_workgroup_memory_is_what_the_shader_declares() -> None:
    variant = choose_variant(AttentionProblem(seq_q=8, head_dim=64), limits(subgroup_size=0, software=True))
    assert variant is not None
    query, weights, partial = 64 * 16 * 4, 32 * 16 * 4, 32 * 16
    assert variant.workgroup_bytes == query + weights + partial


@pytest.mark.parametrize("workgroup_bytes", [16 * KIB, 32 * KIB])
def test_head_dim_256_is_right_whatever_the_workgroup_memory(
    workgroup_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "limits", limits(workgroup_bytes=workgroup_bytes))
    problem = AttentionProblem(heads=1, seq_q=19, seq_k=45, head_dim=256, causal=True)
    error, bound = error_and_bound(problem, seeded(problem, 4), device)
    assert error <= bound


def test_the_unrolled_variant_of_a_real_gpu_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "limits", limits(software=False))
    problem = AttentionProblem(heads=2, seq_q=40, head_dim=32, causal=True)
    variant = choose_variant(problem, device.limits)
    assert variant is not None
    assert variant.unroll == 32
    error, bound = error_and_bound(problem, seeded(problem, 5), device)
    assert error <= bound


@pytest.mark.parametrize("limit", [7, 64])
def test_a_grid_beyond_the_limit_is_folded(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "limits", limits(workgroups_per_dimension=limit))
    problem = AttentionProblem(batch=3, heads=5, seq_q=40, head_dim=8)  # 45 workgroups
    error, bound = error_and_bound(problem, seeded(problem, 6), device)
    assert error <= bound


def test_tensors_beyond_the_binding_limit_are_refused_with_both_figures() -> None:
    problem = AttentionProblem(heads=8, seq_q=64, seq_k=131_072, head_dim=64)
    reason = GpuFlash().supports(problem, limits(binding_bytes=128 << 20))
    assert reason is not None
    assert "256.0 MiB" in reason
    assert "128.0 MiB" in reason


def test_half_precision_is_refused_with_the_reason() -> None:
    reason = GpuFlash().supports(AttentionProblem(dtype="f16"), limits())
    assert reason is not None
    assert "float32" in reason


@pytest.mark.parametrize("checks", [True, False])
def test_with_and_without_bounds_checks(checks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "checks", checks)
    problem = AttentionProblem(heads=2, seq_q=37, head_dim=20)
    error, bound = error_and_bound(problem, seeded(problem, 7), device)
    assert error <= bound
