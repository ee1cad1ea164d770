"""The status bar: what the engine is doing, how far it is and how long that takes, and on which device."""

from __future__ import annotations

import time

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QProgressBar, QStatusBar, QWidget

from app.report.outcome import distinct
from app.report.units import remaining
from app.window.engine_thread import EngineState
from app.window.look.local_numbers import localised
from engine.records import events
from engine.records.events import Ending, Event, Phase
from engine.records.plan import Case, Plan

_STEPS = 1000
_IDLE = {
    EngineState.STARTING: "Starting the engine…",
    EngineState.IDLE: "Ready",
    EngineState.DEAD: "The engine could not be started; refresh the devices to try again",
}
_PHASES = {
    Phase.REFERENCE: "computing the reference",
    Phase.PREPARING: "preparing",
    Phase.MEASURING: "measuring",
}


class RunStatus:
    """Fills a status bar from the engine's state and the run's events."""

    def __init__(self, bar: QStatusBar) -> None:
        self._doing = _label(bar)
        self._progress = QProgressBar()
        self._progress.setRange(0, _STEPS)
        self._progress.setFixedWidth(220)
        self._progress.setTextVisible(False)
        self._progress.setAccessibleName("Progress of the run")
        self._left = _label(bar)
        self._device = _label(bar)
        self._device.setToolTip("The devices that this set-up runs on")
        bar.addWidget(self._doing, 1)
        for widget in (self._left, self._progress, self._device):
            bar.addPermanentWidget(widget)
        self._progress.hide()
        self._state = EngineState.STARTING
        self._cases: tuple[Case, ...] = ()
        self._where = self._doing_what = ""
        self._began = time.monotonic()
        self._ended = ""
        self._show()

    @property
    def text(self) -> str:
        """What the bar says is going on."""
        return self._doing.text()

    @property
    def time_left(self) -> str:
        """What the bar says of the time left; empty while nothing runs."""
        return self._left.text()

    def begin(self, plan: Plan) -> None:
        """A run was asked for."""
        self._cases, self._where, self._doing_what, self._ended = plan.cases, "", "", ""
        self._began = time.monotonic()
        self._progress.setValue(0)
        self._left.setText("")

    def set_state(self, state: EngineState) -> None:
        """Show what the engine is doing."""
        self._state = state
        self._show()

    def set_devices(self, words: str) -> None:
        """Name the devices in use."""
        self._device.setText(words)

    def feed(self, event: Event) -> None:
        """Follow a run."""
        match event:
            case events.CaseStarted(case):
                number = f"case {case.index + 1} of {len(self._cases)}" if len(self._cases) > 1 else ""
                self._where = " · ".join(filter(None, (number, distinct(case, self._cases))))
                self._doing_what = ""
            case events.Progress(done, total, seconds_left, phase, kernel):
                self._doing_what = self._doing_what if phase is None else f"{_PHASES[phase]} {kernel}".rstrip()
                self._progress.setValue(round(_STEPS * done / max(1, total)))
                self._left.setText("" if seconds_left is None else _time_left(seconds_left))
            case events.SessionFinished(ending):
                took = localised(remaining(time.monotonic() - self._began))
                self._ended = {Ending.DONE: f"Finished in {took}", Ending.CANCELLED: "Stopped"}.get(
                    ending, "The run broke off"
                )
            case _:
                return
        self._show()

    def _show(self) -> None:
        running = self._state in (EngineState.RUNNING, EngineState.STOPPING)
        self._progress.setVisible(running)
        self._left.setVisible(running)
        if self._state is EngineState.RUNNING:
            self._doing.setText(" · ".join(filter(None, ("Running", self._where, self._doing_what))))
        elif self._state is EngineState.STOPPING:
            self._doing.setText("Stopping… the kernel finishes its tile; after 5 s the engine is ended")
        else:
            self._doing.setText(self._ended or _IDLE[self._state])


def _time_left(seconds: float) -> str:
    return f"about {remaining(seconds)} left" if seconds >= 1 else "nearly done"


def _label(parent: QWidget) -> QLabel:
    label = QLabel(parent)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setMinimumWidth(0)
    return label
