"""Everything that can be done in the window: what it is called, its keys, and where it stands in menus and toolbar."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QMainWindow, QMenu, QToolBar, QToolButton

from app.window.look.action_icons import icon
from app.window.look.appearance import appearance


class Actions:
    """The window's actions; who does what is connected by the window."""

    def __init__(self, window: QMainWindow) -> None:
        self._window = window
        make = self._make
        self.run = make("&Run", "F5", "Race the kernels of this set-up")
        self.stop = make("S&top", "Shift+F5", "Stop the run; what was measured is kept")
        self.refresh = make("Re&fresh devices", "Ctrl+R", "Look for devices again")
        self.copy_command = make("Copy as command &line", "Ctrl+Shift+L", "The same run for a terminal")

        self.open = make("&Open run…", "Ctrl+O", "Open a saved run")
        self.load_tensors = make("Load &tensors…", "Ctrl+T", "Race on Q, K and V from a file")
        self.save = make("&Save run…", "Ctrl+S", "Save the run with every sample, to be opened again")
        self.export_csv = make("Export &CSV…", "Ctrl+E", "Write the results as a table, one row a kernel and case")
        self.export_samples = make("Export raw sa&mples…", "Ctrl+Shift+E", "Write every sample as a table")
        self.export_picture = make("Export &picture…", "Ctrl+P", "Write the chart as PNG or SVG")
        self.quit = make("&Quit", "Ctrl+Q", "Close FlashScope")

        self.copy_chart = make("Copy &chart", "Ctrl+Shift+C", "Put the chart on the clipboard as a picture")
        self.copy_table = make("Copy &table", "Ctrl+Shift+T", "Put the results on the clipboard, for a spreadsheet")

        self.tabs = [
            make(f"&{name}", f"Ctrl+{number}", f"Show the tab {name}", checkable=True)
            for number, name in enumerate(("Live", "Compare", "Sweep"), 1)
        ]
        group = QActionGroup(window)
        for action in self.tabs:
            group.addAction(action)
        self.pause = make("&Pause or resume the view", "F6", "Freeze the live charts; the run goes on")
        self.fit = make("&Fit the charts", "F7", "Show all data and follow it again")
        self.filter = make("&Filter the results", "Ctrl+F", "Show only the rows that hold some words")
        self.go_setup = make("Go to &set-up", "Alt+1", "Show the set-up and put the keyboard there")
        self.go_results = make("Go to &results", "Alt+2", "Show the results and put the keyboard there")
        self.go_log = make("Go to &log", "Alt+3", "Show the log and put the keyboard there")
        self.reset_layout = make("R&eset layout", "Ctrl+Alt+0", "Put every part of the window back where it was")

        self.how_to_read = make("How to &read this", "Ctrl+F1", "What the numbers mean")
        self.shortcuts = make("&Keyboard shortcuts", "F1", "List every shortcut")
        self.about = make("&About FlashScope", "Ctrl+Shift+A", "What this is, and a report on this machine")
        self.quit.setMenuRole(QAction.MenuRole.QuitRole)
        self.about.setMenuRole(QAction.MenuRole.AboutRole)

        self.of_results = (
            self.save, self.export_csv, self.export_samples, self.export_picture, self.copy_chart, self.copy_table
        )  # fmt: skip
        appearance().changed.connect(self._draw_icons)
        self._draw_icons()

    def fill_menus(self, recent: Callable[[QMenu], None], earlier: Callable[[QMenu], None]) -> None:
        """Make the menu bar. ``recent`` and ``earlier`` fill their submenus each time they are opened."""
        bar = self._window.menuBar()
        file = bar.addMenu("&File")
        file.addAction(self.open)
        for title, fill in (("Open r&ecent", recent), ("Earlier r&uns", earlier)):
            menu = file.addMenu(title)
            menu.aboutToShow.connect(lambda menu=menu, fill=fill: (menu.clear(), fill(menu)))
        file.addAction(self.load_tensors)
        file.addSeparator()
        for action in (self.save, self.export_csv, self.export_samples, self.export_picture):
            file.addAction(action)
        file.addSeparator()
        file.addAction(self.quit)
        edit = bar.addMenu("&Edit")
        for action in (self.copy_chart, self.copy_table, self.copy_command):
            edit.addAction(action)
        run = bar.addMenu("&Run")
        for action in (self.run, self.stop, self.refresh):
            run.addAction(action)
        self.view = bar.addMenu("&View")
        for action in self.tabs:
            self.view.addAction(action)
        self.view.addSeparator()
        for action in (self.pause, self.fit, self.filter):
            self.view.addAction(action)
        self.view.addSeparator()
        for action in (self.go_setup, self.go_results, self.go_log):
            self.view.addAction(action)
        self.view.addSeparator()
        self.view.addAction(self.reset_layout)
        help_ = bar.addMenu("&Help")
        for action in (self.how_to_read, self.shortcuts, self.about):
            help_.addAction(action)

    def fill_toolbar(self) -> QToolBar:
        """Make the toolbar: Run, Stop and what can be exported."""
        bar = QToolBar("Toolbar")
        bar.setObjectName("toolbar")
        bar.setMovable(False)
        bar.setIconSize(QSize(20, 20))
        bar.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        bar.addAction(self.run)
        bar.addAction(self.stop)
        bar.addSeparator()
        menu = QMenu(bar)
        for action in (self.export_csv, self.export_samples, self.export_picture, self.save):
            menu.addAction(action)
        menu.addSeparator()
        menu.addAction(self.copy_chart)
        menu.addAction(self.copy_table)
        self._export = QToolButton()
        self._export.setText("Export ▾")
        self._export.setAccessibleName("Export")
        self._export.setStyleSheet("QToolButton::menu-indicator { image: none; }")  # drawn over the text otherwise
        self._export.setToolTip("Write the results, the samples or the chart to a file (Alt+X)")
        self._export.setShortcut(QKeySequence("Alt+X"))
        self._export.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._export.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self._export.setMenu(menu)
        bar.addWidget(self._export)
        self._draw_icons()
        return bar

    def offer_results(self, there: bool) -> None:
        """Enable what needs results."""
        for action in self.of_results:
            action.setEnabled(there)
        self._export.setEnabled(there)

    def _make(self, text: str, keys: str, tip: str, *, checkable: bool = False) -> QAction:
        action = QAction(text, self._window)
        action.setShortcut(QKeySequence(keys))
        native = action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
        action.setToolTip(f"{tip} ({native})")
        action.setStatusTip(tip)
        action.setCheckable(checkable)
        self._window.addAction(action)  # its keys work wherever the keyboard is
        return action

    def _draw_icons(self) -> None:
        palette = appearance().palette
        self.run.setIcon(icon("run", palette))
        self.stop.setIcon(icon("stop", palette))
        if hasattr(self, "_export"):
            self._export.setIcon(icon("export", palette))
