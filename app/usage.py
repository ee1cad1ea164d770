"""What the first word of the command line may be, and the error for words that cannot be followed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

COMMANDS = ("run", "devices", "doctor")


class UsageError(Exception):
    """The words of the command line cannot be followed; the message is one sentence for whoever typed them."""


def check_files(paths: Sequence[str]) -> None:
    """Raise UsageError for a word that is no file."""
    for path in paths:
        if not Path(path).exists():
            raise UsageError(f"{path!r} is neither a command ({', '.join(COMMANDS)}) nor a file")
