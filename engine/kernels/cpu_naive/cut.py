"""How cpu-naive, forward and backward, cuts a problem into strips, and which keys it hides: pure functions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.problem.attention_problem import AttentionProblem
from engine.problem.masks import visible

_STEP_SCORES = 1 << 24  # scores a thread computes between two looks at should_stop: 64 MiB, more than any L2 or L3
_MASK_ROWS = 64  # rows of the mask built at a time, so that building it takes no more than keeping it
_ENOUGH_ITEMS = 8  # fewer pairs are cut into strips; not by the number of threads, so that results do not depend on it
_MIN_ROWS = 256  # of such a strip, else BLAS slows down


def strip_rows(problem: AttentionProblem) -> int:
    """Return the query rows of one head that a thread takes at a time."""
    parts = max(1, min(_ENOUGH_ITEMS // problem.pairs, problem.seq_q // _MIN_ROWS))
    return min(-(-problem.seq_q // parts), max(_STEP_SCORES // problem.seq_k, 1))


def mask_shape(problem: AttentionProblem) -> tuple[int, ...]:
    """Return the shape of the mask: one for all batch entries unless there is a key_mask; (0,) for none."""
    if problem.key_mask is None and not problem.causal:
        return (0,)
    return problem.batch if problem.key_mask is not None else 1, problem.seq_q, problem.seq_k


def hidden_keys(problem: AttentionProblem) -> NDArray[np.bool_] | None:
    """Return what each row does not see, bool [batch or 1, seq_q, seq_k]; None where every row sees every key."""
    shape = mask_shape(problem)
    if len(shape) == 1:
        return None
    hidden = np.empty(shape, np.bool_)
    for batch in range(len(hidden)):
        for start in range(0, problem.seq_q, _MASK_ROWS):
            rows = np.arange(start, min(start + _MASK_ROWS, problem.seq_q))
            np.logical_not(visible(problem, batch, rows, 0, problem.seq_k), out=hidden[batch, rows[0] : rows[-1] + 1])
    return hidden
