"""How gpu-naive, forward and backward, cuts a problem into tiles and into buffers of pairs: pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from engine.devices.device import Limits
from engine.devices.gpu.buffers import padded
from engine.problem.attention_problem import AttentionProblem

TILE = 64
PARAMS_BYTES = 48  # of each pass


def unroll_for(limits: Limits) -> int:
    """Return the steps of a product that are unrolled: software adapters compile slowly."""
    return 4 if limits.software else 16


def groups(problem: AttentionProblem, limits: Limits) -> Iterator[tuple[int, int]]:
    """Yield (first pair, pairs) of each score buffer: as many whole pairs as a binding may span."""
    step = max(1, min(limits.binding_bytes, limits.buffer_bytes) // padded(4 * problem.seq_q * problem.seq_k))
    for first in range(0, problem.pairs, step):
        yield first, min(step, problem.pairs - first)
