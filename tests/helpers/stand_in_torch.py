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
    """An array and where it is; of a result also the call that ``grad`` goes back through."""

    def __init__(self, array: np.ndarray, device: str = "cpu") -> None:
        self.array, self.device = array, device
        self.requires_grad = False
        self.changed = False  # in place
        self.source: tuple[Tensor, int] | None = None  # what it repeats, and how often
        self.call: SimpleNamespace | None = None
        self.filled: np.ndarray | None = None  # where the call's output was filled in

    def requires_grad_(self) -> Tensor:
        self.requires_grad = True
        return self

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
        repeated = Tensor(self.array.repeat(count, axis=dim), self.device)
        repeated.source = self, count
        return repeated

    def masked_fill_(self, mask: Tensor, value: float) -> Tensor:
        np.copyto(self.array, value, where=mask.array)
        self.changed = True
        return self

    def masked_fill(self, mask: Tensor, value: float) -> Tensor:
        filled = Tensor(np.where(mask.array, value, self.array), self.device)
        filled.call, filled.filled = self.call, mask.array
        return filled

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
        self.grad_enabled = False

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
            weights /= weights.sum(axis=3, keepdims=True)
            output = (weights @ v).astype(query.array.dtype)
        if self.backend in self.spoilt:
            output[:] = np.nan
        self._spend(output.nbytes)
        result = Tensor(output, query.device)
        if query.requires_grad and self.grad_enabled:
            result.call = SimpleNamespace(
                weights=np.nan_to_num(weights), tensors=(query, key, value), values=v, keys=k, scale=scale,
                backend=self.backend,
            )  # fmt: skip
        return result

    def grad(self, output: Tensor, tensors: tuple[Tensor, ...], grad: Tensor, retain_graph: bool) -> tuple[Tensor, ...]:
        """Go back through the call that made ``output``; a backend must be let alone with what it keeps of it."""
        assert retain_graph
        call = output.call
        assert call is not None
        if output.changed and call.backend != "math":
            raise RuntimeError("one of the variables needed for gradient computation has been modified")
        assert call.backend == self.backend
        g = grad.array.astype(np.float64)
        if output.filled is not None:
            g = np.where(output.filled, 0, g)
        grad_weights = g @ call.values.swapaxes(2, 3)
        grad_scores = call.weights * grad_weights
        grad_scores -= call.weights * grad_scores.sum(axis=3, keepdims=True)
        q = call.tensors[0].array.astype(np.float64)
        found = (
            call.scale * grad_scores @ call.keys,
            call.scale * grad_scores.swapaxes(2, 3) @ q,
            call.weights.swapaxes(2, 3) @ g,
        )
        results = []
        for asked, used, array in zip(tensors, call.tensors, found, strict=True):
            assert asked.requires_grad
            assert asked is used or (used.source is not None and used.source[0] is asked)
            batch, heads = asked.array.shape[:2]
            summed = array.reshape(batch, heads, -1, *array.shape[2:]).sum(axis=2)
            results.append(Tensor(summed.astype(np.float32), asked.device))
        if self.backend in self.spoilt:
            results[0].array[:] = np.nan
        self._spend(sum(result.array.nbytes for result in results))
        return tuple(results)

    @contextmanager
    def with_grad(self) -> Iterator[None]:
        self.grad_enabled = True
        yield
        self.grad_enabled = False

    def _spend(self, output_bytes: int) -> None:
        self.asked.append((self.backend, self.threads, self.precision))
        self.now += self.cost[self.backend]
        work = self.workspace[self.backend]
        self.peak = max(self.peak, HELD + output_bytes + work)
        for nbytes in (output_bytes, work, -work):
            self.events.append(SimpleNamespace(name=lambda: "[memory]", nbytes=lambda nbytes=nbytes: nbytes))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

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
            "inference_mode": _nothing, "enable_grad": torch.with_grad, "mm": torch.product,
            "device": lambda kind, index: f"{kind}:{index}",
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
        "torch.autograd": {"grad": torch.grad}, "torch.autograd.profiler": {"profile": torch.profile},
    }  # fmt: skip
    for name, content in modules.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("cuda", "autograd"):
        sys.modules["torch"].__dict__[name] = sys.modules[f"torch.{name}"]
    for user in ("engine.devices.cuda.time", "engine.kernels.peers.torch_sdpa.time"):
        monkeypatch.setattr(user, SimpleNamespace(perf_counter=lambda: torch.now, sleep=torch.sleep))
    return torch
