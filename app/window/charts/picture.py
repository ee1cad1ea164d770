"""What a tab shows as a picture: PNG at any scale, SVG, or on the clipboard."""

from __future__ import annotations

import os
from collections.abc import Sequence

from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QPoint, QPointF, QRect, QRectF, QSize
from PySide6.QtGui import QColor, QGuiApplication, QImage, QImageWriter, QPainter, QRegion
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QSplitterHandle, QWidget

from app.window.charts import vectors
from app.window.charts.chart import Chart
from app.window.look.appearance import appearance
from engine.storage.atomic import replace_file

_MARGIN = 16
_GAP = 8


def png(parts: Sequence[QWidget], scale: float) -> bytes:
    """Return the widgets, one under the other, as PNG, ``scale`` pixels to a unit of the screen."""
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    QImageWriter(buffer, QByteArray(b"png")).write(image(parts, scale))
    return bytes(buffer.data().data())


def svg(parts: Sequence[QWidget]) -> bytes:
    """Return the widgets, one under the other, as SVG."""
    buffer = QBuffer()
    charts: list[tuple[Chart, QPointF]] = []
    _paint(vectors.generator(buffer, _size(parts), parts[0].logicalDpiX()), parts, charts)
    drawing = bytes(buffer.data().data()).decode()
    insides = "".join(vectors.content(chart, origin) for chart, origin in charts)
    return drawing.replace("</svg>", f"{insides}</svg>").encode()


def image(parts: Sequence[QWidget], scale: float) -> QImage:
    """Return the widgets, one under the other."""
    size = _size(parts)
    picture = QImage(size * scale, QImage.Format.Format_RGB32)
    picture.setDevicePixelRatio(scale)
    _paint(picture, parts)
    return picture


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a picture whole or not at all. Raises OSError."""
    replace_file(path, data)


def copy(parts: Sequence[QWidget], scale: float) -> None:
    """Put the widgets on the clipboard as a picture."""
    QGuiApplication.clipboard().setImage(image(parts, scale))


def _size(parts: Sequence[QWidget]) -> QSize:
    height = sum(part.height() for part in parts) + _GAP * (len(parts) - 1)
    return QSize(max(part.width() for part in parts) + 2 * _MARGIN, height + 2 * _MARGIN)


def _paint(
    device: QImage | QSvgGenerator, parts: Sequence[QWidget], charts: list[tuple[Chart, QPointF]] | None = None
) -> None:
    """Paint the widgets. Where ``charts`` is given, it takes the charts found, of which only the axes are painted."""
    painter = QPainter(device)
    painter.setRenderHints(QPainter.RenderHint.Antialiasing | QPainter.RenderHint.TextAntialiasing)
    painter.fillRect(QRect(QPoint(0, 0), _size(parts)), QColor(appearance().palette.paper))
    top = _MARGIN
    for part in parts:
        painter.save()
        painter.translate(_MARGIN, top)
        _paint_widget(painter, part, charts)
        painter.restore()
        top += part.height() + _GAP
    painter.end()


def _paint_widget(painter: QPainter, widget: QWidget, charts: list[tuple[Chart, QPointF]] | None) -> None:
    """Paint a widget at the origin."""
    if isinstance(widget, Chart) and charts is not None:
        charts.append((widget, painter.worldTransform().map(QPointF(0, 0))))
        vectors.paint_axes(painter, widget)
    elif isinstance(widget, Chart):
        widget.render(painter, QRectF(widget.rect()), widget.rect())
    elif widget.findChildren(Chart):
        for child in widget.children():
            if isinstance(child, QWidget) and not child.isHidden() and not isinstance(child, QSplitterHandle):
                painter.save()
                painter.translate(child.pos())
                _paint_widget(painter, child, charts)
                painter.restore()
    else:
        widget.render(painter, QPoint(0, 0), QRegion(), QWidget.RenderFlag.DrawChildren)
