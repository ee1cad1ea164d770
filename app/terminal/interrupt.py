"""Ctrl+C and termination: the first asks, the second insists."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """While entered, SIGINT and SIGTERM set ``signal``; a second one raises KeyboardInterrupt in the main thread.

    The handlers are installed whatever was there before: a program started in the background inherits SIGINT ignored.
    """

    def __init__(self, asked: Callable[[], None]) -> None:
        self.signal: int | None = None
        self._asked = asked
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        return self.signal is not None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        self._asked()
