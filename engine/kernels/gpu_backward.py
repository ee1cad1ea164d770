"""What the backward passes of the GPU kernels have in common: their tensors, and a first pass over the rows."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.devices.gpu.buffers import padded
from engine.devices.gpu.device import GpuDevice
from engine.devices.gpu.shaders import render
from engine.devices.gpu.timing import Dispatch
from engine.kernels.base import Gradients
from engine.kernels.gpu import CHUNK_BYTES, GpuPrepared, mask_bytes, row_offsets, special_bits, tensor_buffers
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import has_nonfinite

_ROWS_PARAMS_BYTES = 16
_ROWS, _LANES = 8, 8  # of a workgroup of the first pass, and threads a row
_LOG2_E = float(np.log2(np.e))
_LARGE_BITS = int(np.float32(3e38).view(np.uint32))


def common_bytes(problem: AttentionProblem) -> int:
    """Return the bytes of the buffers that every backward kernel holds: tensors, key mask, and what rows need."""
    rows = 4 * problem.pairs * problem.seq_q
    tensors = 2 * sum(tensor_buffers(problem)) + padded(rows)
    return tensors + mask_bytes(problem) + padded(2 * rows) + _ROWS_PARAMS_BYTES + CHUNK_BYTES


def rule_words(problem: AttentionProblem) -> NDArray[np.uint32]:
    """Return what gpu-flash's shaders call lo_offset, hi_offset, neg_inf_bits, nan_bits, scale, score_scale, softcap.

    ``score_scale`` makes exponents of 2 of scores; with a soft cap log2(e) comes in after the tanh.
    """
    words = np.empty(7, np.uint32)
    words[:2].view(np.int32)[:] = row_offsets(problem)
    words[2:4] = special_bits()
    score_scale = problem.scale if problem.softcap else problem.scale * _LOG2_E
    words[4:].view(np.float32)[:] = (problem.scale, score_scale, problem.softcap or 0.0)
    return words


class GpuBackward(GpuPrepared):
    """A backward pass that is ready to run.

    ``inputs`` hold the gradient of the output, the output and the log-sum-exp. ``rows`` is a buffer of two numbers for
    each row, see shaders/common/backward_rows, filled by the dispatch that ``common_buffers`` returns.
    """

    def __init__(self, problem: AttentionProblem, device: GpuDevice) -> None:
        super().__init__(problem, device)
        q, k, v, _ = tensor_buffers(problem)
        self.dq, self.dk, self.dv = (
            self.buffers.storage(name, nbytes) for name, nbytes in (("dq", q), ("dk", k), ("dv", v))
        )

    def common_buffers(self, inputs: Inputs) -> Dispatch:
        """Upload all tensors and return the first pass."""
        problem = self.problem
        self.upload(inputs)
        self.grad_output = self.buffers.upload("grad_output", _there(inputs.grad_output))
        output = self.buffers.upload("output", _there(inputs.output))
        lse = self.buffers.upload("lse", _there(inputs.lse))
        self.upload_ms = self.buffers.upload_ms
        rows = problem.pairs * problem.seq_q
        neg_inf_bits, nan_bits = special_bits()
        nothing_bits = nan_bits if has_nonfinite(inputs) else _LARGE_BITS
        self.rows = self.buffers.storage("rows", 8 * rows)
        return self.dispatch(
            render("common/backward_rows", rows=_ROWS, lanes=_LANES),
            "rrrw",
            np.array([rows, problem.head_dim_v, neg_inf_bits, nothing_bits], np.uint32),
            [self.grad_output, output, lse, self.rows],
            -(-rows // _ROWS),
            4.0 * _ROWS * problem.head_dim_v,
        )

    def poison(self) -> None:
        """Fill the gradients with NaN."""
        for buffer in (self.dq, self.dk, self.dv):
            self._fill_with_nan(buffer)

    def gradients(self) -> Gradients:
        """Read the gradients back from the GPU."""
        problem = self.problem
        start = time.perf_counter()
        dq = self._read(self.dq, problem.q_shape)
        dk, dv = self._read(self.dk, problem.k_shape), self._read(self.dv, problem.v_shape)
        self.readback_ms = (time.perf_counter() - start) * 1e3
        return Gradients(dq, dk, dv)


def _there(array: Any) -> Any:
    assert array is not None
    return array
