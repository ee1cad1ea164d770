"""The log dock: what the engine says as it goes, with the time, by importance."""

from __future__ import annotations

import html
import time
from collections import deque
from dataclasses import dataclass

from PySide6.QtGui import QFontDatabase, QGuiApplication, QTextCursor
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QPlainTextEdit, QPushButton, QVBoxLayout, QWidget

from app.report.outcome import distinct
from app.window.look.appearance import appearance
from engine.records import events
from engine.records.events import Event
from engine.records.plan import Case, Plan

_MOST_LINES = 5000
_LEVELS = ("debug", "info", "warning", "error")
_CHOICES = {"Everything": "debug", "Warnings and errors": "warning", "Errors": "error"}


@dataclass(frozen=True)
class _Line:
    clock: str
    level: str
    text: str

    def __str__(self) -> str:
        return f"{self.clock}  {self.level:<7}  {self.text}"


class LogPanel(QWidget):
    """Lines with time and level, the newest at the end. It keeps the last few thousand."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._lines: deque[_Line] = deque(maxlen=_MOST_LINES)
        self._cases: tuple[Case, ...] = ()
        self._text = QPlainTextEdit()
        self._text.setReadOnly(True)
        self._text.setMaximumBlockCount(_MOST_LINES)
        self._text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self._text.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
        self._text.setPlaceholderText("What the engine says while it works appears here.")
        self._text.setAccessibleName("Log")
        self._level = QComboBox()
        self._level.addItems(list(_CHOICES))
        self._level.currentTextChanged.connect(self._write_anew)
        copy, clear = QPushButton("Copy"), QPushButton("Clear")
        copy.clicked.connect(lambda: QGuiApplication.clipboard().setText(self.text()))
        clear.clicked.connect(self.clear)
        label = QLabel("&Show")
        label.setBuddy(self._level)
        bar = QHBoxLayout()
        bar.setContentsMargins(6, 4, 6, 4)
        bar.addWidget(label)
        bar.addWidget(self._level)
        bar.addStretch(1)
        bar.addWidget(copy)
        bar.addWidget(clear)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addLayout(bar)
        layout.addWidget(self._text)
        appearance().changed.connect(self._write_anew)

    def feed(self, event: Event) -> None:
        """Write down what an event has to say."""
        match event:
            case events.SessionStarted(run_id=run_id, plan=plan):
                self._cases = plan.cases
                self.say("info", f"run {run_id}: {', '.join(plan.kernels)}, {_counted(plan)}")
            case events.CaseStarted(case) if len(self._cases) > 1:
                where = distinct(case, self._cases)
                self.say("info", f"case {case.index + 1} of {len(self._cases)}: {where}")
            case events.LogLine(level, text):
                for line in text.splitlines():
                    self.say(level, line)
            case events.Warning(message):
                self.say("warning", message)
            case events.KernelPrepared(kernel=kernel, variant=variant):
                self.say("debug", f"{kernel} is ready" + (f": {variant}" if variant else ""))
            case events.KernelSkipped(kernel=kernel, reason=reason):
                self.say("warning", f"{kernel} skipped: {reason}")
            case events.KernelFailed(kernel=kernel, message=message, traceback=trace):
                self.say("error", f"{kernel} failed: {message}")
                for line in trace.splitlines():
                    self.say("debug", line)
            case events.KernelFinished(kernel=kernel, row=row):
                ending = f"{kernel}: {row.status.value}" + (f", {row.message}" if row.message else "")
                self.say("info", ending)
            case events.SessionFinished(ending):
                self.say("info" if ending.orderly else "error", f"the run has ended: {event.reason}")
            case _:
                pass

    def say(self, level: str, text: str) -> None:
        """Add a line."""
        line = _Line(time.strftime("%H:%M:%S"), level if level in _LEVELS else "info", text)
        self._lines.append(line)
        if self._shown(line):
            self._text.appendHtml(_coloured(line))

    def clear(self) -> None:
        """Forget all lines."""
        self._lines.clear()
        self._text.clear()

    def text(self) -> str:
        """Return the lines that are shown."""
        return "".join(f"{line}\n" for line in self._lines if self._shown(line))

    def last_lines(self, count: int) -> str:
        """Return the last lines, shown or not."""
        return "".join(f"{line}\n" for line in list(self._lines)[-count:])

    def _shown(self, line: _Line) -> bool:
        return _LEVELS.index(line.level) >= _LEVELS.index(_CHOICES[self._level.currentText()])

    def _write_anew(self) -> None:
        self._text.clear()
        for line in self._lines:
            if self._shown(line):
                self._text.appendHtml(_coloured(line))
        self._text.moveCursor(QTextCursor.MoveOperation.End)


def _coloured(line: _Line) -> str:
    palette = appearance().palette
    colours = {"debug": palette.muted, "warning": palette.caution, "error": palette.bad}
    text = html.escape(str(line)).replace(" ", "&nbsp;")
    return f'<span style="color: {colours.get(line.level, palette.ink)}">{text}</span>'


def _counted(plan: Plan) -> str:
    """Return how many cases there are, and that they are backward where all are."""
    backward = "backward " * all(case.problem.backward for case in plan.cases)
    return f"{len(plan.cases)} {backward}case{'s' * (len(plan.cases) != 1)}"
