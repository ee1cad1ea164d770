"""Text from outside is shown as it is: a kernel, a device or a file may be named like markup, and none is drawn."""

from __future__ import annotations

import html

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QWidget


def plain_labels(root: QWidget) -> None:
    """Make every label inside ``root`` show plain text, but for those that were set to rich text on purpose."""
    for label in root.findChildren(QLabel):
        if label.textFormat() == Qt.TextFormat.AutoText:
            label.setTextFormat(Qt.TextFormat.PlainText)


def plain_tip(text: str) -> str:
    """Return a text as a tooltip that shows just that: Qt takes a tooltip that looks like markup for markup."""
    if "<" not in text and "&" not in text:
        return text
    return f"<qt>{html.escape(text)}</qt>".replace("\n", "<br>")


def plain_caption(text: str) -> str:
    """Return a text as the caption of a button or a menu entry, where ``&`` would mark a key."""
    return text.replace("&", "&&")
