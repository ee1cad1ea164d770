"""The judge of gradients: what it passes, what it fails, and which groups it looks at."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import astuple

from engine.common.running import Cancelled
from engine.kernels.base import Array, Gradients
from engine.measure import verify_backward as module
from engine.measure.verdict import EPS
from engine.measure.verify_backward import ExpectedGradients, expect_gradients, groups_to_compare
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs, as_inputs, load, problem_for, seeded, with_grad_output
from engine.reference.backward import all_groups, reference_gradients

PROBLEM = AttentionProblem(
    batch=2, heads=4, kv_heads=2, seq_q=20, seq_k=24, head_dim=8, causal=True, direction="backward"
)


def right_gradients(problem: AttentionProblem, inputs: Inputs) -> Gradients:
    """The reference, rounded to float32."""
    found = reference_gradients(problem, inputs)
    shapes = {"dq": problem.q_shape, "dk": problem.k_shape, "dv": problem.v_shape}
    with np.errstate(all="ignore"):
        return Gradients(**{name: getattr(found, name).astype(np.float32).reshape(shapes[name]) for name in shapes})


def case(problem: AttentionProblem = PROBLEM) -> tuple[ExpectedGradients, Gradients]:
    inputs = seeded(problem, 1)
    return expect_gradients(problem, inputs), right_gradients(problem, inputs)


def test_the_reference_rounded_to_float32_is_verified() -> None:
    expected, got = case()
    verdict = expected.verdict(got)
    assert verdict.verified
    assert verdict.message == ""
    assert 0 < verdict.max_abs_err < 1e-6
    assert verdict.max_rel_err == pytest.approx(verdict.max_abs_err / max(np.abs(x).max() for x in astuple(got)))
    assert verdict.nonfinite == 0
    assert verdict.recorded_output_err is None


def swapped(got: Gradients) -> Gradients:
    return Gradients(got.dq, got.dv, got.dk)


def turned(name: str) -> Callable[[Gradients], Gradients]:
    return lambda got: msgspec.structs.replace(got, **{name: -getattr(got, name)})


def changed(name: str, at: tuple[int, ...], value: float) -> Callable[[Gradients], Gradients]:
    def change(got: Gradients) -> Gradients:
        array = getattr(got, name).copy()
        array[at] = value
        return msgspec.structs.replace(got, **{name: array})

    return change


def heads_swapped(name: str) -> Callable[[Gradients], Gradients]:
    return lambda got: msgspec.structs.replace(got, **{name: getattr(got, name)[:, ::-1]})


def scaled(name: str, factor: float) -> Callable[[Gradients], Gradients]:
    return lambda got: msgspec.structs.replace(got, **{name: getattr(got, name) * np.float32(factor)})


@pytest.mark.parametrize(
    "fault",
    {
        "dK and dV swapped": swapped,
        "sign of dQ": turned("dq"),
        "sign of dK": turned("dk"),
        "sign of dV": turned("dv"),
        "one element of dQ": changed("dq", (1, 3, 19, 7), 0.01),
        "one element of dK": changed("dk", (0, 0, 5, 0), 0.01),
        "one element of dV": changed("dv", (1, 1, 23, 3), 0.01),
        "heads of dQ": heads_swapped("dq"),
        "heads of dK": heads_swapped("dk"),
        "heads of dV": heads_swapped("dv"),
        "dK without the scale": scaled("dk", math.sqrt(8)),
        "dQ a ten-thousandth off": scaled("dq", 1 + 1e-4),
    }.items(),
    ids=lambda item: item[0],
)
def test_wrong_gradients_are_found(fault: tuple[str, Callable[[Gradients], Gradients]]) -> None:
    expected, got = case()
    verdict = expected.verdict(fault[1](got))
    assert not verdict.verified
    assert verdict.message.startswith(("dq is ", "dk is ", "dv is "))


def test_a_group_of_which_one_head_was_left_out_is_found() -> None:
    """And one of which the first head was counted for all."""
    inputs = seeded(PROBLEM, 1)
    alone = AttentionProblem(batch=2, heads=4, seq_q=20, seq_k=24, head_dim=8, causal=True, direction="backward")
    k, v = (np.repeat(array, 2, axis=1) for array in (inputs.k, inputs.v))
    each = right_gradients(alone, replace(inputs, k=k, v=v))
    expected, got = case()
    summed, first, doubled = (
        Gradients(got.dq, *(of(x.reshape(2, 2, 2, 24, 8)) for x in (each.dk, each.dv)))
        for of in (lambda x: x.sum(axis=2), lambda x: x[:, :, 0], lambda x: 2 * x[:, :, 0])
    )
    assert expected.verdict(summed).verified
    assert not expected.verdict(first).verified
    assert not expected.verdict(doubled).verified


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
@pytest.mark.parametrize(("factor", "verified"), [(0.9, True), (1.1, False)])
def test_each_gradient_has_its_bound(name: str, factor: float, verified: bool) -> None:
    expected, got = case()
    shapes = {of: getattr(expected.wanted, of).shape for of in ("dq", "dk", "dv")}
    exact = replace(
        expected,
        wanted=replace(
            expected.wanted,
            **{of: getattr(got, of).astype(np.float64).reshape(shape) for of, shape in shapes.items()},
        ),
    )
    at = (1, 1, 7, 3)
    bound = float(expected.bounds[name].reshape(getattr(got, name).shape)[at])
    wrong = float(getattr(got, name)[at]) + factor * bound
    verdict = exact.verdict(changed(name, at, wrong)(got))
    assert verdict.verified is verified
    assert verdict.max_abs_err == pytest.approx(factor * bound, rel=0.05)
    if not verified:
        where = "head 1, query 7" if name == "dq" else "kv head 1, key 7"
        assert f"{name} is {wrong:.6g} where the reference has" in verdict.message
        assert f"(batch 1, {where}, dim 3)" in verdict.message
        assert f"allowed is {bound:.2g}" in verdict.message


def test_the_bounds_are_the_documented_formula() -> None:
    """One row that sees one key alone: its weight is 1, and dP - rowsum(dO · O) is 9 less 9."""
    problem = AttentionProblem(batch=1, heads=1, seq_q=1, head_dim=2, scale=-0.5, direction="backward")
    q, k, v, grad = (np.array(row, np.float32).reshape(1, 1, 1, 2) for row in ([2, -3], [4, -5], [1, -7], [-5, 2]))
    expected = expect_gradients(problem, Inputs(q, k, v, grad))
    lse, product = abs(-0.5 * (2 * 4 + 3 * 5)), 5 * 1 + 2 * 7
    off_weight = 4 + lse / 2  # a weight of 1 is not moved by its score
    off_score = 0.5 * (4 * product + (off_weight + 4) * product)
    for name, factors in (("dq", (4, 5)), ("dk", (2, 3))):
        np.testing.assert_allclose(expected.bounds[name].ravel(), [3 * EPS * off_score * x for x in factors], rtol=1e-6)
    wanted = [EPS * (3 * off_weight + 5) * x for x in (5, 2)]
    np.testing.assert_allclose(expected.bounds["dv"].ravel(), wanted, rtol=1e-6)


@pytest.mark.parametrize("cap", [1e-4, 0.01, 1.0])
def test_gradients_that_a_soft_cap_makes_small_may_not_be_left_out(cap: float) -> None:
    problem = msgspec.structs.replace(PROBLEM, softcap=cap)
    inputs = seeded(problem, 1)
    inputs.q[:, :, 5] = 0  # scores of 0, where the cap is steep
    expected, got = expect_gradients(problem, inputs), right_gradients(problem, inputs)
    assert expected.verdict(got).verified
    for name in ("dq", "dk"):
        nothing = msgspec.structs.replace(got, **{name: np.zeros_like(getattr(got, name))})
        assert expected.verdict(nothing).verified is False


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_no_head_of_a_gradient_hides_behind_a_larger_one(name: str) -> None:
    inputs = seeded(PROBLEM, 3)
    sizes = np.logspace(6, 0, PROBLEM.heads, dtype=np.float32)[:, None, None]
    inputs = replace(inputs, grad_output=inputs.grad_output * sizes)
    expected, got = expect_gradients(PROBLEM, inputs), right_gradients(PROBLEM, inputs)
    assert expected.verdict(got).verified
    gradient = getattr(got, name)
    for at, factor in (((0, -1), 0.0), ((1, -1), 1.0002), ((0, 0, 3), 0.0), ((0, 0, 3), 1.002)):
        spoiled = gradient.copy()
        spoiled[at] *= np.float32(factor)
        assert expected.verdict(msgspec.structs.replace(got, **{name: spoiled})).verified is False, (at, factor)


def test_zero_gradients_have_a_defined_relative_error() -> None:
    inputs = seeded(PROBLEM, 0)
    expected = expect_gradients(PROBLEM, replace(inputs, grad_output=np.zeros(PROBLEM.output_shape, np.float32)))
    nothing = Gradients(*(np.zeros(shape, np.float32) for shape in (PROBLEM.q_shape, PROBLEM.k_shape, PROBLEM.v_shape)))
    assert expected.verdict(nothing).verified
    assert expected.verdict(nothing).max_rel_err == 0
    off = expected.verdict(changed("dv", (0, 0, 0, 0), 1e-20)(nothing))
    assert not off.verified
    assert off.max_rel_err == math.inf


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_unwritten_rows_fail_and_are_counted(name: str) -> None:
    expected, got = case()
    getattr(got, name)[0, 1, 4:6] = np.nan
    verdict = expected.verdict(got)
    assert not verdict.verified
    assert verdict.max_abs_err == math.inf
    assert verdict.nonfinite == 2
    assert verdict.message.startswith(f"{name} is nan where the reference has ")


def test_non_finite_on_both_sides_passes_and_is_counted_by_row() -> None:
    inputs = seeded(PROBLEM, 1)
    inputs.q[0, 1, 19, 2] = np.inf
    expected, got = expect_gradients(PROBLEM, inputs), right_gradients(PROBLEM, inputs)
    verdict = expected.verdict(got)
    assert verdict.verified
    assert not expected.finite_input
    assert verdict.nonfinite == 1 + 24 + 24  # the last query sees every key
    assert verdict.max_abs_err < 1e-6


@pytest.mark.parametrize(("name", "row"), [("dq", 18), ("dk", 3), ("dv", 3)])
def test_one_side_alone_not_finite_fails(name: str, row: int) -> None:
    """Be it that the kernel swallowed a NaN, or that it gave one where none belongs."""
    inputs = seeded(PROBLEM, 1)
    clean = right_gradients(PROBLEM, inputs)
    inputs.q[0, 1, 19, 2] = np.nan
    expected, got = expect_gradients(PROBLEM, inputs), right_gradients(PROBLEM, inputs)
    assert expected.verdict(got).verified
    swallowed = getattr(got, name).copy()
    where = (0, 1, 19) if name == "dq" else (0, 0, row)
    swallowed[where] = getattr(clean, name)[where]
    assert expected.verdict(msgspec.structs.replace(got, **{name: swallowed})).max_abs_err == math.inf
    assert not expected.verdict(changed(name, (0, 3 if name == "dq" else 1, row), np.nan)(got)).verified


def test_hidden_garbage_neither_leaks_nor_widens_the_bounds() -> None:
    mask = np.ones((2, 24), np.bool_)
    mask[:, :3] = False
    problem = msgspec.structs.replace(PROBLEM, key_mask=mask, seq_q=24)
    inputs = seeded(problem, 1)
    clean = expect_gradients(problem, inputs)
    inputs.v[:, :, 0] = np.nan
    inputs.v[:, :, 1] = 1e30
    inputs.k[:, :, 1] = 1e30
    inputs.k[:, :, 2] = np.inf
    dirty = expect_gradients(problem, inputs)
    for name, bound in clean.bounds.items():
        np.testing.assert_allclose(dirty.bounds[name], bound, rtol=1e-9)
        assert bound.max() < 2e-4
    assert dirty.finite_input
    got = right_gradients(problem, inputs)
    assert dirty.verdict(got).verified
    got.dk[1, 1, 2] = np.nan
    assert not dirty.verdict(got).verified


def test_a_key_that_no_window_reaches_does_not_widen_the_bounds() -> None:
    problem = AttentionProblem(heads=1, seq_q=2, seq_k=20, head_dim=4, window=3, direction="backward")
    inputs = seeded(problem, 1)
    bounds = expect_gradients(problem, inputs).bounds
    inputs.v[0, 0, :16] = inputs.k[0, 0, :16] = 1e20
    for name, bound in expect_gradients(problem, inputs).bounds.items():
        np.testing.assert_array_equal(bound, bounds[name])


def test_at_unit_normal_input_little_is_allowed() -> None:
    for options in ({}, {"causal": True}, {"kv_heads": 2}, {"window": 100}):
        problem = AttentionProblem(heads=4, seq_q=512, head_dim=64, direction="backward", **options)  # type: ignore[arg-type]
        expected = expect_gradients(problem, seeded(problem, 2))
        largest = max(np.abs(getattr(expected.wanted, name)).max() for name in ("dq", "dk", "dv"))
        assert max(bound.max() for bound in expected.bounds.values()) < 2e-4 * largest, options


def test_many_groups_are_judged_by_a_bounded_seeded_sample() -> None:
    problem = AttentionProblem(batch=4, heads=16, kv_heads=8, seq_q=512, head_dim=64, direction="backward")
    groups = groups_to_compare(problem, 7)
    assert len(groups) == module.AFFORDABLE_SCORES // (3 * 2 * 512 * 512)
    assert groups[-1] == (3, 7)
    assert groups == sorted(set(groups))
    assert set(groups) <= set(all_groups(problem))
    assert groups == groups_to_compare(problem, 7)
    assert groups != groups_to_compare(problem, 8)


def test_few_groups_are_all_judged() -> None:
    assert groups_to_compare(PROBLEM, 0) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_one_group_is_judged_however_long() -> None:
    problem = AttentionProblem(heads=4, kv_heads=2, seq_q=4096, head_dim=8, direction="backward")
    assert groups_to_compare(problem, 0) == [(0, 1)]


def sampled(monkeypatch: pytest.MonkeyPatch, groups: int) -> tuple[AttentionProblem, ExpectedGradients, Gradients]:
    """A case of which so many groups are compared."""
    monkeypatch.setattr(module, "AFFORDABLE_SCORES", groups * 3 * 2 * 20 * 24)
    expected, got = case()
    assert len(expected.groups) == groups
    return PROBLEM, expected, got


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_each_compared_group_is_compared_with_its_own(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, expected, got = sampled(monkeypatch, groups)
    assert expected.verdict(got).verified
    for batch, kv_head in all_groups(problem):
        for name, head in (("dq", 2 * kv_head + 1), ("dk", kv_head), ("dv", kv_head)):
            verdict = expected.verdict(changed(name, (batch, head, 3, 2), 5.0)(got))
            assert verdict.verified is ((batch, kv_head) not in expected.groups), (batch, name, head)
            if not verdict.verified:
                where = f"head {head}, query 3" if name == "dq" else f"kv head {head}, key 3"
                assert f"(batch {batch}, {where}, dim 2)" in verdict.message


def test_an_unwritten_row_outside_the_sample_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _, expected, got = sampled(monkeypatch, 1)
    got.dk[0, 0, 3] = np.nan
    verdict = expected.verdict(got)
    assert not verdict.verified
    assert verdict.message == "1 rows of the gradients are not finite although the input is"
    assert verdict.nonfinite == 1


def test_it_stops_when_asked() -> None:
    with pytest.raises(Cancelled):
        expect_gradients(PROBLEM, seeded(PROBLEM, 0), should_stop=lambda: True)


def test_tensors_of_a_file_are_judged_with_a_seeded_gradient(tensor_file: Any) -> None:
    tensors = load(str(tensor_file))
    problem = msgspec.structs.replace(problem_for(tensors), direction="backward")
    inputs = as_inputs(tensors, problem)
    one, same, other = (with_grad_output(problem, inputs, seed) for seed in (4, 4, 5))
    grads: list[Array] = [each.grad_output for each in (one, same, other) if each.grad_output is not None]
    np.testing.assert_array_equal(grads[0], grads[1])
    assert not np.array_equal(grads[0], grads[2])
    got = right_gradients(problem, one)
    assert expect_gradients(problem, one).verdict(got).verified
    assert not expect_gradients(problem, other).verdict(got).verified
