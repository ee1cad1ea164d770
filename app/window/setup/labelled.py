"""A field under its name and unit, which says what is wrong with what was typed."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QLabel, QLineEdit, QVBoxLayout, QWidget

from app.window.look.plain import plain_tip


class Labelled(QWidget):
    """A widget under a label of two words: what it is, and in which unit."""

    def __init__(self, name: str, unit: str, meaning: str, field: QWidget, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.label = QLabel(f"{name} · {unit}" if unit else name)
        self.label.setProperty("role", "muted")
        self.label.setBuddy(field)
        field.setAccessibleName(name)
        field.setAccessibleDescription(meaning)
        self.setToolTip(meaning)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(1)
        layout.addWidget(self.label)
        layout.addWidget(field)


class TextField(Labelled):
    """A line of text. ``complain`` marks it as wrong, with the sentence as its tooltip."""

    changed = Signal()

    def __init__(
        self, name: str, unit: str, meaning: str, placeholder: str = "", parent: QWidget | None = None
    ) -> None:
        self.edit = QLineEdit()
        self.edit.setPlaceholderText(placeholder)
        self.edit.setMinimumWidth(60)
        super().__init__(name, unit, meaning, self.edit, parent)
        self._meaning = meaning
        self.edit.textChanged.connect(lambda: self.changed.emit())

    @property
    def text(self) -> str:
        """What was typed."""
        return self.edit.text()

    def show_text(self, text: str) -> None:
        """Show a text, from its beginning."""
        if text != self.edit.text():
            self.edit.setText(text)
            self.edit.setCursorPosition(0)

    def complain(self, sentence: str) -> None:
        """Mark the field as wrong, or as right with an empty sentence."""
        self.setToolTip(plain_tip(sentence or self._meaning))
        if self.edit.property("wrong") != bool(sentence):
            self.edit.setProperty("wrong", bool(sentence))
            self.edit.style().polish(self.edit)
