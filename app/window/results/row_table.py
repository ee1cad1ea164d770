"""A table of result rows: columns from ``columns``, grown row by row so that selections and sorting survive a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt, Slot
from PySide6.QtGui import QColor

from app.report.columns import KERNEL, STATUS, UNKNOWN, WHERE, Column
from app.window.look.appearance import appearance
from app.window.look.icons import kernel_icon, status_colour, status_icon
from app.window.look.local_numbers import localised
from app.window.look.plain import plain_tip
from engine.records.results import Row, Status
from engine.storage.csv_report import cell

SORT_ROLE = Qt.ItemDataRole.UserRole
ROW_ROLE = Qt.ItemDataRole.UserRole + 1  # on any cell: the Row
COPY_ROLE = Qt.ItemDataRole.UserRole + 2  # as the CSV report writes it

Index = QModelIndex | QPersistentModelIndex
_ALIGN_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
_ALIGN_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter


@dataclass(frozen=True)
class Entry:
    """A row of the table: its place among all (they are in ascending order), what it is and where it belongs."""

    place: tuple[int, int]
    row: Row
    where: str = ""

    def text(self, column: Column) -> str:
        """Return the text of a cell, numbers with a point."""
        return self.where or UNKNOWN if column is WHERE else column.text(self.row)

    def value(self, column: Column) -> Any:
        """Return what a cell is sorted by, None where unknown."""
        return self.place[0] if column is WHERE else column.value(self.row)


class RowTable(QAbstractTableModel):
    """Rows under columns. In the column ``WHERE`` stands what the entry says of its case."""

    def __init__(self, columns: Sequence[Column], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._columns = tuple(columns)
        self._entries: list[Entry] = []
        appearance().changed.connect(self._recolour)

    @property
    def entries(self) -> list[Entry]:
        """What is shown."""
        return self._entries

    def show_entries(self, entries: Sequence[Entry], *, anew: bool = False) -> None:
        """Show these, in ascending order of place. Without ``anew``, what is there already stays where it is."""
        if anew or not {entry.place for entry in self._entries} <= {entry.place for entry in entries}:
            self.beginResetModel()
            self._entries = list(entries)
            self.endResetModel()
            return
        for number, entry in enumerate(entries):
            if number == len(self._entries) or self._entries[number].place != entry.place:
                self.beginInsertRows(QModelIndex(), number, number)
                self._entries.insert(number, entry)
                self.endInsertRows()
            elif self._entries[number] != entry:
                self._entries[number] = entry
                self.dataChanged.emit(self.index(number, 0), self.index(number, len(self._columns) - 1))

    def show_columns(self, columns: Sequence[Column]) -> None:
        """Show other columns."""
        self.beginResetModel()
        self._columns = tuple(columns)
        self.endResetModel()

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008, N802
        """Return how many rows there are."""
        return 0 if parent.isValid() else len(self._entries)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008, N802
        """Return how many columns there are."""
        return 0 if parent.isValid() else len(self._columns)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:  # noqa: N802
        """Return a column's title, or its meaning as tooltip."""
        if orientation != Qt.Orientation.Horizontal or not 0 <= section < len(self._columns):
            return None
        column = self._columns[section]
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return column.title
            case Qt.ItemDataRole.ToolTipRole:
                return column.meaning
            case Qt.ItemDataRole.TextAlignmentRole:
                return _ALIGN_RIGHT if column.right else _ALIGN_LEFT
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        """Return a cell's text, sorting value, icon, colour, or its sentences as tooltip."""
        if not index.isValid():
            return None
        entry, column = self._entries[index.row()], self._columns[index.column()]
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return localised(entry.text(column))
            case Qt.ItemDataRole.DecorationRole if column is STATUS:
                return status_icon(entry.row.status)
            case Qt.ItemDataRole.DecorationRole if column is KERNEL:
                return kernel_icon(entry.row.kernel)
            case Qt.ItemDataRole.ForegroundRole if column is STATUS and entry.row.status is not Status.OK:
                return QColor(status_colour(entry.row.status, appearance().palette))
            case Qt.ItemDataRole.TextAlignmentRole:
                return _ALIGN_RIGHT if column.right else _ALIGN_LEFT
            case Qt.ItemDataRole.ToolTipRole:
                said = "\n".join(filter(None, (entry.row.message, *entry.row.cautions)))
                return plain_tip(said) or column.meaning
            case _ if role == SORT_ROLE:
                return entry.value(column)
            case _ if role == COPY_ROLE:
                return cell(entry.where if column is WHERE else column.value(entry.row))
            case _ if role == ROW_ROLE:
                return entry.row
        return None

    @Slot()
    def _recolour(self) -> None:
        if self._entries:
            last = self.index(len(self._entries) - 1, len(self._columns) - 1)
            roles = [Qt.ItemDataRole.DecorationRole, Qt.ItemDataRole.ForegroundRole]
            self.dataChanged.emit(self.index(0, 0), last, roles)
