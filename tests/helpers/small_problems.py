"""Problems so small that a test can compute them element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from engine.problem.attention_problem import AttentionProblem


@st.composite
def small_problems(
    draw: st.DrawFn, *, longest: int, widest: int, least_cap: float, largest_scale: float, **more: Any
) -> AttentionProblem:
    """Any valid problem of up to ``longest`` queries and keys ``widest`` wide; ``more`` is set for all of them."""
    batch, seq_k, kv_heads = draw(st.integers(1, 2)), draw(st.integers(1, longest)), draw(st.integers(1, 2))
    mask = draw(st.none() | st.lists(st.booleans(), min_size=batch * seq_k, max_size=batch * seq_k))
    return AttentionProblem(
        batch=batch,
        heads=kv_heads * draw(st.integers(1, 2)),
        kv_heads=kv_heads,
        seq_q=draw(st.integers(1, longest)),
        seq_k=seq_k,
        head_dim=draw(st.integers(1, widest)),
        head_dim_v=draw(st.integers(1, widest)),
        causal=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, longest + 1)),
        softcap=draw(st.none() | st.floats(least_cap, 50)),
        scale=draw(st.none() | st.floats(-largest_scale, largest_scale)),
        key_mask=None if mask is None else np.array(mask).reshape(batch, seq_k),
        **more,
    )
