"""Draws at most so often: many requests make one drawing, from a timer, and nothing runs while nothing is asked."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QElapsedTimer, QObject, Qt, QTimer, Slot

# 30 drawings a second; 4 while CPU kernels are timed, as a drawing takes some 10 ms of the cores they are timed on
_QUICK_MS, _CALM_MS = 33, 250


class Refresher(QObject):
    """Calls ``draw`` after a request, in no closer succession than the pace allows."""

    def __init__(self, draw: Callable[[], None], parent: QObject) -> None:
        super().__init__(parent)
        self._draw = draw
        self._since = QElapsedTimer()
        self.calm = False
        self._timer = QTimer(self, singleShot=True)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self.now)

    @Slot()
    def request(self) -> None:
        """Ask for a drawing."""
        if not self._timer.isActive():
            pace = _CALM_MS if self.calm else _QUICK_MS
            passed = self._since.elapsed() if self._since.isValid() else pace
            self._timer.start(int(max(0, pace - passed)))

    def now(self) -> None:
        """Draw at once."""
        self._timer.stop()
        self._draw()
        self._since.start()
