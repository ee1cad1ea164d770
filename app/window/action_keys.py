"""Lets the keys of the window's actions through where text is typed: on X11 a text field takes Ctrl+E for itself."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject
from PySide6.QtGui import QKeyEvent, QKeySequence
from PySide6.QtWidgets import QAbstractSpinBox, QLineEdit, QWidget


class ActionKeys(QObject):
    """Watches the fields that ``window`` has by now; they keep every key that no action of the window has."""

    def __init__(self, window: QWidget) -> None:
        super().__init__(window)
        self._window = window
        for kind in (QLineEdit, QAbstractSpinBox):
            for field in window.findChildren(kind):
                field.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802
        """Withhold the question whether the field wants a key for itself, where an action has that key."""
        if event.type() != QEvent.Type.ShortcutOverride or not isinstance(event, QKeyEvent):
            return False
        keys = QKeySequence(event.keyCombination())
        if all(action.shortcut() != keys for action in self._window.actions()):
            return False
        event.ignore()
        return True
