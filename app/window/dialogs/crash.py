"""The dialog for an error nobody expected: one, however many there are, with a report that can be copied."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QWidget

from app.window.dialogs.text_report import TextReport

_MOST_SHOWN = 20


class CrashDialog(TextReport):
    """Shows the first report; ``add`` puts further ones below it."""

    def __init__(self, report: str, log: Path, parent: QWidget | None = None) -> None:
        super().__init__("FlashScope: unexpected error", "", report, parent)
        self._log = log
        self._count = 1
        self._say()

    def add(self, report: str) -> None:
        """Take a further report in; beyond a score of them they are only counted."""
        self._count += 1
        if self._count <= _MOST_SHOWN:
            self.set_report(f"{self.report}\n{'─' * 72}\n{report}")
        self._say()

    def _say(self) -> None:
        what = "Something went wrong" if self._count == 1 else f"{self._count} things went wrong"
        self.heading.setText(
            f"{what} that FlashScope did not expect. Your results are kept, and you can go on working. "
            f"Please send the report below to whoever maintains FlashScope. It is also in {self._log}"
        )
