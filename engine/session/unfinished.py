"""What a session that was cut off still owes: a row for every kernel that has none, and its last event."""

from __future__ import annotations

import contextlib
import math
from array import array
from collections.abc import Iterator, Sequence

import msgspec

from engine.devices.device import Device, DeviceInfo, DeviceUnavailable
from engine.kernels.registry import get_kernel
from engine.records.events import (
    CaseFinished,
    CaseStarted,
    Event,
    KernelFailed,
    KernelFinished,
    KernelPrepared,
    KernelSkipped,
    SampleBatch,
    SessionFinished,
    SessionStarted,
)
from engine.records.plan import Case
from engine.records.results import Row, Sample, Status, StopReason

_Key = tuple[int, str]  # case index and kernel


class _Samples:
    """The samples of a kernel that has no row yet, 24 bytes each: a run may be long, and few are cut off."""

    def __init__(self) -> None:
        self._numbers = array("d")

    def extend(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            gpu_ms = math.nan if sample.gpu_ms is None else sample.gpu_ms
            self._numbers.extend((sample.wall_ms, gpu_ms, sample.repeats))

    def all(self) -> list[Sample]:
        triples = zip(*[iter(self._numbers)] * 3, strict=True)
        return [
            Sample(index, 0.0, wall_ms, None if math.isnan(gpu_ms) else gpu_ms, int(repeats))
            for index, (wall_ms, gpu_ms, repeats) in enumerate(triples)
        ]


class Unfinished:
    """Follows a session's events, and can end it in its place.

    ``devices`` are those listed before the session, so that a row can name the one its kernel ran on.
    """

    def __init__(self, devices: Sequence[DeviceInfo] = ()) -> None:
        self._devices = devices
        self._started: SessionStarted | None = None
        self._begun: set[int] = set()
        self._closed: set[int] = set()
        self._finished: set[_Key] = set()
        self._prepared: dict[_Key, KernelPrepared] = {}
        self._samples: dict[_Key, _Samples] = {}

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case SessionStarted():
                self._started = event
            case CaseStarted(case):
                self._begun.add(case.index)
            case KernelPrepared(case, kernel):
                self._prepared[case.index, kernel] = event
            case SampleBatch(case, kernel, samples):
                self._samples.setdefault((case.index, kernel), _Samples()).extend(samples)
            case KernelSkipped() | KernelFinished() | KernelFailed():
                key = event.case.index, event.kernel
                self._finished.add(key)
                self._samples.pop(key, None)
            case CaseFinished(case):
                self._closed.add(case.index)
            case _:
                pass

    def ending(self, last: SessionFinished, why: str) -> Iterator[Event]:
        """Yield the events that a session stopped here would still have told: ``cancelled`` rows, then the end.

        ``last`` is the last of them, ``why`` the beginning of every row's message.
        """
        if self._started is not None:
            for case in self._started.plan.cases:
                if case.index in self._closed:
                    continue
                if case.index not in self._begun:
                    yield CaseStarted(case)
                for kernel in self._started.plan.kernels:
                    if (case.index, kernel) not in self._finished:
                        yield KernelFinished(case, kernel, self._row(self._started, case, kernel, why))
                yield CaseFinished(case)
        yield last

    def _row(self, started: SessionStarted, case: Case, kernel: str, why: str) -> Row:
        from engine.measure.rows import Occasion, blank_row, with_samples  # not needed by a session that ends well

        key = case.index, kernel
        samples = self._samples[key].all() if key in self._samples else []
        prepared = self._prepared.get(key)
        occasion = Occasion(
            run_id=started.run_id, started_at=started.started_at, plan=started.plan, environment=started.environment
        )
        row = msgspec.structs.replace(
            blank_row(occasion, case, kernel, self._device(started, kernel), Status.CANCELLED),
            message=f"{why} {'while' if samples else 'before'} it was measured",
            stop_reason=StopReason.CANCELLED,
            variant=prepared.variant if prepared else None,
            predicted_bytes=prepared.predicted_bytes if prepared else None,
        )
        return with_samples(row, case.problem, samples, None) if samples else row

    def _device(self, started: SessionStarted, kernel: str) -> Device | None:
        from engine.devices.gpu.device import choose

        gpus = [device for device in self._devices if device.index is not None]
        found: DeviceInfo | None = None
        asked = get_kernel(kernel)
        with contextlib.suppress(ValueError, DeviceUnavailable):
            if asked.device_kind == "gpu":
                found = choose(gpus, started.plan.device)
            elif asked.device_kind == "cpu":
                found = next((device for device in self._devices if device.index is None), None)
        if found is None:
            return None
        device = Device()
        device.info, device.limits = found, found.limits
        return asked.on(device)
