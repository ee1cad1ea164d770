"""A stand-in for the part of PyTorch that FlashScope calls, on NumPy and a clock of its own, with or without a card."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

HELD = 1000  # bytes that others hold on the card


class SDPBackend(Enum):
    FLASH_ATTENTION = "flash"
    CUDNN_ATTENTION = "cudnn"
    EFFICIENT_ATTENTION = "efficient"
    MATH = "math"


class Tensor:
    """An array and where it is."""

    def __init__(self, array: np.ndarray, device: str = "cpu") -> None:
        self.array, self.device = array, device

    def to(self, device: str) -> Tensor:
        return Tensor(self.array, device)

    def cpu(self) -> Tensor:
        return Tensor(self.array)

    def numpy(self) -> np.ndarray:
        assert self.device == "cpu"
        return self.array

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize

    def isfinite(self) -> np.ndarray:
        return np.isfinite(self.array)

    def repeat_interleave(self, count: int, dim: int) -> Tensor:
        return Tensor(self.array.repeat(count, axis=dim), self.device)

    def masked_fill_(self, mask: Tensor, value: float) -> Tensor:
        np.copyto(self.array, value, where=mask.array)
        return self

    def copy_(self, other: Tensor) -> None:
        TORCH[0].now += TORCH[0].copy_s


class LowerRight:
    def __init__(self, seq_q: int, seq_k: int) -> None:
        self.array = np.tri(seq_q, seq_k, seq_k - seq_q, dtype=np.bool_)


class StandIn:
    """What it costs and refuses, and what it was asked: ``asked`` holds (backend, threads, precision) of every call."""

    def __init__(self, card: str | None) -> None:
        self.card = card
        self.now = 0.0
        self.cost = {"flash": 0.01, "cudnn": 0.02, "efficient": 0.03, "math": 0.04}  # seconds a run
        self.workspace = {"flash": 5_000, "cudnn": 6_000, "efficient": 7_000, "math": 80_000}
        self.product_s, self.copy_s = 0.02, 0.05
        self.spoilt: set[str] = set()  # backends that give NaN
        self.asked: list[tuple[str, int, str]] = []
        self.threads, self.precision, self.backend = 7, "high", ""
        self.peak = HELD
        self.events: list[SimpleNamespace] = []
        self.keeps_record = True  # of single allocations

    def refusal(self, query: Tensor, mask: Any, grouped: bool) -> str:
        """What PyTorch's backends cannot do."""
        on_card, half = query.device != "cpu", query.array.dtype == np.float16
        if self.backend in ("flash", "cudnn") and on_card and not half:
            return "Expected query, key and value to be float16"
        if self.backend == "efficient" and grouped:
            return "enable_gqa is not supported"
        if self.backend == "flash" and on_card and isinstance(mask, Tensor):
            return "flash attention takes no mask"
        if self.backend in ("cudnn", "efficient") and not on_card:
            return "No viable backend"
        return ""

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, is_causal: bool = False,
        scale: float = 1.0, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        if refused := self.refusal(query, attn_mask, enable_gqa):
            raise RuntimeError(refused)
        assert query.device == key.device == value.device
        q, k, v = (x.array.astype(np.float64) for x in (query, key, value))
        if enable_gqa:
            k, v = (x.repeat(q.shape[1] // x.shape[1], axis=1) for x in (k, v))
        scores = q @ k.swapaxes(2, 3) * scale
        if is_causal:  # upper left, as PyTorch's is
            scores[..., ~np.tri(*scores.shape[2:], dtype=np.bool_)] = -np.inf
        if attn_mask is not None:
            scores = np.where(attn_mask.array, scores, -np.inf)
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(axis=3, keepdims=True))
            output = (weights / weights.sum(axis=3, keepdims=True) @ v).astype(query.array.dtype)
        if self.backend in self.spoilt:
            output[:] = np.nan
        self._spend(output.nbytes)
        return Tensor(output, query.device)

    def _spend(self, output_bytes: int) -> None:
        self.asked.append((self.backend, self.threads, self.precision))
        self.now += self.cost[self.backend]
        work = self.workspace[self.backend]
        self.peak = max(self.peak, HELD + output_bytes + work)
        for nbytes in (output_bytes, work, -work):
            self.events.append(SimpleNamespace(name=lambda: "[memory]", nbytes=lambda nbytes=nbytes: nbytes))

    @contextmanager
    def only(self, backend: SDPBackend) -> Iterator[None]:
        self.backend = backend.value
        yield
        self.backend = ""

    @contextmanager
    def profile(self, **_: Any) -> Iterator[SimpleNamespace]:
        self.events = [SimpleNamespace(name=lambda: "aten::empty")]
        yield SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: self.events) if self.keeps_record else None)

    def product(self, *_: Any, **__: Any) -> None:
        self.now += self.product_s


TORCH: list[StandIn] = []  # the one that is installed


class Event:
    """A mark in time by the card's clock, which runs at nine tenths of the wall's."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = TORCH[0].now

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 900


@contextmanager
def _nothing(*_: Any) -> Iterator[None]:
    yield


def install(monkeypatch: pytest.MonkeyPatch, card: str | None = None) -> StandIn:
    """Put the stand-in in PyTorch's place, with a card of that name, and FlashScope's kernels on its clock."""
    torch = StandIn(card)
    monkeypatch.setattr(sys.modules[__name__], "TORCH", [torch])
    modules = {
        "torch": {
            "__version__": "2.99.0", "version": SimpleNamespace(cuda="13.0" if card else None),
            "from_numpy": Tensor, "float16": np.float16, "float32": np.float32, "uint8": np.uint8,
            "get_num_threads": lambda: torch.threads, "set_num_threads": lambda n: setattr(torch, "threads", n),
            "get_float32_matmul_precision": lambda: torch.precision,
            "set_float32_matmul_precision": lambda precision: setattr(torch, "precision", precision),
            "inference_mode": _nothing, "device": lambda kind, index: f"{kind}:{index}", "mm": torch.product,
            **{name: lambda *shape, **_: Tensor(np.zeros(1)) for name in ("rand", "ones", "empty_like")},
        },
        "torch.cuda": {
            "is_available": lambda: card is not None, "device_count": lambda: 2, "current_device": lambda: 0,
            "get_device_name": lambda index: (card, "NVIDIA Other")[index], "Event": Event, "device": _nothing,
            "get_device_properties": lambda index: SimpleNamespace(is_integrated=index == 1),
            "synchronize": _nothing, "empty_cache": _nothing, "memory_allocated": lambda *_: HELD,
            "reset_peak_memory_stats": lambda: setattr(torch, "peak", HELD),
            "max_memory_allocated": lambda: torch.peak,
        },
        "torch.nn": {}, "torch.nn.functional": {"scaled_dot_product_attention": torch.attention},
        "torch.nn.attention": {"SDPBackend": SDPBackend, "sdpa_kernel": torch.only},
        "torch.nn.attention.bias": {"causal_lower_right": LowerRight},
        "torch.autograd": {}, "torch.autograd.profiler": {"profile": torch.profile},
    }  # fmt: skip
    for name, content in modules.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["torch"].__dict__["cuda"] = sys.modules["torch.cuda"]
    for user in ("engine.cuda.time", "engine.kernels.torch_sdpa.time"):
        monkeypatch.setattr(user, SimpleNamespace(perf_counter=lambda: torch.now))
    return torch
