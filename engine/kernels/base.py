"""The door every kernel comes in by: what it supports, what it will hold, how it is prepared and run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.devices import DeviceInfo, Limits
from engine.inputs import Inputs
from engine.problem import AttentionProblem

Array = NDArray[np.float32]
ShouldStop = Callable[[], bool]


def never_stop() -> bool:
    """Return False: the ``should_stop`` of a caller that never stops."""
    return False


class Cancelled(Exception):  # noqa: N818 - not an error: the person asked for it
    """Raised out of ``Prepared.run`` when ``should_stop`` answered True."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Time of ``repeat`` back-to-back runs of a kernel, in milliseconds for all of them together.

    ``wall_ms`` runs from submit to completion, without upload and read-back. ``gpu_ms`` is the GPU's own clock, None
    where there is none or it gave nonsense.
    """

    wall_ms: float
    gpu_ms: float | None = None


class Outputs(msgspec.Struct, frozen=True):
    """What a run left behind: ``output`` float32 [batch, heads, seq_q, head_dim_v], ``lse`` float32 [batch, heads, seq_q]."""

    output: Array
    lse: Array | None = None


class MemoryUse(msgspec.Struct, frozen=True):
    """Bytes counted: ``scratch_bytes`` beyond Q, K, V and output; ``peak_bytes`` all of it together."""

    scratch_bytes: int
    peak_bytes: int


class Device(ABC):
    """An opened device: its description and its limits for this run."""

    info: DeviceInfo
    limits: Limits


class Prepared(ABC):
    """A kernel made ready for one problem on one device: compiled, allocated, inputs uploaded."""

    variant: str = ""
    compile_ms: float | None = None
    upload_ms: float | None = None
    readback_ms: float | None = None  # set by ``outputs``
    warnings: tuple[str, ...] = ()

    @abstractmethod
    def run(self, repeat: int = 1, should_stop: ShouldStop = never_stop) -> Timing:
        """Run ``repeat`` times back to back. Raises Cancelled when ``should_stop`` answers True on the way."""

    @abstractmethod
    def poison(self) -> None:
        """Fill the output (and lse) with NaN, so that what the next run leaves unwritten is found out."""

    @abstractmethod
    def outputs(self) -> Outputs:
        """Read the last run's result back."""

    def memory(self) -> MemoryUse | None:
        """Return the exact ledger of what this kernel holds; None where only tracing can tell (CPU kernels)."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Free everything; the object is not used afterwards. Safe to call twice."""


class Kernel(ABC):
    """A kernel that can be raced. Adding one is a file with a subclass of this and a line in the registry."""

    name: ClassVar[str]
    summary: ClassVar[str]
    device_kind: ClassVar[Literal["cpu", "gpu"]]
    naive: ClassVar[str]  # the kernel that this one's speed-up is measured against

    @abstractmethod
    def supports(self, problem: AttentionProblem, limits: Limits) -> str | None:
        """Return None when the problem can run within these limits, else the reason in one sentence. Pure."""

    @abstractmethod
    def predict(self, problem: AttentionProblem, limits: Limits) -> int:
        """Return the bytes the kernel will hold at its peak: Q, K, V, output and scratch. Pure."""

    @abstractmethod
    def prepare(self, problem: AttentionProblem, inputs: Inputs, device: Any, *, want_lse: bool = False) -> Prepared:
        """Make the kernel ready. ``device`` is the opened device of the kernel's ``device_kind``."""
