"""Race the GPU kernels against PyTorch on the same card, and print the table of the README's performance section.

Run in the environment with the card's drivers and PyTorch: python scripts/race_gpu.py [--quick] [--seconds S].
Percentages are of the peaks that gpu-flash's device reaches here: float32 multiply-adds, and a copy.
"""

from __future__ import annotations

import sys
from typing import Any

from race_table import Race, main

from engine.problem.attention_problem import AttentionProblem

_TOKENS = 16_384  # of a batch with 16 heads


def _both(**shape: Any) -> list[AttentionProblem]:
    """Return a problem in float32 and in float16."""
    return [AttentionProblem(**shape, dtype=dtype) for dtype in ("f32", "f16")]


_HEADLINE = [
    problem
    for batch, head_dim in ((4, 64), (2, 128))
    for causal in (False, True)
    for problem in _both(batch=batch, heads=16, seq_q=4096, head_dim=head_dim, causal=causal)
]
_BACKWARD = [
    AttentionProblem(batch=batch, heads=16, seq_q=4096, head_dim=head_dim, causal=causal, direction="backward")
    for batch, head_dim in ((4, 64), (2, 128))
    for causal in (False, True)
]
_DECODE = _both(heads=32, kv_heads=8, seq_q=1, seq_k=65_536, head_dim=128)
_LENGTHS = [
    problem
    for seq in (512, 1024, 2048, 8192, 16_384, 32_768)
    for problem in _both(batch=max(1, _TOKENS // seq), heads=16, seq_q=seq, head_dim=64)
]
_HEAD_DIMS = [
    problem for head_dim in (32, 80, 96, 256) for problem in _both(batch=2, heads=16, seq_q=4096, head_dim=head_dim)
]
_FEW_HEADS = [problem for heads in (1, 4) for problem in _both(heads=heads, seq_q=4096, head_dim=64)]
_GROUPED = _both(heads=32, kv_heads=4, seq_q=4096, head_dim=128, causal=True)
_MORE_DECODE = [
    *_both(heads=32, kv_heads=8, seq_q=16, seq_k=65_536, head_dim=128, causal=True),
    *_both(batch=16, heads=32, kv_heads=8, seq_q=1, seq_k=4096, head_dim=128),
]

RACE = Race(
    about="Race the GPU kernels against PyTorch on the same card.",
    kernels=("gpu-flash", "gpu-naive", "torch-sdpa-cuda"),
    contests=(("gpu-flash", "torch-sdpa-cuda"), ("gpu-flash", "gpu-naive")),
    problems=(*_HEADLINE, *_BACKWARD, *_LENGTHS, *_HEAD_DIMS, *_FEW_HEADS, *_GROUPED, *_DECODE, *_MORE_DECODE),
    quick=(*_HEADLINE, *_BACKWARD, *_DECODE),
)

if __name__ == "__main__":
    sys.exit(main(RACE))
