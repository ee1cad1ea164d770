"""Both GPU kernels, there and back, on four kinds of driver: subgroups of 4, 8 and 16 lanes, and OpenGL without any."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import sys
import numpy as np
from engine.devices.gpu.device import open_gpu
from engine.problem.inputs import seeded
from engine.kernels.registry import get_kernel
from engine.measure.verify_backward import expect_gradients
from engine.problem.attention_problem import AttentionProblem
from engine.reference.forward import reference

device = open_gpu(sys.argv[1])
assert device.limits.subgroup_size == int(sys.argv[2]), device.limits
mask = np.arange(75)[None] % 3 > 0
problems = [
    AttentionProblem(heads=4, kv_heads=2, seq_q=50, seq_k=75, head_dim=20, head_dim_v=36, causal=True, key_mask=mask),
    AttentionProblem(heads=2, seq_q=33, head_dim=64, window=9, softcap=15.0),
]
for problem in problems:
    inputs = seeded(problem, 3)
    output, lse, largest = reference(problem, inputs)
    bound = np.abs(inputs.v).max() * 2.0**-23 * (4 + largest / 2)
    for name in ("gpu-flash", "gpu-naive"):
        prepared = get_kernel(name).prepare(problem, inputs, device, want_lse=True)
        prepared.poison()
        prepared.run()
        got = prepared.outputs()
        assert np.abs(got.output - output).max() <= bound, (name, problem)
        seen = np.isfinite(lse)
        np.testing.assert_allclose(got.lse[seen], lse[seen], rtol=1e-6, atol=1e-5)
        assert (got.lse[~seen] == -np.inf).all()
        print(name, prepared.variant)
        prepared.close()

problem = AttentionProblem(
    heads=4, kv_heads=2, seq_q=50, seq_k=75, head_dim=20, head_dim_v=30, causal=True, key_mask=mask, softcap=15.0,
    direction="backward",
)
inputs = seeded(problem, 3)
expected = expect_gradients(problem, inputs)
for name in ("gpu-flash", "gpu-naive"):
    prepared = get_kernel(name).prepare(problem, inputs, device)
    prepared.poison()
    prepared.run()
    verdict = expected.verdict(prepared.gradients())
    assert verdict.verified, (name, verdict)
    prepared.close()
"""


@pytest.mark.parametrize(
    ("device", "vector_width", "subgroup_size"),
    [("vulkan", "128", 0), ("vulkan", "256", 8), ("vulkan", "512", 16), ("opengl", "256", 0)],
    ids=["subgroups of 4", "subgroups of 8", "subgroups of 16", "no subgroups"],
)
def test_both_kernels_are_right(device: str, vector_width: str, subgroup_size: int) -> None:
    result = subprocess.run(
        [sys.executable, "-c", CODE, device, str(subgroup_size)],
        env=os.environ | {"LP_NATIVE_VECTOR_WIDTH": vector_width},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert result.returncode == 0, result.stderr
    assert ("subgroup" in result.stdout.split("gpu-naive")[0]) == (subgroup_size > 0)
