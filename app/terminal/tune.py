"""Tuning on the terminal: every kernel of a device that has variants, kind by kind; prints, stores and writes a CSV."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from app.plan.options import Tune
from app.plan.usage import UsageError
from app.report.units import significant
from app.terminal.interrupt import Interrupt
from engine.common.messages import sentence
from engine.common.running import Cancelled, ShouldStop
from engine.devices import tuning_store
from engine.devices.cpu import open_cpu
from engine.devices.device import Device, DeviceInfo, DeviceUnavailable
from engine.devices.gpu.device import open_gpu
from engine.kernels import registry
from engine.kernels.base import Kernel
from engine.measure.tuning import Trial, Tuning, problem_to_tune, tune
from engine.problem.attention_problem import AttentionProblem
from engine.records.results import Status
from engine.storage.csv_report import write_table

_COLUMNS = ("device", "driver", "kernel", "dtype", "head_dim", "causal", "heads", "seq", "variant", "default", "best",
            "status", "ms_median", "ms_iqr", "samples", "vs_default", "message")  # fmt: skip
_INTERRUPTED = 128  # plus the signal's number: 130 for Ctrl+C


def tune_device(selector: str, wanted: Tune, csv: Path | None, console: Console) -> int:
    """Open the device and tune it; return the exit status, see ``tune_all``.

    Raises UsageError where there is no such device, or nothing to tune on it.
    """
    with contextlib.ExitStack() as stack:
        device: Device
        try:
            device = stack.enter_context(open_cpu()) if selector == "cpu" else open_gpu(selector)
        except DeviceUnavailable as error:
            if selector != "auto":
                raise UsageError(str(error)) from error
            device = stack.enter_context(open_cpu())
        kernels = tunable(device)
        if not kernels:
            raise UsageError(f"no kernel has variants to choose from on {device.info.name}; try --device cpu")
        return tune_all(device, kernels, wanted, csv, console)


def tunable(device: Device) -> list[Kernel]:
    """Return the installed kernels of a device that have variants to choose from."""
    kind = "cpu" if device.info.adapter_type == "cpu" else "gpu"
    kernels = [registry.get_kernel(name) for name in registry.installed_kernels()]
    probe = AttentionProblem()
    return [kernel for kernel in kernels if kernel.device_kind == kind and kernel.candidates(probe, device.limits)]


def tune_all(device: Device, kernels: Sequence[Kernel], wanted: Tune, csv: Path | None, console: Console) -> int:
    """Tune the kernels kind by kind, print and store each result as soon as it is known; return the exit status.

    0: all was tuned; 1: a kernel has no variant that works, or a file could not be written; 128 + n: ended by signal n,
    with what was learned until then stored and written.
    """
    if device.info.notice:
        print(device.info.notice, file=sys.stderr)
    report = _Report(device.info, console)
    with Interrupt(report.stopping) as interrupt, contextlib.suppress(KeyboardInterrupt), report.progress:
        for kernel, head_dim, causal in itertools.product(kernels, wanted.head_dims, wanted.causal):
            if not interrupt:
                _tune(kernel, kernel.on(device), wanted, head_dim, causal, report, lambda: bool(interrupt))
    if csv is not None and report.tunings:
        report.write(csv)
    for failure in report.failures:
        print(failure, file=sys.stderr)
    if interrupt.signal is not None:
        return _INTERRUPTED + interrupt.signal
    return 1 if report.failures else 0


@dataclass
class _Report:
    """What has been found so far, and how it is shown."""

    device: DeviceInfo
    console: Console
    tunings: list[Tuning] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            console=self.console,
            refresh_per_second=4,
            transient=True,
            disable=self.console.quiet or not self.console.is_terminal,
        )
        self._task = self.progress.add_task("starting", total=None)
        self._stopping = False

    def stopping(self) -> None:
        """Say that a stop was asked for and is on its way."""
        self._stopping = True
        self.progress.update(self._task, description="stopping; Ctrl+C again to leave at once")

    def say(self, text: str, done: int = 0, total: int | None = None) -> None:
        """Show what is under way."""
        if not self._stopping:
            self.progress.update(self._task, description=text, completed=done, total=total)

    def add(self, tuning: Tuning) -> None:
        """Print a result and store its winner."""
        self.tunings.append(tuning)
        if tuning.tuned is None:
            self.failures.append(f"{_kind(tuning)}: no variant could be measured{_first_complaint(tuning.trials)}")
        else:
            try:
                tuning_store.store(self.device, tuning.tuned)
            except OSError as error:
                self.failures.append(f"{tuning_store.path()} could not be written: {error.strerror or error}")
        self.console.print()
        self.console.print(Text(_answer(tuning), style="bold"), highlight=False)
        if tuning.trials:
            self.console.print(_table(tuning))

    def write(self, csv: Path) -> None:
        """Write every trial to a CSV file."""
        try:
            write_table(csv, _COLUMNS, _rows(self.device, self.tunings))
            self.console.print(f"Wrote {csv}", markup=False, highlight=False, soft_wrap=True)
        except OSError as error:
            self.failures.append(f"{csv} could not be written: {error.strerror or error}")


def _tune(
    kernel: Kernel, device: Device, wanted: Tune, head_dim: int, causal: bool, report: _Report, stop: ShouldStop
) -> None:
    """Tune one kernel for one kind of problem and report on it."""
    kind = _named(kernel.name, head_dim, causal)
    report.say(f"{kind}: sizing the problem")
    try:
        problem = problem_to_tune(kernel, device, head_dim, causal, wanted.dtype, wanted.seconds, stop)
    except Cancelled:
        return
    except Exception as error:
        report.failures.append(f"{kind}: {sentence(error)}")
        return

    def on_trial(done: int, total: int, trial: Trial) -> None:
        report.say(f"{kind}, seq {problem.seq_q}: {trial.variant}", done, total)

    report.add(tune(kernel, problem, device, wanted.seconds, on_trial, stop))


def _named(kernel: str, head_dim: int, causal: bool) -> str:
    return f"{kernel}, head_dim {head_dim}, {'causal' if causal else 'not causal'}"


def _kind(tuning: Tuning) -> str:
    return _named(tuning.kernel, tuning.problem.head_dim, tuning.problem.causal)


def _first_complaint(trials: Sequence[Trial]) -> str:
    return next((f"; {trial.variant}: {trial.message}" for trial in trials if trial.message), "")


def _answer(tuning: Tuning) -> str:
    """Return the result in a sentence."""
    kind = f"{_kind(tuning)} (heads {tuning.problem.heads}, seq {tuning.problem.seq_q})"
    cut_short = "" if tuning.complete else "; not all variants were tried"
    if tuning.best is None:
        return f"{kind}: nothing was measured"
    best = tuning.trials[tuning.best]
    quickest = _quickest(tuning.trials)
    if quickest is not best:
        lead = f"{quickest.variant} at {_versus(tuning, quickest) or 1:.2f}× leads by no more than the spread or 1 %"
        return f"{kind}: the default, {best.variant}, stays: {lead}{cut_short}"
    if tuning.best == 0:
        return f"{kind}: the default, {best.variant}, is the quickest{cut_short}"
    gain = f"takes {significant(100 * tuning.gain, 2)} % less time than the default, {tuning.trials[0].variant}"
    return f"{kind}: {best.variant} {gain}{cut_short}"


def _quickest(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the least median of those that were timed."""
    return min((trial for trial in trials if trial.median_ms is not None), key=lambda trial: trial.median_ms or 0.0)


