"""About FlashScope: what it is, and a report on this machine that can be copied into a question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QWidget

import engine
from app.window.dialogs.text_report import TextReport

if TYPE_CHECKING:
    from engine.devices.doctor import Check

_HEADING = (
    f"<b>FlashScope {engine.__version__}</b><br>A profiler for attention kernels: GPU and CPU, flash and naive, "
    "verified against a float64 reference and measured.<br>MIT licence. The report below says what it found here, what "
    "is missing, and the command that mends it."
)


class AboutDialog(TextReport):
    """Opens at once; the report follows when the engine has looked around, after the run where it is ``busy``."""

    def __init__(self, busy: bool, parent: QWidget | None = None) -> None:
        waiting = "The report follows when the run has ended." if busy else "Looking around…"
        super().__init__("About FlashScope", _HEADING, waiting, parent)

    def show_checks(self, checks: Sequence[Check]) -> None:
        """Show what the doctor found."""
        self.set_report(report_of(checks))


def report_of(checks: Sequence[Check]) -> str:
    """Return the doctor's findings as plain text, a line each, the command that mends it below."""
    width = max((len(check.name) for check in checks), default=0)
    lines = [f"FlashScope {engine.__version__}"]
    for check in checks:
        lines.append(f"{check.status:<8} {check.name:<{width}}  {check.detail}")
        if check.mend:
            lines.append(f"{'':{width + 11}}{check.mend}")
    return "\n".join(lines) + "\n"
