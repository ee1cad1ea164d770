"""Attention in one call, for scripts: arrays in, arrays out, by any of the kernels."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.devices.cpu import open_cpu
from engine.devices.device import Device, DeviceUnavailable
from engine.kernels.registry import get_kernel
from engine.problem.arrays import as_array, as_flag, as_float32, as_real
from engine.problem.attention_problem import AttentionProblem, KeyMask
from engine.problem.inputs import Inputs

Array = NDArray[np.float32]


@overload
def attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, kernel: str = ..., causal: bool = ..., scale: float | None = ...,
    window: int | None = ..., softcap: float | None = ..., key_mask: ArrayLike | None = ...,
    return_lse: Literal[False] = ...,
) -> Array: ...  # fmt: skip
@overload
def attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, kernel: str = ..., causal: bool = ..., scale: float | None = ...,
    window: int | None = ..., softcap: float | None = ..., key_mask: ArrayLike | None = ...,
    return_lse: Literal[True],
) -> tuple[Array, Array]: ...  # fmt: skip
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    kernel: str = "cpu-flash",
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    key_mask: ArrayLike | None = None,
    return_lse: bool = False,
) -> Array | tuple[Array, Array]:
    """Return ``softmax(mask(softcap(scale · Q Kᵀ))) V`` in float32, computed by the named kernel.

    ``q`` is [batch, heads, seq_q, head_dim], ``k`` [batch, kv_heads, seq_k, head_dim], ``v`` [batch, kv_heads, seq_k,
    head_dim_v]; ``kv_heads`` divides ``heads``. They may be lists or arrays of float16, float32 or float64, of any
    strides, and are not changed. ``causal``, ``window``, ``softcap``, ``scale`` (default 1/sqrt(head_dim)) and
    ``key_mask`` (bool [batch, seq_k], True = visible) are those of AttentionProblem.

    The output is [batch, heads, seq_q, head_dim_v]; with ``return_lse`` the result is the pair of output and
    log-sum-exp (natural log, [batch, heads, seq_q]). A row that sees no key gives 0 and -inf.

    Raises ValueError for arguments that are not valid or that the kernel does not support, DeviceUnavailable when a
    GPU kernel finds no device or an optional kernel is not installed.
    """
    chosen = get_kernel(kernel)
    if (missing := chosen.missing()) is not None:
        raise DeviceUnavailable(f"{kernel} is {missing}")
    inputs, want_lse = Inputs(_float32("q", q), _float32("k", k), _float32("v", v)), as_flag("return_lse", return_lse)
    problem = _problem(
        inputs,
        causal=as_flag("causal", causal),
        scale=scale,
        window=window,
        softcap=softcap,
        key_mask=None if key_mask is None else KeyMask.pack(as_array("key_mask", key_mask)),
    )
    with ExitStack() as stack:
        device: Device
        if chosen.device_kind == "cpu":
            device = stack.enter_context(open_cpu())
        elif chosen.device_kind == "gpu":
            from engine.devices.gpu.device import open_gpu  # only a GPU kernel needs it

            device = open_gpu()
        else:
            from engine.devices.cuda import open_cuda

            device = open_cuda()
        reason = chosen.refusal(problem, device.limits)
        if reason is not None:
            raise ValueError(f"{kernel} cannot run this problem: {reason}")
        prepared = stack.enter_context(closing(chosen.prepare(problem, inputs, device, want_lse=want_lse)))
        prepared.run()
        outputs = prepared.outputs()
    if outputs.lse is None:
        return outputs.output
    return outputs.output, outputs.lse


def _float32(name: str, value: ArrayLike) -> Array:
    """Return the array in C-contiguous float32; a number too large for it becomes infinite."""
    array = as_array(name, value)
    if array.ndim != 4:
        raise ValueError(f"{name} must have 4 dimensions [batch, heads, seq, head_dim], got shape {list(array.shape)}")
    return as_float32(as_real(name, array))


def _problem(inputs: Inputs, **options: Any) -> AttentionProblem:
    """Return the problem the three shapes make, or raise ValueError with the shapes that clash."""
    q, k, v = inputs.q.shape, inputs.k.shape, inputs.v.shape
    if q[0] != k[0] or q[3] != k[3]:
        raise ValueError(f"q and k must agree in batch and head_dim, got shapes {list(q)} and {list(k)}")
    if k[:3] != v[:3]:
        raise ValueError(f"k and v must agree in batch, heads and length, got shapes {list(k)} and {list(v)}")
    return AttentionProblem(
        batch=q[0], heads=q[1], kv_heads=k[1], seq_q=q[2], seq_k=k[2], head_dim=q[3], head_dim_v=v[3], **options
    )
