"""Errors as one line of text for the person in front."""

from __future__ import annotations

_LONGEST = 300  # characters that a report repeats; the log has the whole error


def sentence(error: BaseException) -> str:
    """Return an error as one line, with its type where the text alone would not tell what happened."""
    text = " ".join(str(error).split())
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}…"
    if isinstance(error, MemoryError):
        return f"out of memory: {text}" if text else "out of memory"
    if text and isinstance(error, (ValueError, RuntimeError, OSError)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shown(text: str, most: int = 200) -> str:
    """Return text from outside as an error may repeat it: control characters escaped, and cut where it is long."""
    safe = "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
    return safe if len(safe) <= most else f"{safe[: most - 1]}…"
