"""What an empty place says: what it will show, and what to do for it."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QPalette
from PySide6.QtWidgets import QLabel, QStackedLayout, QVBoxLayout, QWidget


class HintStack(QWidget):
    """Shows its content, or while there is none a hint in its place."""

    def __init__(self, hint: str, content: QWidget, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        page = QWidget()
        page.setAutoFillBackground(True)
        page.setBackgroundRole(QPalette.ColorRole.Base)
        self.label = QLabel(hint)
        self.label.setProperty("role", "hint")
        self.label.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.label.setWordWrap(True)
        layout = QVBoxLayout(page)
        layout.setContentsMargins(48, 12, 48, 12)
        layout.addWidget(self.label)
        self._stack = QStackedLayout(self)
        self._stack.addWidget(page)
        self._stack.addWidget(content)

    def show_content(self, there_is_some: bool) -> None:
        """Show the content, or the hint."""
        self._stack.setCurrentIndex(int(there_is_some))
