"""How a chart is to become a picture: pixels at a scale, or lines that stay sharp at any."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QComboBox, QDialog, QDialogButtonBox, QFormLayout, QLabel, QSpinBox, QWidget

from app.window.look.wheel import guard_fields

MOST = 8


@dataclass(frozen=True)
class PictureKind:
    """``ending`` is ``.png`` or ``.svg``; ``scale`` is pixels of the picture to one of the screen."""

    ending: str
    scale: int


class ExportPicture(QDialog):
    """Asks for the format and, for pixels, the scale, and says how large the picture will be."""

    def __init__(self, size: QSize, scale: int, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Export picture")
        self._size = size
        self._format = QComboBox()
        self._format.addItem("PNG: pixels, for slides and the web", ".png")
        self._format.addItem("SVG: lines, for papers", ".svg")
        self._scale = QSpinBox()
        self._scale.setRange(1, MOST)
        self._scale.setSuffix(" ×")
        self._scale.setValue(scale)
        self._result = QLabel()
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel)
        choose = buttons.addButton("&Choose file…", QDialogButtonBox.ButtonRole.AcceptRole)
        choose.setDefault(True)
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        form = QFormLayout(self)
        form.addRow("&Format", self._format)
        form.addRow("&Scale", self._scale)
        form.addRow("Picture", self._result)
        form.addRow(buttons)
        self._format.currentIndexChanged.connect(self._describe)
        self._scale.valueChanged.connect(self._describe)
        self._describe()
        guard_fields(self)

    @property
    def kind(self) -> PictureKind:
        """What was chosen."""
        return PictureKind(self._format.currentData(), self._scale.value())

    def _describe(self) -> None:
        pixels = self.kind.ending == ".png"
        self._scale.setEnabled(pixels)
        size = self._size * self.kind.scale
        self._result.setText(f"{size.width()} × {size.height()} pixels" if pixels else "sharp at any size")
