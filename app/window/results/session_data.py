"""The one store that every view reads: the session under way, or the one that was opened."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from PySide6.QtCore import QObject, Signal

from app.report.outcome import CaseRows, by_case
from app.window.results.series import MemoryColumns, SampleColumns
from engine.records import events
from engine.records.events import Event
from engine.records.plan import Case, Plan
from engine.records.results import Row
from engine.storage.run_file import RunFile, RunRecorder, SampleSeries

Key = tuple[int, str]  # a case's index and a kernel's name


@dataclass(frozen=True)
class Beginning:
    """What is known of a kernel before its first sample: its first run, and its memory beyond Q, K, V and output."""

    first_run_ms: float | None
    scratch_bytes: int | None


_MEASURED = (
    "wall_ms_median", "wall_ms_min", "wall_ms_p90", "wall_ms_iqr", "gpu_ms_median", "first_run_ms", "gflops",
    "scratch_bytes", "peak_bytes", "predicted_bytes",
)  # fmt: skip


class SessionData(QObject):
    """A session as far as it has come. Views read it and listen; ``feed`` and ``load`` fill it.

    ``plan`` is None while there is nothing; ``case`` is the one under way or last begun, ``preparing`` the case and
    kernel that has not given a sample yet.
    """

    reset = Signal()  # another session: everything is to be read anew
    rows_changed = Signal()
    case_started = Signal(object)  # a Case
    samples_grew = Signal()  # samples or memory; listeners draw from a timer, not from here
    finished = Signal(object)  # why, as in SessionFinished

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._clear()

    def _clear(self) -> None:
        self._recorder = RunRecorder()  # of everything but samples, which it would keep one by one
        self._groups: tuple[CaseRows, ...] | None = ()
        self._rows: dict[Key, Row] = {}
        self._series: dict[Key, SampleColumns] = {}
        self._beginnings: dict[Key, Beginning] = {}
        self.memory = MemoryColumns()
        self.plan: Plan | None = None
        self.case: Case | None = None
        self.running = False
        self.reason = ""
        self.warnings: list[str] = []

    # --- filling ----------------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Take note of an event and tell the views."""
        match event:
            case events.SampleBatch(case, kernel, samples):
                self._samples_of(case.index, kernel).extend(samples)
                self.samples_grew.emit()
                return
            case events.MemorySample(time_s, process_bytes, gpu_bytes):
                self.memory.append(time_s=[time_s], process_bytes=[process_bytes], gpu_bytes=[gpu_bytes])
                self.samples_grew.emit()
                return
            case events.SessionStarted(plan=plan):
                self._clear()
                self.plan, self.running = plan, True
        self._recorder(event)
        match event:
            case events.SessionStarted():
                self.reset.emit()
            case events.CaseStarted(case):
                self.case = case
                self.case_started.emit(case)
            case events.KernelPrepared():
                self._beginnings[event.case.index, event.kernel] = Beginning(event.first_run_ms, event.scratch_bytes)
                self.samples_grew.emit()
            case events.KernelSkipped() | events.KernelFinished() | events.KernelFailed():
                self._keep_row(event.case.index, event.row)
                self.rows_changed.emit()
            case events.Warning(message):
                self.warnings.append(message)
            case events.SessionFinished():
                self.running, self.reason = False, event.reason
                self.finished.emit(event.reason)

    def load(self, run: RunFile) -> None:
        """Show a run that was opened. Raises ValueError, and keeps what is shown, where the run contradicts itself."""
        groups = by_case(run.plan, run.results)
        for row in run.results:
            _check(row)
        series: dict[Key, SampleColumns] = {}
        memory = MemoryColumns()
        try:
            for entry in run.samples:
                series.setdefault((entry.case, entry.kernel), SampleColumns()).extend(entry.samples)
            memory.extend(run.memory)
        except OverflowError as error:
            raise ValueError("it holds repeats or bytes beyond what any machine can do") from error
        self._clear()
        self.plan, self._series, self.memory = run.plan, series, memory
        self.case = groups[-1].case if groups else None
        self.reason = run.reason
        self._recorder(events.SessionStarted(run.run_id, run.started_at, run.plan, run.environment))
        for group in groups:
            for row in group.rows:
                self._keep_row(group.case.index, row)
                self._recorder(events.KernelFinished(group.case, row.kernel, row))
        self._recorder(run.finished)
        self.reset.emit()

    def _samples_of(self, case: int, kernel: str) -> SampleColumns:
        return self._series.setdefault((case, kernel), SampleColumns())

    def _keep_row(self, case: int, row: Row) -> None:
        self._groups = None
        self._rows[case, row.kernel] = row
        self._beginnings[case, row.kernel] = Beginning(row.first_run_ms, row.scratch_bytes)

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        """Whether there is no session at all."""
        return self.plan is None

    @property
    def cases(self) -> tuple[Case, ...]:
        """All cases of the plan."""
        return self.plan.cases if self.plan else ()

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels of the plan, in its order."""
        return self.plan.kernels if self.plan else ()

    @property
    def rows(self) -> list[Row]:
        """The rows so far, by case and in the plan's order of kernels."""
        return self._recorder.rows

    def groups(self) -> tuple[CaseRows, ...]:
        """Return the rows so far case by case; cases without a row are left out."""
        if self._groups is None:
            found = (
                (case, tuple(row for kernel in self.kernels if (row := self._rows.get((case.index, kernel)))))
                for case in self.cases
            )
            self._groups = tuple(CaseRows(case, rows) for case, rows in found if rows)
        return self._groups

    def row(self, case: int, kernel: str) -> Row | None:
        """Return a kernel's row, None while it has none."""
        return self._rows.get((case, kernel))

    def samples(self, case: int) -> Mapping[str, SampleColumns]:
        """Return the samples of a case by kernel, in the plan's order; kernels without one are left out."""
        found = ((kernel, self._series.get((case, kernel))) for kernel in self.kernels)
        return {kernel: columns for kernel, columns in found if columns}

    def all_samples(self) -> Mapping[Key, SampleColumns]:
        """Return every kernel's samples in every case."""
        return {key: columns for key, columns in self._series.items() if columns}

    def beginning(self, case: int, kernel: str) -> Beginning | None:
        """Return what is known of a kernel before its samples, None while it is not prepared."""
        return self._beginnings.get((case, kernel))

    @property
    def series(self) -> tuple[SampleSeries, ...]:
        """Every raw sample, as the run file and the samples CSV take them."""
        return tuple(
            SampleSeries(kernel=kernel, case=case, samples=columns.samples())
            for (case, kernel), columns in self._series.items()
        )

    def run(self) -> RunFile | None:
        """Return the session so far as it is saved, None where there is none. Makes an object of every sample."""
        run = self._recorder.run
        return None if run is None else msgspec.structs.replace(run, samples=self.series, memory=self.memory.points())

    def run_id(self) -> str:
        """Return the session's identity, empty where there is none."""
        run = self._recorder.run
        return run.run_id if run else ""


def _check(row: Row) -> None:
    """Raise ValueError where a row holds what nobody can have measured, as only a made-up run file does."""
    for name in _MEASURED:
        value = getattr(row, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{row.kernel} has {name} {value}, which cannot have been measured")
