"""What a terminal shows while a race runs: the kernel at work, its samples and spread, and the time left."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from app.report.outcome import distinct
from app.report.units import remaining, significant
from engine.measure.statistics import relative_spread
from engine.records import events
from engine.records.events import Event
from engine.records.plan import Case

_ENOUGH = 4  # samples before a spread means anything


class LiveProgress:
    """One line that follows a session's events; on anything but a terminal it shows nothing at all."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[left]}"),
            console=console,
            refresh_per_second=4,
            transient=True,
            disable=console.quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=None, left="")
        self._cases: tuple[Case, ...] = ()
        self._walls: dict[tuple[int, str], list[float]] = {}
        self._stopping = False

    def __enter__(self) -> LiveProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def stopping(self) -> None:
        """Say that a stop was asked for and is on its way."""
        self._stopping = True
        self._show("stopping after the current tile; Ctrl+C again to leave at once")

    def __call__(self, event: Event) -> None:
        """Show what an event changes."""
        match event:
            case events.SessionStarted(plan=plan):
                self._cases = plan.cases
            case events.CaseStarted(case):
                self._say(self._named("preparing", case))
            case events.KernelPrepared(case, kernel):
                self._say(self._named(f"{kernel}: checking the result", case))
            case events.SampleBatch(case, kernel, samples):
                walls = self._walls.setdefault((case.index, kernel), [])
                walls += [sample.wall_ms for sample in samples]
                self._say(self._named(f"{kernel}: {_sampled(walls)}", case))
            case events.Progress(done=done, total=total, seconds_left=seconds_left):
                left = "" if seconds_left is None else f"{remaining(seconds_left)} left"
                self._bar.update(self._task, completed=done, total=total, left=left)
            case _:
                pass

    def _named(self, text: str, case: Case) -> str:
        where = distinct(case, self._cases) if len(self._cases) > 1 else ""
        return f"{where} · {text}" if where else text

    def _say(self, text: str) -> None:
        if not self._stopping:
            self._show(text)

    def _show(self, text: str) -> None:
        self._bar.update(self._task, description=text)


def _sampled(walls: list[float]) -> str:
    count = f"{len(walls)} sample" + "s" * (len(walls) != 1)
    return count if len(walls) < _ENOUGH else f"{count}, spread {significant(100 * relative_spread(walls), 2)} %"
