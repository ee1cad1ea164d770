"""The one name to import: the public calls as ``flashscope.attention`` and so on, and ``python -m flashscope``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import engine
from engine import __version__

if TYPE_CHECKING:
    from engine import AttentionProblem, DeviceUnavailable, GpuContext, Tensor, attention, layers

__all__ = ["AttentionProblem", "DeviceUnavailable", "GpuContext", "Tensor", "__version__", "attention", "layers"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(engine, name)  # which imports it when it is first asked for


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if __name__ == "__main__":
    from app.__main__ import main

    main()
