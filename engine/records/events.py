"""What a running session tells whoever listens: small frozen values, picklable, one union."""

from __future__ import annotations

from enum import Enum

import msgspec

from engine.records.plan import Case, Plan
from engine.records.results import Environment, Row, Sample


class SessionStarted(msgspec.Struct, frozen=True, tag=True):
    """Always the first event."""

    run_id: str
    started_at: str  # ISO 8601 with offset
    plan: Plan
    environment: Environment


class CaseStarted(msgspec.Struct, frozen=True, tag=True):
    """The kernels of a case are about to take turns."""

    case: Case


class KernelSkipped(msgspec.Struct, frozen=True, tag=True):
    """A kernel that cannot run here; its row, with status ``skipped``, says why."""

    case: Case
    kernel: str
    reason: str
    row: Row


class KernelPrepared(msgspec.Struct, frozen=True, tag=True):
    """A kernel is compiled, allocated, has had its first run and is ready to be timed."""

    case: Case
    kernel: str
    predicted_bytes: int
    variant: str
    first_run_ms: float | None = None
    scratch_bytes: int | None = None


class SampleBatch(msgspec.Struct, frozen=True, tag=True):
    """New samples of one kernel, in order."""

    case: Case
    kernel: str
    samples: tuple[Sample, ...]


class MemorySample(msgspec.Struct, frozen=True, tag=True):
    """Memory at a moment: seconds since the session began, resident bytes of the process, GPU bytes we hold."""

    time_s: float
    process_bytes: int
    gpu_bytes: int


class Phase(Enum):
    """What a session is doing in a case."""

    REFERENCE = "reference"  # computing what the kernels are compared with
    PREPARING = "preparing"  # one kernel: compiling, the first run and its check
    MEASURING = "measuring"


class Progress(msgspec.Struct, frozen=True, tag=True):
    """How far the session is, in kernel turns (a kernel's share of its budget counts as a fraction), and what it does.

    ``kernel`` is the one being prepared, empty in the other phases.
    """

    done: float
    total: int
    seconds_left: float | None
    phase: Phase | None = None
    kernel: str = ""


class KernelFinished(msgspec.Struct, frozen=True, tag=True):
    """A kernel's row is final: ``ok``, ``wrong`` or ``cancelled``."""

    case: Case
    kernel: str
    row: Row


class KernelFailed(msgspec.Struct, frozen=True, tag=True):
    """A kernel raised; its row has status ``failed`` and the sentence, the traceback is for the log."""

    case: Case
    kernel: str
    message: str
    traceback: str
    row: Row


class CaseFinished(msgspec.Struct, frozen=True, tag=True):
    """Every kernel of the case has its row."""

    case: Case


class Warning(msgspec.Struct, frozen=True, tag=True):  # noqa: A001 - the design's name for it
    """Something the reader of the numbers should know."""

    message: str


class LogLine(msgspec.Struct, frozen=True, tag=True):
    """A line for the log: level ``debug``, ``info``, ``warning`` or ``error``."""

    level: str
    text: str


class Ending(Enum):
    """How a session ended."""

    DONE = "done"
    CANCELLED = "cancelled"
    CUT_OFF = "cut off"  # from outside: the engine's process died or did not start, the program ended
    BROKEN = "broken"  # by a fault of the program itself, which is worth a report

    @property
    def orderly(self) -> bool:
        """Whether it ended as it should, if early."""
        return self in (Ending.DONE, Ending.CANCELLED)


class SessionFinished(msgspec.Struct, frozen=True, tag=True):
    """Always the last event, exactly once; ``sentence`` says what broke where the ending is not orderly."""

    ending: Ending = Ending.DONE
    sentence: str = ""

    @property
    def reason(self) -> str:
        """The ending in words, as run files keep it: ``done``, ``cancelled`` or the sentence."""
        return self.sentence or self.ending.value


Event = (
    SessionStarted
    | CaseStarted
    | KernelSkipped
    | KernelPrepared
    | SampleBatch
    | MemorySample
    | Progress
    | KernelFinished
    | KernelFailed
    | CaseFinished
    | Warning
    | LogLine
    | SessionFinished
)
