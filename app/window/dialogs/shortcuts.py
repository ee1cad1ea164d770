"""Every keyboard shortcut of the window, taken from its actions, so that none can be forgotten."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QHeaderView,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)


class Shortcuts(QDialog):
    """A table of what can be done and the keys that do it."""

    def __init__(self, window: QWidget) -> None:
        super().__init__(window)
        self.setWindowTitle("Keyboard shortcuts")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.resize(520, 620)
        entries = shortcuts_of(window)
        table = QTableWidget(len(entries), 2)
        table.setHorizontalHeaderLabels(["What", "Keys"])
        table.setEditTriggers(QTableWidget.EditTrigger.NoEditTriggers)
        table.setShowGrid(False)
        table.verticalHeader().hide()
        table.horizontalHeader().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        table.horizontalHeader().setSectionResizeMode(1, QHeaderView.ResizeMode.ResizeToContents)
        table.horizontalHeader().setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        for row, (what, keys) in enumerate(entries):
            table.setItem(row, 0, QTableWidgetItem(what))
            table.setItem(row, 1, QTableWidgetItem(keys))
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.reject)
        layout = QVBoxLayout(self)
        layout.addWidget(table)
        layout.addWidget(buttons)


def shortcuts_of(window: QWidget) -> list[tuple[str, str]]:
    """Return what every action and shortcut of the window does, and its keys as this system writes them."""
    found = [
        (action.text().replace("&", "").rstrip("…"), action.shortcuts())
        for action in window.findChildren(QAction)
        if action.shortcuts()
    ]
    found += [(shortcut.whatsThis(), shortcut.keys()) for shortcut in window.findChildren(QShortcut)]
    found += [  # keys that belong to widgets rather than to actions
        ("Tables: copy the selected rows", [QKeySequence(QKeySequence.StandardKey.Copy)]),
        ("Move between controls", [QKeySequence("Tab")]),
        ("Close a dialog", [QKeySequence("Esc")]),
    ]
    native = QKeySequence.SequenceFormat.NativeText
    lines = {what: ", ".join(key.toString(native) for key in keys if not key.isEmpty()) for what, keys in found if what}
    return list(lines.items())
