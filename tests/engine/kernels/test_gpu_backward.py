"""The GPU's backward passes: what they hold, which form is compiled, and the paths that only some devices take."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from engine.devices.device import Limits
from engine.devices.gpu.device import GpuDevice, open_gpu
from engine.kernels.base import Gradients
from engine.kernels.gpu_flash import backward as gpu_flash_backward
from engine.kernels.gpu_flash import backward_rounds as gpu_flash_backward_rounds
from engine.kernels.gpu_flash.backward import choose_form, scratch_bytes
from engine.kernels.gpu_flash.backward_passes import Passes, choose_passes
from engine.kernels.gpu_flash.backward_rounds import COLS, ROWS, Rounds, choose_rounds, rounds
from engine.kernels.gpu_naive.cut import groups
from engine.kernels.registry import get_kernel
from engine.measure.verify_backward import expect_gradients
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs, seeded

KIB, MIB = 1 << 10, 1 << 20
NAMES = ["gpu-flash", "gpu-naive"]


def limits(**changes: object) -> Limits:
    return msgspec.structs.replace(open_gpu().limits, **changes)


def backward(**options: Any) -> AttentionProblem:
    return AttentionProblem(direction="backward", **options)


def check(name: str, problem: AttentionProblem, inputs: Inputs, device: GpuDevice) -> Gradients:
    """Gradients and ledger must be the reference's and the prediction's."""
    kernel = get_kernel(name)
    assert kernel.supports(problem, device.limits) is None
    prepared = kernel.prepare(problem, inputs, device)
    try:
        prepared.poison()
        prepared.run()
        got = prepared.gradients()
        memory = prepared.memory()
        assert prepared.readback_ms is not None
    finally:
        prepared.close()
    verdict = expect_gradients(problem, inputs).verdict(got)
    assert verdict.verified, f"{name} on {problem}: {verdict}"
    assert memory is not None
    assert memory.peak_bytes == kernel.predict(problem, device.limits)
    assert memory.scratch_bytes == memory.peak_bytes - problem.tensor_bytes
    return got


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options",
    [
        {"heads": 2, "seq_q": 64, "head_dim": 32},
        {"heads": 6, "kv_heads": 2, "seq_q": 21, "seq_k": 45, "head_dim": 12, "head_dim_v": 33, "causal": True},
        {"batch": 2, "heads": 1, "seq_q": 33, "head_dim": 3, "key_mask": np.arange(66).reshape(2, 33) % 5 > 1},
        {"heads": 1, "seq_q": 1, "seq_k": 1, "head_dim": 1},
    ],
    ids=["plain", "grouped", "key_mask", "one"],
)
def test_the_ledger_is_the_prediction(name: str, options: dict[str, Any]) -> None:
    problem = backward(**options)
    check(name, problem, seeded(problem, 1), open_gpu())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limit", [7, 64])
@pytest.mark.parametrize("options", [{}, {"key_mask": np.arange(40)[None].repeat(3, 0) % 3 > 0}], ids=["full", "mask"])
def test_a_grid_beyond_the_limit_is_folded(
    name: str, limit: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "limits", limits(workgroups_per_dimension=limit))
    problem = backward(batch=3, heads=5, seq_q=40, head_dim=8, **options)  # 45 workgroups of gpu-flash, and more
    check(name, problem, seeded(problem, 6), device)


@pytest.mark.parametrize("pairs_in_a_buffer", [1, 4, 100])
@pytest.mark.parametrize("seq_k", [44, 45])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_groups_that_straddle_score_buffers(
    pairs_in_a_buffer: int, seq_k: int, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dK and dV of a group are summed over all buffers that its heads' matrices are in."""
    problem = backward(batch=2, heads=6, kv_heads=kv_heads, seq_q=46, seq_k=seq_k, head_dim=3, causal=True)
    device = open_gpu()
    one = (4 * 46 * seq_k + 15) // 16 * 16
    small = limits(binding_bytes=pairs_in_a_buffer * one)
    monkeypatch.setattr(device, "limits", small)
    first_pairs = [first for first, _ in groups(problem, small)]
    if pairs_in_a_buffer < 100:
        assert any(first % problem.group for first in first_pairs), "no group straddles two buffers"
    inputs = seeded(problem, 8)
    assert inputs.grad_output is not None
    inputs.grad_output[:] *= np.arange(1, 13, dtype=np.float32).reshape(2, 6, 1, 1)
    got = check("gpu-naive", problem, inputs, device)
    monkeypatch.undo()
    for one_of, other in zip(astuple(got), astuple(check("gpu-naive", problem, inputs, open_gpu())), strict=True):
        np.testing.assert_allclose(one_of, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"heads": 1}, {"heads": 32, "kv_heads": 2}], ids=str)
