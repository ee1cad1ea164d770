"""Faults that people reported of attention kernels, each on the smallest input that shows it, for all four kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.common.running import Cancelled
from engine.devices.device import Limits
from engine.measure.verify import expect, verify
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs, as_inputs, load, problem_for, seeded
from engine.problem.masks import visible

Array = NDArray[np.float32]


def near(shape: tuple[int, ...], centre: float, spread: float, seed: int) -> Array:
    return (centre + spread * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def constant(problem: AttentionProblem, q: float, k: float, seed: int = 0) -> Inputs:
    queries, keys = np.full(problem.q_shape, q, np.float32), np.full(problem.k_shape, k, np.float32)
    return Inputs(queries, keys, near(problem.v_shape, 0, 1, seed))


def hide(problem_keys: int, *hidden: Any, batch: int = 1) -> NDArray[np.bool_]:
    mask = np.ones((batch, problem_keys), np.bool_)
    for where in hidden:
        mask[where] = False
    return mask


def test_a_row_that_sees_nothing_gives_zero(kernel) -> None:
    problem = AttentionProblem(heads=2, seq_q=8, head_dim=8, causal=True, key_mask=hide(8, (0, 0)))
    got = kernel.check(problem, seeded(problem, 0))
    assert (got.output[:, :, 0] == 0).all()
    assert (got.lse[:, :, 0] == -np.inf).all()


@pytest.mark.parametrize(
    "shape",
    [
        {"seq_q": 40, "key_mask": hide(40, (0, slice(14)))},
        {"seq_q": 40, "seq_k": 26},
        {"seq_q": 128, "seq_k": 1},
        {"seq_q": 40, "seq_k": 26, "window": 3},
        {"seq_q": 9, "batch": 2, "key_mask": hide(9, (1, slice(None)), batch=2)},
    ],
    ids=["hidden keys", "more queries than keys", "one key", "window", "a whole batch entry"],
)
def test_rows_that_see_nothing_leave_the_others_alone(kernel, shape: dict[str, Any]) -> None:
    problem = AttentionProblem(heads=2, head_dim=16, causal=True, **shape)
    kernel.check(problem, seeded(problem, 1))


def test_a_first_tile_that_is_all_hidden_does_not_hold_the_maximum(kernel) -> None:
    mask = hide(448, (0, slice(128)))
    problem = AttentionProblem(heads=14, kv_heads=2, seq_q=88, seq_k=448, head_dim=64, causal=True, key_mask=mask)
    inputs = Inputs(
        near(problem.q_shape, 5, 0.1, 2), near(problem.k_shape, -5, 0.1, 3), near(problem.v_shape, 0, 1, 4)
    )  # scores near -200
    kernel.check(problem, inputs)


@pytest.mark.parametrize("causal", [False, True])
def test_no_mask_value_beats_real_scores_of_minus_eight_million(kernel, causal: bool) -> None:
    problem = AttentionProblem(heads=1, seq_q=40, seq_k=100, head_dim=64, causal=causal)
    inputs = constant(problem, 1e3, -1e3)
    got = kernel.check(problem, inputs)
    seen = visible(problem, 0, np.arange(40), 0, 100)
    mean = (seen @ inputs.v[0, 0].astype(np.float64)) / seen.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(got.output[0, 0], mean, rtol=0, atol=2e-6)


@pytest.mark.parametrize("size", [1.0, 1e2, 1e4])
def test_scores_in_the_thousands_and_beyond(kernel, size: float) -> None:
    problem = AttentionProblem(heads=2, seq_q=33, seq_k=200, head_dim=64, scale=size)
    kernel.check(problem, seeded(problem, 5))


def test_scores_beyond_half_precision(kernel) -> None:
    problem = AttentionProblem(heads=1, seq_q=20, seq_k=70, head_dim=128)
    inputs = constant(problem, 40, 40)
    got = kernel.check(problem, inputs)
    np.testing.assert_allclose(got.output[0, 0], np.tile(inputs.v[0, 0].mean(axis=0), (20, 1)), rtol=0, atol=2e-6)


def test_float32_is_not_half_in_disguise(kernel) -> None:
    problem = AttentionProblem(heads=1, seq_q=8, seq_k=4096, head_dim=128)
    inputs = Inputs(near(problem.q_shape, 0, 1, 6), near(problem.k_shape, 0, 1, 7), near(problem.v_shape, 50, 1, 8))
    got = kernel.check(problem, inputs)
    assert verify(expect(problem, inputs), got.output).max_rel_err < 1e-6


@pytest.mark.parametrize("seq_k", [240, 1024])
@pytest.mark.parametrize("centre", [50, 1e-40])
def test_values_that_do_not_cancel_are_summed_as_well_as_float32_can(kernel, centre: float, seq_k: int) -> None:
    problem = AttentionProblem(heads=1, seq_q=32, seq_k=seq_k, head_dim=128)
    given = constant(problem, 0, 1)
    kernel.check(problem, Inputs(given.q, given.k, near(problem.v_shape, centre, centre / 50, 8)))


@pytest.mark.parametrize("seq_q", [4, 20], ids=["decode", "tiles"])
def test_thousands_of_equal_values_keep_their_digits(kernel, seq_q: int) -> None:
    problem = AttentionProblem(heads=1, seq_q=seq_q, seq_k=4096, head_dim=32)
    given = constant(problem, 0, 1)
    got = kernel.check(problem, Inputs(given.q, given.k, np.full_like(given.v, 0.1)))
    np.testing.assert_allclose(got.output, np.float32(0.1), rtol=1.5e-6)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e38])
@pytest.mark.parametrize("causal", [False, True])
def test_garbage_in_hidden_positions_does_not_leak(kernel, garbage: float, causal: bool) -> None:
    mask = np.random.default_rng(9).random((2, 70)) < 0.5
    problem = AttentionProblem(batch=2, heads=2, seq_q=40, seq_k=70, head_dim=16, causal=causal, key_mask=mask)
    clean = seeded(problem, 10)
    hidden = ~mask[:, None, :, None]
    k, v = (np.where(hidden, np.float32(garbage), array) for array in (clean.k, clean.v))
    got = kernel.check(problem, Inputs(clean.q, k, v))
    assert np.isfinite(got.output).all()
    assert verify(expect(problem, clean), got.output).verified


@pytest.mark.parametrize("seq", [1, 2, 3, 17, 24, 31, 33, 63, 65, 100, 127, 129, 1000])
def test_lengths_that_are_no_multiple_of_a_tile(kernel, seq: int) -> None:
    for causal in (False, True):
        problem = AttentionProblem(heads=1, seq_q=seq, head_dim=8, causal=causal)
        kernel.check(problem, seeded(problem, seq))


@pytest.mark.parametrize("head_dim", [1, 3, 20, 66, 80, 96, 112, 160, 192, 256])
def test_head_sizes(kernel, head_dim: int) -> None:
    problem = AttentionProblem(heads=2, seq_q=20, seq_k=70, head_dim=head_dim, causal=True)
    kernel.check(problem, seeded(problem, head_dim))


@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(1, 256), (256, 1), (20, 66), (66, 3)])
def test_values_of_another_size_than_keys(kernel, head_dim: int, head_dim_v: int) -> None:
    problem = AttentionProblem(heads=2, seq_q=20, seq_k=70, head_dim=head_dim, head_dim_v=head_dim_v)
    kernel.check(problem, seeded(problem, head_dim))


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 17), (1, 65), (4, 24), (16, 16), (128, 1), (7, 1)])
def test_decode_with_history(kernel, seq_q: int, seq_k: int) -> None:
    for options in ({}, {"causal": True}, {"window": 5}):
        problem = AttentionProblem(heads=4, kv_heads=2, seq_q=seq_q, seq_k=seq_k, head_dim=16, **options)
        kernel.check(problem, seeded(problem, 11))


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_heads_and_their_groups_are_not_mixed_up(kernel, kv_heads: int) -> None:
    problem = AttentionProblem(batch=2, heads=6, kv_heads=kv_heads, seq_q=10, seq_k=30, head_dim=8)
    inputs = seeded(problem, 12)
    for array in (inputs.k, inputs.v):  # so far apart that another head's tensor is not within any rounding
        array += 3 * np.arange(2 * kv_heads, dtype=np.float32).reshape(2, kv_heads, 1, 1)
    kernel.check(problem, inputs)


def test_masks_and_heads_of_a_batch_are_not_mixed_up(kernel) -> None:
    mask = np.tri(4, 40, 7, dtype=np.bool_)[:, ::-1]  # each batch entry sees other keys, the last of the sequence
    problem = AttentionProblem(batch=4, heads=4, seq_q=12, seq_k=40, head_dim=8, key_mask=mask.copy())
    kernel.check(problem, seeded(problem, 13))


@pytest.mark.parametrize("count", [65_536, 131_072])
def test_a_grid_beyond_65535_workgroups(kernel, count: int) -> None:
    """gpu-flash takes a workgroup for each tile of a head's rows, gpu-naive one for each row's softmax."""
    heads, seq_q = (count, 1) if kernel.kernel.name == "gpu-flash" else (4, count // 4)
    problem = AttentionProblem(heads=heads, kv_heads=heads // 4, seq_q=seq_q, seq_k=2, head_dim=2)
    inputs = seeded(problem, 14)
    got = kernel.run(problem, inputs)
    k, v = (np.repeat(array[0].astype(np.float64), 4, axis=0) for array in (inputs.k, inputs.v))
    weights = np.exp(np.einsum("hqd,hkd->hqk", inputs.q[0], k) * problem.scale)
    want = np.einsum("hqk,hkd->hqd", weights, v) / weights.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(got.output[0], want, rtol=0, atol=1e-5)


def test_one_matrix_just_above_the_limit_is_refused_with_both_figures(kernel) -> None:
    """One pair of 5,793 queries and keys is just above 128 MiB, the binding limit of many devices."""
    limits = Limits(
        memory_bytes=1 << 40 if not kernel.on_cpu else 128 << 20, binding_bytes=128 << 20, buffer_bytes=1 << 31,
        workgroup_bytes=32 << 10, workgroup_threads=256, workgroups_per_dimension=65_535, l2_bytes=1 << 20,
    )  # fmt: skip
    reason = kernel.kernel.supports(AttentionProblem(heads=1, seq_q=5793, head_dim=1), limits)
    if kernel.kernel.name == kernel.kernel.naive:
        assert reason is not None
        assert "limit is 128.0" in reason
        assert kernel.kernel.supports(AttentionProblem(heads=1, seq_q=5700, head_dim=1), limits) is None
    else:
        assert reason is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("tensor", ["k", "v"])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"window": 9}, {"window": 9, "softcap": 5.0}],
    ids=["full", "causal", "window", "soft cap"],
)
def test_a_bad_key_reaches_exactly_the_rows_that_see_it(
    kernel, bad: float, tensor: str, options: dict[str, Any]
) -> None:
    problem = AttentionProblem(heads=2, seq_q=80, seq_k=90, head_dim=16, **options)
    inputs = seeded(problem, 15)
    getattr(inputs, tensor)[0, 1, 60, :] = bad
    got = kernel.run(problem, inputs)
    verdict = verify(expect(problem, inputs), got.output)
    assert verdict.verified, verdict
    seen = visible(problem, 0, np.arange(80), 60, 61)[:, 0]
    if np.isnan(bad) or tensor == "v":
        np.testing.assert_array_equal(~np.isfinite(got.output[0, 1]).all(axis=1), seen)
        assert verdict.nonfinite == seen.sum()
    assert np.isfinite(got.output[0, 0]).all()


def test_a_bad_value_beside_equal_ones_reaches_the_rows_that_see_it(kernel) -> None:
    problem = AttentionProblem(heads=1, seq_q=8, head_dim=4, causal=True)
    inputs = seeded(problem, 15)
    inputs.v[..., 0] = 1
    inputs.v[0, 0, 5, 2] = np.nan
    got = kernel.run(problem, inputs)
    verdict = verify(expect(problem, inputs), got.output)
    assert verdict.verified, verdict
    assert verdict.nonfinite == 3


@pytest.mark.parametrize("options", [{}, {"softcap": 5.0}], ids=["plain", "soft cap"])
def test_a_bad_query_reaches_its_own_row_alone(kernel, options: dict[str, Any]) -> None:
    problem = AttentionProblem(heads=2, seq_q=40, head_dim=16, **options)
    inputs = seeded(problem, 16)
    inputs.q[0, 1, 7, 3] = np.nan
    got = kernel.run(problem, inputs)
    bad = ~np.isfinite(got.output).all(axis=3)
    assert np.argwhere(bad).tolist() == [[0, 1, 7]]


def test_the_checker_does_not_take_two_kinds_of_nan_for_agreement(kernel) -> None:
    problem = AttentionProblem(heads=1, seq_q=10, head_dim=8)
    inputs = seeded(problem, 17)
    output = kernel.run(problem, inputs).output.copy()
    assert verify(expect(problem, inputs), output).verified
    output[0, 0, 3, 2] = np.nan
    assert not verify(expect(problem, inputs), output).verified
    inputs.k[0, 0, 4] = np.nan
    assert not verify(expect(problem, inputs), np.zeros_like(output)).verified


def test_runs_after_a_stop_are_sound(kernel) -> None:
    problem = AttentionProblem(heads=4, seq_q=150, head_dim=16, causal=True)
    inputs = seeded(problem, 18)
    for _ in range(3):
        prepared = kernel.kernel.prepare(problem, inputs, kernel.device)
        try:
            with pytest.raises(Cancelled):
                prepared.run(should_stop=lambda: True)
            prepared.poison()
            prepared.run()
            assert verify(expect(problem, inputs), prepared.outputs().output).verified
        finally:
            prepared.close()
            prepared.close()


def test_half_precision_storage_is_right_or_refused_in_a_sentence(kernel) -> None:
    problem = AttentionProblem(seq_q=8, head_dim=8, dtype="f16")
    reason = kernel.kernel.supports(problem, kernel.device.limits)
    if kernel.kernel.name == "gpu-flash":
        assert reason is None
        kernel.check(problem, seeded(problem, 0))
    else:
        assert reason is not None
        assert "float32" in reason
        assert "\n" not in reason


@pytest.mark.parametrize("scale", [0.0, -0.7, 1e-30, 1e-45, 3.0])
def test_any_scale(kernel, scale: float) -> None:
    problem = AttentionProblem(heads=2, seq_q=20, seq_k=50, head_dim=20, scale=scale, window=20)
    kernel.check(problem, seeded(problem, 19))


@pytest.mark.parametrize("softcap", [1e-3, 1.0, 30.0, 1e6])
def test_any_softcap(kernel, softcap: float) -> None:
    problem = AttentionProblem(heads=2, seq_q=20, seq_k=50, head_dim=20, scale=2.0, softcap=softcap, causal=True)
    kernel.check(problem, seeded(problem, 20))


def test_real_tensors(kernel, tensor_file) -> None:
    tensors = load(str(tensor_file))
    problem = problem_for(tensors)
    inputs = as_inputs(tensors, problem)
    got = kernel.check(problem, inputs)
    verdict = verify(expect(problem, inputs), got.output)
    assert verdict.max_abs_err <= 4e-6
    assert verdict.recorded_output_err is None or verdict.recorded_output_err <= 4e-6


@pytest.mark.parametrize("size", [2e36, 3e38])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(300, 300), (1, 300), (1, 5000), (40, 1100)])
def test_a_mean_of_large_values_is_finite_though_their_sum_is_not(kernel, size: float, seq_q: int, seq_k: int) -> None:
    problem = AttentionProblem(heads=2, seq_q=seq_q, seq_k=seq_k, head_dim=8)
    inputs = seeded(problem, 0)
    inputs.v[...] = np.float32(size) * np.sign(inputs.v[:, :, :1])  # columns of one value
    got = kernel.check(problem, replace(inputs, q=0 * inputs.q, k=0 * inputs.k))
    assert np.isfinite(got.output).all()
