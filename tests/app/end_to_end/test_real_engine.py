"""The window with the real worker behind it, on the CPU and on whatever GPU there is: what is shown is what was run."""

from __future__ import annotations

import csv
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from pytestqt.qtbot import QtBot

from app.window.engine_thread import EngineState
from engine.process.host import Host
from engine.records.results import COLUMNS, Status
from engine.storage.csv_report import cell

Window = Any  # app.window.main_window.MainWindow
_PATIENCE_MS = 60_000  # software GPUs compile for seconds


@pytest.fixture
def host() -> Host:
    return Host(patience_s=0.5)


@pytest.fixture
def window(open_window: Callable[..., Window], host: Host) -> Window:
    """A window on a real worker."""
    return open_window(engine=host)


def set_up(window: Window, **values: Any) -> None:
    window.setup_panel.restore({"seq": "64", "heads": "2", "head_dim": "16", "by_count": True, "samples": 5} | values)
    assert window.setup_panel.reason() == ""


def run(qtbot: QtBot, window: Window) -> str:
    """Press Run and return why it ended."""
    with qtbot.waitSignal(window.data.finished, timeout=_PATIENCE_MS) as ended:
        window.actions_.run.trigger()
    return str(ended.args[0])


LONG = {"kernels": ["cpu-naive"], "seq": "1024", "heads": "8", "samples": 1_000_000}


def wait_for_samples(qtbot: QtBot, window: Window) -> None:
    window.actions_.run.trigger()
    qtbot.waitUntil(lambda: bool(window.data.samples(0)), timeout=_PATIENCE_MS)


def test_what_was_run_is_what_is_shown_and_written(
    qtbot: QtBot, window: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(window, label="=SUM(A1)", seq="48,64")
    assert run(qtbot, window) == "done"
    rows = window.data.rows
    assert [(row.kernel, row.seq_q) for row in rows] == [
        (kernel, seq) for seq in (48, 64) for kernel in ("gpu-flash", "gpu-naive", "cpu-flash", "cpu-naive")
    ]
    assert {row.status for row in rows} == {Status.OK}
    assert all(row.verified and row.samples == 5 for row in rows)
    assert {(case, kernel): len(found) for (case, kernel), found in window.data.all_samples().items()} == {
        (case, row.kernel): 5 for case in range(2) for row in rows
    }
    assert window.results.table.model().rowCount() == 8
    assert len(window.data.memory) > 0

    monkeypatch.setattr("app.window.files.questions.file_to_write", lambda *_: tmp_path / "out.csv")
    window.actions_.export_csv.trigger()
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        written = list(csv.reader(file))
    assert written[0] == list(COLUMNS)
    assert written[1:] == [[cell(getattr(row, column)) for column in COLUMNS] for row in rows]
    assert {line[COLUMNS.index("label")] for line in written[1:]} == {"'=SUM(A1)"}


def test_stop_in_the_middle_of_a_long_cpu_kernel(qtbot: QtBot, window: Window, host: Host) -> None:
    set_up(window, **LONG)
    wait_for_samples(qtbot, window)
    pid = host.pid
    with qtbot.waitSignal(window.data.finished, timeout=_PATIENCE_MS) as ended:
        window.actions_.stop.trigger()
        assert window.bridge.state is EngineState.STOPPING
    assert ended.args == ["cancelled"]
    (row,) = window.data.rows
    assert row.status is Status.CANCELLED
    assert row.samples
    assert host.pid == pid  # it listened, so it lives on


def test_stop_insists(qtbot: QtBot, window: Window, host: Host) -> None:
    set_up(window, **LONG)
    wait_for_samples(qtbot, window)
    pid = host.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with qtbot.waitSignal(window.data.finished, timeout=_PATIENCE_MS) as ended:
        window.actions_.stop.trigger()
    assert ended.args == ["cancelled"]
    assert window.data.rows[0].status is Status.CANCELLED
    assert "was ended; a new one takes the next run" in window.log.text()
    set_up(window, kernels=["cpu-flash"])
    assert run(qtbot, window) == "done"
    assert host.pid not in (None, pid)


def test_a_worker_killed_during_a_run(qtbot: QtBot, window: Window, host: Host) -> None:
    set_up(window, **LONG)
    wait_for_samples(qtbot, window)
    pid = host.pid
    assert pid is not None
    with qtbot.waitSignal(window.data.finished, timeout=_PATIENCE_MS):
        os.kill(pid, signal.SIGKILL)
    assert window.notices.texts() == [
        "The run broke off: the engine process was ended by SIGKILL (as the system does when memory runs out). "
        "Its rows so far are kept."
    ]
    assert window.data.rows[0].status is Status.CANCELLED
    assert window.data.rows[0].samples
    set_up(window, kernels=["cpu-flash"])
    assert run(qtbot, window) == "done"
    assert window.data.rows[0].status is Status.OK


def test_closing_during_a_run_leaves_no_process(qtbot: QtBot, window: Window, host: Host) -> None:
    set_up(window, **LONG)
    wait_for_samples(qtbot, window)
    worker = psutil.Process(host.pid)
    assert window.close()
    assert window.ended
    assert not worker.is_running()
    assert len(list(window.journal.folder.glob("*.run"))) == 1
