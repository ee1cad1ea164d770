"""Where Q, K and V come from: seeded normal numbers, or tensors from a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from engine.common.messages import shown
from engine.common.units import sizes_apart
from engine.problem.attention_problem import AttentionProblem, Dtype, KeyMask
from engine.problem.tensor_files import StoredArray, TensorFileError, open_arrays

FloatArray = NDArray[np.floating]

_FLOATS = ("float32", "float16", "bfloat16", "float64")
_AXES = {
    "q": ("batch", "heads", "seq_q", "head_dim"),
    "k": ("batch", "kv_heads", "seq_k", "head_dim"),
    "v": ("batch", "kv_heads", "seq_k", "head_dim_v"),
    "output": ("batch", "heads", "seq_q", "head_dim_v"),
    "key_mask": ("batch", "seq_k"),
}


@dataclass(frozen=True)
class Inputs:
    """The tensors of one problem, C-contiguous, in the problem's storage dtype (float32 or float16).

    ``q`` [batch, heads, seq_q, head_dim], ``k`` [batch, kv_heads, seq_k, head_dim], ``v`` [batch, kv_heads, seq_k,
    head_dim_v]; ``recorded_output`` [batch, heads, seq_q, head_dim_v] float32 where the file holds one.

    Of a backward problem also ``grad_output``, shaped as the output, and, where the caller has them from the forward
    pass, ``output`` and ``lse`` [batch, heads, seq_q]; a kernel makes that pass itself where it has not.

    For a GPU kernel they may be buffers of its device that hold the same; ``nonfinite`` must tell then whether any
    holds a NaN or an infinity.
    """

    q: FloatArray
    k: FloatArray
    v: FloatArray
    grad_output: NDArray[np.float32] | None = None
    output: NDArray[np.float32] | None = None
    lse: NDArray[np.float32] | None = None
    recorded_output: NDArray[np.float32] | None = None
    note: str = ""
    nonfinite: bool | None = None  # None: not known, and found out by who needs to know

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors that a kernel works from."""
        arrays = (self.q, self.k, self.v, self.grad_output, self.output, self.lse)
        return sum(array.nbytes for array in arrays if array is not None)


@dataclass(frozen=True)
class Tensors:
    """What a tensor file holds, checked and in float32: shapes as in ``Inputs``, ``key_mask`` bool [batch, seq_k].

    ``note`` says what was converted, such as ``q, k, v converted from bfloat16``.
    """

    source: str
    q: NDArray[np.float32]
    k: NDArray[np.float32]
    v: NDArray[np.float32]
    key_mask: NDArray[np.bool_] | None = None
    output: NDArray[np.float32] | None = None
    note: str = ""


@dataclass(frozen=True)
class Preview:
    """The shapes that a tensor file holds, by AttentionProblem's names; ``note`` says what will be converted."""

    sizes: dict[str, int]
    key_mask: KeyMask | None
    note: str

    def problem(self, **rule: Any) -> AttentionProblem:
        """Return the problem that the file poses; ``rule`` is the rest of AttentionProblem's arguments."""
        return AttentionProblem(**self.sizes | rule | {"key_mask": self.key_mask})


def seeded(problem: AttentionProblem, seed: int) -> Inputs:
    """Return standard normal Q, K and V of the problem's shapes, the same for the same seed on every machine.

    Of a backward problem also the gradient of the output.
    """
    rng = np.random.default_rng(seed)
    dtype = _storage(problem)
    arrays: list[FloatArray] = [
        rng.standard_normal(shape, np.float32).astype(dtype, copy=False)
        for shape in (problem.q_shape, problem.k_shape, problem.v_shape)
    ]
    q, k, v = arrays
    return Inputs(q, k, v, rng.standard_normal(problem.output_shape, np.float32) if problem.backward else None)


def with_grad_output(problem: AttentionProblem, inputs: Inputs, seed: int) -> Inputs:
    """Return the inputs of a backward problem with a seeded standard normal gradient of the output."""
    rng = np.random.default_rng(seed)
    return replace(inputs, grad_output=rng.standard_normal(problem.output_shape, np.float32))


def load(path_text: str) -> Tensors:
    """Return the tensors of an ``.npz`` or ``.safetensors`` file, or of ``q.npy,k.npy,v.npy``.

    The file holds q, k and v, and may hold key_mask (bool, or 0 and 1) and output. float16, bfloat16 and float64 are
    converted to float32. Raises ValueError, one sentence that names the file, for anything that cannot be raced.
    """
    stored = _checked(path_text)
    arrays: dict[str, NDArray[np.float32]] = {}
    notes = _conversions(stored)
    for name in stored.keys() - {"key_mask"}:
        try:
            arrays[name], overflowed = _cast(stored[name].read(), np.float32)
        except MemoryError as error:
            raise TensorFileError(f"{path_text} needs more memory than this process may have") from error
        notes += [f"{name} holds numbers beyond float32, which became infinite"] * overflowed
    key_mask = _key_mask(path_text, stored["key_mask"]) if "key_mask" in stored else None
    return Tensors(source=path_text, key_mask=key_mask, note="; ".join(notes), **arrays)


def preview(path_text: str) -> Preview:
    """Return what the headers of a tensor file promise; of its data only key_mask is read. Raises like ``load``."""
    stored = _checked(path_text)
    return Preview(
        sizes=_sizes({name: stored[name].shape for name in ("q", "k", "v")}),
        key_mask=KeyMask.pack(_key_mask(path_text, stored["key_mask"])) if "key_mask" in stored else None,
        note="; ".join(_conversions(stored)),
    )


