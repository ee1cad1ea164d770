"""The float64 reference against the plain formula, cases one can work out by hand, and what PyTorch recorded."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from small_problems import small_problems

from engine.common.running import Cancelled
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs, as_inputs, load, problem_for, seeded
from engine.reference import forward as reference_module
from engine.reference.forward import reference

F64 = NDArray[np.float64]
PROBLEMS = small_problems(longest=9, widest=9, least_cap=0.1, largest_scale=3)


def plain_attention(problem: AttentionProblem, inputs: Inputs) -> tuple[F64, F64, float]:
    """Attention row by row, as the definition reads; no blocks, no shared subexpressions."""
    output = np.zeros(problem.output_shape)
    lse = np.full(problem.output_shape[:3], -np.inf)
    largest = 0.0
    q, k, v = (array.astype(np.float64) for array in (inputs.q, inputs.k, inputs.v))
    for b, h, i in np.ndindex(*problem.output_shape[:3]):
        scores, values = [], []
        for j in range(problem.seq_k):
            if problem.causal and j > i + problem.seq_k - problem.seq_q:
                continue
            if problem.window is not None and j <= i + problem.seq_k - problem.seq_q - problem.window:
                continue
            if problem.key_mask is not None and not problem.key_mask.unpack()[b, j]:
                continue
            key = k[b, h // problem.group, j]
            score = problem.scale * np.sum(q[b, h, i] * key)
            largest = max(largest, abs(problem.scale) * np.sum(np.abs(q[b, h, i] * key)))
            scores.append(score if problem.softcap is None else problem.softcap * np.tanh(score / problem.softcap))
            values.append(v[b, h // problem.group, j])
        if scores:
            weights = np.exp(np.array(scores) - max(scores))
            output[b, h, i] = weights @ np.array(values) / weights.sum()
            lse[b, h, i] = max(scores) + np.log(weights.sum())
    return output, lse, largest


@settings(max_examples=150)
@given(PROBLEMS, st.integers(0, 99))
def test_it_is_the_plain_formula(problem: AttentionProblem, seed: int) -> None:
    inputs = seeded(problem, seed)
    output, lse, largest = reference(problem, inputs)
    expected_output, expected_lse, expected_largest = plain_attention(problem, inputs)
    np.testing.assert_allclose(output, expected_output, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-12, atol=1e-13)
    assert largest == pytest.approx(expected_largest, rel=1e-12)


@settings(max_examples=30)
@given(PROBLEMS, st.data())
def test_chosen_rows_are_the_rows_of_the_whole(problem: AttentionProblem, data: st.DataObject) -> None:
    rows = np.array(data.draw(st.lists(st.integers(0, problem.seq_q - 1), min_size=1, max_size=5)))
    inputs = seeded(problem, 0)
    some, whole = reference(problem, inputs, rows), reference(problem, inputs)
    np.testing.assert_allclose(some[0], whole[0][:, :, rows], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(some[1], whole[1][:, :, rows], rtol=1e-12, atol=1e-13)


def test_blocks_of_rows_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = AttentionProblem(batch=2, heads=2, seq_q=23, seq_k=31, head_dim=8, causal=True, window=9)
    inputs = seeded(problem, 0)
    whole = reference(problem, inputs)
    monkeypatch.setattr(reference_module, "_BLOCK_SCORES", 5 * problem.seq_k)
    blocked = reference(problem, inputs)
    for one, other in zip(whole, blocked, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


def test_real_tensors_agree_with_the_plain_formula_and_with_what_the_model_recorded(tensor_file: Path) -> None:
    tensors = load(str(tensor_file))
    problem = problem_for(tensors)
    inputs = as_inputs(tensors, problem)
    output, lse, _ = reference(problem, inputs)
    assert np.isfinite(output).all()
    assert np.isfinite(lse).all()
    one_row = AttentionProblem(heads=problem.heads, seq_q=1, seq_k=problem.seq_k, head_dim=problem.head_dim)
    if tensors.key_mask is not None:
        one_row = msgspec.structs.replace(one_row, key_mask=tensors.key_mask[:1])
    first = plain_attention(one_row, Inputs(inputs.q[:1, :, :1], inputs.k[:1], inputs.v[:1]))[0]
    np.testing.assert_allclose(output[:1, :, :1], first, rtol=1e-12, atol=1e-13)
    if inputs.recorded_output is not None:
        assert np.abs(output - inputs.recorded_output).max() <= 4e-6


def test_the_padded_batch_does_hold_a_recorded_output(padded_file: Path) -> None:
    assert load(str(padded_file)).output is not None


def ones(problem: AttentionProblem, q: float = 1, k: float = 1) -> Inputs:
    """Constant queries and keys, seeded values."""
    return Inputs(
        np.full(problem.q_shape, q, np.float32), np.full(problem.k_shape, k, np.float32), seeded(problem, 0).v
    )


def test_a_row_that_sees_no_key_is_zero_and_minus_infinity() -> None:
    mask = np.ones((1, 8), bool)
    mask[0, 0] = False
    problem = AttentionProblem(heads=2, seq_q=8, head_dim=4, causal=True, key_mask=mask)
    output, lse, _ = reference(problem, seeded(problem, 0))
    assert (output[:, :, 0] == 0).all()
    assert (lse[:, :, 0] == -np.inf).all()
    assert np.isfinite(lse[:, :, 1:]).all()


def test_leading_rows_that_see_nothing_do_not_poison_the_rest() -> None:
    problem = AttentionProblem(heads=1, seq_q=30, seq_k=16, head_dim=4, causal=True)
    inputs = ones(problem)
    output, lse, _ = reference(problem, inputs)
    assert (output[:, :, :14] == 0).all()
    np.testing.assert_allclose(lse[0, 0, 14:], 2 + np.log(np.arange(1, 17)))  # equal scores of 4 / sqrt(4)
    means = np.cumsum(inputs.v[0, 0], axis=0, dtype=np.float64) / np.arange(1, 17)[:, None]
    np.testing.assert_allclose(output[0, 0, 14:], means, rtol=1e-12)


def test_a_hidden_first_tile_leaves_scores_near_minus_200_alone() -> None:
    mask = np.ones((1, 448), bool)
    mask[0, :128] = False
    problem = AttentionProblem(heads=14, kv_heads=2, seq_q=88, seq_k=448, head_dim=4, causal=True, key_mask=mask)
    inputs = ones(problem, q=10, k=-10)
    output, lse, largest = reference(problem, inputs)
    assert largest == 200
    np.testing.assert_allclose(lse[0, 0], -200 + np.log(np.arange(361, 449) - 128))
    np.testing.assert_allclose(output[0, 13, -1], inputs.v[0, 1, 128:].mean(axis=0, dtype=np.float64), rtol=1e-12)


def test_no_mask_value_beats_scores_of_minus_eight_million() -> None:
    problem = AttentionProblem(heads=1, seq_q=4, head_dim=64)
    inputs = ones(problem, q=1e3, k=-1e3)
    output, lse, largest = reference(problem, inputs)
    mean = inputs.v.mean(axis=2, keepdims=True, dtype=np.float64)
    np.testing.assert_allclose(output, np.broadcast_to(mean, output.shape), rtol=1e-12)
    assert largest == 8e6
    np.testing.assert_allclose(lse, -8e6 + np.log(4))


def test_scores_beyond_half_precision() -> None:
    problem = AttentionProblem(heads=1, seq_q=4, head_dim=128, dtype="f16", scale=1.0)
    inputs = seeded(problem, 0)
    inputs = Inputs(np.full_like(inputs.q, 40), np.full_like(inputs.k, 40), inputs.v)
    output, lse, largest = reference(problem, inputs)
    assert largest == 204_800
    np.testing.assert_allclose(lse, 204_800 + np.log(4))
    np.testing.assert_allclose(output[0, 0, 0], inputs.v[0, 0].mean(axis=0, dtype=np.float64), rtol=1e-12)


def test_garbage_behind_the_mask_does_not_leak() -> None:
    mask = np.ones((1, 9), bool)
    mask[0, [2, 5]] = False
    problem = AttentionProblem(heads=2, seq_q=9, head_dim=4, key_mask=mask)
    clean = seeded(problem, 0)
    k, v = clean.k.copy(), clean.v.copy()
    k[:, :, 2], v[:, :, 2] = np.nan, np.inf
    k[:, :, 5], v[:, :, 5] = -np.inf, np.nan
    for one, other in zip(reference(problem, clean), reference(problem, Inputs(clean.q, k, v)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.isnan(k[0, 0, 2]).all(), "the caller's arrays are never changed"


@pytest.mark.parametrize("array", ["k", "v"])
def test_a_nan_reaches_exactly_the_rows_that_see_it(array: str) -> None:
    problem = AttentionProblem(heads=2, seq_q=12, head_dim=4, window=3)
    inputs = seeded(problem, 0)
    getattr(inputs, array)[0, 1, 5, 2] = np.nan
    output, lse, _ = reference(problem, inputs)
    touched = ~np.isfinite(output).all(axis=-1)
    expected = np.zeros((1, 2, 12), bool)
    expected[0, 1, 5:8] = True
    np.testing.assert_array_equal(touched, expected)
    np.testing.assert_array_equal(~np.isfinite(lse), expected if array == "k" else np.zeros_like(expected))


def test_heads_of_a_group_share_their_keys() -> None:
    wide = AttentionProblem(heads=6, kv_heads=6, seq_q=7, head_dim=4)
    inputs = seeded(wide, 0)
    for kv_heads in (1, 2, 3):
        grouped = AttentionProblem(heads=6, kv_heads=kv_heads, seq_q=7, head_dim=4)
        few = Inputs(inputs.q, inputs.k[:, :kv_heads], inputs.v[:, :kv_heads])
        repeated = Inputs(inputs.q, *(np.repeat(a, 6 // kv_heads, axis=1) for a in (few.k, few.v)))
        np.testing.assert_array_equal(reference(grouped, few)[0], reference(wide, repeated)[0])


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 17), (1, 65), (4, 24), (16, 16), (128, 1), (7, 1)])
def test_causal_is_aligned_with_the_last_key(seq_q: int, seq_k: int) -> None:
    problem = AttentionProblem(heads=1, seq_q=seq_q, seq_k=seq_k, head_dim=4, causal=True)
    inputs = seeded(problem, 0)
    last = AttentionProblem(heads=1, seq_q=1, seq_k=seq_k, head_dim=4)
    np.testing.assert_allclose(
        reference(problem, inputs)[0][:, :, -1:],
        reference(last, Inputs(inputs.q[:, :, -1:], inputs.k, inputs.v))[0],
        rtol=1e-12,
    )


def test_a_stop_ends_it_between_two_blocks() -> None:
    problem = AttentionProblem(batch=2, heads=3, seq_q=8, head_dim=4)
    asked: list[int] = []

    def should_stop() -> bool:
        asked.append(1)
        return len(asked) == 4

    with pytest.raises(Cancelled):
        reference(problem, seeded(problem, 0), should_stop=should_stop)
    assert len(asked) == 4
