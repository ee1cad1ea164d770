"""The wheel over a field without focus scrolls what lies around it, and changes nothing."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QAbstractSlider, QAbstractSpinBox, QApplication, QComboBox, QScrollBar, QWidget
from pytestqt.qtbot import QtBot

from app.window.dialogs.export_picture import ExportPicture
from app.window.look.wheel import guard_fields
from app.window.main_window import MainWindow


def turn(field: QWidget, steps: int = -3) -> QWheelEvent:
    middle = QPointF(field.rect().center())
    event = QWheelEvent(
        middle, field.mapToGlobal(middle), QPoint(), QPoint(0, 120 * steps), Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    QApplication.sendEvent(field, event)
    return event


def fields(root: QWidget) -> list[QWidget]:
    kinds = (QComboBox, QAbstractSpinBox, QAbstractSlider)
    return [field for kind in kinds for field in root.findChildren(kind) if not isinstance(field, QScrollBar)]


def held(field: QWidget) -> object:
    return field.currentIndex() if isinstance(field, QComboBox) else field.value()  # type: ignore[attr-defined]


def test_no_field_of_the_window_is_changed_by_scrolling_past_it(qtbot: QtBot, window: MainWindow) -> None:
    window.show()
    found = fields(window)
    assert len(found) >= 10
    for field in found:
        field.clearFocus()
        before = held(field)
        for steps in (-3, 3):
            turn(field, steps)
            assert held(field) == before, field.objectName() or field
        assert not field.hasFocus()
        assert field.focusPolicy() != Qt.FocusPolicy.WheelFocus


def test_no_field_of_a_dialog_is_changed_by_scrolling_past_it(qtbot: QtBot) -> None:
    dialog = ExportPicture(QWidget().size(), 2)
    qtbot.addWidget(dialog)
    for field in fields(dialog):
        before = held(field)
        turn(field)
        assert held(field) == before


def test_the_wheel_turns_the_field_that_has_the_focus(qtbot: QtBot) -> None:
    root = QWidget()
    qtbot.addWidget(root)
    combo = QComboBox(root)
    combo.addItems(["one", "two", "three"])
    guard_fields(root)
    with qtbot.waitActive(root):
        root.show()
        root.activateWindow()
    combo.setFocus()
    qtbot.waitUntil(combo.hasFocus)
    turn(combo, -1)
    assert combo.currentIndex() == 1
