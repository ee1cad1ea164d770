"""The two plots of a race, latency and memory: log-log lines over the swept value, or bars where no size is swept."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import pyqtgraph as pg
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPen
from PySide6.QtWidgets import QApplication

from app.report import sweep_lines, ticks
from app.report.bar_scale import BarScale
from app.report.outcome import CaseRows, distinct, whisker
from app.report.theme import INK, MUTED, PAPER, RULE, kernel_colour, on_cpu
from app.report.units import duration, size
from engine.records.results import Row

SCALE = 2  # device pixels per unit, so that text stays crisp in print

_TITLE_HEIGHT = 32
_AXIS_HEIGHT = 28
_LABELS_WIDTH = 168  # at least
_LEFT_AXIS_WIDTH = 70
_GAP = 36
_BAR_ROW = 64
_LINES_HEIGHT = 400


def font(pixels: int, *, bold: bool = False) -> QFont:
    """Return the chart's typeface in a size of pixels."""
    typeface = QFont()
    typeface.setFamilies(["DejaVu Sans", "Segoe UI", "Helvetica Neue", "Arial"])
    typeface.setPixelSize(pixels)
    typeface.setBold(bold)
    return typeface


def pen(colour: str, width: float, style: Qt.PenStyle = Qt.PenStyle.SolidLine) -> QPen:
    """Return a pen of a width in the chart's units: pyqtgraph's pens count in device pixels whatever the scale."""
    return pg.mkPen(colour, width=width * SCALE, style=style)


def line_pen(kernel: str) -> QPen:
    """Return the pen of a kernel's line; CPU kernels are dashed, so that a GPU line under them still shows."""
    line = pen(kernel_colour(kernel), 1.8)
    if on_cpu(kernel):
        line.setCapStyle(Qt.PenCapStyle.FlatCap)
        line.setDashPattern([4, 4])
    return line


def mark_brush(kernel: str) -> QColor:
    """Return the filling of a kernel's marks: paper for CPU kernels, the kernel's colour for the others."""
    return QColor(PAPER if on_cpu(kernel) else kernel_colour(kernel))


def mark_size(kernel: str) -> float:
    """Return the side of a kernel's marks: smaller for CPU kernels, for the same reason."""
    return 7.0 if on_cpu(kernel) else 10.0


class _Grid:
    """Views, axes and titles of pyqtgraph in a grid of fixed size, painted without ever being shown."""

    def __init__(self, width: float, height: float) -> None:
        self.height = height
        self._widget = pg.GraphicsLayoutWidget(size=(round(width), round(height)))
        self._widget.setBackground(None)
        self._widget.setAttribute(Qt.WidgetAttribute.WA_DontShowOnScreen)
        self._layout = self._widget.ci.layout
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(0)
        self._layout.setRowFixedHeight(0, _TITLE_HEIGHT)

    def columns(self, widths: Sequence[float]) -> None:
        for column, width in enumerate(widths):
            self._layout.setColumnFixedWidth(column, width)

    def title(self, what: str, explained: str, column: int, span: int = 1) -> None:
        markup = f"<span style='{_css(14)}'><b>{what}</b></span> <span style='{_css(13, MUTED)}'>{explained}</span>"
        self._layout.addItem(pg.LabelItem(markup, justify="left"), 0, column, 1, span)

    def view(self, column: int, x: tuple[float, float], y: tuple[float, float]) -> pg.ViewBox:
        view = pg.ViewBox(enableMouse=False, enableMenu=False, defaultPadding=0)
        view.setRange(xRange=x, yRange=y, padding=0, disableAutoRange=True)
        self._layout.addItem(view, 1, column)
        return view

    def axis(self, side: str, view: pg.ViewBox, marks: ticks.Ticks, column: int) -> None:
        """Add an axis with a line across the view at each mark; pyqtgraph's own grid hides the marks at the ends.

        Along the bottom, texts that have no room are left out.
        """
        axis = pg.AxisItem(side, linkView=view, pen=pg.mkPen(None), textPen=MUTED, maxTickLength=0)
        axis.setTicks([self._thinned(view, marks, column) if side == "bottom" else marks])
        axis.setStyle(tickFont=font(12), tickTextOffset=8, hideOverlappingLabels=False)
        bottom = side == "bottom"
        if bottom:
            axis.setHeight(_AXIS_HEIGHT)
        else:
            axis.setWidth(_LEFT_AXIS_WIDTH)
        self._layout.addItem(axis, 2 if bottom else 1, column)
        for place, _ in marks:
            rule = pg.InfiniteLine(place, angle=90 if bottom else 0, pen=pen(RULE, 0.75))
            rule.setZValue(-10)
            view.addItem(rule)

    def _thinned(self, view: pg.ViewBox, marks: ticks.Ticks, column: int) -> ticks.Ticks:
        low, high = view.viewRange()[0]
        width = self._layout.columnMinimumWidth(column)  # which is fixed
        metrics = QFontMetricsF(font(12))
        return ticks.thinned(
            marks, lambda place: (place - low) / (high - low) * width, lambda text: metrics.horizontalAdvance(text) + 8
        )

    def axis_name(self, text: str, column: int) -> None:
        self._layout.addItem(pg.LabelItem(f"<span style='{_css(13, MUTED)}'>{text}</span>"), 3, column)

    def paint(self, painter: QPainter, target: QRectF) -> None:
        """Draw everything into ``target``."""
        self._widget.show()
        QApplication.processEvents()
        self._widget.scene().prepareForPaint()
        self._widget.scene().render(painter, target, QRectF(self._widget.rect()))
        self._widget.close()


