"""What is told in place of a session that was cut off, compared with what a session tells that is stopped there."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from engine.devices.device import DeviceInfo, Limits
from engine.problem.attention_problem import AttentionProblem
from engine.records.events import (
    Ending,
    Event,
    KernelFinished,
    KernelSkipped,
    SampleBatch,
    SessionFinished,
    SessionStarted,
)
from engine.records.plan import Case, Plan
from engine.records.results import Row, Sample, Status, StopReason
from engine.session import session
from engine.session.unfinished import Unfinished

SMALL = AttentionProblem(heads=1, seq_q=8, head_dim=4)
PLAN = Plan(
    cases=tuple(Case(index=index, problem=SMALL) for index in range(3)), kernels=("cpu-flash", "gpu-naive"),
    device="cpu", samples=5,
)  # fmt: skip
CPU = DeviceInfo(
    index=None, name="A Processor", adapter_type="cpu", backend="numpy", driver="numpy 2",
    limits=Limits(memory_bytes=1 << 30, threads=3),
)  # fmt: skip


def told(plan: Plan) -> list[Event]:
    """What a session tells from beginning to end."""
    events: list[Event] = []
    session.run(plan, events.append)
    return events


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return told(PLAN)


def ended_after(events: list[Event], is_last: Callable[[Event], bool]) -> tuple[list[Event], list[Event]]:
    """The events up to the first of a kind, and what is told in place of the rest."""
    cut = next(place for place, event in enumerate(events) if is_last(event)) + 1
    unfinished = Unfinished([CPU])
    for event in events[:cut]:
        unfinished(event)
    return events[:cut], list(unfinished.ending(SessionFinished(Ending.CANCELLED), "stopped"))


def rows(events: list[Event]) -> dict[tuple[int, str], Row]:
    return {(e.case.index, e.kernel): e.row for e in events if isinstance(e, (KernelFinished, KernelSkipped))}


@pytest.mark.parametrize("kind", ["SessionStarted", "CaseStarted", "SampleBatch", "KernelFinished", "CaseFinished"])
def test_every_kernel_gets_its_row_once_and_the_session_its_end(events: list[Event], kind: str) -> None:
    before, after = ended_after(events, lambda event: type(event).__name__ == kind)
    kinds = ("CaseStarted", "CaseFinished", "SessionFinished")
    assert [type(e).__name__ for e in before + after if type(e).__name__ in kinds] == [
        *("CaseStarted", "CaseFinished") * 3,
        "SessionFinished",
    ]
    assert rows(before + after).keys() == rows(events).keys()
    assert not rows(before).keys() & rows(after).keys()
    assert {row.status for row in rows(after).values()} == {Status.CANCELLED}


def test_samples_so_far_are_counted_in_the_row(events: list[Event]) -> None:
    before, after = ended_after(events, lambda event: isinstance(event, SampleBatch))
    batch = next(event for event in before if isinstance(event, SampleBatch))
    row = rows(after)[0, "cpu-flash"]
    assert (row.samples, row.message) == (len(batch.samples), "stopped while it was measured")
    assert (row.device, row.adapter_type, row.threads) == ("A Processor", "cpu", 3)
    assert row.stop_reason is StopReason.CANCELLED
    assert min(s.wall_ms for s in batch.samples) <= (row.wall_ms_median or 0) <= max(s.wall_ms for s in batch.samples)
    assert row.wall_ms_min == min(sample.wall_ms for sample in batch.samples)
    assert rows(after)[1, "cpu-flash"].message == "stopped before it was measured"


def test_gpu_times_are_kept_where_there_are_any() -> None:
    started = next(event for event in told(PLAN) if isinstance(event, SessionStarted))
    unfinished = Unfinished()
    unfinished(started)
    samples = tuple(Sample(i, 0.0, 2.0, 1.0 if i else None, 3) for i in range(20))
    unfinished(SampleBatch(PLAN.cases[0], "gpu-naive", samples))
    row = rows(list(unfinished.ending(SessionFinished(Ending.CANCELLED), "stopped")))[0, "gpu-naive"]
    assert (row.samples, row.repeats, row.gpu_ms_median, row.clock, row.device) == (20, 3, 1.0, "gpu", None)


def test_a_row_names_the_device_as_its_kernel_does_and_none_that_was_not_listed() -> None:
    started = next(event for event in told(PLAN) if isinstance(event, SessionStarted))
    peers = msgspec.structs.replace(PLAN, kernels=("torch-sdpa", "torch-sdpa-cuda"))
    unfinished = Unfinished([CPU])
    unfinished(msgspec.structs.replace(started, plan=peers))
    found = rows(list(unfinished.ending(SessionFinished(Ending.CANCELLED), "stopped")))
    assert (found[0, "torch-sdpa"].device, found[0, "torch-sdpa"].backend) == ("A Processor", "pytorch")
    assert found[0, "torch-sdpa-cuda"].device is None


def test_a_session_that_never_began_only_ends() -> None:
    assert list(Unfinished().ending(SessionFinished(Ending.CUT_OFF, "it died"), "stopped")) == [
        SessionFinished(Ending.CUT_OFF, "it died")
    ]
