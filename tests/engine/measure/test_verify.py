"""The judge itself: what it passes, what it fails, and which rows it looks at."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

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
    largest = 0.5 * (2 * 4 + 3 * 5)
    expected = expect(problem, inputs)
    of_scores, of_the_sum = 7 * (4 + largest / 2), math.sqrt(2) / 4 * -expected.output.min()
    assert expected.bound == pytest.approx(2**-23 * (of_scores + of_the_sum), rel=1e-12)


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
    output[1, 0, 7, 3] += np.float32(factor * expected.bound)
    verdict = verify(exact, output)
    assert verdict.verified is verified
    assert verdict.max_abs_err == pytest.approx(factor * expected.bound, rel=0.05)
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
    assert dirty.bound <= clean.bound < 1e-4
    assert dirty.finite_input
    np.testing.assert_array_equal(dirty.output, clean.output)


def test_a_window_that_never_reaches_the_first_keys_keeps_them_out_of_the_bound() -> None:
    problem = AttentionProblem(batch=1, heads=1, seq_q=2, seq_k=20, head_dim=4, window=3)
    inputs = seeded(problem, 1)
    bound = expect(problem, inputs).bound
    inputs.v[0, 0, :16] = 1e20
    assert expect(problem, inputs).bound == bound


def test_float16_storage_is_allowed_its_own_rounding() -> None:
    problem = AttentionProblem(batch=1, heads=1, seq_q=8, head_dim=4, dtype="f16")
    inputs = seeded(problem, 1)
    expected = expect(problem, inputs)
    rounded = expected.output.astype(np.float16).astype(np.float32)
    assert verify(expected, rounded).verified
    single = expect(AttentionProblem(batch=1, heads=1, seq_q=8, head_dim=4), inputs)
    assert expected.bound - single.bound == pytest.approx(float(np.abs(inputs.v).max()) * 2**-10)
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
