"""A dialog with a sentence and a report in a fixed typeface that can be copied whole."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QFontDatabase, QGuiApplication
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QLabel, QPlainTextEdit, QVBoxLayout, QWidget


class TextReport(QDialog):
    """``heading`` above, ``report`` below; it closes with Esc."""

    def __init__(self, title: str, heading: str, report: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(title)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.resize(780, 460)
        self.heading = QLabel(heading)
        self.heading.setWordWrap(True)
        self.heading.setTextInteractionFlags(Qt.TextInteractionFlag.TextBrowserInteraction)
        self.heading.setOpenExternalLinks(True)
        self._report = QPlainTextEdit(report)
        self._report.setReadOnly(True)
        self._report.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self._report.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
        self._report.setAccessibleName("Report")
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        copy = buttons.addButton("&Copy report", QDialogButtonBox.ButtonRole.ActionRole)
        copy.clicked.connect(self.copy)
        buttons.rejected.connect(self.reject)
        layout = QVBoxLayout(self)
        layout.setSpacing(10)
        for widget in (self.heading, self._report, buttons):
            layout.addWidget(widget)
        buttons.button(QDialogButtonBox.StandardButton.Close).setFocus()

    @property
    def report(self) -> str:
        """The report as it is shown."""
        return self._report.toPlainText()

    def set_report(self, report: str) -> None:
        """Show another report."""
        self._report.setPlainText(report)

    def copy(self) -> None:
        """Put the report on the clipboard."""
        QGuiApplication.clipboard().setText(self.report)
