"""The kernels of a chart: a click hides or shows one, the pointer or the keyboard's focus brings it out."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QEvent, QObject, Qt, Signal, Slot
from PySide6.QtGui import QHideEvent, QIcon
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QToolButton, QWidget

from app.window.look.appearance import appearance
from app.window.look.icons import kernel_icon
from app.window.look.plain import plain_caption, plain_tip

_PIXELS = 48


class KernelLegend(QWidget):
    """A button per kernel; ``hidden`` are those switched off, ``highlighted`` the one brought out, or None."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.buttons: dict[str, QToolButton] = {}
        self.hidden: set[str] = set()
        self.highlighted: str | None = None
        self._row = QHBoxLayout(self)
        self._row.setContentsMargins(0, 0, 0, 0)
        self._row.setSpacing(4)
        self._row.addStretch(1)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        appearance().changed.connect(self._recolour)

    def show_kernels(self, kernels: Iterable[str]) -> None:
        """Show a button for each; those that stay keep their state."""
        wanted = list(kernels)
        if wanted == list(self.buttons):
            return
        for button in self.buttons.values():
            self._row.removeWidget(button)
            button.deleteLater()
        self.buttons = {kernel: self._button(kernel) for kernel in wanted}
        for place, button in enumerate(self.buttons.values()):
            self._row.insertWidget(place, button)
        self.hidden &= set(wanted)
        self.highlighted = None

    def eventFilter(self, button: QObject, event: QEvent) -> bool:  # noqa: N802
        """Bring a kernel out while the pointer or the focus is on its button."""
        if event.type() in (QEvent.Type.Enter, QEvent.Type.FocusIn):
            self._highlight(button.property("kernel"))
        elif event.type() in (QEvent.Type.Leave, QEvent.Type.FocusOut):
            self._highlight(None)
        return False

    def hideEvent(self, event: QHideEvent) -> None:  # noqa: N802
        """Let go of what was brought out: a button that goes with its tab is not left by the pointer."""
        super().hideEvent(event)
        self._highlight(None)

    def _button(self, kernel: str) -> QToolButton:
        button = QToolButton()
        button.setText(plain_caption(kernel))
        button.setIcon(_icon(kernel))
        button.setProperty("role", "legend")
        button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        button.setAutoRaise(True)
        button.setCheckable(True)
        button.setChecked(kernel not in self.hidden)
        button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        button.setToolTip(plain_tip(f"Shows or hides {kernel}; rest here to bring it out among the others."))
        button.setProperty("kernel", kernel)
        button.installEventFilter(self)
        button.toggled.connect(lambda shown: self._switch(kernel, shown))
        return button

    def _switch(self, kernel: str, shown: bool) -> None:
        (self.hidden.discard if shown else self.hidden.add)(kernel)
        self.highlighted = None  # what is hidden brings nothing out
        self.changed.emit()

    def _highlight(self, kernel: str | None) -> None:
        if kernel != self.highlighted and kernel not in self.hidden:
            self.highlighted = kernel
            self.changed.emit()

    @Slot()
    def _recolour(self) -> None:
        for kernel, button in self.buttons.items():
            button.setIcon(_icon(kernel))


def _icon(kernel: str) -> QIcon:
    """Return the kernel's icon, grey while the button is off."""
    drawn = kernel_icon(kernel)
    icon = QIcon()
    icon.addPixmap(drawn.pixmap(_PIXELS, _PIXELS), QIcon.Mode.Normal, QIcon.State.On)
    icon.addPixmap(drawn.pixmap(_PIXELS, _PIXELS, QIcon.Mode.Disabled), QIcon.Mode.Normal, QIcon.State.Off)
    return icon
