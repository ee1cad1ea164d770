"""Faults that attention kernels are known for, turned to their gradients; each on the smallest input that shows it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import astuple
from numpy.typing import NDArray

from engine.devices.cpu import open_cpu
from engine.kernels.base import Array, Cancelled, Gradients
from engine.kernels.registry import get_kernel
from engine.measure.verify_backward import expect_gradients
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs, as_inputs, load, problem_for, seeded, with_grad_output
from engine.reference.backward import reference_gradients

NAMES = ("dq", "dk", "dv")


def backward(**options: Any) -> AttentionProblem:
    return AttentionProblem(direction="backward", **options)


def near(shape: tuple[int, ...], centre: float, spread: float, seed: int) -> Array:
    return (centre + spread * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def hide(keys: int, *hidden: Any, batch: int = 1) -> NDArray[np.bool_]:
    mask = np.ones((batch, keys), np.bool_)
    for where in hidden:
        mask[where] = False
    return mask


def wanted(problem: AttentionProblem, inputs: Inputs) -> Gradients:
    """The reference's gradients, shaped as a kernel's."""
    found = reference_gradients(problem, inputs)
    shapes = {"dq": problem.q_shape, "dk": problem.k_shape, "dv": problem.v_shape}
    with np.errstate(all="ignore"):
        return Gradients(**{name: getattr(found, name).astype(np.float32).reshape(shapes[name]) for name in NAMES})


def test_a_row_that_sees_nothing_has_no_gradient(backward_kernel) -> None:
    problem = backward(heads=2, seq_q=8, head_dim=8, causal=True, key_mask=hide(8, (0, 0)))
    got = backward_kernel.check_gradients(problem, seeded(problem, 0))
    assert not got.dq[:, :, 0].any()
    assert not got.dk[:, :, 0].any()
    assert not got.dv[:, :, 0].any()


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
def test_rows_that_see_nothing_add_nothing(backward_kernel, shape: dict[str, Any]) -> None:
    problem = backward(heads=2, head_dim=16, causal=True, **shape)
    backward_kernel.check_gradients(problem, seeded(problem, 1))


def test_a_first_tile_that_is_all_hidden(backward_kernel) -> None:
    mask = hide(448, (0, slice(128)))
    problem = backward(heads=14, kv_heads=2, seq_q=88, seq_k=448, head_dim=64, causal=True, key_mask=mask)
    q, k = near(problem.q_shape, 5, 0.1, 2), near(problem.k_shape, -5, 0.1, 3)  # scores near -200
    backward_kernel.check_gradients(problem, replace(seeded(problem, 4), q=q, k=k))


@pytest.mark.parametrize("causal", [False, True])
def test_scores_of_minus_eight_million(backward_kernel, causal: bool) -> None:
    """The log-sum-exp is off by its rounding, half a unit, so weights are; the bound knows. None is above 1."""
    problem = backward(heads=1, seq_q=40, seq_k=100, head_dim=64, causal=causal)
    q, k = np.full(problem.q_shape, 1e3, np.float32), np.full(problem.k_shape, -1e3, np.float32)
    inputs = replace(seeded(problem, 5), q=q, k=k)
    got = backward_kernel.check_gradients(problem, inputs)
    assert inputs.grad_output is not None
    assert (np.abs(got.dv) <= np.abs(inputs.grad_output).sum(axis=2, keepdims=True) * 1.0001).all()


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
def test_scores_in_the_thousands_and_beyond(backward_kernel, scale: float) -> None:
    problem = backward(heads=2, seq_q=33, seq_k=200, head_dim=64, scale=scale)
    backward_kernel.check_gradients(problem, seeded(problem, 5))


@pytest.mark.parametrize("garbage", [np.nan, -np.inf, 1e38])
@pytest.mark.parametrize("causal", [False, True])
def test_garbage_in_hidden_positions_does_not_leak(backward_kernel, garbage: float, causal: bool) -> None:
    mask = np.random.default_rng(9).random((2, 70)) < 0.5
    problem = backward(batch=2, heads=2, seq_q=40, seq_k=70, head_dim=16, causal=causal, key_mask=mask)
    clean = seeded(problem, 10)
    hidden = ~mask[:, None, :, None]
    k, v = (np.where(hidden, np.float32(garbage), array) for array in (clean.k, clean.v))
    got = backward_kernel.check_gradients(problem, replace(clean, k=k, v=v))
    verdict = expect_gradients(problem, clean).verdict(got)
    assert verdict.verified is not False, verdict


def test_values_that_overflow_spoil_only_rows_that_see_them(backward_kernel) -> None:
    """Finite, but not so its products with the gradient of the output, of which rows before it must not hear."""
    problem = backward(heads=2, kv_heads=1, seq_q=100, head_dim=16, causal=True)
    inputs = seeded(problem, 7)
    inputs.v[0, 0, 90] = 3e38
    got, want = backward_kernel.gradients(problem, inputs), wanted(problem, inputs)
    np.testing.assert_allclose(got.dq[:, :, :90], want.dq[:, :, :90], rtol=0, atol=2e-6)
    assert np.isfinite(got.dv).all()


@pytest.mark.parametrize("seq", [1, 2, 3, 17, 24, 31, 33, 63, 65, 100, 127, 129, 600])
def test_lengths_that_are_no_multiple_of_a_tile(backward_kernel, seq: int) -> None:
    for causal in (False, True):
        problem = backward(heads=1, seq_q=seq, head_dim=8, causal=causal)
        backward_kernel.check_gradients(problem, seeded(problem, seq))


def test_a_thousand_queries_and_keys(cpu_backward) -> None:
    """So long that cpu-flash cuts the keys of its one head into strips."""
    for options in ({}, {"causal": True}, {"window": 300}):
        problem = backward(heads=2, kv_heads=1, seq_q=1000, head_dim=8, **options)
        cpu_backward.check_gradients(problem, seeded(problem, 6))


@pytest.mark.parametrize("head_dim", [1, 3, 20, 66, 80, 96, 112, 160, 192, 256])
def test_head_sizes(backward_kernel, head_dim: int) -> None:
    problem = backward(heads=2, seq_q=20, seq_k=70, head_dim=head_dim, causal=True)
    backward_kernel.check_gradients(problem, seeded(problem, head_dim))


@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(1, 256), (256, 1), (20, 66), (66, 3)])
def test_values_of_another_size_than_keys(backward_kernel, head_dim: int, head_dim_v: int) -> None:
    problem = backward(heads=2, seq_q=20, seq_k=70, head_dim=head_dim, head_dim_v=head_dim_v)
    backward_kernel.check_gradients(problem, seeded(problem, head_dim))


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 17), (1, 65), (4, 24), (16, 16), (128, 1), (7, 1)])
def test_other_numbers_of_queries_than_of_keys(backward_kernel, seq_q: int, seq_k: int) -> None:
    for options in ({}, {"causal": True}, {"window": 5}):
        problem = backward(heads=4, kv_heads=2, seq_q=seq_q, seq_k=seq_k, head_dim=16, **options)
        backward_kernel.check_gradients(problem, seeded(problem, 11))


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_gradients_are_summed_over_the_heads_of_a_group_and_no_other(backward_kernel, kv_heads: int) -> None:
    problem = backward(batch=2, heads=6, kv_heads=kv_heads, seq_q=10, seq_k=30, head_dim=8)
    inputs = seeded(problem, 12)
    assert inputs.grad_output is not None
    inputs.grad_output[:] *= 2.0 ** np.arange(12, dtype=np.float32).reshape(2, 6, 1, 1)  # no head can stand for another
    got = backward_kernel.check_gradients(problem, inputs)
    alone = backward(batch=2, heads=6, seq_q=10, seq_k=30, head_dim=8)
    k, v = (np.repeat(array, problem.group, axis=1) for array in (inputs.k, inputs.v))
    each = wanted(alone, replace(inputs, k=k, v=v))
    for name in ("dk", "dv"):
        summed = getattr(each, name).reshape(2, kv_heads, problem.group, 30, 8).sum(axis=2)
        np.testing.assert_allclose(getattr(got, name), summed, rtol=1e-4, atol=1e-3, err_msg=name)


def test_masks_and_heads_of_a_batch_are_not_mixed_up(backward_kernel) -> None:
    mask = np.tri(4, 40, 7, dtype=np.bool_)[:, ::-1]  # each batch entry sees other keys, the last of the sequence
    problem = backward(batch=4, heads=4, kv_heads=2, seq_q=12, seq_k=40, head_dim=8, key_mask=mask.copy())
    backward_kernel.check_gradients(problem, seeded(problem, 13))


# Problems of several tiles
SPANNING: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": 70},
    "hidden keys": {"causal": True, "key_mask": np.arange(190)[None] % 4 > 0},
    "soft cap": {"window": 100, "softcap": 5.0},
}


@pytest.mark.parametrize("tensor", ["q", "k", "v", "grad_output"])
@pytest.mark.parametrize(
    ("which", "bad"),
    [(which, np.nan) for which in SPANNING]
    + [("causal", np.inf), ("causal", -np.inf), ("soft cap", np.inf), ("full", -np.inf)],
)
def test_what_is_not_finite_reaches_exactly_what_depends_on_it(
    backward_kernel, which: str, tensor: str, bad: float
) -> None:
    problem = backward(heads=2, kv_heads=1, seq_q=150, seq_k=190, head_dim=8, **SPANNING[which])
    inputs = seeded(problem, 15)
    array = getattr(inputs, tensor)
    array[0, -1, 90, 3] = bad
    got, want = backward_kernel.gradients(problem, inputs), wanted(problem, inputs)
    for name in NAMES:
        there, expected = np.isfinite(getattr(got, name)), np.isfinite(getattr(want, name))
        wrong = np.argwhere(there != expected)
        assert not len(wrong), (
            f"{name} is {getattr(got, name)[*wrong[0]]} at {wrong[0].tolist()}, not {getattr(want, name)[*wrong[0]]}; "
            f"{len(wrong)} such"
        )
    verdict = expect_gradients(problem, inputs).verdict(got)
    assert verdict.verified is not False, verdict


def test_a_row_whose_scores_are_all_minus_infinity_is_not_one_that_sees_nothing(backward_kernel) -> None:
    """Both have a log-sum-exp of -inf."""
    problem = backward(heads=1, seq_q=40, seq_k=3, head_dim=8, causal=True)
    inputs = seeded(problem, 16)
    inputs.q[0, 0, 37] = inputs.k[0, 0, 0] = 1
    inputs.k[0, 0, 0, 1] = -np.inf  # the one key of query 37
    got = backward_kernel.gradients(problem, inputs)
    verdict = expect_gradients(problem, inputs).verdict(got)
    assert verdict.verified is not False, verdict
    assert not got.dq[0, 0, :37].any()
    assert np.isnan(got.dq[0, 0, 37]).all()
    assert np.isnan(got.dv[0, 0, 0]).all()


@pytest.mark.parametrize("scale", [0.0, -0.7, 1e-30, 1e-45, 3.0])
def test_any_scale(backward_kernel, scale: float) -> None:
    problem = backward(heads=2, seq_q=20, seq_k=50, head_dim=20, scale=scale, window=20)
    backward_kernel.check_gradients(problem, seeded(problem, 19))


@pytest.mark.parametrize("softcap", [1e-3, 1.0, 30.0, 1e6])
def test_any_softcap(backward_kernel, softcap: float) -> None:
    for scale in (0.2, 2.0):
        problem = backward(heads=2, seq_q=70, seq_k=110, head_dim=20, scale=scale, softcap=softcap, causal=True)
        backward_kernel.check_gradients(problem, seeded(problem, 20))


# Shapes whose largest gradient is neither much larger nor much smaller than the others
UNIT_NORMAL: dict[str, dict[str, Any]] = {
    "plain": {"heads": 2, "seq_q": 128, "head_dim": 64},
    "causal": {"heads": 2, "seq_q": 200, "head_dim": 32, "causal": True},
    "grouped": {"heads": 4, "kv_heads": 2, "seq_q": 70, "seq_k": 130, "head_dim": 80},
    "window": {"heads": 2, "seq_q": 150, "head_dim": 16, "window": 40},
    "large heads": {"heads": 1, "seq_q": 65, "seq_k": 90, "head_dim": 256},
}


@pytest.mark.parametrize("options", UNIT_NORMAL.values(), ids=UNIT_NORMAL)
def test_two_millionths_of_the_largest_gradient_at_unit_normal_input(backward_kernel, options: dict[str, Any]) -> None:
    problem = backward(**options)
    for seed in range(2):
        inputs = seeded(problem, seed)
        verdict = expect_gradients(problem, inputs).verdict(backward_kernel.gradients(problem, inputs))
        assert verdict.max_rel_err <= 2e-6, f"seed {seed}: {verdict}"


@pytest.mark.parametrize("keys", [1, 2, 64])
def test_equal_values_leave_queries_and_keys_no_gradient(backward_kernel, keys: int) -> None:
    """Zero up to rounding, which is relative to what cancels: the verifier must know by how much."""
    problem = backward(heads=4, kv_heads=1, seq_q=200, seq_k=keys, head_dim=64)
    inputs = replace(seeded(problem, 21), v=np.full(problem.v_shape, 50, np.float32))
    got = backward_kernel.check_gradients(problem, inputs)
    for gradient in (got.dq, got.dk):
        assert np.abs(gradient).max() < 2e-3


@pytest.mark.parametrize(
    "options",
    [{"heads": 1, "seq_q": 8, "seq_k": 4096}, {"heads": 4, "kv_heads": 1, "seq_q": 400, "seq_k": 2}],
    ids=["many keys", "many rows to a key"],
)
@pytest.mark.parametrize("grad", ["normal", "ones"])
def test_values_far_from_zero(backward_kernel, options: dict[str, int], grad: str) -> None:
    problem = backward(head_dim=128, **options)
    inputs = seeded(problem, 22)
    assert inputs.grad_output is not None
    inputs.v[:] += 50
    if grad == "ones":
        inputs.grad_output.fill(1)
    backward_kernel.check_gradients(problem, inputs)


@pytest.mark.parametrize(
    "options", [{"heads": 1, "seq_q": 1000}, {"heads": 8, "kv_heads": 1, "seq_q": 300, "seq_k": 3}], ids=str
)
@pytest.mark.parametrize("value", [1.0, 0.37])
def test_equal_numbers_everywhere(backward_kernel, options: dict[str, int], value: float) -> None:
    """Sums of equal terms, where rounding errs the same way each time."""
    problem = backward(head_dim=16, **options)
    shapes = (problem.q_shape, problem.k_shape, problem.v_shape, problem.output_shape)
    backward_kernel.check_gradients(problem, Inputs(*(np.full(shape, value, np.float32) for shape in shapes)))


@pytest.mark.parametrize("tensor", ["q", "k", "v", "grad_output"])
def test_numbers_below_the_smallest_normal_one(backward_kernel, tensor: str) -> None:
    """Whether the device keeps them or takes them for 0."""
    problem = backward(heads=2, seq_q=40, head_dim=16, causal=True)
    for size in (1e-38, 1e-40, 1e-44):
        inputs = seeded(problem, 23)
        getattr(inputs, tensor)[:] *= np.float32(size)
        backward_kernel.check_gradients(problem, inputs)


@pytest.mark.parametrize("options", SPANNING.values(), ids=SPANNING)
def test_the_same_input_gives_the_same_bits(backward_kernel, options: dict[str, Any]) -> None:
    """In the next run, in one of several, and in another object; and the input stays as it was."""
    problem = backward(heads=4, kv_heads=2, seq_q=150, seq_k=190, head_dim=16, **options)
    inputs = seeded(problem, 24)
    before = [array.copy() for array in (inputs.q, inputs.k, inputs.v, inputs.grad_output)]  # type: ignore[union-attr]
    found = []
    for _ in range(2):
        prepared = backward_kernel.kernel.prepare(problem, inputs, backward_kernel.device)
        for repeat in (1, 2):
            prepared.poison()
            prepared.run(repeat)
            found.append([gradient.copy() for gradient in astuple(prepared.gradients())])
        prepared.close()
    for other in found[1:]:
        for gradient, first in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(gradient, first)
    for array, held in zip((inputs.q, inputs.k, inputs.v, inputs.grad_output), before, strict=True):
        np.testing.assert_array_equal(array, held)


def test_runs_after_a_stop_are_sound(backward_kernel) -> None:
    problem = backward(heads=4, kv_heads=2, seq_q=150, head_dim=16, causal=True)
    inputs = seeded(problem, 25)
    prepared = backward_kernel.kernel.prepare(problem, inputs, backward_kernel.device)
    for _ in range(3):
        with pytest.raises(Cancelled):
            prepared.run(should_stop=lambda: True)
    prepared.poison()
    prepared.run()
    verdict = expect_gradients(problem, inputs).verdict(prepared.gradients())
    assert verdict.verified is not False, verdict
    prepared.close()
    prepared.close()


def test_the_forward_pass_is_taken_from_the_caller_or_made(backward_kernel) -> None:
    problem = backward(heads=2, kv_heads=1, seq_q=40, seq_k=70, head_dim=16, causal=True)
    inputs = seeded(problem, 26)
    made = backward_kernel.run(problem.forward_pass, inputs, want_lse=True)
    alone, given = (
        backward_kernel.gradients(problem, given)
        for given in (inputs, replace(inputs, output=made.output, lse=made.lse))
    )
    for one, other in zip(astuple(alone), astuple(given), strict=True):
        np.testing.assert_array_equal(one, other)


def test_input_that_must_not_be_written_to(backward_kernel) -> None:
    problem = backward(heads=2, seq_q=20, head_dim=16, key_mask=hide(20, (0, 3)))
    inputs = seeded(problem, 27)
    inputs.k[0, 0, 3] = np.nan
    for array in (inputs.q, inputs.k, inputs.v, inputs.grad_output):
        assert array is not None
        array.flags.writeable = False
    backward_kernel.check_gradients(problem, inputs)
    assert np.isnan(inputs.k[0, 0, 3]).all()


def test_a_kernel_that_gives_gradients_gives_no_output(backward_kernel) -> None:
    problem = backward(heads=1, seq_q=8, head_dim=8)
    prepared = backward_kernel.kernel.prepare(problem, seeded(problem, 0), backward_kernel.device)
    with pytest.raises(TypeError, match="gives gradients"):
        prepared.outputs()
    prepared.close()
    prepared = backward_kernel.kernel.prepare(problem.forward_pass, seeded(problem, 0), backward_kernel.device)
    with pytest.raises(TypeError, match="gives no gradients"):
        prepared.gradients()
    prepared.close()


def test_half_precision_is_refused_in_a_sentence(backward_kernel) -> None:
    problem = backward(seq_q=8, head_dim=8, dtype="f16")
    reason = backward_kernel.kernel.supports(problem, backward_kernel.device.limits)
    assert reason is not None
    assert "f32" in reason or "float32" in reason
    assert "\n" not in reason


def test_real_tensors(backward_kernel, tensor_file) -> None:
    tensors = load(str(tensor_file))
    problem = msgspec.structs.replace(problem_for(tensors), direction="backward")
    inputs = with_grad_output(problem, as_inputs(tensors, problem), 3)
    got = backward_kernel.check_gradients(problem, inputs)
    assert expect_gradients(problem, inputs).verdict(got).max_rel_err <= 4e-6


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spread", ["one key of 1e4", "one key of 1e19", "two channels at +30"])
def test_cpu_flash_is_as_near_at_large_scores_as_cpu_naive(spread: str, causal: bool) -> None:
    problem = AttentionProblem(heads=1, seq_q=40, head_dim=16, causal=causal, direction="backward")
    inputs = seeded(problem, 0)
    if spread == "two channels at +30":
        inputs.q[..., :2] += 30
        inputs.k[..., :2] += 30
    else:
        inputs.k[0, 0, 20] = float(spread.split()[-1])
    wanted = expect_gradients(problem, inputs).wanted
    errors = {}
    with open_cpu(threads=2) as device:
        for name in ("cpu-flash", "cpu-naive"):
            with closing(get_kernel(name).prepare(problem, inputs, device)) as prepared:
                prepared.run()
                got = prepared.gradients()
            errors[name] = [
                float(np.abs(getattr(got, of).ravel() - getattr(wanted, of).ravel()).max()) for of in ("dq", "dk", "dv")
            ]
    for of, flash, naive in zip(("dq", "dk", "dv"), *errors.values(), strict=True):
        size = float(np.abs(getattr(wanted, of)).max())
        assert flash <= 2 * naive + 1e-6 * size, (of, errors)
