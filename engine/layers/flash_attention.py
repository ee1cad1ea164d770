"""Multi-head flash attention as a layer: it splits tensors into heads, and takes and gives them where they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from engine.common.units import ratio, size
from engine.layers.backends import backend
from engine.layers.gpu_context import GpuContext
from engine.layers.memory import MemoryEstimate
from engine.layers.tensor import Place, Tensor, place
from engine.problem.arrays import as_flag, as_float32, as_real, as_whole
from engine.problem.attention_problem import MAX_HEAD_DIM, AttentionProblem, Direction


class FlashAttentionGrads(NamedTuple):
    """The gradients of q, k and v, each of the shape and kind of what it is of."""

    dq: Any
    dk: Any
    dv: Any


class LayerMemory(msgspec.Struct, frozen=True):
    """What a call holds.

    ``scores``: of one head in float32, the matrix [seq, seq] against the accumulator [seq, head_dim]. ``call``: of all
    heads at the call's peak on the layer's device, with everything counted: operands as given and results, their copies
    split into heads, and what the kernel needs beside them.
    """

    scores: MemoryEstimate
    call: MemoryEstimate


class FlashAttention:
    """Multi-head attention without a score matrix in memory: ``softmax(q kᵀ / sqrt(head_dim)) v`` for each head.

    ``dim`` is split over ``num_heads`` heads of ``dim / num_heads`` each; there are no weights. ``causal`` aligns the
    last query with the last key. ``num_kv_heads`` (default ``num_heads``) divides ``num_heads``: so many query heads
    share a head of k and v. ``device`` is None or ``gpu`` (the process's GPU), part of a GPU's name, a GpuContext, or
    ``cpu`` for the CPU kernels.

    Raises ValueError for sizes that do not divide, DeviceUnavailable with what to install where there is no usable GPU.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        causal: bool = False,
        *,
        num_kv_heads: int | None = None,
        device: str | GpuContext | None = None,
    ) -> None:
        dim, num_heads = as_whole("dim", dim), as_whole("num_heads", num_heads)
        num_kv_heads = num_heads if num_kv_heads is None else as_whole("num_kv_heads", num_kv_heads)
        if dim % num_heads:
            raise ValueError(f"dim must be a multiple of num_heads, got {dim} and {num_heads}")
        if num_heads % num_kv_heads:
            raise ValueError(f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}")
        if dim // num_heads > MAX_HEAD_DIM:
            raise ValueError(f"dim / num_heads must be at most {MAX_HEAD_DIM}, got {dim // num_heads}")
        self.dim, self.num_heads, self.num_kv_heads = dim, num_heads, num_kv_heads
        self.head_dim = dim // num_heads
        self.causal = as_flag("causal", causal)
        self.device: Place = place(device)
        self._backend = backend(self.device)

    def forward(self, q: Any, k: Any, v: Any, *, return_lse: bool = False) -> Any:
        """Return the attention of ``q`` to ``k`` and ``v``, of the shape and kind of ``q``.

        ``q`` is [batch, seq, dim], [seq, dim] or [batch, seq, num_heads, head_dim]; ``k`` and ``v`` have the same
        layout, a length of their own and ``num_kv_heads`` heads. Arrays of real numbers are computed, and come back, in
        float32. Tensors are of one dtype and on the layer's device, where they stay and the result is; float16 ones
        are computed in float32, too. With ``return_lse`` the result is the pair of output and log-sum-exp (natural
        log, float32 [batch, num_heads, seq], or [num_heads, seq] without batch).

        Raises ValueError for what does not fit together, with both figures, or does not fit the device.
        """
        want_lse = as_flag("return_lse", return_lse)
        given = self._given(q=q, k=k, v=v)
        problem = self._problem(given)
        with self._here(given) as tensors:
            results = self._backend.compute(problem, tensors, want_lse)
            output, *lse = (_of_kind(q, result) for result in results)
        return (output, *lse) if want_lse else output

    def backward(
        self, q: Any, k: Any, v: Any, output: Any, grad_output: Any, *, lse: Any = None
    ) -> FlashAttentionGrads:
        """Return the gradients of q, k and v, given that of the output; scores are recomputed tile by tile.

        ``q``, ``k``, ``v`` and ``output`` are those of ``forward``, ``grad_output`` is shaped like ``output``. With
        ``lse`` from ``forward(..., return_lse=True)`` the forward pass is not run again. Kinds, layouts and errors
        as in ``forward``, but of Tensors on a GPU only float32 ones have gradients.
        """
        known = {} if lse is None else {"lse": lse}
        given = self._given(q=q, k=k, v=v, output=output, grad_output=grad_output, **known)
        problem = self._problem(given)
        with contextlib.ExitStack() as stack:
            tensors = stack.enter_context(self._here(given))
            if lse is None:
                forward = {name: tensors[name] for name in ("q", "k", "v")}
                tensors["lse"] = stack.enter_context(self._backend.compute(problem, forward, True)[1])
            results = self._backend.compute(msgspec.structs.replace(problem, direction="backward"), tensors)
            return FlashAttentionGrads(*(_of_kind(q, result) for result in results))

    def memory_savings(self, seq_len: int) -> str:
        """Return what one head's scores take in float32, the full matrix against the accumulator, as a sentence.

        Raises ValueError for a length beyond any call.
        """
        scores = self._scores(seq_len)
        self._sized(1, max(1, seq_len), max(1, seq_len))
        full, kept = scores.naive_bytes, scores.flash_bytes
        verdict = "as much"
        if full != kept:
            verdict = f"{ratio(full / kept)} less" if full > kept else f"{ratio(kept / full)} more"
        return (
            f"seq {seq_len:,}: {size(full)} for the full score matrix, {size(kept)} for the accumulator of flash "
            f"attention: {verdict}"
        )

    def memory_estimate(self, seq_len: int, batch: int = 1, direction: Direction = "forward") -> LayerMemory:
        """Return what a call over ``seq_len`` queries and keys holds, in bytes; a backward one is given ``lse``."""
        scores, seq = self._scores(seq_len), max(1, seq_len)
        problem = msgspec.structs.replace(self._sized(batch, seq, seq), direction=direction)
        if seq_len == 0:
            return LayerMemory(scores, MemoryEstimate.of(0, 0))
        here = self._backend
        limits = here.limits()
        naive, flash = (here.held_bytes(kernel, problem, limits) for kernel in (here.naive, here.flash))
        return LayerMemory(scores, MemoryEstimate.of(naive, flash))

    def __repr__(self) -> str:
        kv_heads = f", num_kv_heads={self.num_kv_heads}" if self.num_kv_heads != self.num_heads else ""
        return (
            f"FlashAttention(dim={self.dim}, num_heads={self.num_heads}, causal={self.causal}{kv_heads}, "
            f"device={self.device!r})"
        )

    def _scores(self, seq_len: int) -> MemoryEstimate:
        seq = as_whole("seq_len", seq_len, least=0)
        return MemoryEstimate.of(4 * seq * seq, 4 * seq * self.head_dim)

    def _given(self, **operands: Any) -> dict[str, Any]:
        """Return the operands as Tensors, if they are, else as float32 arrays. Raises ValueError for a mixture."""
        tensors = [name for name, value in operands.items() if isinstance(value, Tensor)]
        arrays = [name for name in operands if name not in tensors]
        if tensors and arrays:
            raise ValueError(f"give Tensors or arrays, not both: {tensors[0]} is a Tensor and {arrays[0]} is not")
        if arrays:
            return {name: as_float32(as_real(name, value)) for name, value in operands.items()}
        for name, tensor in operands.items():
            if tensor.device != self.device:
                raise ValueError(f"{name} is on {tensor.device}, the layer computes on {self.device}")
            wanted = np.dtype(np.float32) if name == "lse" else operands["q"].dtype
            if tensor.dtype != wanted:
                raise ValueError(f"{name} must hold {wanted} beside q of {operands['q'].dtype}, got {tensor.dtype}")
            tensor.storage()  # raises where it is closed, or the thread is another
        return operands

    def _sized(self, batch: int, seq_q: int, seq_k: int, dtype: Any = np.float32) -> AttentionProblem:
        half = dtype == np.float16 and self.device != "cpu"
        return AttentionProblem(
            batch=batch,
            heads=self.num_heads,
            kv_heads=self.num_kv_heads,
            seq_q=seq_q,
            seq_k=seq_k,
            head_dim=self.head_dim,
            causal=self.causal,
            dtype="f16" if half else "f32",
        )

    def _axes(self, name: str, rank: int) -> list[str | int]:
        """Return the axes that a tensor must have where q has that rank: fixed sizes, and names of those that vary."""
        batch: list[str | int] = ["batch"] if rank > 2 else []
        if name == "lse":
            return [*batch, self.num_heads, "seq_q"]
        heads = self.num_kv_heads if name in ("k", "v") else self.num_heads
        seq = "seq_k" if name in ("k", "v") else "seq_q"
        return [*batch, seq, heads, self.head_dim] if rank == 4 else [*batch, seq, heads * self.head_dim]

    def _problem(self, given: Mapping[str, Any]) -> AttentionProblem:
        """Return the problem that the shapes make. Raises ValueError where they make none."""
        rank = len(given["q"].shape)
        if rank not in (2, 3, 4):
            layouts = " or ".join(_text(self._axes("q", rank)) for rank in (2, 3, 4))
            raise ValueError(f"q must be {layouts}, got shape {list(given['q'].shape)}")
        sizes: dict[str, tuple[int, str]] = {}  # of each axis that varies, and the tensor that set it
        for name, tensor in given.items():
            axes, shape = self._axes(name, rank), list(tensor.shape)
            if len(shape) != len(axes) or any(a != n for a, n in zip(axes, shape, strict=True) if isinstance(a, int)):
                beside = "" if name == "q" else f" beside q of shape {list(given['q'].shape)}"
                raise ValueError(f"{name} must be {_text(axes)}{beside}, got shape {shape}")
            for axis, n in zip(axes, shape, strict=True):
                known, first = sizes.setdefault(str(axis), (n, name))
                if known != n:
                    raise ValueError(f"{first} and {name} must agree in {axis}, got {known} and {n}")
        batch, _ = sizes.get("batch", (1, ""))
        return self._sized(batch, sizes["seq_q"][0], sizes["seq_k"][0], given["q"].dtype)

    @contextlib.contextmanager
    def _here(self, given: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
        """Lend the operands as Tensors on the layer's device; what is copied there for it is freed at the end."""
        lent: dict[str, Tensor] = {}
        with contextlib.ExitStack() as stack:
            for name, value in given.items():
                if isinstance(value, Tensor):
                    lent[name] = value
                else:
                    lent[name] = stack.enter_context(Tensor(value.shape, value.dtype, self.device, value))
            yield lent


def _text(axes: list[str | int]) -> str:
    return f"[{', '.join(map(str, axes))}]"


def _of_kind(given: Any, result: Tensor) -> Any:
    """Return a result as a Tensor where Tensors were given, else as an array."""
    if isinstance(given, Tensor):
        return result
    with result:
        return result.storage() if result.device == "cpu" else result.numpy()
