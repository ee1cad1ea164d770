"""The judge itself: what it passes, what it fails, and which rows it looks at."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from engine.measure import verify as module
from engine.measure.verify import Expected, expect, rows_to_compare, verify
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs, seeded
from engine.reference.forward import reference

PROBLEM = AttentionProblem(batch=2, heads=2, seq_q=20, head_dim=8)


def right_output(problem: AttentionProblem, inputs: Inputs) -> np.ndarray:
    return reference(problem, inputs)[0].astype(np.float32)


def case(problem: AttentionProblem = PROBLEM) -> tuple[Expected, np.ndarray]:
    inputs = seeded(problem, 1)
    return expect(problem, inputs), right_output(problem, inputs)


def test_the_reference_rounded_to_float32_is_verified() -> None:
    expected, output = case()
    verdict = verify(expected, output)
    assert verdict.verified
    assert verdict.message == ""
    assert 0 < verdict.max_abs_err < 1e-6
    assert verdict.nonfinite == 0
    assert verdict.recorded_output_err is None


def test_the_bound_is_the_documented_formula() -> None:
    problem = AttentionProblem(batch=1, heads=1, seq_q=1, seq_k=2, head_dim=2, scale=-0.5)
    inputs = Inputs(
        np.array([[[[2, -3]]]], np.float32),
        np.array([[[[1, 1], [4, -5]]]], np.float32),
        np.array([[[[1, -7], [2, 3]]]], np.float32),
    )
    expected = expect(problem, inputs)
    scores, sizes = np.array([0.5, -11.5]), 0.5 * np.array([2 + 3, 8 + 15])
    weights = np.exp(scores - 0.5) / np.exp(scores - 0.5).sum()
    moved = weights * ((1 - 2 * weights) * sizes / 2 + (weights * sizes / 2).sum())
    for column, values in enumerate(([1, 2], [7, 3])):
        of_scores, terms = moved @ values, weights @ values
        bound = 6 * of_scores + (4 + math.sqrt(2) / 4) * terms + 2 / 16 * abs(expected.output[0, 0, 0, column])
        assert expected.bound[0, 0, 0, column] == pytest.approx(2**-23 * bound, rel=1e-9)


def test_a_key_left_out_is_found_whatever_the_values_have_in_common() -> None:
    problem = AttentionProblem(heads=1, seq_q=4, seq_k=4096, head_dim=32)
    less = AttentionProblem(heads=1, seq_q=4, seq_k=4095, head_dim=32)
    given = seeded(problem, 0)
    v = given.v + np.float32(50)
    output = right_output(less, Inputs(given.q, given.k[:, :, :-1], v[:, :, :-1]))
    assert not verify(expect(problem, Inputs(given.q, given.k, v)), output).verified


@pytest.mark.parametrize(("factor", "verified"), [(0.9, True), (1.1, False)])
def test_the_bound_decides(factor: float, verified: bool) -> None:
    expected, _ = case()
    output = expected.output.astype(np.float32)
    exact = replace(expected, output=output.astype(np.float64))
    bound = expected.bound[1, 0, 7, 3]
    output = output.astype(np.float64)
    output[1, 0, 7, 3] += factor * bound
    verdict = verify(exact, output)
    assert verdict.verified is verified
    assert verdict.max_abs_err == pytest.approx(factor * bound, rel=0.05)
    if not verified:
        assert "batch 1, head 0, query 7, dim 3" in verdict.message
        assert "1 of 80 compared rows are wrong" in verdict.message


def test_relative_error_is_relative_to_the_largest_reference_value() -> None:
    expected, output = case()
    verdict = verify(expected, output + np.float32(0.5))
    assert verdict.max_rel_err == pytest.approx(verdict.max_abs_err / np.abs(expected.output).max())


def test_zero_reference_has_a_defined_relative_error() -> None:
    problem = AttentionProblem(batch=1, heads=1, seq_q=3, head_dim=2)
    inputs = replace(seeded(problem, 0), v=np.zeros(problem.v_shape, np.float32))
    expected = expect(problem, inputs)
    assert verify(expected, np.zeros(problem.output_shape, np.float32)).max_rel_err == 0
    off = verify(expected, np.full(problem.output_shape, 1e-30, np.float32))
    assert not off.verified
    assert off.max_rel_err == math.inf


def test_unwritten_output_fails_and_is_counted() -> None:
    expected, output = case()
    output[0, 1, 4:6] = np.nan
    verdict = verify(expected, output)
    assert not verdict.verified
    assert verdict.max_abs_err == math.inf
    assert verdict.nonfinite == 2
    assert "nan" in verdict.message


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_nan_that_the_kernel_swallowed_fails(bad: float) -> None:
    problem = replace_causal(PROBLEM)
    clean = seeded(problem, 1)
    v = clean.v.copy()
    v[0, 0, 15] = bad
    expected = expect(problem, replace(clean, v=v))
    verdict = verify(expected, right_output(problem, clean))
    assert not verdict.verified
    assert verdict.max_abs_err == math.inf
    assert verdict.nonfinite == 0


def test_non_finite_on_both_sides_passes_and_is_counted_by_row() -> None:
    problem = replace_causal(PROBLEM)
    inputs = seeded(problem, 1)
    inputs.k[0, 0, 15, 2] = np.nan
    output = right_output(problem, inputs)
    verdict = verify(expect(problem, inputs), output)
    assert verdict.verified
    assert verdict.nonfinite == 5  # queries 15 to 19 of one head see key 15
    assert verdict.max_abs_err < 1e-6


def test_a_nan_in_a_row_that_should_be_finite_fails_beside_rightly_non_finite_rows() -> None:
    problem = replace_causal(PROBLEM)
    inputs = seeded(problem, 1)
    inputs.k[0, 0, 15] = np.nan
    output = right_output(problem, inputs)
    output[0, 0, 14] = np.nan
    assert not verify(expect(problem, inputs), output).verified


def test_hidden_garbage_neither_leaks_nor_widens_the_bound() -> None:
    mask = np.ones((2, 20), np.bool_)
    mask[:, :3] = False
    problem = AttentionProblem(batch=2, heads=2, seq_q=20, head_dim=8, key_mask=mask)
    inputs = seeded(problem, 1)
    clean = expect(problem, inputs)
    inputs.v[:, :, 0] = np.nan
    inputs.v[:, :, 1] = 1e30
    inputs.k[:, :, 2] = np.inf
    dirty = expect(problem, inputs)
    np.testing.assert_allclose(dirty.bound, clean.bound, rtol=1e-12)
    assert clean.bound.max() < 1e-4
    assert dirty.finite_input
    np.testing.assert_array_equal(dirty.output, clean.output)


def test_a_window_that_never_reaches_the_first_keys_keeps_them_out_of_the_bound() -> None:
    problem = AttentionProblem(batch=1, heads=1, seq_q=2, seq_k=20, head_dim=4, window=3)
    inputs = seeded(problem, 1)
    bound = expect(problem, inputs).bound
    inputs.v[0, 0, :16] = 1e20
    np.testing.assert_array_equal(expect(problem, inputs).bound, bound)


def test_float16_storage_is_allowed_its_own_rounding() -> None:
    problem = AttentionProblem(batch=1, heads=1, seq_q=8, head_dim=4, dtype="f16")
    inputs = seeded(problem, 1)
    expected = expect(problem, inputs)
    rounded = expected.output.astype(np.float16).astype(np.float32)
    assert verify(expected, rounded).verified
    single = expect(AttentionProblem(batch=1, heads=1, seq_q=8, head_dim=4), inputs)
    assert (expected.bound - single.bound >= 2**-11 * np.abs(expected.output)).all()
    assert (expected.bound < 2**-9 * np.abs(inputs.v).max()).all()
    assert not verify(single, rounded).verified


def test_recorded_output_is_compared_over_all_rows() -> None:
    inputs = seeded(PROBLEM, 1)
    output = right_output(PROBLEM, inputs)
    recorded = output.copy()
    recorded[0, 0, 0, 0] += 0.25
    verdict = verify(expect(PROBLEM, replace(inputs, recorded_output=recorded)), output)
    assert verdict.verified
    assert verdict.recorded_output_err == pytest.approx(0.25)


def test_long_problems_are_judged_by_a_bounded_seeded_sample() -> None:
    problem = AttentionProblem(batch=1, heads=8, seq_q=65536, head_dim=64)
    rows = rows_to_compare(problem, 7)
    assert len(rows) == module.AFFORDABLE_SCORES // (8 * 65536)
    assert rows[0] == 0
    assert rows[-1] == 65535
    assert (np.diff(rows) > 0).all()
    assert np.count_nonzero(np.isin(rows % 16, (15, 0, 1))) >= len(rows) // 3
    np.testing.assert_array_equal(rows, rows_to_compare(problem, 7))
    assert not np.array_equal(rows, rows_to_compare(problem, 8))


def test_short_problems_are_judged_on_every_row() -> None:
    np.testing.assert_array_equal(rows_to_compare(AttentionProblem(heads=12, seq_q=512), 0), np.arange(512))


def test_an_unwritten_row_outside_the_sample_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AFFORDABLE_SCORES", 1)
    problem = AttentionProblem(batch=1, heads=1, seq_q=200, head_dim=4)
    inputs = seeded(problem, 0)
    expected = expect(problem, inputs)
    assert len(expected.rows) == module.MIN_ROWS
    output = right_output(problem, inputs)
    assert verify(expected, output).verified
    output[0, 0, int(np.setdiff1d(np.arange(200), expected.rows)[0])] = np.nan
    verdict = verify(expected, output)
    assert not verdict.verified
    assert verdict.message == "1 output rows are not finite although the input is"


def replace_causal(problem: AttentionProblem) -> AttentionProblem:
    return AttentionProblem(
        batch=problem.batch, heads=problem.heads, seq_q=problem.seq_q, head_dim=problem.head_dim, causal=True
    )


MIXED = AttentionProblem(batch=2, heads=8, kv_heads=4, seq_q=50, seq_k=70, head_dim=16, causal=True)


def mixed() -> Inputs:
    """Values whose size differs by head and by column, from 1e-6 to 1e6."""
    inputs = seeded(MIXED, 4)
    heads, columns = np.logspace(6, -6, 4, dtype=np.float32), np.logspace(0, -3, 16, dtype=np.float32)
    return replace(inputs, v=inputs.v * heads[:, None, None] * columns)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda out: out[:, 1:].fill(0),
        lambda out: out[1, 7].fill(0),
        lambda out: out[0, 6, 17].fill(0),
        lambda out: out[..., 15].fill(0),
        lambda out: out[0, 7].__imul__(1.0001),
        lambda out: out[1, 5, 3].__imul__(1.001),
        lambda out: out[0, [6, 7]].__setitem__(slice(None), 0) or out.__setitem__((0, 6), out[0, 7]),
        lambda out: out[:, 6, 40:].__setitem__(slice(None), out[:, 7, 40:]),
        lambda out: out[:, :, 1:].__setitem__(slice(None), out[:, :, :-1].copy()),
    ],
)
def test_no_head_row_or_column_hides_behind_a_larger_one(spoil: Callable[[NDArray[np.float32]], object]) -> None:
    expected, output = expect(MIXED, mixed()), right_output(MIXED, mixed())
    assert verify(expected, output).verified
    spoil(output)
    assert verify(expected, output).verified is False


@pytest.mark.parametrize("less", [{"causal": False}, {"window": 60}, {"scale": 0.2501}, {"softcap": 40.0}])
def test_a_rule_that_is_not_kept_is_found_in_every_head(less: dict[str, Any]) -> None:
    expected = expect(MIXED, mixed())
    right, other = right_output(MIXED, mixed()), right_output(msgspec.structs.replace(MIXED, **less), mixed())
    for head in range(8):
        output = right.copy()
        output[:, head] = other[:, head]
        assert verify(expected, output).verified is False


def test_where_nothing_is_finite_nothing_is_verified() -> None:
    inputs = seeded(PROBLEM, 1)
    inputs.k[...] = np.nan
    verdict = verify(expect(PROBLEM, inputs), np.full(PROBLEM.output_shape, np.nan, np.float32))
    assert verdict.verified is None
    assert verdict.message == "nothing finite to compare: 80 of 80 rows are not finite"


def test_what_is_verified_of_a_partly_finite_result_is_said() -> None:
    problem = replace_causal(PROBLEM)
    inputs = seeded(problem, 1)
    inputs.k[0, 0, 15] = np.nan
    verdict = verify(expect(problem, inputs), right_output(problem, inputs))
    assert verdict.verified
    assert verdict.message == "5 of 80 rows are not finite; verified is what is"


def test_a_result_beyond_float32_may_overflow_and_may_not_be_a_number() -> None:
    problem = AttentionProblem(heads=1, seq_q=2, head_dim=2)
    inputs = seeded(problem, 1)
    expected = replace(expect(problem, inputs), output=np.full((1, 1, 2, 2), 1e39))
    assert verify(expected, np.full((1, 1, 2, 2), np.inf, np.float32)).verified
    assert verify(expected, np.full((1, 1, 2, 2), 3e38, np.float32)).verified is False
