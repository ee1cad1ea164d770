"""The wheel scrolls: over a field that has no focus it never changes what the field holds."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtWidgets import QAbstractSlider, QAbstractSpinBox, QComboBox, QScrollBar, QWidget


class _Guard(QObject):
    """Passes the wheel on to what lies around a field, unless the field has the focus."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802
        if event.type() == QEvent.Type.Wheel and isinstance(watched, QWidget) and not watched.hasFocus():
            event.ignore()  # so that Qt offers it to the field's parent
            return True
        return False


def guard_fields(root: QWidget) -> None:
    """Guard every combo box, spin box and slider inside ``root``; called when ``root`` is complete."""
    guard = _Guard(root)
    for kind in (QComboBox, QAbstractSpinBox, QAbstractSlider):
        for field in root.findChildren(kind):
            if not isinstance(field, QScrollBar):
                field.installEventFilter(guard)
                if field.focusPolicy() == Qt.FocusPolicy.WheelFocus:
                    field.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
