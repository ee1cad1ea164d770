"""The attention problem: shapes, masking rule and cost of one attention call, as one frozen value."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

Dtype = Literal["f32", "f16"]
Direction = Literal["forward", "backward"]
MAX_HEAD_DIM = 256
MAX_ELEMENTS = 2**40  # beyond any machine; keeps every byte count an exact, sane integer
_FROM_OTHERS: Any = None  # the default of a field that is filled in from another one


class KeyMask(msgspec.Struct, frozen=True):
    """Which keys are visible, per batch entry: a bool array [batch, seq_k] packed to bits.

    Packed so that a problem stays hashable, picklable and small in a run file.
    """

    batch: int
    seq_k: int
    bits: bytes

    def __post_init__(self) -> None:
        if self.batch < 1 or self.seq_k < 1:
            raise ValueError(f"key_mask must not be empty, got shape [{self.batch}, {self.seq_k}]")
        if len(self.bits) != (self.batch * self.seq_k + 7) // 8:
            raise ValueError(
                f"key_mask of shape [{self.batch}, {self.seq_k}] needs "
                f"{(self.batch * self.seq_k + 7) // 8} bytes of bits, got {len(self.bits)}"
            )

    @classmethod
    def pack(cls, visible: ArrayLike) -> KeyMask:
        """Pack a bool array [batch, seq_k] (True = visible). Raises ValueError for other shapes or dtypes."""
        array = np.asarray(visible)
        if array.ndim != 2 or array.dtype != np.bool_:
            raise ValueError(
                f"key_mask must be a bool array [batch, seq_k], got {array.dtype} with shape {list(array.shape)}"
            )
        return cls(array.shape[0], array.shape[1], np.packbits(array).tobytes())

    def unpack(self) -> NDArray[np.bool_]:
        """Return the mask as a bool array [batch, seq_k], True = visible."""
        flat = np.unpackbits(np.frombuffer(self.bits, np.uint8), count=self.batch * self.seq_k)
        return flat.astype(np.bool_).reshape(self.batch, self.seq_k)


class AttentionProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One attention call: ``softmax(mask(softcap(scale · Q Kᵀ))) V`` over [batch, heads, seq, head_dim] arrays.

    With ``direction`` backward it is the gradient of that call: dQ, dK and dV from the gradient of the output, dO,
    where the forward pass has been made and its output and log-sum-exp are at hand.

    ``kv_heads`` divides ``heads`` (grouped-query attention). With ``offset = seq_k - seq_q``, query i sees key j
    when ``j <= i + offset`` (causal) and ``j > i + offset - window`` (window, which implies causal) and
    ``key_mask[b, j]``. Left out, ``kv_heads``, ``seq_k``, ``head_dim_v`` and ``scale`` become ``heads``,
    ``seq_q``, ``head_dim`` and ``1/sqrt(head_dim)``; ``key_mask`` may be given as a bool array [batch, seq_k].
    Raises ValueError with one sentence when a value is not valid.
    """

    batch: int = 1
    heads: int = 8
    kv_heads: int = _FROM_OTHERS
    seq_q: int = 1024
    seq_k: int = _FROM_OTHERS
    head_dim: int = 64
    head_dim_v: int = _FROM_OTHERS
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    scale: float = _FROM_OTHERS
    key_mask: KeyMask | None = None
    dtype: Dtype = "f32"
    direction: Direction = "forward"

    def __post_init__(self) -> None:
        fill = msgspec.structs.force_setattr
        for name, source in (("kv_heads", "heads"), ("seq_k", "seq_q"), ("head_dim_v", "head_dim")):
            if getattr(self, name) is None:
                fill(self, name, getattr(self, source))
        for name in ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v"):
            fill(self, name, _positive_int(name, getattr(self, name)))
        for name in ("head_dim", "head_dim_v"):
            if getattr(self, name) > MAX_HEAD_DIM:
                raise ValueError(f"{name} must be at most {MAX_HEAD_DIM}, got {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}")
        if self.batch * self.heads * max(self.seq_q, self.seq_k) * MAX_HEAD_DIM > MAX_ELEMENTS:
            raise ValueError(
                f"batch {self.batch} × heads {self.heads} × seq {max(self.seq_q, self.seq_k)} is too large"
            )
        if self.window is not None:
            fill(self, "window", _positive_int("window", self.window))
            fill(self, "causal", True)
        if self.softcap is not None:
            fill(self, "softcap", _finite("softcap", self.softcap))
            if not self.softcap > 0:
                raise ValueError(f"softcap must be above 0, got {self.softcap:g}")
        fill(self, "scale", 1 / math.sqrt(self.head_dim) if self.scale is None else _finite("scale", self.scale))
        if self.dtype not in get_args(Dtype):
            raise ValueError(f"dtype must be f32 or f16, got {self.dtype!r}")
        if self.direction not in get_args(Direction):
            raise ValueError(f"direction must be forward or backward, got {self.direction!r}")
        if self.key_mask is not None:
            mask = self.key_mask if isinstance(self.key_mask, KeyMask) else KeyMask.pack(self.key_mask)
            fill(self, "key_mask", mask)
            if (mask.batch, mask.seq_k) != (self.batch, self.seq_k):
                raise ValueError(
                    f"key_mask must have shape [batch, seq_k] = [{self.batch}, {self.seq_k}], "
                    f"got [{mask.batch}, {mask.seq_k}]"
                )

    @property
    def backward(self) -> bool:
        """Whether this is the gradient of an attention call."""
        return self.direction == "backward"

    @property
    def forward_pass(self) -> AttentionProblem:
        """The attention call itself, where this is its gradient."""
        return msgspec.structs.replace(self, direction="forward")

    @property
    def offset(self) -> int:
        """``seq_k - seq_q``: the last query is aligned with the last key (lower-right causal)."""
        return self.seq_k - self.seq_q

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads

    @property
    def pairs(self) -> int:
        """Number of (batch, head) pairs."""
        return self.batch * self.heads

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        """[batch, heads, seq_q, head_dim]."""
        return self.batch, self.heads, self.seq_q, self.head_dim

    @property
    def k_shape(self) -> tuple[int, int, int, int]:
        """[batch, kv_heads, seq_k, head_dim]."""
        return self.batch, self.kv_heads, self.seq_k, self.head_dim

    @property
    def v_shape(self) -> tuple[int, int, int, int]:
        """[batch, kv_heads, seq_k, head_dim_v]."""
        return self.batch, self.kv_heads, self.seq_k, self.head_dim_v

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """[batch, heads, seq_q, head_dim_v]."""
        return self.batch, self.heads, self.seq_q, self.head_dim_v

    @property
    def itemsize(self) -> int:
        """Bytes of one stored element of Q, K, V and the output."""
        return 2 if self.dtype == "f16" else 4

    @property
    def tensor_bytes(self) -> int:
        """Bytes of Q, K, V and the output together, as stored: the least any kernel holds.

        Backward, of their gradients and the log-sum-exp as well.
        """
        shapes = (self.q_shape, self.k_shape, self.v_shape, self.output_shape)
        nbytes = self.itemsize * sum(math.prod(shape) for shape in shapes)
        return 2 * nbytes + self.lse_bytes if self.backward else nbytes

    @property
    def lse_bytes(self) -> int:
        """Bytes of the log-sum-exp, one float32 a row."""
        return 4 * self.pairs * self.seq_q

    @property
    def score_bytes(self) -> int:
        """Bytes of the float32 score matrices of all (batch, head) pairs: what a naive kernel writes out."""
        return 4 * self.pairs * self.seq_q * self.seq_k

    def key_range(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First visible key and end of the visible keys of each query row, key_mask aside.

        ``rows`` holds query indices, any shape; both results have that shape, with ``first <= end``.
        """
        rows = np.asarray(rows, np.int64)
        if not self.causal:
            return np.zeros_like(rows), np.full_like(rows, self.seq_k)
        end = np.clip(rows + self.offset + 1, 0, self.seq_k)
        first = np.zeros_like(rows) if self.window is None else np.clip(rows + self.offset + 1 - self.window, 0, end)
        return first, end

    def visible_pairs(self) -> int:
        """Number of (query, key) pairs that are computed, summed over the batch, for one head."""
        first, end = self.key_range(np.arange(self.seq_q))
        if self.key_mask is None:
            return self.batch * int((end - first).sum())
        seen = np.zeros((self.batch, self.seq_k + 1), np.int64)
        np.cumsum(self.key_mask.unpack(), axis=1, out=seen[:, 1:])
        return int((seen[:, end] - seen[:, first]).sum())

    def flops(self) -> int:
        """Floating-point operations: two for each multiply-add over visible pairs.

        Forward there are two products; backward counts as five, the scores' recomputation included.
        """
        return (5 if self.backward else 2) * self.heads * (self.head_dim + self.head_dim_v) * self.visible_pairs()

    def moved_bytes(self) -> int:
        """Bytes that must move at least: Q, the output and, once each, K and V of the keys that some query sees.

        Backward, their gradients and the log-sum-exp as well.
        """
        first, end = self.key_range(np.arange(self.seq_q))
        seen = slice(int(first.min()), int(end.max()))  # without a gap, for the next query begins where this one does
        keys = self.batch * (seen.stop - seen.start)
        if self.key_mask is not None:
            keys = int(self.key_mask.unpack()[:, seen].sum())
        of_keys = keys * self.kv_heads * (self.head_dim + self.head_dim_v)
        nbytes = self.itemsize * (math.prod(self.q_shape) + math.prod(self.output_shape) + of_keys)
        return 2 * nbytes + self.lse_bytes if self.backward else nbytes


def _positive_int(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)


def _finite(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ValueError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond every float
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    return number
