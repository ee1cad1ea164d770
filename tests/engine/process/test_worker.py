"""What the worker sends while CPU kernels are timed: bundles, and a pause after each in which they can be drawn."""

from __future__ import annotations

from engine.problem.attention_problem import AttentionProblem
from engine.process.worker import Paced
from engine.records.events import CaseStarted, Event, MemorySample, Phase, Progress
from engine.records.plan import Case, Plan

CASE = Case(index=0, problem=AttentionProblem(seq_q=8))
MEMORY, PROGRESS, OTHER = MemorySample(0.0, 1, 1), Progress(0.5, 2, None), CaseStarted(CASE)


class Clock:
    def __init__(self, *kernels: str) -> None:
        self.time = 0.0
        self.heard: list[Event | float] = []  # events, and pauses in seconds
        plan = Plan(cases=(CASE,), kernels=kernels)
        self.paced = Paced(plan, self.heard.append, lambda: self.time, self.heard.append)

    def at(self, time: float, *events: Event) -> list[Event | float]:
        """What is sent, or slept, when these events come at that time."""
        self.time = time
        self.heard.clear()
        for event in events:
            self.paced(event)
        return list(self.heard)


def test_samples_of_cpu_kernels_come_in_bundles_with_a_pause_after_each() -> None:
    clock = Clock("gpu-flash", "cpu-flash")
    assert clock.at(0.1, MEMORY, PROGRESS) == []
    assert clock.at(0.6, MEMORY) == []
    assert clock.at(0.7, PROGRESS) == [MEMORY, PROGRESS, MEMORY, PROGRESS, 0.15]
    assert clock.at(0.8, MEMORY, PROGRESS) == []


def test_all_else_is_sent_at_once_and_in_order() -> None:
    clock = Clock("cpu-flash")
    assert clock.at(0.1, MEMORY, PROGRESS, OTHER) == [MEMORY, PROGRESS, OTHER]


def test_gpu_kernels_need_no_pause() -> None:
    for kernels in (("gpu-flash",), ("no such kernel",)):
        assert Clock(*kernels).at(9.0, MEMORY, PROGRESS) == [MEMORY, PROGRESS]


def test_another_phase_is_told_at_once() -> None:
    clock = Clock("cpu-flash")
    entered = Progress(0.0, 2, None, Phase.PREPARING, "cpu-flash")
    assert clock.at(0.1, MEMORY, entered) == [MEMORY, entered]
    assert clock.at(0.2, entered) == []
