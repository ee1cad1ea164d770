"""What a session is asked to do: cases, kernels, device and how long to measure, as one frozen value."""

from __future__ import annotations

import msgspec

from engine.problem.attention_problem import AttentionProblem


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One problem of a session. ``input`` is a tensor file's path, or ``normal`` for seeded normal numbers."""

    index: int
    problem: AttentionProblem
    input: str = "normal"
    threads: int | None = None  # None = all cores

    @property
    def from_file(self) -> bool:
        """Whether the tensors come from a file."""
        return self.input != "normal"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A whole session. ``seconds`` is the sampling budget per kernel and case; ``samples`` fixes a count instead.

    ``device`` is what ``--device`` takes: ``auto``, ``cpu``, an index or part of a name. ``memory_limit`` is bytes a
    kernel may hold, None = half of the free RAM (8 GiB on a GPU).
    """

    cases: tuple[Case, ...]
    kernels: tuple[str, ...]
    device: str = "auto"
    seed: int = 0
    seconds: float = 2.0
    samples: int | None = None
    min_samples: int = 10
    memory_limit: int | None = None
    checks: bool = True
    label: str = ""
