"""The program with its window as people start it: up without a driver, and away again whatever it is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pytestqt.qtbot import QtBot

from app.plan.usage import UsageError
from app.window.application import _check_plugin, signals_to
from engine.storage import run_file

ROOT = Path(__file__).parent.parent.parent.parent

# The program, doing ``act(window)`` once its engine is there; SIGINT is ignored, as in the background of a script.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from PySide6.QtCore import QTimer
from app.window import main_window
from app.__main__ import main

def act(window):
    {act}

start = main_window.MainWindow.start
def started(self, paths):
    start(self, paths)
    QTimer.singleShot(0, lambda: print("up", flush=True))
    self.bridge.devices_ready.connect(lambda devices: QTimer.singleShot(0, lambda: ready(self)))
def ready(window):
    print("ready", flush=True)
    act(window)
main_window.MainWindow.start = started
main(sys.argv[1:])
"""
RUN = """
    window.setup_panel.restore({"kernels": ["cpu-naive"], "seq": "2048", "by_count": True, "samples": 100000})
    window.data.samples_grew.connect(lambda: print("sampled", flush=True))
    window.run()
    assert window.bridge.busy
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Any]:
    """Start the program in a home of its own; what is left of it at the end is killed."""
    programs: list[subprocess.Popen[str]] = []

    def begin(act: str, *words: object) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")} | {
            "PYTHONPATH": str(ROOT),
            "QT_QPA_PLATFORM": "offscreen",
            "HOME": str(tmp_path),
            "XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"],
        }
        command = [sys.executable, "-c", PROGRAM.format(act=act.strip("\n").lstrip()), *map(str, words)]
        pipe = subprocess.PIPE
        programs.append(subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True))
        return programs[-1]

    yield begin
    for one in programs:
        one.kill()
        one.communicate()


def until(program: subprocess.Popen[str], line: str) -> None:
    """Read what the program prints up to a line."""
    assert program.stdout is not None
    assert any(found.strip() == line for found in program.stdout), program.communicate()[1]


def ended(program: subprocess.Popen[str], within_s: float = 30) -> str:
    """Wait for the program's end; check that it ended well, in silence, and left no process; return its output."""
    children = psutil.Process(program.pid).children(recursive=True) if program.poll() is None else []
    out, err = program.communicate(timeout=within_s)
    assert (program.returncode, _worth_reading(err)) == (0, "")
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    return out


def _worth_reading(err: str) -> str:
    return "".join(line for line in err.splitlines(True) if "propagateSizeHints" not in line)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_closes_the_window(program: Any, number: int) -> None:
    window = program('print("wgpu" in sys.modules, flush=True)')
    until(window, "ready")
    until(window, "False")  # no driver is loaded, with the devices of the machine on show
    window.send_signal(number)
    ended(window)


@pytest.mark.parametrize("way", ["close", "signal"])
def test_closing_during_a_run_ends_everything(program: Any, way: str) -> None:
    window = program(RUN + ("    window.data.samples_grew.connect(window.close)" if way == "close" else ""))
    until(window, "sampled")
    if way == "signal":
        window.send_signal(signal.SIGINT)
    ended(window)


def test_files_are_opened_in_it(program: Any, tmp_path: Path, sample_file: Path) -> None:
    run = run_of(tmp_path)
    act = "print(window.files.name, window.setup_panel.plan().cases[0].problem.q_shape, flush=True); window.close()"
    window = program(act, run, sample_file)
    assert "race.json (1, 12, 128, 32)" in ended(window)


def run_of(folder: Path) -> Path:
    """A saved run, made by the command line."""
    path = folder / "race.json"
    command = [sys.executable, "-m", "app", "run", "--kernels", "cpu-flash", "--seq", "16", "--samples", "2", "--quiet"]
    subprocess.run([*command, "--json", str(path)], cwd=ROOT, check=True, timeout=60)
    assert run_file.load(path).results
    return path


def test_an_error_in_a_slot_is_shown_and_logged(program: Any, tmp_path: Path) -> None:
    act = """
    from app.window.dialogs.crash import CrashDialog
    def look():
        dialogs = window.findChildren(CrashDialog)
        print(len(dialogs), "ZeroDivisionError" in dialogs[0].report, flush=True)
        window.close()
    QTimer.singleShot(0, lambda: 1 // 0)
    QTimer.singleShot(100, look)
    """
    assert "1 True" in ended(program(act))
    (log,) = tmp_path.rglob("flashscope.log")
    assert "ZeroDivisionError" in log.read_text()


def test_signals_reach_qt(qtbot: QtBot) -> None:
    heard: list[bool] = []
    before = signal.getsignal(signal.SIGINT)
    with signals_to(lambda: heard.append(True)):
        signal.raise_signal(signal.SIGINT)
        qtbot.waitUntil(lambda: heard == [True])
        os.kill(os.getpid(), signal.SIGTERM)
        qtbot.waitUntil(lambda: heard == [True, True])
    assert signal.getsignal(signal.SIGINT) is before


def test_a_library_that_qt_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "platforms").mkdir()
    (tmp_path / "platforms" / "libqxcb.so").write_text("no library")
    monkeypatch.setattr("app.window.application.QLibraryInfo.path", lambda _: str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("QT_QPA_PLATFORM", "xcb")
    with pytest.raises(UsageError, match=r"no window can open: .*libqxcb.so.*`flashscope doctor` names"):
        _check_plugin()
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    _check_plugin()
