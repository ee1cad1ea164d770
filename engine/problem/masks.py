"""Which query sees which key, and how hidden keys are kept from leaking into a result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs


def visible(
    problem: AttentionProblem, batch: int, rows: NDArray[np.int64], first_key: int, end_key: int
) -> NDArray[np.bool_]:
    """Return the bool matrix [len(rows), end_key - first_key]: True where the row sees the key."""
    first, end = problem.key_range(rows)
    keys = np.arange(first_key, end_key)
    seen = (keys >= first[:, None]) & (keys < end[:, None])
    if problem.key_mask is not None:
        seen &= problem.key_mask.unpack()[batch, first_key:end_key]
    return seen


def without_hidden_garbage(problem: AttentionProblem, inputs: Inputs) -> Inputs:
    """Return inputs whose K and V are zero wherever ``key_mask`` hides a position that holds NaN or inf.

    A hidden weight of 0 times NaN would be NaN; with the garbage gone no kernel has to guard its products. Inputs
    without such garbage come back as they are, uncopied.
    """
    if problem.key_mask is None:
        return inputs
    hidden = ~problem.key_mask.unpack()
    cleaned = {}
    for name in ("k", "v"):
        array = getattr(inputs, name)
        heads = [(of_head, keys) for of_batch, keys in zip(array, hidden, strict=True) for of_head in of_batch]
        if not all(np.isfinite(of_head[keys]).all() for of_head, keys in heads):  # one by one, to copy little
            cleaned[name] = np.where(hidden[:, None, :, None], array.dtype.type(0), array)
    return replace(inputs, **cleaned)


def has_nonfinite(inputs: Inputs) -> bool:
    """Whether Q, K, V or the gradient of the output holds a NaN or an infinity."""
    if inputs.nonfinite is not None:
        return inputs.nonfinite
    arrays = (inputs.q, inputs.k, inputs.v, inputs.grad_output)
    extremes = (pick(array) for array in arrays if array is not None for pick in (np.min, np.max))  # need no memory
    return not all(np.isfinite(extreme) for extreme in extremes)
