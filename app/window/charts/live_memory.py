"""Memory over the time of the session: the worker's resident bytes, what is held on the GPU, each kernel's scratch."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt

from app.report.theme import mixed
from app.window.charts.chart import Chart
from app.window.look.appearance import appearance
from app.window.results.session_data import SessionData


class MemoryChart(Chart):
    """One curve each for the process and the GPU, and a dotted level per kernel while it was sampled."""

    def __init__(self) -> None:
        super().__init__(bytes_y=True)
        self.name_axes("seconds since the session began", "memory")
        self._process, self._gpu = pg.PlotDataItem(), pg.PlotDataItem()
        for curve in (self._process, self._gpu):
            self.addItem(curve)
        self._scratch: dict[str, pg.PlotCurveItem] = {}
        self.view.setLimits(yMin=0)

    def clear_session(self) -> None:
        """Forget the session that is drawn."""
        for item in self._scratch.values():
            self.removeItem(item)
        self._scratch = {}
        self.fit()

    def draw(self, data: SessionData, hidden: Collection[str], highlighted: str | None) -> None:
        """Draw the session as far as it has come."""
        palette = appearance().palette
        times = data.memory["time_s"]
        for curve, name, colour in (
            (self._process, "process_bytes", palette.muted),
            (self._gpu, "gpu_bytes", palette.ink),
        ):
            curve.setData(times, data.memory[name].astype(np.float64), pen=self.pen(colour), skipFiniteCheck=True)
        self._gpu.setVisible(bool(data.memory["gpu_bytes"].any()))
        spans = _scratch(data)
        for kernel in spans.keys() - self._scratch.keys():
            self._scratch[kernel] = pg.PlotCurveItem(connect="pairs")
            self.addItem(self._scratch[kernel])
        for kernel, item in self._scratch.items():
            colour = palette.kernel(kernel)
            if highlighted not in (None, kernel):
                colour = mixed(colour, palette.paper, 0.3)
            x, y = spans.get(kernel, ([], []))
            item.setData(x, y, pen=self.pen(colour, 2, Qt.PenStyle.DotLine))
            item.setVisible(kernel not in hidden)
        self.settle()

    def read(self, data: SessionData, x: float) -> tuple[int, int] | None:
        """Return the process's and the GPU's bytes at a time, None where nothing was seen."""
        times = data.memory["time_s"]
        place = int(np.searchsorted(times, x, side="right")) - 1
        if place < 0:
            return None
        return int(data.memory["process_bytes"][place]), int(data.memory["gpu_bytes"][place])


def _scratch(data: SessionData) -> dict[str, tuple[list[float], list[float]]]:
    """Return each kernel's scratch as pairs of points: from its first sample in a case to its last."""
    spans: dict[str, tuple[list[float], list[float]]] = {}
    for (case, kernel), columns in data.all_samples().items():
        beginning = data.beginning(case, kernel)
        if beginning is not None and beginning.scratch_bytes is not None:
            xs, ys = spans.setdefault(kernel, ([], []))
            xs += [float(columns["started_s"][0]), float(columns["started_s"][-1])]
            ys += [float(beginning.scratch_bytes)] * 2
    return spans
