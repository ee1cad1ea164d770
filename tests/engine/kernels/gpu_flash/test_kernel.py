"""gpu-flash: which variant is chosen, what it holds, and the paths that only some devices take."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from engine.devices.device import Limits, Tuned
from engine.devices.gpu.device import GpuDevice, open_gpu
from engine.kernels.gpu_flash import variant as gpu_flash_variant
from engine.kernels.gpu_flash.kernel import GpuFlash
from engine.kernels.gpu_flash.variant import Decode, Tiles, candidates, choose_variant
from engine.measure.verify import expect, verify
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs, seeded
from engine.reference.forward import reference

KIB = 1 << 10


def limits(**changes: object) -> Limits:
    return msgspec.structs.replace(open_gpu().limits, **changes)


def check(problem: AttentionProblem, inputs: Inputs, device: GpuDevice) -> None:
    """Output, log-sum-exp and ledger must be the reference's and the prediction's."""
    prepared = GpuFlash().prepare(problem, inputs, device, want_lse=True)
    try:
        prepared.poison()
        prepared.run()
        got = prepared.outputs()
        memory = prepared.memory()
    finally:
        prepared.close()
    verdict = verify(expect(problem, inputs), got.output)
    assert verdict.verified, verdict
    assert memory is not None
    assert memory.peak_bytes == GpuFlash().predict(problem, device.limits, want_lse=True)
    assert memory.scratch_bytes == memory.peak_bytes - problem.tensor_bytes
    _, lse, _ = reference(problem, inputs)
    assert got.lse is not None
    seen = np.isfinite(lse)
    np.testing.assert_allclose(got.lse[seen], lse[seen], rtol=1e-6, atol=1e-5)
    np.testing.assert_array_equal(np.isneginf(got.lse), np.isneginf(lse))


@pytest.mark.parametrize("kib", [16, 32, 48])
@pytest.mark.parametrize("software", [False, True])
@pytest.mark.parametrize("subgroup_size", [0, 8, 32, 128])
def test_every_head_dim_finds_a_variant_within_the_workgroup_memory(
    kib: int, software: bool, subgroup_size: int
) -> None:
    device = limits(workgroup_bytes=kib * KIB, software=software, subgroup_size=subgroup_size)
    for head_dim in range(1, 257):
        variant = choose_variant(AttentionProblem(seq_q=8, head_dim=head_dim), device)
        assert isinstance(variant, Tiles)
        assert variant.workgroup_bytes <= kib * KIB
        assert variant.threads <= device.workgroup_threads
        assert variant.depth >= variant.depth_stored(head_dim) >= head_dim
        assert variant.depth % variant.unroll == 0
        assert variant.lanes % variant.value_unroll == 0
        assert 4 * variant.value_stride >= head_dim
        assert variant.subgroups == (subgroup_size >= 8)
        assert not variant.subgroups or variant.lanes <= subgroup_size


def test_the_count_of_workgroup_memory_is_what_the_shader_declares() -> None:
    variant = choose_variant(AttentionProblem(seq_q=64, head_dim=64), limits(subgroup_size=0, software=True))
    assert isinstance(variant, Tiles)
    query, weights, partial = 64 * 32 * 4, 64 * 32 * 4, 64 * 16
    assert variant.workgroup_bytes == query + weights + partial


@pytest.mark.parametrize("workgroup_bytes", [16 * KIB, 32 * KIB])
def test_head_dim_256_is_right_whatever_the_workgroup_memory(
    workgroup_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "limits", limits(workgroup_bytes=workgroup_bytes))
    problem = AttentionProblem(heads=1, seq_q=19, seq_k=45, head_dim=256, causal=True)
    check(problem, seeded(problem, 4), device)


def test_the_unrolled_variant_of_a_real_gpu_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "limits", limits(software=False))
    problem = AttentionProblem(heads=2, seq_q=40, head_dim=32, causal=True)
    variant = choose_variant(problem, device.limits)
    assert isinstance(variant, Tiles)
    assert variant.unroll == 32
    assert variant.splits == 1
    check(problem, seeded(problem, 5), device)


@pytest.mark.parametrize("limit", [7, 64])
def test_a_grid_beyond_the_limit_is_folded(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "limits", limits(workgroups_per_dimension=limit))
    problem = AttentionProblem(batch=3, heads=5, seq_q=40, head_dim=8)  # 45 workgroups
    check(problem, seeded(problem, 6), device)


def test_tensors_beyond_the_binding_limit_are_refused_with_both_figures() -> None:
    problem = AttentionProblem(heads=8, seq_q=64, seq_k=131_072, head_dim=64)
    reason = GpuFlash().supports(problem, limits(binding_bytes=128 << 20))
    assert reason is not None
    assert "256 MiB" in reason
    assert "128 MiB" in reason


@pytest.mark.parametrize("subgroup_size", [0, 8, 32])
@pytest.mark.parametrize("head_dim", [1, 32, 64, 80, 128, 256])
@pytest.mark.parametrize("software", [False, True])
def test_candidates_fit_the_device_and_come_cheapest_first(subgroup_size: int, head_dim: int, software: bool) -> None:
    device = limits(workgroup_bytes=32 * KIB, subgroup_size=subgroup_size, software=software)
    problem = AttentionProblem(heads=4, seq_q=1024, head_dim=head_dim)
    found = candidates(problem, device)
    assert found[0] == choose_variant(problem, device)
    assert len(set(map(str, found))) == len(found)
    assert len(found) > 1 or head_dim == 256  # whose sums leave a thread no choice where 8 lanes share a row
    for variant in found:
        assert variant.workgroup_bytes <= device.workgroup_bytes
        assert variant.threads <= device.workgroup_threads
        assert 4 * variant.value_stride >= head_dim
        assert not variant.subgroups or variant.lanes <= subgroup_size
        assert choose_variant(problem, msgspec.structs.replace(device, tuned=(tuned(problem, variant),))) == variant
    others = [variant.unroll * variant.row_groups * variant.col_groups for variant in found[1:]]
    assert others == [] or others[0] <= others[-1]


def tuned(problem: AttentionProblem, variant: Tiles, **changes: int | bool) -> Tuned:
    """The variant as the tuning store holds it, with some fields changed."""
    fields = msgspec.structs.asdict(variant) | changes
    return Tuned(
        kernel="gpu-flash",
        dtype=problem.dtype,
        head_dim=problem.head_dim,
        causal=problem.causal,
        variant=tuple(fields.items()),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"depth": 8},
        {"unroll": 0},
        {"lanes": 64},
        {"lanes": 24},
        {"rows": 6},
        {"rows": 1 << 20},
        {"value_groups": 1},
        {"x": 1},
    ],
    ids=str,
)
def test_a_stored_variant_that_makes_no_sense_here_is_left_aside(changes: dict[str, int]) -> None:
    problem = AttentionProblem(heads=4, seq_q=1024, head_dim=64)
    default = choose_variant(problem, limits())
    assert isinstance(default, Tiles)
    broken = tuned(problem, default, **changes)
    if changes == {"x": 1}:
        broken = msgspec.structs.replace(broken, variant=(("x", 1),))
    assert choose_variant(problem, limits(tuned=(broken,))) == default


@pytest.mark.parametrize("lanes", [8, 16, 32])
@pytest.mark.parametrize("block", [(1, 1), (2, 1), (1, 2), (2, 2)], ids=["4x4", "8x4", "4x8", "8x8"])
def test_every_block_is_right(lanes: int, block: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    row_groups, col_groups = block
    variant = Tiles(
        rows=64 // lanes * 4 * row_groups,
        lanes=lanes,
        row_groups=row_groups,
        col_groups=col_groups,
        depth=32,
        unroll=4,
        value_groups=2,
        value_unroll=4,
        subgroups=lanes == 8,
        lean=block == (2, 2),
    )
    problem = AttentionProblem(heads=2, seq_q=45, seq_k=1100, head_dim=30, head_dim_v=8 * lanes - 3, causal=True)
    device = open_gpu()
    monkeypatch.setattr(gpu_flash_variant, "_ENOUGH_LARGE", 1)
    monkeypatch.setattr(gpu_flash_variant, "_LARGE_TIME", (0, 0))
    monkeypatch.setattr(device, "limits", limits(software=False, tuned=(tuned(problem, variant),)))
    chosen = choose_variant(problem, device.limits)
    assert isinstance(chosen, Tiles)
    assert (chosen.lanes, chosen.row_groups, chosen.col_groups) == (lanes, *block)
    assert chosen.splits > 1 or lanes * col_groups == 64
    check(problem, seeded(problem, 13), device)


LARGE = {
    "grouped": AttentionProblem(batch=2, heads=6, kv_heads=2, seq_q=70, seq_k=200, head_dim=16),
    "rows that see nothing": AttentionProblem(heads=2, seq_q=150, seq_k=90, head_dim=36, causal=True),
    "window": AttentionProblem(heads=1, seq_q=140, seq_k=300, head_dim=16, head_dim_v=40, window=33),
    "softcap": AttentionProblem(heads=2, seq_q=65, head_dim=32, head_dim_v=50, softcap=3.0, dtype="f16"),
    "more pairs than go abreast": AttentionProblem(heads=19, seq_q=70, head_dim=8, causal=True),
    "key_mask": AttentionProblem(seq_q=64, seq_k=257, head_dim=7, key_mask=np.arange(257)[None] % 5 > 2),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("bad", [None, np.nan, -np.inf], ids=["finite", "nan", "inf"])
def test_large_blocks_are_right(name: str, bad: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, device = LARGE[name], open_gpu()
    monkeypatch.setattr(gpu_flash_variant, "_ENOUGH_LARGE", 1)
    monkeypatch.setattr(gpu_flash_variant, "_LARGE_TIME", (0, 0))
    monkeypatch.setattr(gpu_flash_variant, "unroll_of", lambda *_: 4)  # compiles sooner
    monkeypatch.setattr(device, "limits", limits(software=False))
    chosen = choose_variant(problem, device.limits)
    assert isinstance(chosen, Tiles)
    assert chosen.lean
    inputs = seeded(problem, 14)
    if bad is not None:
        inputs.k[0, 0, 37, 0] = bad
    check(problem, inputs, device)


@pytest.mark.parametrize(
    ("options", "large"),
    [
        ({"batch": 4, "heads": 16, "seq_q": 4096}, True),
        ({"batch": 4, "heads": 16, "seq_q": 4096, "causal": True}, True),
        ({"batch": 32, "heads": 16, "seq_q": 65}, False),  # half of the rows would lie beyond the end
        ({"batch": 4, "heads": 16, "seq_q": 4096, "window": 100}, False),  # most of the scores would be masked
        ({"heads": 1, "seq_q": 256}, False),
    ],
    ids=["many", "causal", "odd", "window", "few"],
)
def test_large_blocks_are_for_much_work(options: dict[str, Any], large: bool) -> None:
    room = {"subgroup_size": 32, "binding_bytes": 1 << 30, "memory_bytes": 4 << 30}
    for head_dim in (32, 64, 80, 128, 256):
        problem = AttentionProblem(head_dim=head_dim, **options)
        variant = choose_variant(problem, limits(software=False, **room))
        assert isinstance(variant, Tiles)
        assert variant.lean == large
        for adapter in ({"software": True}, {"software": False, "integrated": True}):
            elsewhere = choose_variant(problem, limits(**room, **adapter))
            assert isinstance(elsewhere, Tiles)
            assert not elsewhere.lean


@pytest.mark.parametrize("scarce", [{"binding_bytes": 128 << 20}, {"memory_bytes": 400 << 20}], ids=str)
def test_small_blocks_run_what_large_ones_have_no_room_for(scarce: dict[str, int]) -> None:
    """Half precision: Q and the output have 128 MiB, and Q has twice that where large blocks re-lay it."""
    problem = AttentionProblem(heads=64, kv_heads=4, seq_q=8192, head_dim=128, dtype="f16")
    room = {"software": False, "subgroup_size": 32, "f16": True, "binding_bytes": 1 << 30, "memory_bytes": 4 << 30}
    roomy, tight = limits(**room), limits(**room | scarce)
    large = choose_variant(problem, roomy)
    assert isinstance(large, Tiles)
    assert large.lean
    small = choose_variant(problem, msgspec.structs.replace(tight, tuned=(tuned(problem, large),)))
    assert small == choose_variant(problem, tight)
    assert isinstance(small, Tiles)
    assert not small.lean
    assert GpuFlash().supports(problem, tight) is None
    assert not any(variant.lean for variant in candidates(problem, tight))


def test_a_stored_variant_that_re_lays_too_much_is_left_aside() -> None:
    problem = AttentionProblem(seq_q=4096, seq_k=100_000, head_dim=32, head_dim_v=36, dtype="f16")
    room = {"software": False, "subgroup_size": 32, "f16": True, "binding_bytes": 1 << 30, "memory_bytes": 4 << 30}
    default = choose_variant(problem, limits(**room))
    assert isinstance(default, Tiles)
    block = {"rows": 4, "row_groups": 1, "col_groups": 1, "lean": False}
    wide = tuned(problem, default, lanes=32, value_groups=1, **block)
    chosen = choose_variant(problem, limits(**room, tuned=(wide,)))
    assert isinstance(chosen, Tiles)
    assert chosen.lanes == 32
    tight = limits(**room | {"binding_bytes": 256 << 20}, tuned=(wide,))
    assert choose_variant(problem, tight) == default
    assert GpuFlash().supports(problem, tight) is None


HALVES = [
    AttentionProblem(heads=4, kv_heads=2, seq_q=37, seq_k=50, head_dim=20, causal=True, dtype="f16"),
    AttentionProblem(heads=1, seq_q=33, head_dim=64, head_dim_v=96, dtype="f16", softcap=20.0),
    AttentionProblem(heads=8, kv_heads=2, seq_q=1, seq_k=200, head_dim=32, dtype="f16"),
    AttentionProblem(heads=2, seq_q=3, seq_k=150, head_dim=72, head_dim_v=136, causal=True, dtype="f16"),
    AttentionProblem(heads=2, seq_q=2, seq_k=130, head_dim=28, head_dim_v=13, dtype="f16"),
]


@pytest.mark.parametrize("problem", HALVES, ids=["grouped", "softcap", "decode", "wide", "narrow"])
def test_half_precision_storage(problem: AttentionProblem) -> None:
    check(problem, seeded(problem, 9), open_gpu())


@pytest.mark.parametrize("seq_q", [1, 20], ids=["decode", "tiles"])
def test_scores_beyond_half_precision_do_not_overflow(seq_q: int) -> None:
    problem = AttentionProblem(heads=1, seq_q=seq_q, seq_k=130, head_dim=128, dtype="f16")  # scores 204,800 · scale
    given = seeded(problem, 0)
    forty = [np.full_like(array, 40) for array in (given.q, given.k)]
    check(problem, Inputs(*forty, given.v), open_gpu())


def test_half_precision_without_shader_f16_is_refused_with_the_reason() -> None:
    reason = GpuFlash().supports(AttentionProblem(dtype="f16"), limits(f16=False))
    assert reason is not None
    assert "shader-f16" in reason


MASK = np.arange(300)[None] % 7 > 1
DECODES = [
    AttentionProblem(heads=1, seq_q=1, seq_k=128, head_dim=64),
    AttentionProblem(heads=8, kv_heads=2, seq_q=1, seq_k=300, head_dim=128, causal=True, key_mask=MASK),
    AttentionProblem(batch=2, heads=6, kv_heads=2, seq_q=5, seq_k=257, head_dim=36, head_dim_v=68, causal=True),
    AttentionProblem(heads=3, kv_heads=1, seq_q=16, seq_k=131, head_dim=3, head_dim_v=66, window=40),
    AttentionProblem(heads=2, seq_q=2, seq_k=1000, head_dim=256, softcap=10.0, scale=-0.3),
]


@pytest.mark.parametrize("problem", DECODES, ids=["one", "grouped", "several", "odd", "large"])
@pytest.mark.parametrize("software", [True, False], ids=["whole", "split"])
def test_decode(problem: AttentionProblem, software: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "limits", limits(software=software))
    variant = choose_variant(problem, device.limits)
    assert isinstance(variant, Decode)
    assert (variant.splits > 1) == (not software and problem.seq_k >= 256)
    check(problem, seeded(problem, 10), device)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_key_in_a_long_cache_reaches_the_rows_that_see_it(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "limits", limits(software=False))
    problem = AttentionProblem(heads=2, kv_heads=1, seq_q=4, seq_k=256, head_dim=32, causal=True)
    inputs = seeded(problem, 11)
    inputs.k[0, 0, 254, 3] = bad  # the last two queries see it
    inputs.v[0, 0, 255, 5] = bad  # the last one
    check(problem, inputs, device)


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"window": 150}, {"key_mask": np.arange(1024)[None] > 700}], ids=str
)
def test_few_heads_split_their_keys(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "limits", limits(software=False, subgroup_size=0))
    problem = AttentionProblem(heads=1, seq_q=40, seq_k=1024, head_dim=32, **options)  # type: ignore[arg-type]
    variant = choose_variant(problem, device.limits)
    assert isinstance(variant, Tiles)
    assert variant.splits > 1
    check(problem, seeded(problem, 12), device)


@pytest.mark.parametrize("checks", [True, False])
def test_with_and_without_bounds_checks(checks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "checks", checks)
    problem = AttentionProblem(heads=2, seq_q=37, head_dim=20)
    check(problem, seeded(problem, 7), device)
