"""The Live tab: latency of every kernel sample by sample, and memory over time, while the race runs and after."""

from __future__ import annotations

import html

from PySide6.QtCore import QElapsedTimer, QSignalBlocker, Qt
from PySide6.QtWidgets import QCheckBox, QComboBox, QLabel, QPushButton, QSizePolicy, QSplitter, QVBoxLayout, QWidget

from app.report.outcome import CaseRows, Standing, answer, distinct, in_full, lead
from app.report.units import duration, size
from app.window.charts.chart import Chart
from app.window.charts.live_latency import LatencyChart
from app.window.charts.live_memory import MemoryChart
from app.window.look.appearance import appearance
from app.window.look.local_numbers import localised
from app.window.results.session_data import SessionData
from app.window.views.tab import ChartTab
from engine.records.plan import Case

_HINT = "Choose a problem on the left and press Run: every sample appears here as it is taken."
_FOLLOW = "the case under way"
_MEMORY_MS = 250  # between two drawings of memory
_AXIS_WIDTH = 76  # of both charts, so that they stand in line
_EXPLAINED = (
    "Line: median. Band: from the fastest sample to p90, which nine of ten samples do not pass. Hollow mark: the first "
    "run, in no other figure."
)


class LiveTab(ChartTab):
    """Follows the case under way, or shows the one that is chosen."""

    def __init__(self, data: SessionData, parent: QWidget | None = None) -> None:
        super().__init__(data, parent)
        self.latency, self.memory = LatencyChart(), MemoryChart()
        self._since_memory = QElapsedTimer()
        self.case = QComboBox()
        self.case.setAccessibleName("Case")
        self.case.setToolTip("Which case of the session is drawn.")
        self.case.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.against = QComboBox()
        self.against.setAccessibleName("Horizontal axis")
        self.against.addItems(["by sample", "by time"])
        self.against.setToolTip("Samples side by side by their number, or when they were taken.")
        self.log = QCheckBox("log")
        self.log.setChecked(True)
        self.log.setToolTip("Draws latency on a logarithmic axis: equal steps are equal factors.")
        self.pause = QPushButton("Pause")
        self.pause.setCheckable(True)
        self.pause.setToolTip("Freezes the view only; the race goes on, and its samples are kept (F6).")
        self.fit = QPushButton("Fit")
        self.fit.setToolTip("Shows all data and follows it again (F7).")
        for widget in (self.case, self.against, self.log, self.pause, self.fit):
            self.controls.addWidget(widget)
        self.readout = QLabel()
        self.readout.setTextFormat(Qt.TextFormat.RichText)
        self._lines = QLabel()
        self._lines.setTextFormat(Qt.TextFormat.RichText)
        self._lines.setProperty("role", "muted")
        self._lines.setToolTip(
            "Resident memory is what the operating system counts for the worker process; GPU memory is what kernels "
            "have allocated; scratch is what a kernel needs beyond Q, K, V and the output, backward their gradients "
            "too."
        )
        for label in (self.readout, self._lines):  # no label's text widens the window
            label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._build()
        self.case.currentIndexChanged.connect(self._choose)
        self.against.currentIndexChanged.connect(self._look)
        self.log.toggled.connect(self._look)
        self.pause.toggled.connect(self._hold)
        self.fit.clicked.connect(self._fit)
        self.legend.changed.connect(self._draw_paused)
        appearance().changed.connect(self._draw_paused)
        self.latency.crosshair_moved.connect(self._read_latency)
        self.memory.crosshair_moved.connect(self._read_memory)
        data.samples_grew.connect(self.refresher.request)
        data.case_started.connect(self._follow)
        self._begin()

    def _build(self) -> None:
        below = QWidget()
        column = QVBoxLayout(below)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(2)
        column.addWidget(self._lines)
        column.addWidget(self.memory, 1)
        above = QWidget()
        column = QVBoxLayout(above)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(2)
        column.addWidget(self.latency, 1)
        column.addWidget(self.readout)
        splitter = QSplitter(Qt.Orientation.Vertical)
        splitter.addWidget(above)
        splitter.addWidget(below)
        splitter.setStretchFactor(0, 3)
        splitter.setStretchFactor(1, 2)
        splitter.setChildrenCollapsible(False)
        for chart in (self.latency, self.memory):
            chart.y_axis.setWidth(_AXIS_WIDTH)
        self.latency.setMinimumHeight(110)
        self.memory.setMinimumHeight(70)
        self.body.addWidget(splitter, 1)
        self._pictured = [splitter]

    # --- what is drawn ----------------------------------------------------------------------------------------------

    def hint(self) -> str:
        """Return what to say while there is nothing to draw."""
        return _HINT

    def begin(self) -> None:
        """Another session: list its cases and follow the one under way."""
        cases = self.data.cases
        with QSignalBlocker(self.case):
            self.case.clear()
            if self.data.running:
                self.case.addItem(_FOLLOW)
            for case in cases:
                self.case.addItem(distinct(case, cases) or "the one case", case.index)
        self.case.setVisible(len(cases) > 1)
        self.pause.setChecked(False)
        self.pause.setEnabled(self.data.running)
        self.latency.clear_case()
        self.memory.clear_session()

    def draw(self) -> None:
        """Draw the case, and say how its race stands; not while the view is paused."""
        self._stay()
        if not self.pause.isChecked():
            self._draw_shown()

    def redraw(self) -> None:
        """Draw latency; memory, which changes little, a few times a second."""
        case = self._shown()
        if self.pause.isChecked() or case is None or not self.data.running:
            self.draw()
            return
        self._draw_latency(case)
        if self._since_memory.hasExpired(_MEMORY_MS):
            self._draw_memory()

    def _draw_shown(self) -> None:
        case = self._shown()
        if case is not None:
            self._draw_latency(case)
            self._draw_memory()

    def _draw_memory(self) -> None:
        self.memory.draw(self.data, self.legend.hidden, self.legend.highlighted)
        self._since_memory.start()

    def _draw_latency(self, case: Case) -> None:
        self.latency.draw(self.data, case.index, self.legend.hidden, self.legend.highlighted)
        self._say(case)
        if self.latency.crosshair is not None:
            self._read_latency(self.latency.crosshair)
        elif self.memory.crosshair is None:
            self.readout.setText(self._explained())
        palette = appearance().palette
        self._lines.setText(
            f"<span style='color:{palette.muted}'>━</span> resident memory of the worker &nbsp; "
            f"<span style='color:{palette.ink}'>━</span> GPU memory held &nbsp; ┄ scratch of each kernel"
        )

    def charts(self) -> tuple[Chart, ...]:
        """Return the charts that are drawn."""
        return self.latency, self.memory

    def _stay(self) -> None:
        """When the run is over there is nothing to pause and no case under way: stay with the one that is shown."""
        self.pause.setEnabled(self.data.running)
        if self.data.running:
            return
        case = self._shown()
        self.pause.setChecked(False)
        if self.case.count() and self.case.itemData(0) is None:
            with QSignalBlocker(self.case):
                self.case.removeItem(0)
                if case is not None:
                    self.case.setCurrentIndex(case.index)

    def _shown(self) -> Case | None:
        number = self.case.currentData()
        if number is None and self.pause.isChecked():
            number = self.latency.case  # though another may be under way by now
        return self.data.case if number is None else self.data.cases[number]

    def _say(self, case: Case) -> None:
        rows = tuple(row for kernel in self.data.kernels if (row := self.data.row(case.index, kernel)))
        levels = self.latency.levels.items()
        standings = [Standing(kernel, level.median, level.iqr) for kernel, level in levels if level.median > 0]
        if len(rows) == len(self.data.kernels) or (rows and not self.data.running):
            said = answer((CaseRows(case, rows),))
        elif len(standings) == 1 and self.data.running:
            said = f"So far {standings[0].kernel} takes {duration(standings[0].median)} (wall clock)."
        elif standings and self.data.running:
            said = f"So far {lead(standings)}"
        elif self.data.running:
            said = "Preparing: compiling, and checking each kernel against the float64 reference…"
        else:
            said = "Stopped before a kernel finished."
        self.say(said, in_full(case, self.data.cases))

    # --- what a person does -----------------------------------------------------------------------------------------

    def _choose(self) -> None:
        self.latency.clear_case()
        self.refresher.now()
        self._draw_paused()

    def _look(self) -> None:
        self.latency.look(by_time=self.against.currentIndex() == 1, log=self.log.isChecked())
        self.refresher.now()
        self._draw_paused()

    def _draw_paused(self) -> None:
        """Draw a paused view anew, with the samples there are by now: it was asked to look different."""
        if self.pause.isChecked():
            self._draw_shown()

    def _hold(self, held: bool) -> None:
        self.pause.setText("Resume" if held else "Pause")
        self.refresher.request()

    def _fit(self) -> None:
        self.latency.fit()
        self.memory.fit()

    def _follow(self, _case: Case) -> None:
        self.refresher.request()

    def _read_latency(self, x: float | None) -> None:
        """Say what lies under the crosshair."""
        case = self._shown()
        if x is None or case is None:
            self.readout.setText(self._explained())
            return
        samples = self.data.samples(case.index)
        found = self.latency.nearest(self.data, x)
        parts = []
        for kernel, place in found.items():
            columns = samples[kernel]
            colour = appearance().palette.kernel(kernel)
            number = f" #{place + 1}" if self.latency.by_time else ""
            parts.append(
                f"<span style='color:{colour}'>■</span> {html.escape(kernel)}{number} "
                f"<b>{localised(duration(columns['wall_ms'][place]))}</b>"
            )
        where = f"at {duration(x * 1e3)}" if self.latency.by_time else f"sample {round(x)}"
        self.readout.setText(f"{_muted(localised(where))} &nbsp; " + " &nbsp; ".join(parts))

    def _read_memory(self, x: float | None) -> None:
        found = None if x is None else self.memory.read(self.data, x)
        if x is None or found is None:
            self.readout.setText(self._explained())
            return
        process, gpu = found
        text = f"at {duration(max(0.0, x) * 1e3)}: worker {size(process)} resident, {size(gpu)} held on the GPU"
        self.readout.setText(_muted(localised(text)))

    def _explained(self) -> str:
        return _muted(_EXPLAINED)


def _muted(text: str) -> str:
    return f"<span style='color:{appearance().palette.muted}'>{text}</span>"
