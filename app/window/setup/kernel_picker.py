"""The kernels to race, each with the memory it will take against what it may, and why it cannot run where it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from PySide6.QtCore import QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QCheckBox, QGridLayout, QLabel, QSizePolicy, QVBoxLayout, QWidget

from app.plan.forecast import Footprint
from app.report.units import size
from app.window.look.appearance import appearance
from app.window.look.icons import kernel_icon
from app.window.look.local_numbers import localised
from engine.kernels import registry


class KernelPicker(QWidget):
    """A row per kernel."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(6)
        self.rows = {name: _KernelRow(name) for name in registry.installed_kernels()}
        for row in self.rows.values():
            layout.addWidget(row)
            row.box.toggled.connect(lambda: self.changed.emit())

    @property
    def chosen(self) -> tuple[str, ...]:
        """The kernels that are ticked."""
        return tuple(name for name, row in self.rows.items() if row.box.isChecked())

    def choose(self, kernels: Iterable[str]) -> None:
        """Tick these and no others."""
        wanted = set(kernels)
        for name, row in self.rows.items():
            row.box.setChecked(name in wanted)

    def forecast(self, footprints: Mapping[str, Footprint]) -> None:
        """Show what is predicted for each kernel; nothing for those left out."""
        for name, row in self.rows.items():
            row.forecast(footprints.get(name))


class _KernelRow(QWidget):
    def __init__(self, kernel: str) -> None:
        super().__init__()
        self._kernel = kernel
        self.box = QCheckBox(kernel)
        self.memory = QLabel()
        self.memory.setProperty("role", "muted")
        self.memory.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._bar = _Bar(kernel)
        self.reason = QLabel()
        self.reason.setProperty("role", "bad")
        self.reason.setWordWrap(True)
        self.reason.hide()
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setVerticalSpacing(2)
        layout.setColumnStretch(1, 1)
        layout.addWidget(self.box, 0, 0)
        layout.addWidget(self.memory, 0, 1)
        layout.addWidget(self._bar, 1, 0, 1, 2)
        layout.addWidget(self.reason, 2, 0, 1, 2)
        appearance().changed.connect(self._recolour)
        self._recolour()

    def forecast(self, footprint: Footprint | None) -> None:
        """Show what is predicted, or nothing for a kernel that is left out."""
        predicted = footprint is not None and footprint.most is not None
        self.memory.setText(localised(_figures(footprint)) if footprint else "")
        self._bar.show_share(footprint.most / footprint.limit if footprint and footprint.most else 0.0)
        self._bar.setVisible(predicted)
        self.reason.setText(localised(_refusal(footprint)) if footprint else "")
        self.reason.setVisible(bool(self.reason.text()))

    @Slot()
    def _recolour(self) -> None:
        self.box.setIcon(kernel_icon(self._kernel))
        self._bar.update()


class _Bar(QWidget):
    """A thin bar: how much of its limit a kernel will take."""

    def __init__(self, kernel: str) -> None:
        super().__init__()
        self._kernel = kernel
        self._share = 0.0
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:  # noqa: N802
        return QSize(60, 4)

    def show_share(self, share: float) -> None:
        self._share = share
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802
        palette = appearance().palette
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(palette.rule))
        painter.drawRoundedRect(QRectF(self.rect()), 2, 2)
        painter.setBrush(QColor(palette.bad if self._share > 1 else palette.kernel(self._kernel)))
        width = max(2.0, self.width() * min(1.0, self._share))
        painter.drawRoundedRect(QRectF(0, 0, width, self.height()), 2, 2)


def _figures(footprint: Footprint) -> str:
    if footprint.least is None or footprint.most is None:
        return ""
    spans = footprint.least != footprint.most
    needed = f"{size(footprint.least)} to {size(footprint.most)}" if spans else size(footprint.most)
    return f"{needed} of {size(footprint.limit)}"


def _refusal(footprint: Footprint) -> str:
    if not footprint.reason:
        return ""
    where = f" {footprint.where}" if footprint.where else ""
    return f"Cannot run{where}: {footprint.reason}."
