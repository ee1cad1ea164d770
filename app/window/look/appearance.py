"""Light or dark, as the system has it and when it changes; charts listen to the one ``Appearance`` of the program."""

from __future__ import annotations

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QColor, QPalette
from PySide6.QtWidgets import QApplication

from app.report.theme import DARK, LIGHT, Palette


class Appearance(QObject):
    """The colours in use. ``changed`` tells that ``palette`` is another one."""

    changed = Signal()

    def __init__(self, application: QApplication) -> None:
        super().__init__(application)
        self._application = application
        self.palette: Palette = LIGHT
        hints = application.styleHints()
        hints.colorSchemeChanged.connect(self.follow)
        application.setStyle("Fusion")  # the one style that takes its colours from a palette on every system
        self._show(_wanted(hints.colorScheme()))

    def follow(self, scheme: Qt.ColorScheme) -> None:
        """Take on the system's colour scheme."""
        palette = _wanted(scheme)
        if palette is not self.palette:
            self._show(palette)
            self.changed.emit()

    def _show(self, palette: Palette) -> None:
        self.palette = palette
        self._application.setPalette(_qt_palette(palette))
        self._application.setStyleSheet(_style_sheet(palette))


def appearance() -> Appearance:
    """Return the program's appearance; it begins with the first call, once there is a QApplication."""
    application = QApplication.instance()
    assert isinstance(application, QApplication)
    return application.findChild(Appearance) or Appearance(application)


def _wanted(scheme: Qt.ColorScheme) -> Palette:
    return DARK if scheme == Qt.ColorScheme.Dark else LIGHT


def _qt_palette(palette: Palette) -> QPalette:
    role = QPalette.ColorRole
    colours = {
        role.Window: palette.window,
        role.WindowText: palette.ink,
        role.Base: palette.paper,
        role.AlternateBase: palette.window,
        role.Text: palette.ink,
        role.Button: palette.window,
        role.ButtonText: palette.ink,
        role.BrightText: palette.bad,
        role.ToolTipBase: palette.paper,
        role.ToolTipText: palette.ink,
        role.PlaceholderText: palette.muted,
        role.Highlight: palette.accent,
        role.HighlightedText: palette.paper,
        role.Link: palette.accent,
        role.LinkVisited: palette.accent,
        role.Accent: palette.accent,
    }
    qt_palette = QPalette(QColor(palette.window))
    for where, colour in colours.items():
        qt_palette.setColor(where, QColor(colour))
    for where in (role.WindowText, role.Text, role.ButtonText, role.HighlightedText, role.PlaceholderText):
        faded = QColor(palette.muted)
        faded.setAlphaF(0.6)
        qt_palette.setColor(QPalette.ColorGroup.Disabled, where, faded)
    return qt_palette


def _style_sheet(palette: Palette) -> str:
    return f"""
        QToolTip {{
            color: {palette.ink}; background: {palette.paper}; border: 1px solid {palette.rule}; padding: 4px;
        }}
        QTableView {{
            border: none; selection-background-color: {palette.selection}; selection-color: {palette.ink};
        }}
        QHeaderView::section {{
            color: {palette.muted}; background: {palette.window}; border: none;
            border-bottom: 1px solid {palette.rule}; padding: 4px 6px;
        }}
        QHeaderView::up-arrow, QHeaderView::down-arrow {{ subcontrol-position: top center; }}
        QLabel[role="answer"] {{ font-size: 14pt; font-weight: 600; }}
        QLabel[role="heading"] {{ font-weight: 600; }}
        QLabel[role="muted"] {{ color: {palette.muted}; }}
        QLabel[role="hint"] {{ color: {palette.muted}; font-size: 12pt; }}
        QLabel[role="bad"] {{ color: {palette.bad}; }}
        QLabel[role="caution"] {{ color: {palette.caution}; }}
        QToolButton[role="legend"] {{ border: 1px solid transparent; border-radius: 3px; padding: 2px 6px; }}
        QToolButton[role="legend"]:checked {{ background: transparent; }}
        QToolButton[role="legend"]:!checked {{ color: {palette.muted}; }}
        QToolButton[role="legend"]:hover, QToolButton[role="legend"]:focus {{ border-color: {palette.rule}; }}
        QLineEdit {{ border: 1px solid {palette.rule}; border-radius: 3px; padding: 2px 3px; }}
        QLineEdit:focus {{ border-color: {palette.accent}; }}
        QLineEdit:disabled {{ background: {palette.window}; }}
        QLineEdit[wrong="true"] {{ border-color: {palette.bad}; }}
        QAbstractSpinBox QLineEdit {{ border: none; padding: 0; }}
    """
