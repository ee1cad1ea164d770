"""Race the CPU kernels against PyTorch on the same threads, and print the table of the README's performance section.

Run in the environment with PyTorch: python scripts/race_cpu.py [--quick] [--seconds S] [--threads N]. Everything is
measured five times, and a contest's figure is the median of the five with its range.
"""

from __future__ import annotations

import sys
from typing import get_args

from race_table import Race, main

from engine.kernels.registry import installed_kernels
from engine.problem.attention_problem import AttentionProblem, Direction

_OURS = tuple(kernel for kernel in ("cpu-flash", "cpu-flash-jit") if kernel in installed_kernels())
_PROBLEMS = tuple(
    AttentionProblem(heads=heads, seq_q=seq, head_dim=head_dim, causal=causal, direction=direction)
    for direction in get_args(Direction)
    for heads, seq, head_dim in ((8, 2048, 64), (4, 4096, 64), (4, 2048, 128))
    for causal in (False, True)
)

RACE = Race(
    about="Race the CPU kernels against PyTorch on the same threads.",
    kernels=(*_OURS, "cpu-naive", "torch-sdpa"),
    contests=tuple((ours, other) for ours in _OURS for other in ("torch-sdpa", "cpu-naive")),
    problems=_PROBLEMS,
    quick=_PROBLEMS[:2],
    runs=5,
)

if __name__ == "__main__":
    sys.exit(main(RACE))
