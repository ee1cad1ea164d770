"""The Compare tab: who won one case and by how much, as bars and as a table against a baseline of choice."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import QComboBox, QLabel, QWidget

from app.report.outcome import CaseRows, adapters, answer, distinct, in_full
from app.window.charts.bars_view import BarsView
from app.window.results.compare_model import CompareModel
from app.window.results.copyable_table import CopyableTable
from app.window.results.results_model import SortedRows
from app.window.results.session_data import SessionData
from app.window.views.tab import ChartTab
from engine.records.results import Row, Status

_HINT = "Press Run, or open a saved run: here the kernels of a case stand side by side, with who won and by how much."
_LEAST_TABLE = 140  # room for the four kernels; more may be scrolled
_WAIT = "The first kernel's result appears here when all have taken their samples."
_NAIVE = "naive, same device"
_ONE_CLOCK = "Speed-ups compare wall clock with wall clock, GPU and CPU alike; upload and read-back are in neither."


class CompareTab(ChartTab):
    """Shows the case that is chosen; until then the last one that was begun."""

    def __init__(self, data: SessionData, parent: QWidget | None = None) -> None:
        super().__init__(data, parent)
        self.bars = BarsView()
        self.model = CompareModel(self)
        self.table = CopyableTable()
        self.table.setAccessibleName("Comparison")
        self.table.setModel(SortedRows(self.model, self))
        self.table.setSortingEnabled(True)
        self.table.horizontalHeader().setSortIndicatorClearable(True)
        self.table.sortByColumn(-1, Qt.SortOrder.AscendingOrder)
        self.case = QComboBox()
        self.case.setAccessibleName("Case")
        self.case.setToolTip("Which case of the session is compared.")
        self.case.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.baseline = QComboBox()
        self.baseline.setAccessibleName("Baseline")
        self.baseline.setToolTip("What the speed-ups in the table are against.")
        for text, combo in (("", self.case), ("against", self.baseline)):
            if text:
                self.controls.addWidget(QLabel(text))
            self.controls.addWidget(combo)
        self._clock = QLabel(_ONE_CLOCK)
        self._clock.setProperty("role", "muted")
        self._clock.setWordWrap(True)
        self.body.addWidget(self.bars, 2)
        self.body.addWidget(self.table, 1)
        self.body.addWidget(self._clock)
        self._pictured = [self.bars]
        self._shown: list[int] = []  # the cases that can be chosen
        self.case.activated.connect(lambda: self.refresher.now())
        self.baseline.currentIndexChanged.connect(lambda: self.refresher.now())
        self._begin()

    def hint(self) -> str:
        """Return what to say while there is nothing to draw."""
        return _WAIT if self.data.running else _HINT

    def has_content(self) -> bool:
        """Whether a kernel has a result."""
        return bool(self.data.groups())

    def copy_table(self) -> None:
        """Put the table, or its selected rows, on the clipboard as tab-separated values."""
        self.table.copy()

    def begin(self) -> None:
        """Another session: its kernels can be baselines."""
        kept = self.baseline.currentText()
        with QSignalBlocker(self.baseline):
            self.baseline.clear()
            self.baseline.addItem(_NAIVE)
            for kernel in self.data.kernels:
                self.baseline.addItem(kernel, kernel)
            self.baseline.setCurrentIndex(max(0, self.baseline.findText(kept)))
        self._shown = []
        self.case.clear()

    def draw(self) -> None:
        """Show the case that is chosen, and list those that have come."""
        groups = self.data.groups()
        self._offer(groups)
        group = groups[max(0, self.case.currentIndex())]
        said = answer((group,))
        if self.data.running and len(group.rows) < len(self.data.kernels):
            said = f"So far: {said}"
        self.say(said, f"{in_full(group.case, self.data.cases)}\n{' — '.join(adapters((group,)))}".strip())
        self.bars.show_rows(group.rows, self.legend.hidden, self.legend.highlighted)
        self.model.show_rows(group.rows, self.baseline.currentData())
        self.table.fit_columns()
        whole = self.table.whole_height()
        self.table.setMinimumHeight(min(whole, _LEAST_TABLE))
        self.table.setMaximumHeight(whole)

    def _offer(self, groups: tuple[CaseRows, ...]) -> None:
        """List the cases with results; follow the newest as long as nobody has chosen another."""
        shown = [group.case.index for group in groups]
        if shown != self._shown:
            at_the_end = self.case.currentIndex() == self.case.count() - 1
            for group in groups[len(self._shown) :]:
                self.case.addItem(distinct(group.case, self.data.cases) or "the one case")
            self._shown = shown
            if at_the_end:
                begun = [number for number, group in enumerate(groups) if any(map(_has_begun, group.rows))]
                self.case.setCurrentIndex(begun[-1] if begun else self.case.count() - 1)
        self.case.setVisible(len(self.data.cases) > 1)


def _has_begun(row: Row) -> bool:
    return row.status is not Status.CANCELLED or row.wall_ms_median is not None
