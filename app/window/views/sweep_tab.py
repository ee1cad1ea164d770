"""The Sweep tab: latency and memory against the swept value, a curve per kernel."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import QComboBox, QLabel, QPushButton, QSplitter, QWidget

from app.report import sweep_lines
from app.report.outcome import CaseRows, answer, common
from app.window.charts.chart import Chart
from app.window.charts.sweep_chart import Point, SweepChart
from app.window.results.session_data import SessionData
from app.window.views.tab import ChartTab

_HINT = (
    "Nothing is swept yet. Write a range into seq, heads, head_dim, batch or threads, such as 256..4096*2, and press "
    "Run: latency and memory are drawn here against it."
)
_WAIT = "The curves begin with the first case that is done."
_CROSS = "× at the top: did not run there; rest on it for the reason."


class SweepTab(ChartTab):
    """Shows one swept value at a time, and where there are several, at one of the others' values."""

    def __init__(self, data: SessionData, parent: QWidget | None = None) -> None:
        super().__init__(data, parent)
        self.latency, self.memory = SweepChart(of_memory=False), SweepChart(of_memory=True)
        self.axis, self.line = QComboBox(), QComboBox()
        for combo in (self.axis, self.line):
            combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.axis.setAccessibleName("Swept value")
        self.axis.setToolTip("The swept value that the curves are drawn against.")
        self.line.setAccessibleName("Other values")
        self.line.setToolTip("The values of the other sweeps that are shown.")
        self.fit = QPushButton("Fit")
        self.fit.setToolTip("Shows all data again (F7).")
        self.fit.clicked.connect(self._fit)
        self._over = QLabel("over")
        for widget in (self._over, self.axis, self.line, self.fit):
            self.controls.addWidget(widget)
        splitter = QSplitter(Qt.Orientation.Horizontal)
        for chart in (self.latency, self.memory):
            splitter.addWidget(chart)
            chart.setMinimumWidth(200)
        splitter.setChildrenCollapsible(False)
        self._note = QLabel(_CROSS)
        self._note.setProperty("role", "muted")
        self.body.addWidget(splitter, 1)
        self.body.addWidget(self._note)
        self._pictured = [splitter, self._note]
        self.axis.activated.connect(self._redraw)
        self.line.activated.connect(self._redraw)
        self._begin()

    def hint(self) -> str:
        """Return what to say while there is nothing to draw."""
        return _WAIT if self.data.running and self.axis.count() else _HINT

    def has_content(self) -> bool:
        """Whether the session sweeps and has a result."""
        return self.axis.count() > 0 and bool(self.data.groups())

    def begin(self) -> None:
        """Another session: list what it sweeps."""
        with QSignalBlocker(self.axis), QSignalBlocker(self.line):
            self.axis.clear()
            self.axis.addItems(sweep_lines.varied(self._planned()))
            self.line.clear()
        several = self.axis.count() > 1
        self.axis.setVisible(several)
        self._over.setVisible(several)
        self._fit()

    def draw(self) -> None:
        """Draw the curves as far as they have come."""
        groups = self.data.groups()
        axis = self.axis.currentText() or sweep_lines.swept(groups)
        lines = sweep_lines.series(self._planned(), axis)
        self._offer(list(lines))
        name = self.line.currentText()
        chosen = lines[name]
        value = sweep_lines.AXES[axis]
        points = {
            kernel: [Point(value(g), row) for g in chosen for row in g.rows if row.kernel == kernel]
            for kernel in self.data.kernels
        }
        legend = self.legend
        for chart in (self.latency, self.memory):
            chart.draw(points, axis, legend.hidden, legend.highlighted)
        drawn = (point.row for line in points.values() for point in line)
        self._note.setVisible(any(not row.wall_ms_median for row in drawn))
        direction = chosen[0].case.problem.direction
        said = answer([g for g in groups if g.case.problem.direction == direction] or groups)
        done = f"{len(groups)} of {len(self.data.cases)} cases so far · " if self.data.running else ""
        self.say(said, done + " · ".join(filter(None, (common(self.data.cases), name))))

    def charts(self) -> tuple[Chart, ...]:
        """Return the charts that are drawn."""
        return self.latency, self.memory

    def _planned(self) -> list[CaseRows]:
        """Return every case, with the rows that have come: what a line is called must not change as others come."""
        come = {group.case.index: group for group in self.data.groups()}
        return [come.get(case.index, CaseRows(case, ())) for case in self.data.cases]

    def _offer(self, names: list[str]) -> None:
        if names != [self.line.itemText(number) for number in range(self.line.count())]:
            kept = self.line.currentText()
            with QSignalBlocker(self.line):
                self.line.clear()
                self.line.addItems(names)
                self.line.setCurrentIndex(max(0, self.line.findText(kept)))
        self.line.setVisible(len(names) > 1)

    def _redraw(self) -> None:
        self._fit()
        self.refresher.now()

    def _fit(self) -> None:
        self.latency.fit()
        self.memory.fit()
