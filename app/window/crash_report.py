"""What becomes of an error nobody expected: written to a file, and shown once as a report that can be copied."""

from __future__ import annotations

import faulthandler
import logging
import logging.handlers
import os
import platform
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import platformdirs
from PySide6.QtCore import QObject, QtMsgType, Signal, Slot, qInstallMessageHandler, qVersion

import engine

_LOG_BYTES = 1 << 20
_log = logging.getLogger("flashscope")


def log_file() -> Path:
    """Return the file that errors are written to."""
    return Path(platformdirs.user_log_dir("flashscope", appauthor=False)) / "flashscope.log"


class CrashReporter(QObject):
    """While installed, every unhandled error of any thread is logged and told as a report through ``reported``."""

    reported = Signal(object)  # str

    _caught = Signal(object)  # str, from any thread

    def __init__(self, path: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.path = path
        self._before: tuple[Any, Any, Any] | None = None
        self._handler: logging.Handler | None = None
        self._faults: Any = None
        self._caught.connect(self._tell)

    def install(self) -> None:
        """Take over the hooks of this process for errors that nobody handles, and Qt's messages."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._handler = logging.handlers.RotatingFileHandler(
                self.path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8", errors="backslashreplace", delay=True
            )
            self._faults = self.path.with_suffix(".fault").open("w", encoding="utf-8")
            faulthandler.enable(self._faults)
        except OSError:  # no place for a log: the report is still shown
            self._handler = self._handler or logging.StreamHandler()
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        _log.addHandler(self._handler)
        _log.propagate = False
        self._before = (sys.excepthook, threading.excepthook, qInstallMessageHandler(_qt_message))
        sys.excepthook = self._unhandled
        threading.excepthook = self._unhandled_in_thread

    def uninstall(self) -> None:
        """Put everything back as it was."""
        if self._before is not None:
            sys.excepthook, threading.excepthook = self._before[:2]
            qInstallMessageHandler(self._before[2])
            self._before = None
        if self._faults is not None:
            faulthandler.disable()
            self._faults.close()
            self._faults = None
        if self._handler is not None:
            _log.removeHandler(self._handler)
            self._handler.close()
            self._handler = None

    @Slot(object)
    def report(self, trace: str) -> None:
        """Log an error's traceback and tell of it; may be called from any thread."""
        _log.error("%s", trace.rstrip())
        self._caught.emit(trace)

    def _unhandled(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
            return
        self.report("".join(traceback.format_exception(kind, error, trace)))

    def _unhandled_in_thread(self, arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None and not issubclass(arguments.exc_type, SystemExit):
            self._unhandled(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)

    @Slot(object)
    def _tell(self, trace: str) -> None:
        self.reported.emit(report_text(trace))


def report_text(trace: str) -> str:
    """Return an error with all that whoever mends it must know of this machine."""
    return "\n".join(
        (
            f"FlashScope {engine.__version__}, Qt {qVersion()}, Python {platform.python_version()}, "
            f"{platform.platform(terse=True)}, {os.environ.get('QT_QPA_PLATFORM') or sys.platform}",
            "",
            trace.rstrip(),
            "",
        )
    )


def _qt_message(kind: QtMsgType, context: Any, message: str) -> None:
    """Write what Qt has to say to the log, and to the terminal where it is serious."""
    level = {QtMsgType.QtDebugMsg: logging.DEBUG, QtMsgType.QtInfoMsg: logging.INFO}.get(kind, logging.WARNING)
    _log.log(level, "Qt: %s", message)
    if kind in (QtMsgType.QtCriticalMsg, QtMsgType.QtFatalMsg):
        print(message, file=sys.stderr)
