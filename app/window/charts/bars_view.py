"""One case as bars: latency with whiskers, and memory with scratch inside, drawn to fit and explained on hovering."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QHelpEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.report import ticks
from app.report.bar_scale import BarScale
from app.report.outcome import whisker
from app.report.theme import Palette, mixed
from app.report.units import duration, size
from app.window.look.appearance import appearance
from app.window.look.icons import draw_mark
from app.window.look.local_numbers import localised
from engine.records.results import Row, Status

_NAMES = 150
_GAP = 28
_TITLE = 24
_AXIS = 22
_TALLEST, _LEAST = 64.0, 20.0  # of a kernel's row
_TWO_LINES = 34.0  # of text, beside which a name stands alone
_ICON = 16
_MARKS = {
    Status.OK: "verified",
    Status.WRONG: "wrong result",
    Status.FAILED: "failed",
    Status.SKIPPED: "skipped",
    Status.CANCELLED: "cancelled",
}


@dataclass(frozen=True)
class _Panel:
    """A plot of bars: where it lies, and its scale."""

    area: QRectF
    scale: BarScale

    def x(self, value: float) -> float:
        return self._place(self.scale.at(value))

    def marks(self, *, of_bytes: bool) -> list[tuple[float, str]]:
        return [(self._place(place), localised(text)) for place, text in self.scale.marks(of_bytes=of_bytes)]

    def _place(self, at: float) -> float:
        left, right = self.scale.ends
        return self.area.left() + self.area.width() * (at - left) / ((right - left) or 1.0)


class BarsView(QWidget):
    """Draws rows; ``highlighted`` is brought out, and those in ``hidden`` are left out."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._rows: tuple[Row, ...] = ()
        self._highlighted: str | None = None
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setAccessibleName("Latency and memory of each kernel as bars; the table below has the figures")

    def show_rows(self, rows: Sequence[Row], hidden: Collection[str], highlighted: str | None) -> None:
        """Draw these."""
        self._rows = tuple(row for row in rows if row.kernel not in hidden)
        self._highlighted = highlighted
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:  # noqa: N802
        """Return room for two lines of text a row; whoever lays it out gives it all there is."""
        return QSize(460, round(_TITLE + _AXIS + _TWO_LINES * max(1, len(self._rows))))

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return room for every row at its least."""
        return QSize(460, round(_TITLE + _AXIS + _LEAST * max(1, len(self._rows))))

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802
        """Draw names, latency and memory."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        palette = appearance().palette
        latency, memory = self._panels()
        _Drawing(painter, self.font(), palette).titles(latency, memory)
        for number, row in enumerate(self._rows):
            faint = self._highlighted not in (None, row.kernel)
            drawing = _Drawing(painter, self.font(), palette, faint=faint)
            band = self._band(number)
            drawing.name(QRectF(0, band.top(), _NAMES, band.height()), row)
            drawing.latency(latency, band, row)
            drawing.memory(memory, band, row)

    def event(self, event: QEvent) -> bool:
        """Explain the row under the pointer."""
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            pointed = (r for n, r in enumerate(self._rows) if self._band(n).contains(QPointF(event.pos())))
            row = next(pointed, None)
            if row is None:
                QToolTip.hideText()
            else:
                QToolTip.showText(event.globalPos(), localised(_explained(row)), self)
            return True
        return super().event(event)

    def _panels(self) -> tuple[_Panel, _Panel]:
        width = (self.width() - _NAMES - _GAP) / 2
        height = self._row_height() * len(self._rows)
        rows = self._rows
        ends = [row.wall_ms_median and max(row.wall_ms_median, *(whisker(row) or (0.0,))) for row in rows]
        sizes = [figure for row in rows for figure in (row.peak_bytes, row.scratch_bytes)]
        return (
            _Panel(QRectF(_NAMES, _TITLE, width, height), BarScale.over(ends)),
            _Panel(QRectF(_NAMES + width + _GAP, _TITLE, width, height), BarScale.over(sizes)),
        )

    def _row_height(self) -> float:
        room = (self.height() - _TITLE - _AXIS) / max(1, len(self._rows))
        return min(_TALLEST, max(_LEAST, room))

    def _band(self, number: int) -> QRectF:
        height = self._row_height()
        return QRectF(0, _TITLE + number * height, self.width(), height)