def _table(tuning: Tuning) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("variant")
    for title in ("ms", "±IQR", "samples", "vs default"):
        table.add_column(title, justify="right")
    table.add_column("")
    for place, trial in enumerate(tuning.trials):
        if trial.median_ms is None:
            figures = ["–", "–", "–", "–"]
        else:
            versus = _versus(tuning, trial)
            figures = [
                significant(trial.median_ms),
                significant(trial.iqr_ms or 0, 2),
                str(trial.samples),
                "–" if versus is None else f"{versus:.2f}×",
            ]
        marks = ["default"] * (place == 0)
        if place == tuning.best:
            marks.append("quickest" if trial is _quickest(tuning.trials) else "stays")
        if trial.status is not Status.OK:
            marks.append(f"{trial.status.value}: {trial.message}")
        table.add_row(trial.variant, *figures, ", ".join(marks), style="green" if place == tuning.best else "")
    return table


def _versus(tuning: Tuning, trial: Trial) -> float | None:
    """Return a trial's speed relative to the default's."""
    default = tuning.trials[0].median_ms
    return default / trial.median_ms if default and trial.median_ms else None


def _rows(device: DeviceInfo, tunings: Iterable[Tuning]) -> Iterable[Sequence[object]]:
    for tuning in tunings:
        problem = tuning.problem
        for place, trial in enumerate(tuning.trials):
            yield (
                device.name, device.driver, tuning.kernel, problem.dtype, problem.head_dim, problem.causal,
                problem.heads, problem.seq_q, trial.variant, place == 0, place == tuning.best, trial.status,
                trial.median_ms, trial.iqr_ms, trial.samples, _versus(tuning, trial), trial.message,
            )  # fmt: skip
