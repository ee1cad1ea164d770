"""What runs in this process and below it: threads, processes, and with Qt its threads, timers and windows."""

from __future__ import annotations

import functools
import gc
import sys
import threading

import psutil


def running() -> set[str]:
    """Return all of it, each by what it is and its identity."""
    found = _qt() if "PySide6.QtWidgets" in sys.modules else set()  # first: it lets go of what is to be deleted
    return found | _threads() | _processes()


def _threads() -> set[str]:
    return {f"thread {t.name}" for t in threading.enumerate() if not isinstance(t, threading._DummyThread)}


def _processes() -> set[str]:
    children = psutil.Process().children(recursive=True)
    return {f"process {child.pid}" for child in children if not _may_stay(child)}


def _may_stay(process: psutil.Process) -> bool:
    """Whether it is multiprocessing's own helper, which lives as long as the program, or has ended meanwhile."""
    try:
        return process.status() == "zombie" or any("resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return True


@functools.cache
def _settle() -> None:
    """Leave what there is before the first window out of every later look: it is half a million objects."""
    gc.freeze()


def _qt() -> set[str]:
    import shiboken6
    from PySide6.QtCore import QCoreApplication, QEvent, QThread, QTimer
    from PySide6.QtWidgets import QApplication, QMenu

    if QApplication.instance() is None:
        return set()
    gc.collect()
    _settle()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    found = {
        f"window {type(widget).__name__} {widget.windowTitle()} {id(widget):x}"
        for widget in QApplication.topLevelWidgets()
        if widget.isVisible() or not isinstance(widget, QMenu)  # pyqtgraph never shows those it makes, nor ends them
    }
    for thing in gc.get_objects():
        kind = type(thing)  # isinstance would ask what a proxy stands for, which may be gone
        if issubclass(kind, QTimer) and shiboken6.isValid(thing) and thing.isActive():
            found.add(f"timer {id(thing):x} of {thing.parent()}")
        if issubclass(kind, QThread) and shiboken6.isValid(thing) and thing.isRunning():
            found.add(f"Qt thread {thing.objectName() or id(thing)}")
    return found
