"""The attention problem: its defaults, its sentences for what is not valid, and its counts against brute force."""

from __future__ import annotations

import math
import pickle

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.problem.attention_problem import AttentionProblem, KeyMask


@st.composite
def problems(draw: st.DrawFn) -> AttentionProblem:
    batch, seq_k = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    mask = draw(st.none() | st.lists(st.booleans(), min_size=batch * seq_k, max_size=batch * seq_k))
    kv_heads = draw(st.integers(1, 3))
    return AttentionProblem(
        batch=batch,
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        seq_q=draw(st.integers(1, 12)),
        seq_k=seq_k,
        head_dim=draw(st.integers(1, 256)),
        head_dim_v=draw(st.integers(1, 256)),
        causal=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, 15)),
        key_mask=None if mask is None else np.array(mask).reshape(batch, seq_k),
    )


def sees(problem: AttentionProblem, b: int, i: int, j: int) -> bool:
    """The masking rule as the definition states it, one pair at a time."""
    causal = j <= i + problem.seq_k - problem.seq_q
    window = problem.window is None or j > i + problem.seq_k - problem.seq_q - problem.window
    masked = problem.key_mask is None or bool(problem.key_mask.unpack()[b, j])
    return (not problem.causal or causal) and window and masked


@given(problems())
def test_visible_pairs_and_flops_are_those_of_the_definition(problem: AttentionProblem) -> None:
    count = sum(
        sees(problem, b, i, j) for b in range(problem.batch) for i in range(problem.seq_q) for j in range(problem.seq_k)
    )
    assert problem.visible_pairs() == count
    assert problem.flops() == 2 * problem.heads * (problem.head_dim + problem.head_dim_v) * count


@given(problems())
def test_bytes_that_must_move_are_those_of_keys_that_some_query_sees(problem: AttentionProblem) -> None:
    seen = sum(
        any(sees(problem, b, i, j) for i in range(problem.seq_q))
        for b in range(problem.batch)
        for j in range(problem.seq_k)
    )
    per_key = problem.kv_heads * (problem.head_dim + problem.head_dim_v)
    per_query = problem.heads * (problem.head_dim + problem.head_dim_v)
    assert problem.moved_bytes() == 4 * (seen * per_key + problem.batch * problem.seq_q * per_query)


@given(problems())
def test_a_problem_survives_json_pickle_and_hashing(problem: AttentionProblem) -> None:
    assert msgspec.json.decode(msgspec.json.encode(problem), type=AttentionProblem) == problem
    assert pickle.loads(pickle.dumps(problem)) == problem
    assert hash(msgspec.structs.replace(problem)) == hash(problem)


def test_what_is_left_out_follows_from_what_is_given() -> None:
    problem = AttentionProblem(heads=6, seq_q=40, head_dim=20)
    assert (problem.kv_heads, problem.seq_k, problem.head_dim_v) == (6, 40, 20)
    assert problem.scale == 1 / math.sqrt(20)
    assert (problem.offset, problem.group, problem.pairs) == (0, 1, 6)
    assert not problem.causal


def test_shapes_and_bytes() -> None:
    problem = AttentionProblem(batch=2, heads=6, kv_heads=3, seq_q=5, seq_k=7, head_dim=8, head_dim_v=4)
    assert problem.q_shape == (2, 6, 5, 8)
    assert problem.k_shape == (2, 3, 7, 8)
    assert problem.v_shape == (2, 3, 7, 4)
    assert problem.output_shape == (2, 6, 5, 4)
    assert problem.tensor_bytes == 4 * (480 + 336 + 168 + 240)
    assert problem.score_bytes == 4 * 2 * 6 * 5 * 7
    assert msgspec.structs.replace(problem, dtype="f16").tensor_bytes == 2 * (480 + 336 + 168 + 240)


def test_a_window_implies_causal() -> None:
    assert AttentionProblem(window=3).causal


@pytest.mark.parametrize("scale", [0, -1.5, 2])
def test_any_finite_scale_is_valid(scale: float) -> None:
    assert AttentionProblem(scale=scale).scale == scale


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"seq_q": -4}, "seq_q must be at least 1, got -4"),
        ({"heads": 2.0}, "heads must be a whole number, got 2.0"),
        ({"heads": True}, "heads must be a whole number, got True"),
        ({"heads": 6, "kv_heads": 4}, "heads must be a multiple of kv_heads, got 6 and 4"),
        ({"head_dim": 257}, "head_dim must be at most 256, got 257"),
        ({"head_dim_v": 300}, "head_dim_v must be at most 256, got 300"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"softcap": 0.0}, "softcap must be above 0, got 0"),
        ({"softcap": math.inf}, "softcap must be finite, got inf"),
        ({"scale": math.nan}, "scale must be finite, got nan"),
        ({"scale": 10**400}, "scale must be finite"),
        ({"scale": "big"}, "scale must be a number, got 'big'"),
        ({"dtype": "f64"}, "dtype must be f32 or f16, got 'f64'"),
        ({"seq_q": 2**40}, "is too large"),
        ({"seq_q": 4, "key_mask": np.ones((1, 5), bool)}, r"\[batch, seq_k\] = \[1, 4\], got \[1, 5\]"),
        ({"seq_q": 4, "key_mask": np.ones((1, 4))}, "bool array .* got float64"),
        ({"seq_q": 4, "key_mask": np.ones(4, bool)}, r"with shape \[4\]"),
    ],
)
def test_what_is_not_valid_gets_a_sentence(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        AttentionProblem(**fields)


@given(st.lists(st.lists(st.booleans(), min_size=11, max_size=11), min_size=1, max_size=5))
def test_a_mask_survives_packing(rows: list[list[bool]]) -> None:
    visible = np.array(rows)
    np.testing.assert_array_equal(KeyMask.pack(visible).unpack(), visible)


def test_a_mask_with_too_few_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 3 bytes of bits, got 2"):
        KeyMask(2, 10, b"12")
