"""The pictures on the toolbar, drawn in the colours of the moment."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPen, QPixmap, QPolygonF

from app.report.theme import Palette

_SIDE = 20
_PIXELS = 3  # to a unit, for screens of any density

_Draw = Callable[[QPainter], None]


def icon(name: str, palette: Palette) -> QIcon:
    """Return the icon ``run``, ``stop`` or ``export``; greyed where its action is disabled."""
    draw, colour = {
        "run": (_run, palette.good),
        "stop": (_stop, palette.bad),
        "export": (_export, palette.ink),
    }[name]
    result = QIcon(_pixmap(draw, colour))
    faded = QColor(palette.muted)
    faded.setAlphaF(0.5)
    result.addPixmap(_pixmap(draw, faded), QIcon.Mode.Disabled)
    return result


def _pixmap(draw: _Draw, colour: str | QColor) -> QPixmap:
    pixmap = QPixmap(_SIDE * _PIXELS, _SIDE * _PIXELS)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setWindow(0, 0, _SIDE, _SIDE)
    pen = QPen(QColor(colour), 1.8)
    pen.setCapStyle(Qt.PenCapStyle.RoundCap)
    pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
    painter.setPen(pen)
    painter.setBrush(QColor(colour))
    draw(painter)
    painter.end()
    return pixmap


def _run(painter: QPainter) -> None:
    painter.drawPolygon(QPolygonF([QPointF(6, 4), QPointF(16, 10), QPointF(6, 16)]))


def _stop(painter: QPainter) -> None:
    painter.drawRoundedRect(QRectF(5, 5, 10, 10), 1.5, 1.5)


def _export(painter: QPainter) -> None:
    painter.drawLine(QPointF(10, 3.5), QPointF(10, 12))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawPolyline([QPointF(6.5, 8.8), QPointF(10, 12.3), QPointF(13.5, 8.8)])
    painter.drawPolyline([QPointF(4, 13), QPointF(4, 16.5), QPointF(16, 16.5), QPointF(16, 13)])
