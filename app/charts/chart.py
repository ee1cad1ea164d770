"""A chart that pans and zooms by mouse and by key, fits its data until a person zooms, and follows light and dark."""

from __future__ import annotations

import pyqtgraph as pg
from PySide6.QtCore import QPointF, Qt, Signal, Slot
from PySide6.QtGui import QFont, QKeyEvent, QPen
from PySide6.QtWidgets import QWidget

from app.appearance import appearance
from app.charts.axes import Axis

Key = Qt.Key
_STEP = 0.1  # of the view, that an arrow moves
_ZOOM = 0.8
_GRID = 110  # of 255
_HELP = (
    "Wheel: zoom; over an axis, that axis alone. Drag: move; right button: stretch. "
    "Keys: arrows move, + and − zoom, X and Y zoom one axis (with Shift out), Home fits, comma and full stop "
    "move the crosshair."
)
KEYS = (
    ("Arrows", "Move the chart"),
    ("+, −", "Zoom in, out"),
    ("X, Shift+X", "Zoom in, out along x alone"),
    ("Y, Shift+Y", "Zoom in, out along y alone"),
    ("Home, F", "Fit the chart to its data"),
    (", .", "Move the crosshair left, right"),
    ("Esc", "Remove the crosshair"),
)


class Chart(pg.PlotWidget):
    """A plot with our axes. ``pen_scale`` widens pens in pictures, where a unit may be several pixels."""

    crosshair_moved = Signal(object)  # x in the view, None where there is no crosshair

    def __init__(
        self, *, log_x: bool = False, log_y: bool = False, bytes_y: bool = False, parent: QWidget | None = None
    ) -> None:
        self.x_axis = Axis("bottom", log=log_x)
        self.y_axis = Axis("left", log=log_y, of_bytes=bytes_y)
        super().__init__(parent, axisItems={"bottom": self.x_axis, "left": self.y_axis})
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
        appearance().changed.connect(self.recolour)
        self.recolour()

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

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802
        """Move and zoom by key."""
        out = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
        factor = 1 / _ZOOM if out else _ZOOM
        (left, right), (low, high) = self.view.viewRange()
        across, up = _STEP * (right - left), _STEP * (high - low)
        match event.key():
            case Key.Key_Left:
                self.view.translateBy(x=-across)
            case Key.Key_Right:
                self.view.translateBy(x=across)
            case Key.Key_Up:
                self.view.translateBy(y=up)
            case Key.Key_Down:
                self.view.translateBy(y=-up)
            case Key.Key_Plus | Key.Key_Equal:
                self.zoom(_ZOOM, _ZOOM)
            case Key.Key_Minus:
                self.zoom(1 / _ZOOM, 1 / _ZOOM)
            case Key.Key_X:
                self.zoom(x=factor)
            case Key.Key_Y:
                self.zoom(y=factor)
            case Key.Key_Home | Key.Key_F:
                self.fit()
            case Key.Key_Comma | Key.Key_Period:
                here = self.crosshair
                step = (right - left) / 100 * (1 if event.key() == Key.Key_Period else -1)
                self.move_crosshair((left + right) / 2 if here is None else min(max(here + step, left), right))
            case Key.Key_Escape:
                self.move_crosshair(None)
            case _:
                super().keyPressEvent(event)

    def leaveEvent(self, event: object) -> None:  # noqa: N802
        """Take the pointer's crosshair away with it."""
        super().leaveEvent(event)
        self.move_crosshair(None)

    def _point(self, place: QPointF) -> None:
        inside = self.view.sceneBoundingRect().contains(place)
        self.move_crosshair(self.view.mapSceneToView(place).x() if inside else None)
