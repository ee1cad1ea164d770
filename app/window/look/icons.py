"""Small pictures drawn on the spot: a kernel's mark in its colour, and how its turn ended."""

from __future__ import annotations

from collections.abc import Callable

import pyqtgraph as pg
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPen, QPixmap, QPixmapCache

from app.report.theme import Palette, kernel_symbol
from app.window.look.appearance import appearance
from engine.records.results import Status

_SIDE = 16
_MARK = 0.7  # of the icon's side
_PIXELS = 3  # to a unit, for screens of any density

# strokes from 0 to 16, right and down
_STROKES: dict[Status, tuple[tuple[tuple[float, float], ...], ...]] = {
    Status.OK: (((3, 8.5), (6.5, 12), (13, 4.5)),),
    Status.WRONG: (((4, 4), (12, 12)), ((12, 4), (4, 12))),
    Status.FAILED: (((8, 3), (8, 9)), ((8, 12.4), (8, 12.6))),
    Status.SKIPPED: (((4, 8), (12, 8)),),
    Status.CANCELLED: (((4.5, 4.5), (11.5, 4.5), (11.5, 11.5), (4.5, 11.5), (4.5, 4.5)),),
}


def kernel_icon(kernel: str) -> QIcon:
    """Return the kernel's mark in its colour, as the charts draw it."""
    whole = QRectF(0, 0, _SIDE, _SIDE)
    return _drawn(kernel, lambda painter, palette: draw_mark(painter, whole, kernel, palette.kernel(kernel)))


def draw_mark(painter: QPainter, place: QRectF, kernel: str, colour: str) -> None:
    """Draw the kernel's mark into a square."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor(colour))
    painter.translate(place.center())
    painter.scale(_MARK * place.width(), _MARK * place.height())  # pyqtgraph draws symbols in a square of side 1
    painter.drawPath(pg.graphicsItems.ScatterPlotItem.Symbols[kernel_symbol(kernel)])
    painter.restore()


def status_icon(status: Status) -> QIcon:
    """Return a tick, cross, exclamation mark, dash or square for how a turn ended."""
    return _drawn(status.value, lambda painter, palette: _draw_status(painter, status, palette))


def status_colour(status: Status, palette: Palette) -> str:
    """Return the colour that a status is said in."""
    if status is Status.OK:
        return palette.good
    return palette.bad if status in (Status.WRONG, Status.FAILED) else palette.caution


def _drawn(name: str, draw: Callable[[QPainter, Palette], None]) -> QIcon:
    """Return the icon that ``draw`` draws in a square of side 16, drawn once for each palette."""
    palette = appearance().palette
    key = f"flashscope {name} {palette.dark}"
    pixmap = QPixmap()
    if not QPixmapCache.find(key, pixmap):
        pixmap = QPixmap(_SIDE * _PIXELS, _SIDE * _PIXELS)
        pixmap.fill(Qt.GlobalColor.transparent)
        painter = QPainter(pixmap)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setWindow(0, 0, _SIDE, _SIDE)
        draw(painter, palette)
        painter.end()
        QPixmapCache.insert(key, pixmap)
    return QIcon(pixmap)


def _draw_status(painter: QPainter, status: Status, palette: Palette) -> None:
    pen = QPen(QColor(status_colour(status, palette)), 2.2)
    pen.setCapStyle(Qt.PenCapStyle.RoundCap)
    pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
    painter.setPen(pen)
    for stroke in _STROKES[status]:
        painter.drawPolyline([QPointF(x, y) for x, y in stroke])