@pytest.mark.parametrize("software", [True, False])
def test_scratch_of_flash_at_most_doubles_with_the_sequence(options: dict[str, Any], software: bool) -> None:
    """But where the workspace of rounds comes in, on a GPU that they fill: there it is added once."""
    roomy = limits(memory_bytes=1 << 50, binding_bytes=1 << 40, buffer_bytes=1 << 40, software=software)
    for head_dim in (64, 80, 256):
        scratch, forms = [], []
        for seq in (64 << n for n in range(10)):
            problem = backward(**{"heads": 4, "seq_q": seq, "head_dim": head_dim} | options)
            scratch.append(get_kernel("gpu-flash").predict(problem, roomy) - problem.tensor_bytes)
            forms.append(type(choose_form(problem, roomy)))
        for (shorter, form), (longer, other) in itertools.pairwise(zip(scratch, forms, strict=True)):
            assert longer <= 2 * shorter or form != other, scratch
        assert not software or len(set(forms)) == 1
        assert scratch[-1] < 4 * problem.tensor_bytes


@pytest.mark.parametrize("software", [False, True])
def test_two_passes_run_what_rounds_have_no_room_for(software: bool) -> None:
    problem = backward(batch=8, heads=16, kv_heads=4, seq_q=1096, head_dim=32)
    roomy = limits(memory_bytes=1 << 30, binding_bytes=1 << 30, buffer_bytes=1 << 30, software=software)
    need = get_kernel("gpu-flash").predict(problem, roomy)
    assert isinstance(choose_form(problem, roomy), Rounds)
    for scarce in ({"memory_bytes": need - 1}, {"binding_bytes": 36 * MIB - 4}):
        tight = msgspec.structs.replace(roomy, **scarce)
        assert isinstance(choose_form(problem, tight), Passes)
        assert get_kernel("gpu-flash").supports(problem, tight) is None
    assert isinstance(choose_form(problem, msgspec.structs.replace(roomy, memory_bytes=need)), Rounds)


@pytest.mark.parametrize("kib", [16, 32, 48])
@pytest.mark.parametrize("software", [False, True])
def test_every_head_dim_finds_a_form_within_the_workgroup_memory(kib: int, software: bool) -> None:
    device = limits(workgroup_bytes=kib * KIB, software=software)
    for head_dim, head_dim_v in [(d, d) for d in range(1, 257)] + [(1, 256), (256, 1), (64, 128)]:
        problem = backward(seq_q=8, head_dim=head_dim, head_dim_v=head_dim_v)
        of_rounds, passes = choose_rounds(problem, device), choose_passes(problem, device)
        assert of_rounds is not None, (head_dim, head_dim_v)
        assert of_rounds.workgroup_bytes <= kib * KIB
        assert of_rounds.depth % of_rounds.slice == of_rounds.slice % of_rounds.unroll == 0
        assert of_rounds.stride % (8 * of_rounds.col_groups) == 0
        assert passes is not None, (head_dim, head_dim_v)
        assert max(passes.workgroup_bytes(own) for own in ("queries", "keys")) <= kib * KIB
        assert passes.threads <= device.workgroup_threads
        assert passes.depth % passes.unroll == 0
        assert passes.lanes % passes.value_unroll == 0
        for laid in (of_rounds.laid, passes.laid):
            assert laid.depth >= max(head_dim, head_dim_v)
            assert 4 * laid.stride >= max(head_dim, head_dim_v)


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({"batch": 4, "heads": 16, "seq_q": 4096}, Rounds),
        ({"batch": 4, "heads": 16, "seq_q": 4096, "key_mask": np.arange(4 * 4096).reshape(4, 4096) % 8 == 0}, Rounds),
        ({"heads": 8, "seq_q": 4096, "causal": True}, Rounds),
        ({"heads": 32, "seq_q": 512}, Rounds),
        ({"heads": 32, "kv_heads": 8, "seq_q": 2048, "head_dim": 128, "causal": True}, Rounds),
        ({"heads": 8, "seq_q": 1024}, Passes),
        ({"heads": 2, "seq_q": 16_384}, Passes),  # long rows of blocks are few workgroups of the second pass
        ({"heads": 8, "seq_q": 8192, "window": 512}, Passes),  # of many blocks most are not seen
    ],
    ids=["many", "few keys unmasked", "causal", "short", "grouped", "few heads, short", "few heads, long", "window"],
)
def test_a_gpu_that_rounds_do_not_fill_makes_two_passes(options: dict[str, Any], form: type) -> None:
    problem = backward(**{"head_dim": 64} | options)
    assert isinstance(choose_form(problem, limits(software=False)), form)
    assert isinstance(choose_form(problem, limits(software=True)), Rounds)
    assert isinstance(choose_form(problem, limits(software=False, integrated=True)), Passes)


