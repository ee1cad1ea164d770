"""Numbers as the person's country writes them; files and the command line keep the point."""

from __future__ import annotations

import re

from PySide6.QtCore import QLocale

# A decimal number, or one with thousands apart; not part of a word, a version (15.0.6) or a file's name
_NUMBER = re.compile(
    r"(?<![\w.,/])(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.\d+)(?:e[+-]?\d+)?(?![\w/]|[.,]\d|\.\w)", re.ASCII
)


def localised(text: str) -> str:
    """Return ``text`` with its numbers (``1,234.5``) in the person's locale (``1.234,5`` in German)."""
    locale = QLocale()
    separators = {",": locale.groupSeparator(), ".": locale.decimalPoint()}
    return _NUMBER.sub(lambda found: "".join(separators.get(c, c) for c in found[0]), text)


def read_number(text: str) -> float | None:
    """Return the number a person wrote, in their locale or with a point; None where it is none."""
    locale = QLocale()
    locale.setNumberOptions(QLocale.NumberOption.RejectGroupSeparator)
    for language in (locale, QLocale.c()):
        value, sound = language.toDouble(text.strip())
        if sound:
            return value
    return None
