"""A chart that pans and zooms by mouse and by key, fits its data until a person zooms, and follows light and dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyqtgraph as pg
from PySide6.QtCore import QPointF, QSize, Qt, Signal, Slot
from PySide6.QtGui import QFont, QKeySequence, QPen, QShortcut
from PySide6.QtWidgets import QWidget

from app.window.charts.axes import Axis
from app.window.look.appearance import appearance

_STEP = 0.1  # of the view, that an arrow moves
_ZOOM = 0.8
_ROOM = 1.5  # of the data's span, that a view shows at most
_CROSSHAIR_STEP = 0.01  # of the view
_GRID = 110  # of 255
_HELP = (
    "Wheel: zoom; over an axis, that axis alone. Drag: move; right button: stretch. "
    "Keys: arrows move, + and − zoom, X and Y zoom one axis (with Shift out), Home fits, comma and full stop "
    "move the crosshair."
)


class DataView(pg.ViewBox):
    """A view box that zooming out leaves near its data: beyond, there is nothing to see and no number to mark."""

    def scaleBy(  # noqa: N802
        self,
        s: Sequence[float | None] | None = None,
        center: object = None,
        x: float | None = None,
        y: float | None = None,
    ) -> None:
        """Show ``x`` and ``y`` times as much, or as ``s`` says for both, but no more than ``_ROOM`` times the data."""
        if s is not None:
            x, y = s[0], s[1]
        bounds = self.childrenBounds() or (None, None)
        factors = (
            factor if factor is None or factor <= 1 else self._bounded(factor, shown, data)
            for factor, shown, data in zip((x, y), self.viewRange(), bounds, strict=True)
        )
        super().scaleBy(center=center, **dict(zip("xy", factors, strict=True)))

    @staticmethod
    def _bounded(factor: float, shown: Sequence[float], data: Sequence[float] | None) -> float:
        span = shown[1] - shown[0]
        most = _ROOM * (data[1] - data[0]) if data is not None and data[1] > data[0] else span
        return max(1.0, min(factor, most / span)) if span > 0 else 1.0


class Chart(pg.PlotWidget):
    """A plot with our axes. ``pen_scale`` widens pens in pictures, where a unit may be several pixels."""

    crosshair_moved = Signal(object)  # x in the view, None where there is no crosshair

    def __init__(
        self, *, log_x: bool = False, log_y: bool = False, bytes_y: bool = False, parent: QWidget | None = None
    ) -> None:
        self.x_axis = Axis("bottom", log=log_x)
        self.y_axis = Axis("left", log=log_y, of_bytes=bytes_y)
        axes = {"bottom": self.x_axis, "left": self.y_axis}
        super().__init__(parent, viewBox=DataView(), axisItems=axes)
        self.pen_scale = 1.0
        self.in_vectors = False  # marks as paths, for a picture, in place of copies of one drawing
        self._crosshair = pg.InfiniteLine(angle=90)
        self._crosshair.setZValue(50)
        self._crosshair.hide()
        self.setMenuEnabled(False)  # pyqtgraph's own, with an exporter that mangles names
        self.hideButtons()
        self.setDownsampling(auto=True, mode="peak")  # of the plot: it overrides what its curves are set to
        self.setClipToView(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setToolTip(_HELP)
        self.setFrameShape(self.Shape.NoFrame)
        self.addItem(self._crosshair, ignoreBounds=True)
        self.view = self.getViewBox()
        self.view.setDefaultPadding(0.04)
        self.scene().sigMouseMoved.connect(self._point)
        for keys, what, act in self._keys():
            shortcut = QShortcut(self)
            shortcut.setKeys([QKeySequence(key) for key in keys.split()])
            shortcut.setContext(Qt.ShortcutContext.WidgetShortcut)
            shortcut.setWhatsThis(what)
            shortcut.activated.connect(act)
        appearance().changed.connect(self.recolour)
        self.recolour()

    def sizeHint(self) -> QSize:  # noqa: N802
        """Return the least that is of use; whoever lays charts out gives them all there is."""
        return QSize(240, 130)

    # --- looks ------------------------------------------------------------------------------------------------------

    def pen(self, colour: str, width: float = 1.0, style: Qt.PenStyle = Qt.PenStyle.SolidLine) -> QPen:
        """Return a pen; width 1 is what pyqtgraph draws fast."""
        return pg.mkPen(colour, width=width * self.pen_scale, style=style)

    @Slot()
    def recolour(self) -> None:
        """Take on the appearance in use. Items are coloured by whoever draws them."""
        palette = appearance().palette
        self.setBackground(palette.paper)
        font = QFont(self.font())
        for axis in (self.x_axis, self.y_axis):
            axis.colour(palette)
            axis.setTickFont(font)
            axis.setLabel(axis.labelText, color=palette.muted)
        for axis in (self.x_axis, self.y_axis):
            axis.setGrid(_GRID)
        self._crosshair.setPen(self.pen(palette.muted, style=Qt.PenStyle.DashLine))

    def name_axes(self, x: str, y: str) -> None:
        """Say what the axes show."""
        colour = appearance().palette.muted
        self.x_axis.setLabel(x, color=colour)
        self.y_axis.setLabel(y, color=colour)

    # --- moving -----------------------------------------------------------------------------------------------------

    def fit(self) -> None:
        """Show all data, and follow it as it grows."""
        self.view.enableAutoRange(x=True, y=True)

    def settle(self) -> None:
        """Fit what is drawn before it is painted: fitted while painting, it would all be painted twice."""
        self.view.updateAutoRange()

    def zoom(self, x: float = 1.0, y: float = 1.0) -> None:
        """Show so much of what is shown along each axis: below 1 is nearer."""
        self.view.scaleBy(x=None if x == 1.0 else x, y=None if y == 1.0 else y)

    def move_crosshair(self, x: float | None) -> None:
        """Put the crosshair at a place of the view, or take it away."""
        self._crosshair.setVisible(x is not None)
        if x is not None:
            self._crosshair.setPos(x)
        self.crosshair_moved.emit(x)

    @property
    def crosshair(self) -> float | None:
        """Where the crosshair is, None where there is none."""
        return float(self._crosshair.value()) if self._crosshair.isVisible() else None

    def _keys(self) -> tuple[tuple[str, str, Callable[[], None]], ...]:
        """Return the keys, what they do in words, and what they do."""
        return (
            ("Left", "Chart: move left", lambda: self._shift(-_STEP, 0)),
            ("Right", "Chart: move right", lambda: self._shift(_STEP, 0)),
            ("Up", "Chart: move up", lambda: self._shift(0, _STEP)),
            ("Down", "Chart: move down", lambda: self._shift(0, -_STEP)),
            ("+ =", "Chart: zoom in", lambda: self.zoom(_ZOOM, _ZOOM)),
            ("-", "Chart: zoom out", lambda: self.zoom(1 / _ZOOM, 1 / _ZOOM)),
            ("X", "Chart: zoom in along the horizontal axis alone", lambda: self.zoom(x=_ZOOM)),
            ("Shift+X", "Chart: zoom out along the horizontal axis alone", lambda: self.zoom(x=1 / _ZOOM)),
            ("Y", "Chart: zoom in along the vertical axis alone", lambda: self.zoom(y=_ZOOM)),
            ("Shift+Y", "Chart: zoom out along the vertical axis alone", lambda: self.zoom(y=1 / _ZOOM)),
            ("Home F", "Chart: fit to its data", self.fit),
            (",", "Chart: crosshair to the left", lambda: self._step_crosshair(-1)),
            (".", "Chart: crosshair to the right", lambda: self._step_crosshair(1)),
            ("Esc", "Chart: no crosshair", lambda: self.move_crosshair(None)),
        )

    def _shift(self, across: float, up: float) -> None:
        """Move the view by a share of what it shows."""
        (left, right), (low, high) = self.view.viewRange()
        self.view.disableAutoRange()
        self.view.translateBy(x=across * (right - left), y=up * (high - low))

    def _step_crosshair(self, direction: int) -> None:
        """Move the crosshair a little, from the middle at first, and keep it in the view."""
        (left, right), _ = self.view.viewRange()
        here = self.crosshair
        step = direction * (right - left) * _CROSSHAIR_STEP
        self.move_crosshair((left + right) / 2 if here is None else min(max(here + step, left), right))

    def leaveEvent(self, event: object) -> None:  # noqa: N802
        """Take the pointer's crosshair away with it."""
        super().leaveEvent(event)
        self.move_crosshair(None)

    def _point(self, place: QPointF) -> None:
        inside = self.view.sceneBoundingRect().contains(place)
        self.move_crosshair(self.view.mapSceneToView(place).x() if inside else None)
