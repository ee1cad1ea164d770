"""Errors nobody expected: logged, told as a report with all that is needed, and the hooks put back as they were."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

import pytest
from PySide6.QtCore import qWarning
from pytestqt.qtbot import QtBot

import engine
from app.window.crash_report import CrashReporter, report_text


@pytest.fixture
def reporter(qtbot: QtBot, tmp_path: Path) -> CrashReporter:
    return CrashReporter(tmp_path / "log" / "flashscope.log")


def test_a_report_says_where_it_happened_and_on_what() -> None:
    text = report_text("Traceback\nKeyError: 'x'\n")
    assert f"FlashScope {engine.__version__}, Qt 6." in text
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in text
    assert text.endswith("Traceback\nKeyError: 'x'\n")


def test_the_hooks_are_put_back(reporter: CrashReporter) -> None:
    before = sys.excepthook, threading.excepthook
    reporter.install()
    assert sys.excepthook != before[0]
    reporter.uninstall()
    assert (sys.excepthook, threading.excepthook) == before
    reporter.uninstall()  # twice does no harm


def test_errors_of_threads_and_words_of_qt_are_written(
    qtbot: QtBot, reporter: CrashReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flashscope"), "handlers", [])  # a test report cannot carry \\udcff
    reporter.install()
    try:
        with qtbot.waitSignal(reporter.reported) as told:
            thread = threading.Thread(target=lambda: 1 // 0)
            thread.start()
            thread.join()
        assert "ZeroDivisionError" in told.args[0]
        qWarning("a word of Qt")
        sys.excepthook(SystemError, SystemError("\udcff no text"), None)
    finally:
        reporter.uninstall()
    written = reporter.path.read_text(encoding="utf-8")
    assert "ZeroDivisionError" in written
    assert "Qt: a word of Qt" in written
    assert "\\udcff no text" in written


def test_without_a_place_for_the_log_the_report_is_still_told(
    qtbot: QtBot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    reporter = CrashReporter(tmp_path / "file" / "flashscope.log")
    reporter.install()
    try:
        with qtbot.waitSignal(reporter.reported):
            sys.excepthook(KeyError, KeyError("x"), None)
    finally:
        reporter.uninstall()


def test_ctrl_c_is_no_error(reporter: CrashReporter, capsys: pytest.CaptureFixture[str]) -> None:
    reporter.install()
    reporter.reported.connect(pytest.fail)
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    reporter.uninstall()
    assert not reporter.path.exists() or "KeyboardInterrupt" not in reporter.path.read_text()