# --- one case, or one in both directions ----------------------------------------------------------------------------


class Bars(_Grid):
    """A bar per kernel and case."""

    def __init__(self, groups: Sequence[CaseRows], width: float) -> None:
        cases = [group.case for group in groups]
        named = [(distinct(group.case, cases), row) for group in groups for row in group.rows]
        rows = [row for _, row in named]
        super().__init__(width, _TITLE_HEIGHT + _BAR_ROW * len(rows) + _AXIS_HEIGHT)
        labels = max(_LABELS_WIDTH, *(_name_width(row, case) for case, row in named))
        panel = (width - labels - _GAP) / 2
        self.columns((labels, panel, _GAP, panel))
        ends = [row.wall_ms_median and max(row.wall_ms_median, *(whisker(row) or (0.0,))) for row in rows]
        latency = BarScale.over(ends)
        memory = BarScale.over([figure for row in rows for figure in (row.peak_bytes, row.scratch_bytes)])
        names, times, bytes_ = (
            self.view(column, ends, (-0.5, len(rows) - 0.5))
            for column, ends in ((0, (0.0, 1.0)), (1, latency.ends), (3, memory.ends))
        )
        self.title("Latency", f"ms, median, whiskers: quartiles{_log_scale(latency)}", 1)
        self.title("Memory", f"peak (pale) and scratch (full){_log_scale(memory)}", 3)
        self.axis("bottom", times, latency.marks(of_bytes=False), 1)
        self.axis("bottom", bytes_, memory.marks(of_bytes=True), 3)
        for place, (case, row) in enumerate(reversed(named)):
            _text(names, 0, place, _name(row, case))
            _latency_bar(times, latency, place, row)
            _memory_bar(bytes_, memory, place, row)


def _log_scale(scale: BarScale) -> str:
    return ", log scale" if scale.log else ""


def _name(row: Row, case: str) -> str:
    marks = {True: "✓ verified", False: "✗ wrong result", None: row.status.value}
    where = "" if row.adapter_type in (None, "cpu") else f" · {row.adapter_type}"
    return (
        f"<span style='{_css(15)}'><b>{html.escape(row.kernel)}</b></span> "
        f"<span style='{_css(13)}'>{html.escape(case)}</span><br>"
        f"<span style='{_css(12, MUTED)}'>{marks[row.verified]}{where}</span>"
    )


def _name_width(row: Row, case: str) -> float:
    bold, plain = QFontMetricsF(font(15, bold=True)), QFontMetricsF(font(13))
    return bold.horizontalAdvance(row.kernel) + plain.horizontalAdvance(f" {case}") + 24


def _latency_bar(view: pg.ViewBox, scale: BarScale, place: int, row: Row) -> None:
    if not row.wall_ms_median:
        _text(view, scale.at(scale.low), place, f"<span style='{_css(13, MUTED)}'>not timed</span>")
        return
    median = row.wall_ms_median
    first, third = whisker(row) or (median, median)
    _bar(view, scale, median, place, 0.56, QColor(kernel_colour(row.kernel)))
    low, high = scale.at(first), scale.at(third)
    cap = [place - 0.1, place + 0.1]
    for xs, ys in (([low, high], [place, place]), ([low, low], cap), ([high, high], cap)) if whisker(row) else ():
        view.addItem(pg.PlotCurveItem(xs, ys, pen=pen(INK, 1.2), antialias=True))
    beside = "" if row.gpu_ms_median is None else f"GPU clock {duration(row.gpu_ms_median)}"
    _text(view, high, place, _figures(duration(median), beside))


def _memory_bar(view: pg.ViewBox, scale: BarScale, place: int, row: Row) -> None:
    if not row.peak_bytes:
        _text(view, scale.at(scale.low), place, f"<span style='{_css(13, MUTED)}'>not measured</span>")
        return
    full = QColor(kernel_colour(row.kernel))
    pale = QColor(full)
    pale.setAlphaF(0.3)
    _bar(view, scale, row.peak_bytes, place, 0.56, pale)
    if row.scratch_bytes:
        _bar(view, scale, row.scratch_bytes, place, 0.28, full)
    beside = "" if row.scratch_bytes is None else f"scratch {size(row.scratch_bytes)}"
    _text(view, scale.at(row.peak_bytes), place, _figures(size(row.peak_bytes), beside))


def _figures(main: str, beside: str) -> str:
    return f"<span style='{_css(14)}'><b>{main}</b></span> <span style='{_css(12, MUTED)}'>&nbsp;{beside}</span>"


