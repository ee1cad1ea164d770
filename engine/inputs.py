"""Where Q, K and V come from: seeded normal numbers, or tensors from a file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.problem import AttentionProblem

FloatArray = NDArray[np.floating]


@dataclass(frozen=True)
class Inputs:
    """The tensors of one problem, C-contiguous, in the problem's storage dtype (float32 or float16).

    ``q`` [batch, heads, seq_q, head_dim], ``k`` [batch, kv_heads, seq_k, head_dim], ``v`` [batch, kv_heads, seq_k,
    head_dim_v]; ``recorded_output`` [batch, heads, seq_q, head_dim_v] float32 where the file holds one.
    """

    q: FloatArray
    k: FloatArray
    v: FloatArray
    recorded_output: NDArray[np.float32] | None = None
    note: str = ""


def seeded(problem: AttentionProblem, seed: int) -> Inputs:
    """Return standard normal Q, K and V of the problem's shapes, the same for the same seed on every machine."""
    rng = np.random.default_rng(seed)
    dtype = np.float16 if problem.dtype == "f16" else np.float32
    draw = [rng.standard_normal(shape, np.float32).astype(dtype, copy=False)
            for shape in (problem.q_shape, problem.k_shape, problem.v_shape)]
    return Inputs(*draw)
