"""Opens the window: Qt is set up, errors and Ctrl+C find their way, and everything ends when the window closes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from types import FrameType

from PySide6.QtCore import QLibraryInfo, QSocketNotifier
from PySide6.QtGui import QGuiApplication, QIcon
from PySide6.QtWidgets import QApplication

from app.plan.usage import UsageError
from app.window.crash_report import CrashReporter, log_file
from app.window.engine_thread import EngineBridge
from app.window.files.autosave import autosave_folder
from app.window.main_window import MainWindow
from app.window.settings import SettingsStore, settings_file


def open_window(paths: Sequence[str]) -> int:
    """Open the window with runs and tensor files in it, and return the exit status when it has closed.

    Raises UsageError where Qt lacks a library that the window needs.
    """
    _check_plugin()
    application = make_application()
    reporter = CrashReporter(log_file())
    reporter.install()
    window = MainWindow(EngineBridge(), SettingsStore(settings_file()), autosave_folder(), reporter)
    window.show()
    window.start(paths)

    def interrupted() -> None:
        window.close_without_asking()
        application.quit()

    with signals_to(interrupted):
        application.exec()
    reporter.uninstall()
    if not window.ended:  # a thread that hangs in the system cannot be ended in any other way
        sys.stdout.flush()
        os._exit(0)
    return 0


def make_application() -> QApplication:
    """Return the QApplication under the program's name and icon."""
    QGuiApplication.setDesktopFileName("flashscope")
    application = QApplication(["flashscope"])
    application.setApplicationName("flashscope")
    icon = resources.files("resources") / "icons" / "flashscope.svg"
    application.setWindowIcon(QIcon(str(icon)))
    return application


@contextlib.contextmanager
def signals_to(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` from Qt's loop when SIGINT or SIGTERM arrives, even in a program started with them ignored.

    Python handles a signal when it next runs Python code, which Qt's loop may not do for hours; so the signal's number
    also goes down a socket that Qt watches.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        act()

    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        notifier = QSocketNotifier(ours.fileno(), QSocketNotifier.Type.Read)
        notifier.activated.connect(lambda: ours.recv(64))  # Python code: the handler has run before it
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            notifier.setEnabled(False)
            for number, handler in before.items():
                signal.signal(number, handler)


def _check_plugin() -> None:
    """Try what Qt's X11 plugin needs; Qt would abort without saying which library is missing."""
    chosen = os.environ.get("QT_QPA_PLATFORM", "xcb" if os.environ.get("DISPLAY") else "")
    plugin = Path(QLibraryInfo.path(QLibraryInfo.LibraryPath.PluginsPath)) / "platforms" / "libqxcb.so"
    if sys.platform.startswith("linux") and chosen.startswith("xcb") and plugin.exists():
        try:
            ctypes.CDLL(str(plugin))
        except OSError as error:
            raise UsageError(
                f"no window can open: {error}; `flashscope doctor` names the package that mends it"
            ) from None
