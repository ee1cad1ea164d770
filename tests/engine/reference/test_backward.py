"""The float64 gradients against central differences of the forward reference, and what holds for every problem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from small_problems import small_problems

from engine.common.running import Cancelled
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs, seeded
from engine.reference import backward as module
from engine.reference.backward import reference_gradients
from engine.reference.forward import reference

F64 = NDArray[np.float64]
PROBLEMS = small_problems(longest=7, widest=5, least_cap=0.5, largest_scale=2, direction="backward")
STEP = 1e-5


def doubled(inputs: Inputs) -> Inputs:
    return Inputs(*(x.astype(np.float64) for x in (inputs.q, inputs.k, inputs.v, inputs.grad_output)))  # type: ignore[union-attr]


def by_differences(problem: AttentionProblem, inputs: Inputs) -> dict[str, F64]:
    """Central differences of ``Σ grad_output · output``, one element of Q, K and V at a time."""

    def loss(moved: Inputs) -> float:
        return float((reference(problem.forward_pass, moved)[0] * inputs.grad_output).sum())

    found = {}
    for name in ("q", "k", "v"):
        tensor = getattr(inputs, name)
        found[name] = np.zeros(tensor.shape)
        for at in np.ndindex(tensor.shape):
            ahead, behind = tensor.copy(), tensor.copy()
            ahead[at] += STEP
            behind[at] -= STEP
            found[name][at] = (loss(replace(inputs, **{name: ahead})) - loss(replace(inputs, **{name: behind}))) / (
                2 * STEP
            )
    return found


@settings(max_examples=60)
@given(PROBLEMS, st.integers(0, 99))
def test_they_are_central_differences_of_the_forward_reference(problem: AttentionProblem, seed: int) -> None:
    inputs = doubled(seeded(problem, seed))
    got, wanted = reference_gradients(problem, inputs), by_differences(problem, inputs)
    for name, gradient in (("q", got.dq), ("k", got.dk), ("v", got.dv)):
        np.testing.assert_allclose(gradient.reshape(wanted[name].shape), wanted[name], rtol=1e-6, atol=2e-8)


@settings(max_examples=30)
@given(PROBLEMS, st.integers(0, 99), st.data())
def test_chosen_groups_are_those_of_all(problem: AttentionProblem, seed: int, data: st.DataObject) -> None:
    inputs = seeded(problem, seed)
    groups = module.all_groups(problem)
    chosen = data.draw(st.integers(0, len(groups) - 1))
    all_of, one = reference_gradients(problem, inputs), reference_gradients(problem, inputs, [groups[chosen]])
    for name in ("dq", "dk", "dv"):
        np.testing.assert_array_equal(getattr(one, name)[0], getattr(all_of, name)[chosen])


def test_blocks_of_rows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = AttentionProblem(
        heads=4, kv_heads=2, seq_q=37, seq_k=29, head_dim=5, causal=True, softcap=3.0, direction="backward"
    )
    inputs = seeded(problem, 1)
    whole = reference_gradients(problem, inputs)
    monkeypatch.setattr(module, "_BLOCK_SCORES", 4 * 29)
    parts = reference_gradients(problem, inputs)
    for name in ("dq", "dk", "dv"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12, atol=1e-14)
        for one, other in ((parts.terms, whole.terms), (parts.rounding, whole.rounding)):
            np.testing.assert_allclose(one[name], other[name], rtol=1e-12, atol=1e-14)


def test_rows_that_see_nothing_and_keys_that_nobody_sees_have_no_gradient() -> None:
    mask = np.ones((1, 8), np.bool_)
    mask[0, [0, 5]] = False
    problem = AttentionProblem(heads=2, seq_q=8, head_dim=4, causal=True, key_mask=mask, direction="backward")
    clean = seeded(problem, 2)
    garbage = np.where(mask[0, :, None], clean.k, np.float32(np.nan))
    got = reference_gradients(problem, replace(clean, k=garbage, v=np.where(mask[0, :, None], clean.v, np.inf)))
    assert (got.dq[:, :, 0] == 0).all()
    assert (got.dk[:, [0, 5]] == 0).all()
    assert (got.dv[:, [0, 5]] == 0).all()
    for gradient, wanted in zip(
        (got.dq, got.dk, got.dv), (lambda g: (g.dq, g.dk, g.dv))(reference_gradients(problem, clean)), strict=True
    ):
        np.testing.assert_array_equal(gradient, wanted)


def test_nan_reaches_what_depends_on_it_and_nothing_else() -> None:
    problem = AttentionProblem(heads=1, seq_q=6, head_dim=4, window=2, direction="backward")
    inputs = seeded(problem, 3)
    inputs.k[0, 0, 3, 1] = np.nan  # rows 3 and 4 see it; they also see keys 2, 3 and 4
    got = reference_gradients(problem, inputs)
    np.testing.assert_array_equal(np.isnan(got.dq[0, 0]).any(axis=1), [False, False, False, True, True, False])
    for gradient in (got.dk, got.dv):
        np.testing.assert_array_equal(np.isnan(gradient[0]).any(axis=1), [False, False, True, True, True, False])


def test_it_stops_when_asked() -> None:
    problem = AttentionProblem(heads=2, seq_q=8, head_dim=4, direction="backward")
    with pytest.raises(Cancelled):
        reference_gradients(problem, seeded(problem, 0), should_stop=lambda: True)
