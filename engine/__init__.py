"""FlashScope's engine: attention kernels, how they are measured, and nothing of the window."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine import layers
    from engine.devices.device import DeviceUnavailable
    from engine.layers.functional import attention
    from engine.layers.gpu_context import GpuContext
    from engine.layers.tensor import Tensor
    from engine.problem.attention_problem import AttentionProblem

__version__ = "0.1.0"
__all__ = ["AttentionProblem", "DeviceUnavailable", "GpuContext", "Tensor", "__version__", "attention", "layers"]

# name: where it lives; imported when first asked for, so that `import engine` costs nothing
_EXPORTS = {
    "AttentionProblem": "engine.problem.attention_problem",
    "DeviceUnavailable": "engine.devices.device",
    "GpuContext": "engine.layers.gpu_context",
    "Tensor": "engine.layers.tensor",
    "attention": "engine.layers.functional",
}


def __getattr__(name: str) -> Any:
    if name == "layers":
        return import_module("engine.layers")
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
