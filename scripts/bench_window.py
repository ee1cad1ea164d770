"""Measure how quick the window is, and print it: nothing is judged, for machines differ.

Run in the environment: python scripts/bench_window.py [starts]. Measured are the start of the program until its window
is up (in processes of its own), the imports behind it, a million samples opened and panned, and the longest gaps of
another timer while samples come in at 1 kHz.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import time
from typing import Any

_UP = """
import sys, time
from PySide6.QtCore import QTimer
from app.window import main_window
from app.__main__ import main
start = main_window.MainWindow.start
def started(self, paths):
    start(self, paths)
    QTimer.singleShot(0, lambda: (print(time.time(), flush=True), self.close()))
main_window.MainWindow.start = started
main([])
"""


def main(starts: int = 5) -> None:
    """Measure all of it and print a line each."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    took = [_up() for _ in range(starts)]
    print(
        f"window up: {min(took):.2f} s to {max(took):.2f} s, median {statistics.median(took):.2f} s of {starts} starts"
    )
    for module in ("numpy", "PySide6.QtWidgets", "pyqtgraph", "app.window.application", "app.terminal.cli"):
        took = [_import(module) for _ in range(3)]
        print(f"import {module}: median {statistics.median(took):.2f} s of 3")
    _million_samples()
    _gaps()


def _up() -> float:
    began = time.time()
    run = subprocess.run([sys.executable, "-c", _UP], capture_output=True, text=True, check=True)
    return float(run.stdout.split()[0]) - began


def _import(module: str) -> float:
    code = f"import time; began = time.perf_counter(); import {module}; print(time.perf_counter() - began)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def _million_samples() -> None:
    from PySide6.QtWidgets import QApplication

    from app.window.results.session_data import SessionData
    from app.window.views.live_tab import LiveTab
    from engine.records.events import SampleBatch, SessionFinished
    from engine.records.results import Sample

    application = QApplication.instance() or QApplication([])
    plan, begin = _plan()
    data = SessionData()
    tab = LiveTab(data)
    tab.resize(1200, 700)
    tab.show()
    for event in begin:
        data.feed(event)
    for kernel in plan.kernels:
        samples = tuple(Sample(n, n / 1000, 2 + n % 7 / 10, None, 1) for n in range(500_000))
        data.feed(SampleBatch(plan.cases[0], kernel, samples))
    data.feed(SessionFinished())
    run = data.run()
    assert run is not None
    began = time.perf_counter()
    data.load(run)
    tab.grab()
    opened = time.perf_counter()
    tab.latency.zoom(x=0.5)
    for _ in range(20):
        tab.latency.view.translateBy(x=1000)
        tab.latency.viewport().repaint()
    panned = time.perf_counter()
    tab.close()
    application.processEvents()
    print(f"1,000,000 samples: opened in {opened - began:.2f} s, a pan {(panned - opened) / 20 * 1e3:.0f} ms")


def _gaps() -> None:
    from PySide6.QtCore import QCoreApplication, QTimer

    from app.window.results.session_data import SessionData
    from app.window.views.live_tab import LiveTab
    from engine.records.events import SampleBatch
    from engine.records.results import Sample

    plan, begin = _plan()
    data = SessionData()
    tab = LiveTab(data)
    tab.resize(1200, 700)
    tab.show()
    for event in begin:
        data.feed(event)
    beats: list[float] = []
    numbers = itertools.count()

    def feed() -> None:
        number = next(numbers)
        sample = Sample(number // 2, number / 1000, 2 + number % 7 / 10, None, 1)
        data.feed(SampleBatch(plan.cases[0], plan.kernels[number % 2], (sample,)))

    feeder, beat = QTimer(interval=1), QTimer(interval=10)
    feeder.timeout.connect(feed)
    beat.timeout.connect(lambda: beats.append(time.perf_counter()))
    feeder.start()
    beat.start()
    end = time.perf_counter() + 5
    while time.perf_counter() < end:
        QCoreApplication.processEvents()
    gaps = sorted(after - before for before, after in itertools.pairwise(beats))
    print(f"{next(numbers):,} samples in 5 s: longest gaps {', '.join(f'{gap * 1e3:.0f} ms' for gap in gaps[-3:])}")
    tab.close()


def _plan() -> tuple[Any, tuple[Any, ...]]:
    """Return a plan and the events that a run of it begins with."""
    from engine.measure import environment
    from engine.problem.attention_problem import AttentionProblem
    from engine.records.events import CaseStarted, SessionStarted
    from engine.records.plan import Case, Plan

    plan = Plan(cases=(Case(index=0, problem=AttentionProblem()),), kernels=("cpu-flash", "cpu-naive"))
    started = SessionStarted("bench", "2026-01-01T00:00:00+00:00", plan, environment.describe())
    return plan, (started, CaseStarted(plan.cases[0]))


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
