"""gpu-flash, backward: tiled gradients in WGSL by recomputation, without atomics, all scratch O(N).

Two forms, and the problem decides. Rounds (shaders/gpu_flash/backward_rounds) write weights and gradients of scores of
a part of the matrix to a workspace and multiply from there: five products, much faster where a round fills the GPU.
Passes (shaders/gpu_flash/backward_passes) keep them in registers and so compute them twice, once for each side: seven
products, all at once. Before either, layout passes re-lay both sides: by tiles, transposed, for the scores, and as
whole rows for the gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.devices.device import Limits
from engine.devices.gpu.buffers import Part, padded
from engine.devices.gpu.device import GpuDevice
from engine.devices.gpu.shaders import render
from engine.devices.gpu.timing import Dispatch
from engine.kernels.gpu import CHUNK_BYTES
from engine.kernels.gpu_backward import GpuBackward, common_bytes
from engine.kernels.gpu_flash.backward_passes import Passes, choose_passes
from engine.kernels.gpu_flash.backward_rounds import Rounds, choose_rounds, fills_gpu
from engine.kernels.gpu_flash.variant import round_up
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import has_nonfinite, without_hidden_garbage

_LAYOUT_PARAMS_BYTES = 16
_LAYOUT_THREADS = 64


def choose_form(problem: AttentionProblem, limits: Limits) -> Passes | Rounds | None:
    """Return the form to compile for the problem within these limits, None where none fits. Pure.

    Passes hold less, so that they also take what rounds have no room for. The large blocks of rounds need many
    registers, which processors with graphics built in may lack.
    """
    rounds = choose_rounds(problem, limits)
    if rounds is None or limits.integrated or not _fits(problem, limits, rounds):
        return choose_passes(problem, limits)
    return rounds if limits.software or fills_gpu(problem, rounds) else choose_passes(problem, limits)


def _fits(problem: AttentionProblem, limits: Limits, form: Rounds) -> bool:
    """Whether the device has the memory for all buffers, and each scratch buffer can be bound."""
    largest = max(scratch_bytes(problem, form).values())
    return largest <= limits.binding_bytes and predict(problem, form) <= limits.memory_bytes


def scratch_bytes(problem: AttentionProblem, form: Passes | Rounds) -> dict[str, int]:
    """Return the scratch buffers of a form, by name, in bytes: two planes each, but one of whole rows of K."""
    laid = form.laid
    queries = problem.pairs * round_up(problem.seq_q, laid.query_cols)
    keys = problem.batch * problem.kv_heads * round_up(problem.seq_k, laid.key_cols)
    return {
        "K and V by tiles": padded(2 * 4 * keys * laid.depth),
        "rows of K": padded(16 * keys * laid.stride),
        "Q and dO by tiles": padded(2 * 4 * queries * laid.depth),
        "rows of Q and dO": padded(2 * 16 * queries * laid.stride),
        **form.scratch_bytes(),
    }


def predict(problem: AttentionProblem, form: Passes | Rounds) -> int:
    """Return the bytes of all buffers."""
    of_layouts = 7 * (_LAYOUT_PARAMS_BYTES + CHUNK_BYTES)
    scratch = sum(scratch_bytes(problem, form).values())
    return common_bytes(problem) + scratch + of_layouts + form.uniform_bytes(problem)


def prepare(problem: AttentionProblem, inputs: Inputs, device: GpuDevice, form: Passes | Rounds) -> GpuBackward:
    """Compile the passes and upload the inputs, which hold output and log-sum-exp."""
    inputs = without_hidden_garbage(problem, inputs)
    prepared = GpuBackward(problem, device)
    try:
        prepared.variant = str(form)
        first = prepared.common_buffers(inputs)
        scratch = {name: prepared.buffers.storage(name, n) for name, n in scratch_bytes(problem, form).items()}
        careful = has_nonfinite(inputs)
        prepared.ready([first, *_layouts(prepared, form, scratch), *form.dispatches(prepared, scratch, careful)])
    except BaseException:
        prepared.close()
        raise
    return prepared


def _layouts(prepared: GpuBackward, form: Passes | Rounds, scratch: dict[str, Any]) -> Iterator[Dispatch]:
    """Yield the passes that re-lay both sides, each into its plane of a buffer."""
    problem, laid = prepared.problem, form.laid
    k, v = (prepared.key, problem.head_dim), (prepared.value, problem.head_dim_v)
    q, grad = (prepared.query, problem.head_dim), (prepared.grad_output, problem.head_dim_v)
    of_keys, of_queries = (problem.seq_k, laid.key_cols), (problem.seq_q, laid.query_cols)
    for what, name, (length, cols), planes in (
        ("keys", "K and V by tiles", of_keys, (k, v)),
        ("values", "rows of K", of_keys, (k,)),
        ("keys", "Q and dO by tiles", of_queries, (q, grad)),
        ("values", "rows of Q and dO", of_queries, (q, grad)),
    ):
        nbytes = scratch[name].size // len(planes)
        stride = laid.depth if what == "keys" else laid.stride
        for plane, (source, width) in enumerate(planes):
            yield prepared.dispatch(
                render("gpu_flash/layout", what=what, cols=cols, stored="f32"),
                "rw",
                np.array([length, width, -(-length // cols), stride], np.uint32),
                [source, Part(scratch[name], plane * nbytes, nbytes)],
                -(-nbytes // (16 * _LAYOUT_THREADS)),
                16.0 * _LAYOUT_THREADS,
            )
