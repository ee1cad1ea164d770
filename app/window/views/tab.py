"""What the tabs of the centre share: the answer on top, controls, charts, a hint while empty, and pictures of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from PySide6.QtCore import Qt
from PySide6.QtGui import QPalette, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QHBoxLayout, QLabel, QScrollArea, QSizePolicy, QVBoxLayout, QWidget

from app.window.charts import picture
from app.window.charts.chart import Chart
from app.window.charts.legend import KernelLegend
from app.window.charts.refresher import Refresher
from app.window.look.appearance import appearance
from app.window.look.local_numbers import localised
from app.window.results.session_data import SessionData
from app.window.views.hint import HintStack
from engine.kernels import registry

T = TypeVar("T")
_WIDE = 760


class ChartTab(QWidget):
    """A tab over the session's data. Subclasses add controls and charts, and draw in ``draw``."""

    def __init__(self, data: SessionData, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.data = data
        self.answer = QLabel()
        self.answer.setProperty("role", "answer")
        self.about = QLabel()
        self.about.setProperty("role", "muted")
        for label in (self.answer, self.about):
            label.setWordWrap(True)
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.legend = KernelLegend()
        self.controls = QHBoxLayout()
        self.controls.setSpacing(8)
        self.body = QVBoxLayout()
        self.body.setSpacing(6)
        self._pictured: list[QWidget] = []
        self._bar = QHBoxLayout()
        self._bar.addWidget(self.about, 1)
        self._bar.addLayout(self.controls)
        content = QWidget()
        content.setAutoFillBackground(True)
        content.setBackgroundRole(QPalette.ColorRole.Base)
        column = QVBoxLayout(content)
        column.setContentsMargins(14, 12, 14, 8)
        column.setSpacing(4)
        column.addWidget(self.answer)
        column.addLayout(self._bar)
        column.addWidget(self.legend)
        column.addLayout(self.body, 1)
        scroll = QScrollArea()  # where the window is small, rather than text over text
        scroll.setWidget(content)
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._hint = HintStack("", scroll)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(self._hint)
        self.refresher = Refresher(self._draw_if_seen, self)
        self._due = True
        self.legend.changed.connect(self.refresher.request)
        appearance().changed.connect(self.refresher.request)
        data.reset.connect(self._begin)
        data.rows_changed.connect(self.refresher.request)
        data.finished.connect(lambda _reason: self.refresher.request())

    # --- for subclasses ---------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Draw everything anew from the data."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw what may have changed since it was drawn last; this is what the timer calls."""
        self.draw()

    def has_content(self) -> bool:
        """Whether there is something to draw."""
        return not self.data.empty

    def hint(self) -> str:
        """Return what to say while there is nothing to draw."""
        raise NotImplementedError

    def begin(self) -> None:
        """Another session has begun or was opened."""

    def charts(self) -> tuple[Chart, ...]:
        """Return the charts that are drawn."""
        return ()

    def say(self, answer: str, about: str) -> None:
        """Show the answer, and what it is the answer to."""
        unbroken = answer.replace("-", "\N{NON-BREAKING HYPHEN}")  # so that kernels' names stay whole
        for label, text in ((self.answer, unbroken), (self.about, about)):
            label.setText(localised(text))
            label.setVisible(bool(text))

    # --- pictures ---------------------------------------------------------------------------------------------------

    def chart_widget(self) -> QWidget:
        """Return the widget that holds the charts."""
        return self._pictured[0]

    def export_png(self, path: str | os.PathLike[str], scale: float = 2.0) -> None:
        """Write what is shown as PNG, ``scale`` pixels to a unit of the screen. Raises OSError."""
        picture.write(path, self._scaled(scale, lambda parts: picture.png(parts, scale)))

    def export_svg(self, path: str | os.PathLike[str]) -> None:
        """Write what is shown as SVG. Raises OSError."""
        picture.write(path, self._scaled(1.0, picture.svg))

    def copy_image(self, scale: float = 2.0) -> None:
        """Put what is shown on the clipboard as a picture."""
        self._scaled(scale, lambda parts: picture.copy(parts, scale))

    def _scaled(self, scale: float, take: Callable[[Sequence[QWidget]], T]) -> T:
        """Return what ``take`` makes of the widgets that are pictured, drawn for a picture of that scale."""
        brought_out, self.legend.highlighted = self.legend.highlighted, None  # the pointer is no part of a picture
        try:
            self._draw_for_picture(True, scale)
            labels = [label for label in (self.answer, self.about) if label.text()]
            return take([*labels, self.legend, *self._pictured])
        finally:
            self.legend.highlighted = brought_out
            self._draw_for_picture(False, 1.0)

    def _draw_for_picture(self, in_vectors: bool, pen_scale: float) -> None:
        for chart in self.charts():
            chart.in_vectors, chart.pen_scale = in_vectors, pen_scale
        self.draw()

    # --- drawing ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        known = (registry.get_kernel(kernel) for kernel in self.data.kernels if kernel in registry.kernel_names())
        self.refresher.calm = self.data.running and any(kernel.device_kind == "cpu" for kernel in known)
        self.legend.show_kernels(self.data.kernels)
        self.begin()
        self.refresher.now()

    def _draw_if_seen(self) -> None:
        """Draw, or where nobody looks only remember to."""
        self._hint.label.setText(self.hint())
        self._hint.show_content(self.has_content())
        self._due = not self.isVisible()
        if not self._due and self.has_content():
            self.redraw()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Put the controls beside what they belong to, or below it where there is no room."""
        super().resizeEvent(event)
        wide = event.size().width() >= _WIDE
        self._bar.setDirection(QBoxLayout.Direction.LeftToRight if wide else QBoxLayout.Direction.TopToBottom)

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802
        """Draw what has come while nobody looked."""
        super().showEvent(event)
        if self._due:
            self.refresher.now()