@given(
    st.integers(1, 700), st.integers(1, 700), st.integers(1, 6), st.booleans(),
    st.none() | st.integers(1, 700), st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3)),
)  # fmt: skip
def test_rounds_meet_what_sees_and_is_seen_once(
    seq_q: int, seq_k: int, heads: int, causal: bool, window: int | None, most: tuple[int, int, int]
) -> None:
    problem = backward(heads=heads, seq_q=seq_q, seq_k=seq_k, head_dim=4, causal=causal, window=window)
    tiles = choose_rounds(problem, limits())
    assert tiles is not None
    tiles = msgspec.structs.replace(tiles, pairs=min(most[0], heads), q_blocks=most[1], k_blocks=most[2])
    met = np.zeros((heads, -(-seq_q // ROWS), -(-seq_k // COLS)), int)
    for one in rounds(problem, tiles):
        pairs = slice(one.first_pair, one.first_pair + one.pairs)
        queries, keys = slice(one.q0, one.q0 + one.q_blocks), slice(one.k0, one.k0 + one.k_blocks)
        assert one.pairs * one.q_blocks * one.k_blocks <= tiles.blocks
        assert one.new_queries == (not met[pairs, queries].any())
        assert one.new_keys == (not met[pairs, :, keys].any())
        met[pairs, queries, keys] += 1
    assert met.max() == 1
    assert met.any(axis=2).all(), "somebody's dQ is never written"
    assert met.any(axis=1).all(), "somebody's dK and dV are never written"
    first, end = problem.key_range(np.arange(seq_q))
    for row in range(seq_q):
        seen = met[:, row // ROWS, first[row] // COLS : -(-end[row] // COLS)]
        assert first[row] == end[row] or seen.all(), f"row {row} misses keys that it sees"


@pytest.mark.parametrize("software", [True, False])
@pytest.mark.parametrize("most", [(1, 1, 1), (4, 1, 2), (5, 2, 1)])
@pytest.mark.parametrize(
    "options",
    [
        {"causal": True, "seq_q": 150, "seq_k": 300},
        {"causal": True, "seq_q": 300, "seq_k": 100},
        {"window": 20, "seq_q": 140, "seq_k": 400},
        {"seq_q": 70, "seq_k": 260, "key_mask": np.arange(2 * 260).reshape(2, 260) % 7 > 3},
    ],
    ids=["causal", "rows that see nothing", "window", "key_mask"],
)
def test_gradients_add_up_over_rounds(
    software: bool, most: tuple[int, int, int], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups, queries and keys are cut; what no round before has written is not added to."""
    device = open_gpu()
    monkeypatch.setattr(device, "limits", limits(software=software))
    monkeypatch.setattr(gpu_flash_backward_rounds, "_most_of_a_round", lambda *_: most)
    monkeypatch.setattr(gpu_flash_backward, "fills_gpu", lambda *_: True)
    problem = backward(batch=2, heads=6, kv_heads=2, head_dim=7, head_dim_v=36, **options)
    inputs = seeded(problem, 9)
    got = check("gpu-flash", problem, inputs, device)
    monkeypatch.undo()
    for one_of, other in zip(astuple(got), astuple(check("gpu-flash", problem, inputs, open_gpu())), strict=True):
        np.testing.assert_allclose(one_of, other, rtol=1e-5, atol=1e-5)


def test_without_workgroup_memory_it_is_refused_with_the_figure() -> None:
    reason = get_kernel("gpu-flash").supports(backward(seq_q=8, head_dim=256), limits(workgroup_bytes=1000))
    assert reason == "no tile fits this device's 1000 bytes of workgroup memory"


@pytest.mark.parametrize("full", [True, False], ids=["rounds", "passes"])
def test_large_heads_are_right_in_little_workgroup_memory(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "limits", limits(workgroup_bytes=8 * KIB, software=False))
    monkeypatch.setattr(gpu_flash_backward, "fills_gpu", lambda *_: full)
    problem = backward(heads=1, seq_q=19, seq_k=45, head_dim=66, causal=True)
    form = choose_form(problem, device.limits)
    assert form is not None
    assert form.rows < 16 if isinstance(form, Passes) else form.slice == 32
    check("gpu-flash", problem, seeded(problem, 4), device)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("full", [True, False], ids=["rounds", "passes"])
def test_the_unrolled_form_of_a_real_gpu_is_right(name: str, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "limits", limits(software=False))
    monkeypatch.setattr(gpu_flash_backward, "fills_gpu", lambda *_: full)
    problem = backward(heads=4, kv_heads=2, seq_q=40, seq_k=70, head_dim=4, head_dim_v=7, softcap=5.0, window=30)
    check(name, problem, seeded(problem, 5), device)


@pytest.mark.parametrize("name", NAMES)
def test_without_bounds_checks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_gpu()
    monkeypatch.setattr(device, "checks", False)
    problem = backward(heads=2, seq_q=37, head_dim=20)
    check(name, problem, seeded(problem, 7), device)


def test_scratch_beyond_the_binding_limit_is_refused_with_both_figures() -> None:
    problem = backward(heads=8, seq_q=64, seq_k=65_536, head_dim=64)
    tight = limits(binding_bytes=128 * MIB)
    reason = get_kernel("gpu-flash").supports(problem, tight)
    assert reason is not None
    assert "256 MiB" in reason
    assert "128 MiB" in reason
    form = choose_form(problem, tight)
    assert form is not None
    assert any(label in reason for label in scratch_bytes(problem, form))
    assert get_kernel("gpu-flash").supports(backward(heads=8, seq_q=64, seq_k=32_768, head_dim=64), tight) is None


def test_a_pair_beyond_the_binding_limit_is_refused_with_both_figures() -> None:
    tight = limits(binding_bytes=128 * MIB)
    assert get_kernel("gpu-naive").supports(backward(heads=1, seq_q=5_792, head_dim=8), tight) is None
    reason = get_kernel("gpu-naive").supports(backward(heads=1, seq_q=5_793, head_dim=8), tight)
    assert reason == "one pair's score matrix needs 128.02 MiB, this device's binding limit is 128.00 MiB"


@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_rows_beyond_the_binding_limit_are_refused_with_both_figures(name: str) -> None:
    """Two numbers a row are more than its query where head_dim is 1."""
    tight = limits(binding_bytes=128 * MIB, memory_bytes=1 << 40)
    reason = get_kernel(name).supports(backward(heads=1024, seq_q=20_000, seq_k=1, head_dim=1), tight)
    assert reason is not None
    assert "this device's binding limit is 128 MiB" in reason
    assert "needs 156 MiB" in reason or name == "gpu-flash"


@pytest.mark.parametrize(("name", "figure"), [("gpu-flash", "MiB"), ("gpu-naive", "8.50 GiB")])
def test_what_passes_the_memory_limit_is_refused_with_both_figures(name: str, figure: str) -> None:
    reason = get_kernel(name).supports(backward(heads=64, seq_q=4096), limits(memory_bytes=100 * MIB))
    assert reason is not None
    assert reason.startswith(name)
    assert figure in reason
    assert "the memory limit is 100 MiB" in reason


@pytest.mark.parametrize("name", NAMES)
def test_a_problem_that_fits_alone_is_not_refused(name: str) -> None:
    problem = backward(heads=2, seq_q=256, head_dim=64)
    need = get_kernel(name).predict(problem, limits(memory_bytes=1))  # of the form that needs least
    assert get_kernel(name).supports(problem, limits(memory_bytes=need)) is None
    assert get_kernel(name).supports(problem, limits(memory_bytes=need - 1)) is not None
