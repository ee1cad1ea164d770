"""A table whose selection Ctrl+C copies as tab-separated values, for a spreadsheet."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QSize
from PySide6.QtGui import QGuiApplication, QKeyEvent, QKeySequence
from PySide6.QtWidgets import QAbstractItemView, QTableView, QWidget

from app.window.results.row_table import COPY_ROLE

_WIDEST = 420
_PADDING = 22  # of a title, with its sort indicator


class CopyableTable(QTableView):
    """Selects whole rows, sorts by a click on a title, and copies."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._fitted = False
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setAlternatingRowColors(True)
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.setTabKeyNavigation(False)  # Tab leaves the table, as it leaves everything else
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + 9)
        self.horizontalHeader().setHighlightSections(False)
        self.horizontalHeader().setStretchLastSection(True)

    def fit_columns(self, widest: int = _WIDEST) -> None:
        """Widen columns to what they hold, the last one aside; one that is wider, or was widened, stays."""
        header, metrics = self.horizontalHeader(), self.fontMetrics()
        for column in range(header.count() - 1):
            title = metrics.horizontalAdvance(str(self.model().headerData(column, header.orientation())))
            wanted = min(max(self.sizeHintForColumn(column), title) + _PADDING, widest)
            if header.sectionSize(column) < wanted or not self._fitted:
                header.resizeSection(column, wanted)
        self._fitted = self.model().rowCount() > 0

    def sizeHint(self) -> QSize:  # noqa: N802
        """Return a title and two rows; whoever lays tables out gives them all there is."""
        return QSize(300, 90)

    def whole_height(self) -> int:
        """Return the height at which every row shows."""
        bars = self.horizontalHeader().sizeHint().height() + self.horizontalScrollBar().sizeHint().height()
        return bars + self.model().rowCount() * self.verticalHeader().defaultSectionSize() + 2

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802
        """Copy on Ctrl+C."""
        if event.matches(QKeySequence.StandardKey.Copy):
            self.copy()
        else:
            super().keyPressEvent(event)

    def copy(self) -> None:
        """Put the selected rows, all where none is selected, on the clipboard with their titles."""
        QGuiApplication.clipboard().setText(self.tsv())

    def tsv(self) -> str:
        """Return the selected rows, all where none is selected, as tab-separated values under their titles.

        Numbers are whole and with a point, as in the CSV report, and text is kept from being taken for a formula.
        """
        model, header = self.model(), self.horizontalHeader()
        visual = (header.logicalIndex(place) for place in range(header.count()))
        columns = [column for column in visual if not self.isColumnHidden(column)]
        chosen = sorted({index.row() for index in self.selectionModel().selectedRows()}) or range(model.rowCount())
        lines = [[str(model.headerData(column, header.orientation())) for column in columns]]
        lines += [[_plain(model.index(row, column)) for column in columns] for row in chosen]
        return "".join("\t".join(line) + "\n" for line in lines)


def _plain(index: QModelIndex) -> str:
    return " ".join(index.data(COPY_ROLE).split())  # no tab and no line break
