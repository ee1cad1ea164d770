"""A chart as SVG that every viewer draws alike: pens in the drawing's units, and curves clipped to the view.

pyqtgraph draws with pens that keep their width under any transform, and clips; Qt's SVG writer knows neither clipping
nor, for many viewers' taste, such pens. So every path is mapped to the drawing's units first, and the view becomes an
SVG of its own inside the picture, which clips by nature.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pyqtgraph as pg
from PySide6.QtCore import QBuffer, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPen, QTransform
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QGraphicsItem

from app.window.charts.chart import Chart


def generator(buffer: QBuffer, size: QSize, dots_per_inch: int) -> QSvgGenerator:
    """Return a writer of SVG whose unit is the screen's, so that text keeps its size."""
    made = QSvgGenerator()
    made.setOutputDevice(buffer)
    made.setResolution(dots_per_inch)
    made.setSize(size)
    made.setViewBox(QRectF(0, 0, size.width(), size.height()))
    made.setTitle("FlashScope")
    return made


def paint_axes(painter: QPainter, chart: Chart) -> None:
    """Paint the axes of a chart whose upper left corner is at the origin."""
    for axis in (chart.x_axis, chart.y_axis):
        painter.save()
        painter.translate(axis.scenePos())
        specs = axis.generateDrawSpecs(painter)
        if specs is not None:
            axis.drawPicture(painter, *specs)
        painter.restore()
        painter.save()
        painter.setTransform(axis.label.sceneTransform(), combine=True)
        axis.label.document().drawContents(painter)
        painter.restore()


def content(chart: Chart, origin: QPointF) -> str:
    """Return what is inside a chart's axes as an SVG element; ``origin`` is where the chart lies in the picture."""
    area = chart.view.sceneBoundingRect()
    buffer = QBuffer()
    device = generator(buffer, area.size().toSize(), chart.logicalDpiX())  # must outlive its painter
    painter = QPainter(device)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    to_area = QTransform.fromTranslate(-area.left(), -area.top())
    for item in _drawn(sorted(chart.plotItem.items, key=lambda item: item.zValue())):
        _paint(painter, item, item.sceneTransform() * to_area)
    painter.end()
    inner = re.search(r"</defs>(.*)</svg>", bytes(buffer.data().data()).decode(), re.DOTALL)
    assert inner is not None
    place = f'x="{origin.x() + area.left():g}" y="{origin.y() + area.top():g}"'
    size = f'width="{area.width():g}" height="{area.height():g}"'
    return f'<svg {place} {size} viewBox="0 0 {area.width():g} {area.height():g}">{inner[1]}</svg>\n'


def _drawn(items: Iterable[QGraphicsItem]) -> Iterator[QGraphicsItem]:
    """Yield what is to be seen, curves and marks of a plotted item for themselves."""
    for item in items:
        if isinstance(item, pg.PlotDataItem) and item.isVisible():
            yield from (part for part in (item.curve, item.scatter) if part.isVisible())
        elif item.isVisible():
            yield item


def _paint(painter: QPainter, item: QGraphicsItem, transform: QTransform) -> None:
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    match item:
        case pg.PlotCurveItem():
            painter.setPen(_plain(item.opts["pen"]))
            painter.drawPath(transform.map(item.getPath()))
        case pg.ScatterPlotItem():
            symbols = pg.graphicsItems.ScatterPlotItem.Symbols
            for spot in item.points():
                at = transform.map(QPointF(spot.pos()))
                painter.setPen(_plain(spot.pen()))
                painter.setBrush(spot.brush())
                here = QTransform.fromTranslate(at.x(), at.y()).scale(spot.size(), spot.size())
                painter.drawPath(here.map(symbols[spot.symbol()]))
        case pg.FillBetweenItem():
            painter.setBrush(item.brush())
            painter.drawPath(transform.map(item.path()))
        case _:
            pass  # the crosshair is no part of a picture


def _plain(pen: QPen) -> QPen:
    plain = QPen(pen)
    plain.setCosmetic(False)
    return plain
