"""Sentences across the top of the window: what happened and what can be done about it, without a dialog in the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QSizePolicy, QToolButton, QVBoxLayout, QWidget

from app.window.look.appearance import appearance

_MOST = 4
_LASTS_MS = 8000  # of a notice that only says what was done

Choice = tuple[str, Callable[[], None]]  # what the button says, what it does; then the notice is done


class Tone(Enum):
    """How much a notice matters; its colour."""

    INFO = "accent"
    CAUTION = "caution"
    BAD = "bad"


class Notices(QWidget):
    """The notices that are up, newest first; it takes no room while there is none."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(0)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self.hide()

    def say(self, text: str, tone: Tone = Tone.INFO, choices: Sequence[Choice] = ()) -> None:
        """Put a notice up. One that says the same is replaced; of more than a few the oldest goes."""
        for notice in self._up():
            if notice.text == text:
                self._take_down(notice)
        notice = _Notice(text, tone, choices, self)
        notice.done = lambda: self._take_down(notice)
        self._layout.insertWidget(0, notice)
        if tone is Tone.INFO and not choices:
            fading = QTimer(notice, singleShot=True, interval=_LASTS_MS)
            fading.timeout.connect(lambda: notice.done())
            fading.start()
        for oldest in self._up()[_MOST:]:
            self._take_down(oldest)
        self.show()

    def clear(self) -> None:
        """Take all notices down."""
        for notice in self._up():
            self._take_down(notice)

    def texts(self) -> list[str]:
        """Return what is up, newest first."""
        return [notice.text for notice in self._up()]

    def choose(self, label: str) -> None:
        """Press the newest button of that name."""
        next(button for notice in self._up() for button in notice.buttons if button.text() == label).click()

    def _up(self) -> list[_Notice]:
        items = (self._layout.itemAt(place) for place in range(self._layout.count()))
        return [notice for item in items if item is not None and isinstance(notice := item.widget(), _Notice)]

    def _take_down(self, notice: _Notice) -> None:
        self._layout.removeWidget(notice)
        notice.hide()
        notice.deleteLater()
        self.setVisible(self._layout.count() > 0)


class _Notice(QFrame):
    def __init__(self, text: str, tone: Tone, choices: Sequence[Choice], parent: QWidget) -> None:
        super().__init__(parent)
        self.text, self._tone = text, tone
        self.done: Callable[[], None] = self.hide
        self.setObjectName("notice")
        self.setAccessibleName(text)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(12, 6, 6, 6)
        label = QLabel(text)
        label.setTextFormat(Qt.TextFormat.PlainText)
        label.setWordWrap(True)
        label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        layout.addWidget(label, 1)
        self.buttons = [self._button(*choice) for choice in choices]
        for button in self.buttons:
            layout.addWidget(button)
        close = QToolButton()
        close.setText("✕")
        close.setAutoRaise(True)
        close.setToolTip("Dismiss")
        close.setAccessibleName("Dismiss")
        close.clicked.connect(lambda: self.done())
        layout.addWidget(close)
        appearance().changed.connect(self._dress)
        self._dress()

    def _button(self, label: str, act: Callable[[], None]) -> QPushButton:
        def press() -> None:
            self.done()
            act()

        button = QPushButton(label)
        button.clicked.connect(press)
        return button

    def _dress(self) -> None:
        palette = appearance().palette
        colour = getattr(palette, self._tone.value)
        self.setStyleSheet(
            f"#notice {{ background: {palette.paper}; border: none; border-left: 4px solid {colour}; "
            f"border-bottom: 1px solid {palette.rule}; }}"
        )