class _Drawing:
    """Draws with one painter in one appearance."""

    def __init__(self, painter: QPainter, font: QFont, palette: Palette, *, faint: bool = False) -> None:
        self._painter = painter
        self._palette = palette
        self._faint = faint
        self._plain, self._bold, self._small = QFont(font), QFont(font), QFont(font)
        self._bold.setBold(True)
        self._small.setPointSizeF(font.pointSizeF() * 0.9)

    def titles(self, latency: _Panel, memory: _Panel) -> None:
        """Draw the two panels' titles, axes and rules."""
        for panel, title, explained, of_bytes in (
            (latency, "Latency", "median wall ms, whiskers: quartiles", False),
            (memory, "Memory", "peak (pale) and scratch (full)", True),
        ):
            log = ", log scale" if panel.scale.log else ""
            area = panel.area
            used = self._text(QRectF(area.left(), 0, area.width(), _TITLE - 6), title, self._bold, self._palette.ink)
            rest = QRectF(area.left() + used + 6, 0, area.width() - used - 6, _TITLE - 6)
            self._text(rest, explained + log, self._small, self._palette.muted)
            for x, text in ticks.thinned(panel.marks(of_bytes=of_bytes), lambda x: x, self._room):
                self._painter.setPen(QPen(QColor(self._palette.rule), 1))
                self._painter.drawLine(QPointF(x, area.top()), QPointF(x, area.bottom()))
                label = QRectF(x - self._room(text) / 2, area.bottom() + 2, self._room(text), _AXIS - 2)
                self._text(label, text, self._small, self._palette.muted, Qt.AlignmentFlag.AlignHCenter)

    def _room(self, text: str) -> float:
        """Return the width that a text of an axis needs."""
        return QFontMetricsF(self._small).horizontalAdvance(text) + 8

    def name(self, place: QRectF, row: Row) -> None:
        """Draw a kernel's mark and name, how its turn ended, and on what."""
        middle = place.center().y()
        tight = place.height() < _TWO_LINES
        icon = QRectF(0, middle - (_ICON / 2 if tight else _ICON), _ICON, _ICON)
        draw_mark(self._painter, icon, row.kernel, self._colour(row.kernel))
        where = f" · {row.adapter_type}" if row.adapter_type not in (None, "cpu") else ""
        upper = QRectF(_ICON + 6, middle - (8 if tight else 17), place.width() - _ICON - 6, 17)
        self._text(upper, row.kernel, self._bold, self._palette.ink)
        if tight:
            return
        said = self._palette.bad if row.status in (Status.WRONG, Status.FAILED) else self._palette.muted
        self._text(upper.translated(0, 16), _MARKS[row.status] + where, self._small, said)

    def latency(self, panel: _Panel, band: QRectF, row: Row) -> None:
        """Draw the median with its whiskers and figures, or that there is none."""
        if not row.wall_ms_median:
            self._none(panel, band, "not timed")
            return
        median = row.wall_ms_median
        first, third = whisker(row) or (median, median)
        self._bar(panel, band, median, 0.56, self._colour(row.kernel))
        low, high, middle = panel.x(first), panel.x(third), band.center().y()
        if whisker(row):
            self._painter.setPen(QPen(QColor(self._palette.ink), 1.2))
            self._painter.drawLine(QPointF(low, middle), QPointF(high, middle))
            for x in (low, high):
                self._painter.drawLine(QPointF(x, middle - 4), QPointF(x, middle + 4))
        beside = "" if row.gpu_ms_median is None else f"GPU clock {duration(row.gpu_ms_median)}"
        self._figures(panel, band, max(high, panel.x(median)), duration(median), beside)

    def memory(self, panel: _Panel, band: QRectF, row: Row) -> None:
        """Draw peak and scratch with their figures, or that there are none."""
        if not row.peak_bytes:
            self._none(panel, band, "not measured")
            return
        colour = self._colour(row.kernel)
        self._bar(panel, band, row.peak_bytes, 0.56, mixed(colour, self._palette.paper, 0.35))
        if row.scratch_bytes:
            self._bar(panel, band, row.scratch_bytes, 0.28, colour)
        beside = "" if row.scratch_bytes is None else f"scratch {size(row.scratch_bytes)}"
        self._figures(panel, band, panel.x(row.peak_bytes), size(row.peak_bytes), beside)

    def _colour(self, kernel: str) -> str:
        colour = self._palette.kernel(kernel)
        return mixed(colour, self._palette.paper, 0.3) if self._faint else colour

    def _bar(self, panel: _Panel, band: QRectF, value: float, thickness: float, colour: str) -> None:
        height = band.height() * thickness
        left = panel.x(panel.scale.low)
        bar = QRectF(left, band.center().y() - height / 2, max(1.0, panel.x(value) - left), height)
        self._painter.fillRect(bar, QColor(colour))

    def _figures(self, panel: _Panel, band: QRectF, x: float, figure: str, beside: str) -> None:
        left = x + 8
        place = QRectF(left, band.top(), panel.area.right() - left, band.height())
        used = self._text(place, localised(figure), self._bold, self._palette.ink)
        if used + 8 + QFontMetricsF(self._small).horizontalAdvance(beside) <= place.width():
            rest = place.adjusted(used + 8, 0, 0, 0)
            self._text(rest, localised(beside), self._small, self._palette.muted)

    def _none(self, panel: _Panel, band: QRectF, text: str) -> None:
        place = QRectF(panel.area.left() + 6, band.top(), panel.area.width(), band.height())
        self._text(place, text, self._small, self._palette.muted)

    def _text(
        self,
        place: QRectF,
        text: str,
        font: QFont,
        colour: str,
        side: Qt.AlignmentFlag = Qt.AlignmentFlag.AlignLeft,
    ) -> float:
        """Draw one line in the middle of a place's height and return its width."""
        self._painter.setFont(font)
        self._painter.setPen(QColor(colour))
        metrics = QFontMetricsF(font)
        fitting = metrics.elidedText(text, Qt.TextElideMode.ElideRight, place.width())
        self._painter.drawText(place, side | Qt.AlignmentFlag.AlignVCenter, fitting)
        return metrics.horizontalAdvance(fitting)


def _explained(row: Row) -> str:
    """Return every sentence there is about a row's bars."""
    said = [f"{row.kernel}: {row.status.value}"]
    if row.wall_ms_median:
        said.append(f"Half of the {row.samples} samples took less than {duration(row.wall_ms_median)} of wall clock.")
    if row.wall_ms_iqr:
        said.append(f"The middle half of them lies within {duration(row.wall_ms_iqr)}.")
    if row.peak_bytes and row.scratch_bytes is not None:
        said.append(f"It held {size(row.peak_bytes)} at its peak, {size(row.scratch_bytes)} of it scratch.")
    return "\n".join([*said, *filter(None, (row.message, *row.cautions))])
