"""The results dock: every case and kernel of the session, to sort, filter and copy, with its sentences."""

from __future__ import annotations

from collections import Counter

from PySide6.QtCore import QModelIndex, Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QHBoxLayout, QLabel, QLineEdit, QVBoxLayout, QWidget

from app.report.columns import RESULTS, WHERE
from app.report.outcome import message
from app.window.look.local_numbers import localised
from app.window.results.copyable_table import CopyableTable
from app.window.results.results_model import ResultsModel, SortedRows
from app.window.results.row_table import ROW_ROLE
from app.window.results.session_data import SessionData
from app.window.views.hint import HintStack
from engine.records.results import Row, Status

_HINT = "No results yet. Choose a problem on the left and press Run: every kernel's row appears here as it finishes."
_WAIT = "The first kernel's row appears here when all have taken their samples."


class ResultsPanel(QWidget):
    """The table, above it what filters it, below it what there is to say about the current row."""

    def __init__(self, data: SessionData, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._data = data
        self.model = ResultsModel(data, self)
        self.sorted = SortedRows(self.model, self)
        self.table = _table(self.sorted)
        self.filter = QLineEdit()
        self.filter.setPlaceholderText("Filter: words that a row must hold, such as gpu or skipped")
        self.filter.setToolTip("Shows the rows that hold every word typed here, in any column (Ctrl+F).")
        self.filter.setAccessibleName("Filter of the results")
        self.filter.setClearButtonEnabled(True)
        self.filter.textChanged.connect(self._search)
        self._count = QLabel()
        self._count.setProperty("role", "muted")
        self._sentences = QLabel()
        self._sentences.setWordWrap(True)
        self._sentences.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._sentences.setContentsMargins(8, 2, 8, 4)
        self._hint = HintStack(_HINT, self._content())
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self._hint)
        data.rows_changed.connect(self._refresh)
        data.reset.connect(self._begin_anew)
        data.finished.connect(lambda _reason: self._refresh())
        self.table.selectionModel().currentRowChanged.connect(self._say)
        self._begin_anew()

    def copy_table(self) -> None:
        """Put the selected rows, all where none is selected, on the clipboard as tab-separated values."""
        self.table.copy()

    def _content(self) -> QWidget:
        above = QHBoxLayout()
        above.setContentsMargins(6, 4, 8, 0)
        above.addWidget(self.filter, 1)
        above.addWidget(self._count)
        content = QWidget()
        layout = QVBoxLayout(content)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        layout.addLayout(above)
        layout.addWidget(self.table, 1)
        layout.addWidget(self._sentences)
        return content

    def _begin_anew(self) -> None:
        self.table.setColumnHidden(RESULTS.index(WHERE), len(self._data.cases) < 2)
        self._refresh()

    def _refresh(self) -> None:
        rows = self._data.rows
        self._hint.label.setText(_WAIT if self._data.running else _HINT)
        self._hint.show_content(bool(rows))
        self._count.setText(_counted(rows))
        self.table.fit_columns()
        self._say(self.table.currentIndex())

    def _search(self, text: str) -> None:
        self.sorted.search(text)

    def _say(self, current: QModelIndex) -> None:
        row: Row | None = current.data(ROW_ROLE) if current.isValid() else None
        said = "" if row is None else "\n".join(filter(None, (message(row), " · ".join(row.cautions))))
        self._sentences.setText(localised(said))
        self._sentences.setVisible(bool(said))


def _table(model: SortedRows) -> CopyableTable:
    table = CopyableTable()
    table.setAccessibleName("Results")
    table.setModel(model)
    table.setSortingEnabled(True)
    table.horizontalHeader().setSortIndicatorClearable(True)
    table.sortByColumn(-1, Qt.SortOrder.AscendingOrder)  # as they were measured, until a title is clicked
    copy = QAction("Copy rows", table)
    copy.setToolTip("Copies the selected rows as tab-separated values (Ctrl+C).")
    copy.triggered.connect(table.copy)
    table.addAction(copy)
    table.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
    return table


def _counted(rows: list[Row]) -> str:
    """Return how many rows there are, and how they ended where not all are ok: ``8 rows: 6 ok, 2 skipped``."""
    statuses = Counter(row.status for row in rows)
    total = f"{len(rows)} row" + "s" * (len(rows) != 1)
    return f"{total}: " + ", ".join(f"{statuses[status]} {status.value}" for status in Status if status in statuses)
