"""What a tab shows as a picture: PNG at any scale, SVG, or on the clipboard."""

from __future__ import annotations

import os
from collections.abc import Sequence

from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QPoint, QRect, QSize
from PySide6.QtGui import QColor, QGuiApplication, QImage, QImageWriter, QPainter, QRegion
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QWidget

from app.appearance import appearance
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
    size = _size(parts)
    buffer = QBuffer()
    generator = QSvgGenerator()
    generator.setOutputDevice(buffer)
    generator.setSize(size)
    generator.setViewBox(QRect(QPoint(0, 0), size))
    generator.setTitle("FlashScope")
    _paint(generator, parts, size)
    return bytes(buffer.data().data())


def image(parts: Sequence[QWidget], scale: float) -> QImage:
    """Return the widgets, one under the other."""
    size = _size(parts)
    picture = QImage(size * scale, QImage.Format.Format_RGB32)
    picture.setDevicePixelRatio(scale)
    _paint(picture, parts, size)
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


def _paint(device: QImage | QSvgGenerator, parts: Sequence[QWidget], size: QSize) -> None:
    painter = QPainter(device)
    painter.setRenderHints(QPainter.RenderHint.Antialiasing | QPainter.RenderHint.TextAntialiasing)
    painter.fillRect(QRect(QPoint(0, 0), size), QColor(appearance().palette.paper))
    top = _MARGIN
    for part in parts:
        painter.save()
        painter.translate(_MARGIN, top)
        part.render(painter, QPoint(0, 0), QRegion(), QWidget.RenderFlag.DrawChildren)
        painter.restore()
        top += part.height() + _GAP
    painter.end()
