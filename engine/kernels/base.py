"""The door every kernel comes in by: what it supports, what it will hold, how it is prepared and run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.common.running import Cancelled, ShouldStop, Timing, never_stop
from engine.devices.device import Device, DeviceKind, Limits
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.options import asked

Array = NDArray[np.float32]

__all__ = [
    "Array",
    "Cancelled",
    "Device",
    "Gradients",
    "Kernel",
    "MemoryUse",
    "Outputs",
    "Prepared",
    "ShouldStop",
    "Timing",
    "never_stop",
]


class Outputs(msgspec.Struct, frozen=True):
    """What a run left behind.

    ``output`` is float32 [batch, heads, seq_q, head_dim_v]; ``lse``, where asked for, float32 [batch, heads, seq_q].
    """

    output: Array
    lse: Array | None = None


class Gradients(msgspec.Struct, frozen=True):
    """What a backward run left behind, float32: each gradient has the shape of what it is of, as in AttentionProblem.

    The gradients of K and V are summed over the query heads of a group.
    """

    dq: Array
    dk: Array
    dv: Array


class MemoryUse(msgspec.Struct, frozen=True):
    """Bytes counted: ``scratch_bytes`` beyond the problem's tensors; ``peak_bytes`` all of it together."""

    scratch_bytes: int
    peak_bytes: int


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
        """Fill the result with NaN, so that what the next run leaves unwritten is found out."""

    def outputs(self) -> Outputs:
        """Read the last run's result back; only of a forward problem."""
        raise TypeError(f"{type(self).__name__} gives gradients")

    def gradients(self) -> Gradients:
        """Read the last run's result back; only of a backward problem."""
        raise TypeError(f"{type(self).__name__} gives no gradients")

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
    device_kind: ClassVar[DeviceKind]
    naive: ClassVar[str]  # the kernel that this one's speed-up is measured against
    needs: ClassVar[tuple[str, str] | None] = None  # of an optional kernel: a package, and the extra that installs it
    honours: ClassVar[tuple[str, ...]] = ()  # the options of the problem that it knows; it refuses the others
    counts_memory: ClassVar[bool] = False  # on the CPU: whether ``memory`` tells what tracing cannot see

    def missing(self) -> str | None:
        """Return None, or how to install the package that an optional kernel needs. Nothing is imported to find out."""
        if self.needs is None or find_spec(self.needs[0]) is not None:
            return None
        return f"not installed: pip install flashscope[{self.needs[1]}]"

    def load(self) -> None:  # noqa: B027 - most kernels have nothing to load
        """Import and compile what needs no problem, so that no problem's memory and time are charged with it."""

    def on(self, device: Device) -> Device:
        """Return the device as this kernel's rows name it; one that runs through a library of its own names that."""
        return device

    def candidates(self, problem: AttentionProblem, limits: Limits) -> list[msgspec.Struct]:
        """Return the variants worth measuring: what is chosen untuned, then the likely; none where there is no choice.

        A kernel that has some looks in ``limits.tuned`` for the fields of the one to take. Pure.
        """
        return []

    def refusal(self, problem: AttentionProblem, limits: Limits) -> str | None:
        """Return None when the kernel can compute the problem within these limits, else the reason. Pure.

        A problem that asks for an option the kernel does not honour is refused before ``supports`` is asked.
        """
        unknown = [name for name in asked(problem) if name not in self.honours]
        if unknown:
            return (
                f"{self.name} does not know {' and '.join(unknown)}; leave {'it' if len(unknown) == 1 else 'them'} out"
            )
        return self.supports(problem, limits)

    @abstractmethod
    def supports(self, problem: AttentionProblem, limits: Limits) -> str | None:
        """Return None when the problem can run within these limits, else the reason in one sentence. Pure."""

    @abstractmethod
    def predict(self, problem: AttentionProblem, limits: Limits) -> int:
        """Return the bytes the kernel will hold at its peak, the problem's tensors and scratch. Pure.

        On the GPU it is exact. On the CPU it is what is held when all threads overlap, and so an upper bound: where the
        work is over before the last thread has begun, less is held.
        """

    @abstractmethod
    def prepare(self, problem: AttentionProblem, inputs: Inputs, device: Any, *, want_lse: bool = False) -> Prepared:
        """Make the kernel ready. ``device`` is the opened device of the kernel's ``device_kind``.

        Of a backward problem this includes the forward pass where ``inputs`` does not hold its results.
        """

    def with_forward(self, problem: AttentionProblem, inputs: Inputs, device: Any) -> Inputs:
        """Return the inputs of a backward problem with output and log-sum-exp, made where they are not there."""
        if inputs.output is not None and inputs.lse is not None:
            return inputs
        with closing(self.prepare(problem.forward_pass, inputs, device, want_lse=True)) as prepared:
            prepared.run()
            made = prepared.outputs()
        return replace(inputs, output=made.output if inputs.output is None else inputs.output, lse=made.lse)
