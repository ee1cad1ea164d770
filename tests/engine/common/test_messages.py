"""Errors as one line."""

from __future__ import annotations

import pytest

from engine.common.messages import sentence


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("what clashed"), "what clashed"),
        (RuntimeError("first\n\n  second\tthird"), "first second third"),
        (OSError(2, "No such file", "a"), "[Errno 2] No such file: 'a'"),
        (ValueError(), "ValueError"),
        (KeyError("x"), "KeyError: 'x'"),
        (MemoryError(), "out of memory"),
        (MemoryError("Unable to allocate 8 GiB"), "out of memory: Unable to allocate 8 GiB"),
        (ValueError("y" * 301), "y" * 300 + "…"),
    ],
)
def test_an_error_is_one_line(error: Exception, text: str) -> None:
    assert sentence(error) == text
