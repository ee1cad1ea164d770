"""The picture of a race as a PNG: the answer, the two plots, and below them whatever a reader must know.

Qt is imported when this module is; the command line imports it only for ``--png``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyqtgraph as pg
from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QImage, QImageWriter, QPainter, QPen
from PySide6.QtWidgets import QApplication

from app.picture.race_plots import SCALE, Bars, Lines, font, line_pen, mark_brush, mark_size, pen
from app.report import sweep_lines
from app.report.outcome import CaseRows, adapters, answer, common, message, notes
from app.report.theme import INK, MUTED, PAPER, RULE, kernel_colour
from engine.records.results import Row, Status

_WIDTH = 1200
_MARGIN = 36
_INNER = _WIDTH - 2 * _MARGIN
_MOST_NOTES = 6
_LEGEND_ROW = 28


def png(groups: Sequence[CaseRows]) -> bytes:
    """Return the picture of a race as PNG bytes: lines over the swept value, or bars where no size is swept."""
    application = QApplication.instance() or QApplication(_arguments())
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    QImageWriter(buffer, QByteArray(b"png")).write(_draw(groups))
    del application  # had to live until here
    return bytes(buffer.data().data())


def _arguments() -> list[str]:
    """Draw off screen on Linux, where a display may be absent, stale or lack its libraries, and Qt would abort."""
    return ["flashscope", *(["-platform", "offscreen"] if sys.platform.startswith("linux") else [])]


def _draw(groups: Sequence[CaseRows]) -> QImage:
    bars = not sweep_lines.varied(groups)
    plots = Bars(groups, _INNER) if bars else Lines(groups, _INNER)
    header, footer = _header(groups), _footer(groups)
    legend = [] if bars else _legend(groups)
    top = _MARGIN + sum(line.height for line in header)
    middle = top + (_LEGEND_ROW * (legend[-1].row + 1) + 12 if legend else 0)
    bottom = middle + plots.height + 14
    height = bottom + sum(line.height for line in footer) + _MARGIN

    picture = QImage(_WIDTH * SCALE, math.ceil(height) * SCALE, QImage.Format.Format_RGB32)
    picture.setDevicePixelRatio(SCALE)
    picture.fill(QColor(PAPER))
    painter = QPainter(picture)
    painter.setRenderHints(QPainter.RenderHint.Antialiasing | QPainter.RenderHint.TextAntialiasing)
    _draw_text(painter, header, _MARGIN)
    for entry in legend:
        entry.draw(painter, top)
    plots.paint(painter, QRectF(_MARGIN, middle, _INNER, plots.height))
    painter.setPen(QPen(QColor(RULE), 1))
    painter.drawLine(_MARGIN, round(bottom - 6), _WIDTH - _MARGIN, round(bottom - 6))
    _draw_text(painter, footer, bottom + 4)
    painter.end()
    return picture


# --- paragraphs above and below the plots ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Paragraph:
    text: str
    font: QFont
    colour: str
    gap: float = 4.0

    @property
    def height(self) -> float:
        room = QRectF(0, 0, _INNER, 1e4)
        return QFontMetricsF(self.font).boundingRect(room, Qt.TextFlag.TextWordWrap, self.text).height() + self.gap


def _draw_text(painter: QPainter, paragraphs: Sequence[_Paragraph], top: float) -> None:
    for paragraph in paragraphs:
        painter.setFont(paragraph.font)
        painter.setPen(QColor(paragraph.colour))
        painter.drawText(QRectF(_MARGIN, top, _INNER, 1e4), Qt.TextFlag.TextWordWrap, paragraph.text)
        top += paragraph.height


def _header(groups: Sequence[CaseRows]) -> list[_Paragraph]:
    problem = "Attention race: " + common([group.case for group in groups])
    return [
        _Paragraph(answer(groups).replace("-", "\N{NON-BREAKING HYPHEN}"), font(21, bold=True), INK, gap=8),
        _Paragraph(problem, font(15), INK),
        *(_Paragraph(adapter, font(13), MUTED) for adapter in adapters(groups)),
        _Paragraph("", font(13), MUTED),
    ]


def _footer(groups: Sequence[CaseRows]) -> list[_Paragraph]:
    rows = [row for group in groups for row in group.rows]
    said = list(notes(groups, lambda row: "" if row.status is Status.OK else message(row)))
    said[_MOST_NOTES:] = [f"… and {len(said) - _MOST_NOTES} more notes in the table"] * (len(said) > _MOST_NOTES)
    return [
        *(_Paragraph(note, font(12), INK) for note in said),
        _Paragraph(_verification(rows), font(12), MUTED),
        _Paragraph(_origin(rows[0]), font(12), MUTED),
    ]


def _verification(rows: Sequence[Row]) -> str:
    compared = [row for row in rows if row.verified is not None]
    errors = [row.max_abs_err for row in compared if row.verified and row.max_abs_err is not None]
    text = f"{sum(row.verified is True for row in compared)} of {len(compared)} results verified (✓) against a float64"
    return f"{text} reference" + (f", largest error {max(errors):.1e}" if errors else "")


def _origin(row: Row) -> str:
    try:
        started = datetime.fromisoformat(row.started_at).strftime("%Y-%m-%d %H:%M %Z").strip()
    except ValueError:
        started = row.started_at
    return (
        f"{started} · FlashScope {row.app_version} · numpy {row.numpy_version} ({row.blas}) · "
        f"wgpu {row.wgpu_version} · Python {row.python_version} · {row.os} · run {row.run_id}"
    )


# --- legend of the lines --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _LegendEntry:
    text: str
    x: float
    row: int
    sample: Callable[[QPainter, float, float], None]

    def draw(self, painter: QPainter, top: float) -> None:
        y = top + _LEGEND_ROW * (self.row + 0.5)
        painter.save()  # a brush left behind would fill the curves of the plots
        self.sample(painter, self.x, y)
        painter.restore()
        painter.setFont(font(13))
        painter.setPen(QColor(INK))
        painter.drawText(QRectF(self.x + 44, y - 12, _INNER, 24), Qt.AlignmentFlag.AlignVCenter, self.text)


def _legend(groups: Sequence[CaseRows]) -> list[_LegendEntry]:
    """Return the kernels' colours and, where several lines share one, the marks that tell them apart, in rows."""
    wanted: list[tuple[str, Callable[[QPainter, float, float], None]]] = [
        (kernel, _kernel_sample(kernel)) for kernel in dict.fromkeys(row.kernel for g in groups for row in g.rows)
    ]
    series = sweep_lines.series(groups, sweep_lines.swept(groups))
    if len(series) > 1:
        wanted += [(name, _mark_sample(Lines.symbol(number))) for number, name in enumerate(series)]
    metrics = QFontMetricsF(font(13))
    entries: list[_LegendEntry] = []
    x, row = float(_MARGIN), 0
    for text, sample in wanted:
        width = 44 + metrics.horizontalAdvance(text) + 28
        if x > _MARGIN and x + width > _WIDTH - _MARGIN:
            x, row = float(_MARGIN), row + 1
        entries.append(_LegendEntry(text, x, row, sample))
        x += width
    return entries


def _kernel_sample(kernel: str) -> Callable[[QPainter, float, float], None]:
    def draw(painter: QPainter, x: float, y: float) -> None:
        painter.setPen(line_pen(kernel))
        painter.drawLine(round(x), round(y), round(x + 36), round(y))
        painter.setPen(pen(kernel_colour(kernel), 1.4))
        painter.setBrush(mark_brush(kernel))
        side = mark_size(kernel)
        painter.drawEllipse(QRectF(x + 18 - side / 2, y - side / 2, side, side))

    return draw


def _mark_sample(symbol: str) -> Callable[[QPainter, float, float], None]:
    def draw(painter: QPainter, x: float, y: float) -> None:
        painter.translate(x + 18, y)
        painter.scale(9, 9)  # pyqtgraph draws its symbols in a square of side 1
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(MUTED))
        painter.drawPath(pg.graphicsItems.ScatterPlotItem.Symbols[symbol])

    return draw