def problem_for(
    tensors: Tensors,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    dtype: Dtype = "f32",
) -> AttentionProblem:
    """Return the problem that the tensors pose: their shapes and key_mask, and the options given."""
    options = {"causal": causal, "window": window, "softcap": softcap, "scale": scale, "dtype": dtype}
    shapes = _sizes({"q": tensors.q.shape, "k": tensors.k.shape, "v": tensors.v.shape})
    return AttentionProblem(**shapes | options | {"key_mask": tensors.key_mask})


def as_inputs(tensors: Tensors, problem: AttentionProblem) -> Inputs:
    """Return the tensors in the problem's storage dtype. Raises ValueError where the shapes are not the problem's."""
    wanted = {"q": problem.q_shape, "k": problem.k_shape, "v": problem.v_shape}
    dtype = _storage(problem)
    arrays: dict[str, FloatArray] = {}
    notes = [tensors.note] if tensors.note else []
    for name, shape in wanted.items():
        array = getattr(tensors, name)
        if array.shape != shape:
            raise ValueError(f"{tensors.source}: {name} has shape {list(array.shape)}, the problem asks {list(shape)}")
        arrays[name], overflowed = _cast(array, dtype)
        notes += [f"{name} holds numbers beyond float16, which became infinite"] * overflowed
    return Inputs(arrays["q"], arrays["k"], arrays["v"], recorded_output=tensors.output, note="; ".join(notes))


def _storage(problem: AttentionProblem) -> type[np.float16] | type[np.float32]:
    return np.float16 if problem.dtype == "f16" else np.float32


def _sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    return {axis: size for name in ("q", "k", "v") for axis, size in zip(_AXES[name], shapes[name], strict=True)}


def _checked(path: str) -> dict[str, StoredArray]:
    """Open a tensor file and return those of its arrays that a problem is made of, types and shapes checked."""
    stored = open_arrays(path)
    absent = [name for name in ("q", "k", "v") if name not in stored]
    if absent:
        held = ", ".join(repr(name) for name in list(stored)[:8]) or "no array"
        raise TensorFileError(f"{path} lacks {', '.join(absent)}: it must hold q, k and v, and holds {held}")
    stored = {name: stored[name] for name in _AXES if name in stored}
    _check_types(path, stored)
    _check_shapes(path, stored)
    _check_memory(path, stored)
    return stored


def _check_types(path: str, stored: Mapping[str, StoredArray]) -> None:
    for name, array in stored.items():
        if name == "key_mask":
            if array.dtype != "bool" and not array.dtype.startswith(("int", "uint")):
                raise TensorFileError(f"{path}: key_mask must hold bool, or 0 and 1, and holds {shown(array.dtype)}")
        elif array.dtype not in _FLOATS:
            raise TensorFileError(
                f"{path}: {name} must hold {', '.join(_FLOATS[:-1])} or {_FLOATS[-1]}, and holds {shown(array.dtype)}"
            )


def _check_shapes(path: str, stored: Mapping[str, StoredArray]) -> None:
    sizes: dict[str, tuple[int, str]] = {}  # of each axis, and the array that set it
    for name, array in stored.items():
        axes, shape = _AXES[name], list(array.shape)
        if len(shape) != len(axes):
            raise TensorFileError(f"{path}: {name} must have shape [{', '.join(axes)}], and has {shape}")
        for axis, size in zip(axes, shape, strict=True):
            expected, first = sizes.setdefault(axis, (size, name))
            if size != expected:
                raise TensorFileError(
                    f"{path}: {first} has shape {list(stored[first].shape)} and {name} {shape}, "
                    f"whose {axis} must be equal: {expected} and {size}"
                )
    try:
        AttentionProblem(**_sizes({name: stored[name].shape for name in ("q", "k", "v")}))
    except ValueError as error:
        raise TensorFileError(f"{path}: {error}") from error


def _check_memory(path: str, stored: Mapping[str, StoredArray]) -> None:
    """Refuse what would not fit before any of it is read: a small file can unpack to a thousand times its size."""
    needed = sum(math.prod(array.shape) * (4 if array.dtype == "float32" else 12) for array in stored.values())
    free = psutil.virtual_memory().available
    if needed > free:
        wanted, there = sizes_apart(needed, free)
        raise TensorFileError(f"{path} needs {wanted} of memory, and {there} are free")


def _conversions(stored: Mapping[str, StoredArray]) -> list[str]:
    notes = []
    for dtype in _FLOATS[1:]:
        names = [name for name, array in stored.items() if array.dtype == dtype]
        if names:
            notes.append(f"{', '.join(names)} converted from {dtype}")
    return notes


def _cast(array: NDArray[Any], dtype: type[np.floating[Any]]) -> tuple[NDArray[Any], bool]:
    """Return the array in native, C-contiguous ``dtype``, and whether finite numbers became infinite."""
    with np.errstate(all="ignore"):
        cast = np.require(array, dtype, ["C", "A"])
    overflowed = cast.dtype.itemsize < array.dtype.itemsize and bool((np.isinf(cast) & np.isfinite(array)).any())
    return cast, overflowed


def _key_mask(path: str, stored: StoredArray) -> NDArray[np.bool_]:
    values = stored.read()
    if not np.isin(values, (0, 1)).all():
        low, high = values.min(), values.max()
        raise TensorFileError(f"{path}: key_mask must hold bool, or 0 and 1, and holds {low} to {high}")
    return np.ascontiguousarray(values, np.bool_)
