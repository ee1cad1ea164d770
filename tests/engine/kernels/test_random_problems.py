"""Random problems against the reference, and what holds for every problem, for all four kernels, there and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from engine.problem.attention_problem import AttentionProblem, KeyMask
from engine.problem.inputs import Inputs, seeded

# Runs repeat exactly; how long an example takes is the machine's affair; the fixture holds nothing an example changes.
COMMON = {
    "derandomize": True,
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@st.composite
def problems(draw: st.DrawFn, longest: int, head_dims: st.SearchStrategy[int]) -> AttentionProblem:
    """Any valid problem of up to ``longest`` queries and keys, small ones more often."""
    lengths = st.one_of(st.integers(1, 40), st.integers(1, longest))
    batch, seq_q, seq_k = draw(st.integers(1, 3)), draw(lengths), draw(lengths)
    kv_heads, head_dim = draw(st.integers(1, 3)), draw(head_dims)
    key_mask = None
    if draw(st.booleans()):
        density, seed = draw(st.sampled_from([0.0, 0.1, 0.5, 0.9])), draw(st.integers(0, 99))
        key_mask = np.random.default_rng(seed).random((batch, seq_k)) < density
    return AttentionProblem(
        batch=batch,
        heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=head_dim,
        head_dim_v=draw(st.one_of(st.just(head_dim), head_dims)),
        causal=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, longest)),
        softcap=draw(st.none() | st.sampled_from([0.5, 5.0, 50.0])),
        scale=draw(st.none() | st.sampled_from([0.0, -0.3, 1.0]) | st.floats(-2, 2, width=32)),
        key_mask=key_mask,
    )


def drawn(problem: AttentionProblem, seed: int, size: float) -> Inputs:
    inputs = seeded(problem, seed)
    return replace(inputs, q=inputs.q * np.float32(size), k=inputs.k * np.float32(size))


LARGE = problems(longest=700, head_dims=st.one_of(st.integers(1, 40), st.sampled_from([64, 80, 128, 200, 256])))
SMALL = problems(longest=80, head_dims=st.sampled_from([1, 3, 8, 20, 64]))
ANY = {"seed": st.integers(0, 999), "size": st.sampled_from([0.1, 1.0, 1.0, 5.0])}
# A window whose first rows see nothing, wider than a tile, over keys of which many are hidden
HARD = AttentionProblem(
    heads=6, kv_heads=2, seq_q=690, seq_k=640, head_dim=33, head_dim_v=7, window=530, softcap=4.0, scale=-0.5,
    key_mask=np.arange(640)[None] % 3 > 0,
)  # fmt: skip


@given(problem=LARGE, **ANY)
@example(problem=HARD, seed=0, size=5.0)
@settings(max_examples=300, **COMMON)
def test_cpu_kernels_on_random_problems(cpu_kernel, problem: AttentionProblem, seed: int, size: float) -> None:
    cpu_kernel.check(problem, drawn(problem, seed, size))


@given(problem=SMALL, **ANY)
@settings(max_examples=60, **COMMON)
def test_gpu_kernels_on_random_problems(gpu_kernel, problem: AttentionProblem, seed: int, size: float) -> None:
    gpu_kernel.check(problem, drawn(problem, seed, size))


FEW: dict[str, Any] = {"max_examples": 20, **COMMON}


@given(problem=SMALL, value=st.floats(-100, 100, width=32), seed=st.integers(0, 999))
@settings(**FEW)
def test_equal_values_come_back(kernel, problem: AttentionProblem, value: float, seed: int) -> None:
    """Exactly from the CPU kernels; from a GPU within the rounding of a sum and a division."""
    inputs = replace(seeded(problem, seed), v=np.full(problem.v_shape, value, np.float32))
    got = kernel.run(problem, inputs, want_lse=True)
    assert got.lse is not None
    want = np.where(np.isneginf(got.lse), 0, np.float32(value))[..., None]
    np.testing.assert_allclose(got.output, np.broadcast_to(want, got.output.shape), rtol=0 if kernel.on_cpu else 2e-6)


@given(problem=SMALL.filter(lambda p: not p.causal), seed=st.integers(0, 999))
@settings(**FEW)
def test_the_order_of_keys_does_not_matter(kernel, problem: AttentionProblem, seed: int) -> None:
    inputs = seeded(problem, seed)
    order = np.random.default_rng(seed).permutation(problem.seq_k)
    mask = None if problem.key_mask is None else KeyMask.pack(problem.key_mask.unpack()[:, order])
    turned_problem = msgspec.structs.replace(problem, key_mask=mask)
    turned = Inputs(inputs.q, inputs.k[:, :, order].copy(), inputs.v[:, :, order].copy())
    before, after = kernel.check(problem, inputs), kernel.check(turned_problem, turned)
    np.testing.assert_allclose(after.output, before.output, rtol=0, atol=1e-4)


@given(problem=SMALL.filter(lambda p: p.softcap is None), shift=st.floats(-50, 50, width=32), seed=st.integers(0, 999))
@settings(**FEW)
def test_shifting_all_scores_of_a_row_changes_nothing(
    kernel, problem: AttentionProblem, shift: float, seed: int
) -> None:
    """A column of ones in Q and of ``shift`` in K adds ``scale · shift`` to every score."""
    plain = msgspec.structs.replace(problem, head_dim=problem.head_dim + 1)
    inputs = seeded(plain, seed)
    inputs.q[..., -1] = 1
    inputs.k[..., -1] = 0
    shifted = replace(inputs, k=inputs.k.copy())
    shifted.k[..., -1] = shift
    before, after = kernel.check(plain, inputs), kernel.check(plain, shifted)
    assert before.lse is not None
    assert after.lse is not None
    np.testing.assert_allclose(after.output, before.output, rtol=0, atol=2e-4)
    seen = np.isfinite(before.lse)
    np.testing.assert_allclose(after.lse[seen] - before.lse[seen], plain.scale * shift, rtol=0, atol=2e-4)


FEWER: dict[str, Any] = FEW | {"max_examples": 8}


def back(problem: AttentionProblem) -> AttentionProblem:
    return msgspec.structs.replace(problem, direction="backward")


@given(problem=LARGE, **ANY)
@example(problem=HARD, seed=0, size=5.0)
@settings(max_examples=30, **COMMON)
def test_gradients_of_cpu_kernels_on_random_problems(
    cpu_backward, problem: AttentionProblem, seed: int, size: float
) -> None:
    cpu_backward.check_gradients(back(problem), drawn(back(problem), seed, size))


@given(problem=SMALL, **ANY)
@settings(max_examples=20, **COMMON)
def test_gradients_of_gpu_kernels_on_random_problems(
    gpu_backward, problem: AttentionProblem, seed: int, size: float
) -> None:
    gpu_backward.check_gradients(back(problem), drawn(back(problem), seed, size))


@given(problem=SMALL, power=st.integers(-30, 30), seed=st.integers(0, 999))
@settings(**FEWER)
def test_gradients_grow_with_that_of_the_output(
    backward_kernel, problem: AttentionProblem, power: int, seed: int
) -> None:
    """By the very factor, where that is a power of two, since they are linear in it."""
    inputs = seeded(back(problem), seed)
    assert inputs.grad_output is not None
    larger = replace(inputs, grad_output=inputs.grad_output * np.float32(2.0**power))
    for one, other in zip(
        astuple(backward_kernel.gradients(back(problem), inputs)),
        astuple(backward_kernel.gradients(back(problem), larger)),
        strict=True,
    ):
        np.testing.assert_allclose(other, one * np.float32(2.0**power), rtol=0, atol=1e-6 * 2.0**power)


@given(problem=SMALL, seed=st.integers(0, 999))
@settings(**FEWER)
def test_gradients_of_a_row_of_scores_sum_to_nothing(backward_kernel, problem: AttentionProblem, seed: int) -> None:
    """A column of ones in K: dQ there is the sum of a row's gradients of scores, which a shift leaves as they were."""
    plain = msgspec.structs.replace(back(problem), softcap=None)
    inputs = seeded(plain, seed)
    inputs.k[..., -1] = 1
    got = backward_kernel.check_gradients(plain, inputs)
    np.testing.assert_allclose(got.dq[..., -1], 0, rtol=0, atol=2e-5 * max(1, abs(plain.scale)))


@given(problem=SMALL.filter(lambda p: not p.causal), seed=st.integers(0, 999))
@settings(**FEWER)
def test_gradients_go_with_their_keys(backward_kernel, problem: AttentionProblem, seed: int) -> None:
    problem = back(problem)
    inputs = seeded(problem, seed)
    order = np.random.default_rng(seed).permutation(problem.seq_k)
    mask = None if problem.key_mask is None else KeyMask.pack(problem.key_mask.unpack()[:, order])
    turned_problem = msgspec.structs.replace(problem, key_mask=mask)
    turned = replace(inputs, k=inputs.k[:, :, order].copy(), v=inputs.v[:, :, order].copy())
    before = backward_kernel.check_gradients(problem, inputs)
    after = backward_kernel.check_gradients(turned_problem, turned)
    for one, other in zip((before.dq, before.dk[:, :, order], before.dv[:, :, order]), astuple(after), strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-4)
