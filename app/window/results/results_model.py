"""Every case and kernel of the session as a table, and the view of it that is sorted by number and filtered by word."""

from __future__ import annotations

from PySide6.QtCore import QObject, QSortFilterProxyModel, Qt

from app.report.columns import RESULTS
from app.report.outcome import distinct
from app.window.results.row_table import SORT_ROLE, Entry, Index, RowTable
from app.window.results.session_data import SessionData


class ResultsModel(RowTable):
    """The rows of the session, as they come."""

    def __init__(self, data: SessionData, parent: QObject | None = None) -> None:
        super().__init__(RESULTS, parent)
        self._data = data
        data.rows_changed.connect(self._grow)
        data.reset.connect(self._begin_anew)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.show_entries(self._current(), anew=True)

    def _grow(self) -> None:
        self.show_entries(self._current())

    def _current(self) -> list[Entry]:
        cases = self._data.cases
        order = {kernel: place for place, kernel in enumerate(self._data.kernels)}
        return [
            Entry((group.case.index, order[row.kernel]), row, distinct(group.case, cases))
            for group in self._data.groups()
            for row in group.rows
        ]


class SortedRows(QSortFilterProxyModel):
    """Sorts by value, what is unknown always last, and keeps the rows that hold every word asked for."""

    def __init__(self, source: RowTable, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._words: list[str] = []
        self.setSourceModel(source)
        self.setSortRole(SORT_ROLE)

    def search(self, text: str) -> None:
        """Keep the rows in which every word of ``text`` stands in some cell, upper or lower case."""
        self._words = text.casefold().split()
        self.invalidate()

    def filterAcceptsRow(self, source_row: int, source_parent: Index) -> bool:  # noqa: N802
        """Return whether a row is shown."""
        if not self._words:
            return True
        source = self.sourceModel()
        cells = (source.index(source_row, column, source_parent).data() for column in range(source.columnCount()))
        text = "\n".join(map(str, cells)).casefold()
        return all(word in text for word in self._words)

    def lessThan(self, left: Index, right: Index) -> bool:  # noqa: N802
        """Compare two cells; an unknown one comes last in either order."""
        one, other = left.data(SORT_ROLE), right.data(SORT_ROLE)
        if one is None or other is None:
            descending = self.sortOrder() == Qt.SortOrder.DescendingOrder
            return other is None and one is not None if not descending else one is None and other is not None
        return bool(one < other)
