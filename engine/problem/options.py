"""The options that change what an attention call computes, and which of them a problem asks for."""

from __future__ import annotations

import math

from engine.problem.attention_problem import AttentionProblem

OPTIONS = ("causal", "window", "softcap", "scale", "key_mask")  # fields of a problem; others are shapes and storage


def asked(problem: AttentionProblem) -> tuple[str, ...]:
    """Return the options that are not at their defaults, in the order of ``OPTIONS``; a window implies causal."""
    plain = AttentionProblem(head_dim=problem.head_dim)
    return tuple(
        name
        for name in OPTIONS
        if getattr(problem, name) != getattr(plain, name)
        and not (name == "scale" and math.isclose(problem.scale, plain.scale, rel_tol=1e-6))
    )
