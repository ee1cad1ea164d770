"""An engine that follows a script, in the place of the worker process."""

from __future__ import annotations

import threading
from collections.abc import Callable

from made_up import CPU, GPU, batch, make_row, started

from engine.common.running import ShouldStop
from engine.devices.device import DeviceInfo
from engine.devices.doctor import Check
from engine.records import events
from engine.records.events import Event
from engine.records.plan import Plan
from engine.records.results import Status

Script = Callable[[Plan, Callable[[Event], None], ShouldStop], None]


def whole_race(plan: Plan, emit: Callable[[Event], None], should_stop: ShouldStop) -> None:
    """Tell of a race in which every kernel finishes, or is stopped when asked."""
    emit(started(plan))
    total = len(plan.cases) * len(plan.kernels)
    for case in plan.cases:
        emit(events.CaseStarted(case))
        for kernel in plan.kernels:
            emit(events.Progress(case.index * len(plan.kernels), total, None, events.Phase.PREPARING, kernel))
            emit(events.LogLine("info", f"preparing {kernel}"))
            emit(events.KernelPrepared(case, kernel, 1 << 20, "16x32"))
        for kernel in plan.kernels:
            emit(batch(case, kernel, 0, 20))
            emit(events.MemorySample(0.1 * case.index, 200 << 20, 1 << 20))
        for number, kernel in enumerate(plan.kernels):
            status = Status.CANCELLED if should_stop() else Status.OK
            row = make_row(case, kernel, 2.0 + number, status=status, label=plan.label)
            emit(events.KernelFinished(case, kernel, row))
            emit(events.Progress(case.index * len(plan.kernels) + number + 1, total, 1.0))
        emit(events.CaseFinished(case))
    emit(events.SessionFinished(events.Ending.CANCELLED if should_stop() else events.Ending.DONE))


class ScriptedEngine:
    """In the worker's place: ``script`` is what a run does, as ``engine.session.session.run`` would."""

    def __init__(self) -> None:
        self.script: Script = whole_race
        self.listing: Callable[[], list[DeviceInfo]] = lambda: [GPU, CPU]
        self.listed_anew = 0
        self.plans: list[Plan] = []
        self.killed = threading.Event()
        self.closed = False

    def start(self) -> None:
        pass

    def run(self, plan: Plan, emit: Callable[[Event], None], should_stop: ShouldStop) -> None:
        self.plans.append(plan)
        self.script(plan, emit, should_stop)

    def devices(self, *, anew: bool = False) -> list[DeviceInfo]:
        self.listed_anew += anew
        return self.listing()

    def doctor(self) -> list[Check]:
        return [Check("Python", "ok", "3.11.2"), Check("GPU adapters", "missing", "none", "sudo apt-get install x")]

    def kill(self) -> None:
        self.killed.set()

    def close(self) -> None:
        self.closed = True