def _bar(view: pg.ViewBox, scale: BarScale, value: float, place: int, thickness: float, colour: QColor) -> None:
    start, end = scale.at(scale.low), scale.at(value)
    view.addItem(pg.BarGraphItem(x0=[start], x1=[end], y=[place], height=thickness, brush=pg.mkBrush(colour), pen=None))


def _text(view: pg.ViewBox, x: float, y: float, markup: str) -> None:
    item = pg.TextItem(html=markup, anchor=(0, 0.5))
    view.addItem(item)
    item.setPos(x, y)


# --- several cases --------------------------------------------------------------------------------------------------

_SYMBOLS = ("o", "s", "t1", "d", "star", "p", "h", "t")


class Lines(_Grid):
    """Several cases: a line per kernel over the swept value, and one for every case of a second sweep."""

    def __init__(self, groups: Sequence[CaseRows], width: float) -> None:
        super().__init__(width, _TITLE_HEIGHT + _LINES_HEIGHT + 2 * _AXIS_HEIGHT)
        panel = (width - 2 * _LEFT_AXIS_WIDTH - _GAP) / 2
        self.columns((_LEFT_AXIS_WIDTH, panel, _GAP, _LEFT_AXIS_WIDTH, panel))
        rows = [row for group in groups for row in group.rows]
        times = [row.wall_ms_median for row in rows if row.wall_ms_median]
        sizes = [float(figure) for row in rows for figure in (row.peak_bytes, row.scratch_bytes) if figure]
        self.title("Latency", "ms, median of the wall clock, whiskers: quartiles", 0, 2)
        self.title("Memory", "peak (marks) and scratch (dotted)", 3, 2)
        swept = sweep_lines.swept(groups)
        value = sweep_lines.AXES[swept]
        values = sorted({value(group) for group in groups})
        for column, figures, marks, plot in (
            (0, times, ticks.logarithmic, _latency_line),
            (3, sizes, ticks.logarithmic_bytes, _memory_line),
        ):
            low, high = min(figures, default=1.0) / 1.5, max(figures, default=1.0) * 1.5
            view = self.view(column + 1, _padded(values), (math.log10(low), math.log10(high)))
            self.axis("left", view, marks(low, high), column)
            self.axis("bottom", view, ticks.chosen(values), column + 1)
            self.axis_name(swept, column + 1)
            for number, line in enumerate(sweep_lines.series(groups, swept).values()):
                for kernel in dict.fromkeys(row.kernel for row in rows):
                    points = [(value(group), row) for group in line for row in group.rows if row.kernel == kernel]
                    plot(view, kernel, points, self.symbol(number))

    @staticmethod
    def symbol(number: int) -> str:
        """Return the mark of the ``number``-th line of a kernel."""
        return _SYMBOLS[number % len(_SYMBOLS)]


def _padded(values: Sequence[int]) -> tuple[float, float]:
    low, high = math.log10(values[0]), math.log10(values[-1])
    pad = 0.05 * (high - low) or 0.3
    return low - pad, high + pad


def _latency_line(view: pg.ViewBox, kernel: str, points: Sequence[tuple[int, Row]], symbol: str) -> None:
    known = [(math.log10(x), row.wall_ms_median, whisker(row)) for x, row in points if row.wall_ms_median]
    for x, _, ends in known:
        if ends and ends[0] > 0:
            heights = [math.log10(end) for end in ends]
            view.addItem(pg.PlotCurveItem([x, x], heights, pen=pen(kernel_colour(kernel), 1.2), antialias=True))
    _line(view, kernel, [(x, math.log10(median)) for x, median, _ in known], symbol)


def _memory_line(view: pg.ViewBox, kernel: str, points: Sequence[tuple[int, Row]], symbol: str) -> None:
    scratch = [(math.log10(x), math.log10(row.scratch_bytes)) for x, row in points if row.scratch_bytes]
    if scratch:
        xs, ys = map(list, zip(*scratch, strict=True))
        dotted = pen(kernel_colour(kernel), 1.4, Qt.PenStyle.DotLine)
        view.addItem(pg.PlotCurveItem(xs, ys, pen=dotted, antialias=True))
    _line(view, kernel, [(math.log10(x), math.log10(row.peak_bytes)) for x, row in points if row.peak_bytes], symbol)


def _line(view: pg.ViewBox, kernel: str, points: Sequence[tuple[float, float]], symbol: str) -> None:
    if not points:
        return
    xs, ys = map(list, zip(*points, strict=True))
    view.addItem(pg.PlotCurveItem(xs, ys, pen=line_pen(kernel), antialias=True))
    outline, filling, size_ = pen(kernel_colour(kernel), 1.4), mark_brush(kernel), mark_size(kernel)
    view.addItem(pg.ScatterPlotItem(xs, ys, symbol=symbol, size=size_, pen=outline, brush=filling, antialias=True))


def _css(pixels: int, colour: str = INK) -> str:
    return f"font-family: DejaVu Sans, Segoe UI, Helvetica Neue, Arial; font-size: {pixels}px; color: {colour}"
