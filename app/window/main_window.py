"""The window: set-up on the left, charts in the middle, results and log below, and the engine behind them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QByteArray, QSize, Qt, QTimer
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QDockWidget, QMainWindow, QTabWidget, QVBoxLayout, QWidget

from app.plan.device_choice import any_software, devices_of, in_words
from app.report import sweep_lines
from app.report.outcome import CaseRows
from app.window.action_keys import ActionKeys
from app.window.actions import Actions
from app.window.crash_report import CrashReporter
from app.window.dialogs.about import AboutDialog
from app.window.dialogs.crash import CrashDialog
from app.window.dialogs.how_to_read import HowToRead
from app.window.dialogs.shortcuts import Shortcuts
from app.window.engine_thread import EngineBridge, EngineState
from app.window.files.autosave import Autosave
from app.window.files.files import Files
from app.window.look.plain import plain_labels
from app.window.look.wheel import guard_fields
from app.window.notices import Notices, Tone
from app.window.results.log_panel import LogPanel
from app.window.results.results_panel import ResultsPanel
from app.window.results.session_data import SessionData
from app.window.run_status import RunStatus
from app.window.settings import SettingsStore
from app.window.setup.setup_panel import SetupPanel
from app.window.views.compare_tab import CompareTab
from app.window.views.live_tab import LiveTab
from app.window.views.sweep_tab import SweepTab
from engine.devices.device import DeviceInfo
from engine.kernels.registry import get_kernel
from engine.records.events import Ending, Event, SessionFinished, SessionStarted
from engine.records.plan import Plan

if TYPE_CHECKING:
    from engine.devices.doctor import Check

_TICK_MS, _CALM_TICK_MS = 33, 100  # calm while CPU kernels run: drawing takes the cores they are timed on
_SIZE = (1280, 800)
_LOG_LINES = 60  # of the log, in the report on a run that broke


class MainWindow(QMainWindow):
    """The one window of the program. ``start`` brings the engine up; ``close`` takes everything down with it."""

    def __init__(self, bridge: EngineBridge, store: SettingsStore, kept_folder: Path, reporter: CrashReporter) -> None:
        super().__init__()
        self.setObjectName("window")
        self.bridge, self._store, self._reporter = bridge, store, reporter
        self.data = SessionData(self)
        self.journal = Autosave(kept_folder)
        self.notices = Notices()
        self.files = Files(self, self.data, self.notices, store, self.journal)
        self.actions_ = Actions(self)
        self.setup_panel = SetupPanel()
        self.charts = (LiveTab(self.data), CompareTab(self.data), SweepTab(self.data))
        self.results = ResultsPanel(self.data)
        self.log = LogPanel()
        self.status = RunStatus(self.statusBar())
        self._devices: list[DeviceInfo] = []
        self._running_plan: Plan | None = None
        self._about: AboutDialog | None = None
        self._crash: CrashDialog | None = None
        self._must_ask = True
        self.ended = False  # the engine and its thread, in good order
        self._closed = False
        self._tick = QTimer(self)
        self._tick.timeout.connect(self._drain)
        self._lay_out()
        plain_labels(self)
        guard_fields(self)
        self._connect()
        self._remember()
        self._show_state(bridge.state)

    def start(self, paths: Sequence[str] = ()) -> None:
        """Bring up the engine in the background, open files, and say what there is to say."""
        self.bridge.start()
        if self._store.notice:
            self.notices.say(self._store.notice, Tone.CAUTION)
        self.files.offer_kept()
        self.files.open(paths)

    def close_without_asking(self) -> None:
        """Close, as Ctrl+C in the terminal does; results that were not saved are offered at the next start."""
        self._must_ask = False
        self.close()

    # --- making -----------------------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        self.tabs = QTabWidget()
        self.tabs.setDocumentMode(True)
        for tab, action in zip(self.charts, self.actions_.tabs, strict=True):
            self.tabs.addTab(tab, action.text().replace("&", ""))
        centre = QWidget()
        layout = QVBoxLayout(centre)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self.notices)
        layout.addWidget(self.tabs, 1)
        self.setCentralWidget(centre)

        self.setup_dock = self._dock("Set-up", self.setup_panel, Qt.DockWidgetArea.LeftDockWidgetArea)
        self.results_dock = self._dock("Results", self.results, Qt.DockWidgetArea.BottomDockWidgetArea)
        self.log_dock = self._dock("Log", self.log, Qt.DockWidgetArea.BottomDockWidgetArea)
        self.tabifyDockWidget(self.results_dock, self.log_dock)
        for dock in (self.results_dock, self.log_dock):
            dock.setTitleBarWidget(QWidget())  # their tabs name them
        self.results_dock.raise_()
        self.setCorner(Qt.Corner.BottomLeftCorner, Qt.DockWidgetArea.LeftDockWidgetArea)
        self.setDockOptions(QMainWindow.DockOption.AnimatedDocks | QMainWindow.DockOption.AllowTabbedDocks)
        self.setTabPosition(Qt.DockWidgetArea.BottomDockWidgetArea, QTabWidget.TabPosition.North)

        self.actions_.fill_menus(self.files.fill_recent, self.files.fill_earlier)
        self.addToolBar(self.actions_.fill_toolbar())
        for dock in (self.setup_dock, self.results_dock, self.log_dock):
            self.actions_.view.addAction(dock.toggleViewAction())
        ActionKeys(self)
        self.setAcceptDrops(True)
        self._arrange()
        self._first_layout = self.saveState()

    def _dock(self, title: str, widget: QWidget, area: Qt.DockWidgetArea) -> QDockWidget:
        dock = QDockWidget(title, self)
        dock.setObjectName(title.lower())
        dock.setWidget(widget)
        self.addDockWidget(area, dock)
        return dock

    def _arrange(self) -> None:
        self.resize(QSize(*_SIZE).boundedTo(self.screen().availableSize()))
        self.resizeDocks([self.setup_dock], [360], Qt.Orientation.Horizontal)
        self.resizeDocks([self.results_dock], [205], Qt.Orientation.Vertical)

    def _connect(self) -> None:
        do, files = self.actions_, self.files
        for action, act in (
            (do.run, self.run),
            (do.stop, self.bridge.stop),
            (do.refresh, self._refresh_devices),
            (do.copy_command, self.setup_panel.copy_command_line),
            (do.open, files.choose_run),
            (do.load_tensors, self.setup_panel.ask_for_tensors),
            (do.save, files.save),
            (do.export_csv, files.export_csv),
            (do.export_samples, files.export_samples),
            (do.export_picture, self._export_picture),
            (do.quit, self.close),
            (do.copy_chart, lambda: self._chart().copy_image()),
            (do.copy_table, self.results.copy_table),
            (do.pause, lambda: self.charts[0].pause.toggle()),
            (do.fit, self._fit),
            (do.filter, lambda: _go(self.results_dock, self.results.filter)),
            (do.go_setup, lambda: _go(self.setup_dock, self.setup_panel.preset)),
            (do.go_results, lambda: _go(self.results_dock, self.results.table)),
            (do.go_log, lambda: _go(self.log_dock, self.log)),
            (do.reset_layout, self._reset_layout),
            (do.how_to_read, lambda: HowToRead(self).show()),
            (do.shortcuts, lambda: Shortcuts(self).show()),
            (do.about, self._show_about),
            *((action, lambda place=place: self.tabs.setCurrentIndex(place)) for place, action in enumerate(do.tabs)),
        ):
            action.triggered.connect(lambda _checked=False, act=act: act())
        self.tabs.currentChanged.connect(lambda place: do.tabs[place].setChecked(True))
        do.tabs[0].setChecked(True)

        self.setup_panel.plan_changed.connect(self._show_plan)
        self.setup_panel.devices_refresh_requested.connect(self._refresh_devices)
        files.tensors_chosen.connect(self._load_tensors)
        files.changed.connect(self._show_title)
        self.data.rows_changed.connect(self._show_results)
        self.data.reset.connect(self._show_results)
        self._show_results()

        bridge = self.bridge
        bridge.happened.connect(self._take)
        bridge.devices_ready.connect(self._take_devices)
        bridge.doctor_ready.connect(self._take_checks)
        bridge.failed.connect(self._take_failure)
        bridge.broke.connect(self._reporter.report)
        bridge.state_changed.connect(self._show_state)
        self._reporter.reported.connect(self._show_crash)

    # --- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the set-up's plan."""
        plan = self.setup_panel.plan()
        if plan is None or self.bridge.busy:
            return
        self._running_plan = plan
        self.status.begin(plan)
        sweeping = bool(sweep_lines.varied([CaseRows(case, ()) for case in plan.cases]))
        if not (sweeping and self.tabs.currentWidget() is self.charts[2]):
            self.tabs.setCurrentIndex(0)
        on_cpu = any(get_kernel(kernel).device_kind == "cpu" for kernel in plan.kernels)
        self._tick.start(_CALM_TICK_MS if on_cpu else _TICK_MS)
        self.bridge.run(plan)

    def _drain(self) -> None:
        """Take the samples that have come since the last tick."""
        for event in self.bridge.drain():
            self.data.feed(event)
            self.journal(event)
        self.journal.flush()

    def _take(self, event: Event) -> None:
        self._drain()  # what came before it
        self.data.feed(event)
        self.log.feed(event)
        self.status.feed(event)
        self.journal(event)
        if isinstance(event, SessionStarted):
            self.files.begin()
        if isinstance(event, SessionFinished):
            self._finish(event)

    def _finish(self, finished: SessionFinished) -> None:
        self._tick.stop()
        self._running_plan = None
        self.journal.release()
        self.setup_panel.set_rates({(row.kernel, row.direction): row.gflops for row in self.data.rows if row.gflops})
        if self.journal.complaint:
            self.notices.say(self.journal.complaint, Tone.CAUTION)
        if finished.ending is Ending.BROKEN:
            self._reporter.report(f"{finished.reason}\n\n{self.log.last_lines(_LOG_LINES)}")
        elif not finished.ending.orderly:
            show_log = ("Show log", lambda: _go(self.log_dock, self.log))
            self.notices.say(f"The run broke off: {finished.reason}. Its rows so far are kept.", Tone.BAD, (show_log,))

    # --- the engine -------------------------------------------------------------------------------------------------

    def _refresh_devices(self) -> None:
        if not self.bridge.busy:
            self.bridge.refresh_devices()

    def _take_devices(self, devices: list[DeviceInfo]) -> None:
        self._devices = devices
        self.setup_panel.set_devices(devices)
        for device in devices:
            self.log.say("debug", f"device: {device.name} ({device.adapter_type}, {device.backend}, {device.driver})")
        self._show_plan()

    def _take_failure(self, text: str) -> None:
        sentence, *lines = text.splitlines()
        for line in (sentence, *lines):
            self.log.say("error", line)
        again = ("Try again", self._refresh_devices)
        self.notices.say(f"{sentence[:1].upper()}{sentence[1:]}.", Tone.BAD, (again,))

    def _show_state(self, state: EngineState) -> None:
        self.status.set_state(state)
        self.setup_panel.set_running(self.bridge.busy)
        self.actions_.stop.setEnabled(state is EngineState.RUNNING)
        self.actions_.refresh.setEnabled(not self.bridge.busy)
        self._show_plan()

    # --- showing ----------------------------------------------------------------------------------------------------

    def _show_plan(self) -> None:
        """Show whether the set-up can run, and where it would."""
        plan = self.setup_panel.plan()
        reason = "A run is under way" if self.bridge.busy else self.setup_panel.reason()
        self.actions_.run.setEnabled(plan is not None and not self.bridge.busy)
        self.actions_.run.setToolTip(reason or "Race the kernels of this set-up (F5)")
        self.actions_.copy_command.setEnabled(plan is not None)
        shown = self._running_plan or plan
        self.status.set_devices(in_words(devices_of(shown, self._devices)) if shown else "")
        self._show_title()

    def _show_title(self) -> None:
        plan = self._running_plan or self.setup_panel.plan()
        rows = self.data.rows
        software = any(row.adapter_type == "software" for row in rows)
        if self.bridge.busy or not rows:
            software = plan is not None and any_software(devices_of(plan, self._devices))
        name = self.files.name or (f"run {self.data.run_id()}" if not self.data.empty else "")
        self.setWindowTitle("[*] — ".join(filter(None, (name, "FlashScope"))) + (" (software GPU)" if software else ""))
        self.setWindowModified(bool(name) and self.files.unsaved)

    def _show_results(self) -> None:
        self.actions_.offer_results(bool(self.data.rows))
        self._show_title()

    def _chart(self) -> LiveTab | CompareTab | SweepTab:
        return self.charts[self.tabs.currentIndex()]

    def _fit(self) -> None:
        chart = self._chart()
        if isinstance(chart, (LiveTab, SweepTab)):  # bars always fit
            chart.fit.click()

    def _export_picture(self) -> None:
        self.files.export_picture(self._chart(), self.tabs.tabText(self.tabs.currentIndex()))

    def _load_tensors(self, text: str) -> None:
        try:
            self.setup_panel.load_tensors(text)
        except ValueError as error:
            self.notices.say(f"{error}.", Tone.BAD)
            return
        _go(self.setup_dock, self.setup_panel.preset)

    def _show_about(self) -> None:
        self._about = AboutDialog(self.bridge.busy, self)
        self._about.destroyed.connect(self._forget_about)
        self._about.show()
        self.bridge.examine()

    def _forget_about(self) -> None:
        self._about = None

    def _take_checks(self, checks: list[Check]) -> None:
        if self._about is not None:
            self._about.show_checks(checks)

    def _show_crash(self, report: str) -> None:
        if self._crash is not None:
            self._crash.add(report)
            return
        self._crash = CrashDialog(report, self._reporter.path, self)
        self._crash.destroyed.connect(self._forget_crash)
        self._crash.show()

    def _forget_crash(self) -> None:
        self._crash = None

    # --- what is remembered -----------------------------------------------------------------------------------------

    def _remember(self) -> None:
        """Put the window back as it was when it was last closed."""
        settings = self._store.settings
        if settings.geometry:
            self.restoreGeometry(QByteArray(settings.geometry))
        if settings.layout:
            self.restoreState(QByteArray(settings.layout))
        if settings.tab < self.tabs.count():
            self.tabs.setCurrentIndex(settings.tab)
        self.setup_panel.restore(settings.setup)

    def _reset_layout(self) -> None:
        self.showNormal()
        self.restoreState(self._first_layout)
        self._arrange()
        self.results_dock.raise_()

    def _save_settings(self) -> None:
        self._store.change(
            geometry=self.saveGeometry().data(),
            layout=self.saveState().data(),
            tab=self.tabs.currentIndex(),
            setup=self.setup_panel.state(),
        )
        try:
            self._store.save()
        except OSError as error:
            self.log.say("warning", f"the settings could not be saved: {error.strerror or error}")

    # --- Qt's own calls ---------------------------------------------------------------------------------------------

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:  # noqa: N802
        """Accept files."""
        if any(url.isLocalFile() for url in event.mimeData().urls()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:  # noqa: N802
        """Open the files that were dropped."""
        paths = [url.toLocalFile() for url in event.mimeData().urls() if url.isLocalFile()]
        event.acceptProposedAction()
        self.files.open(paths)

    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802
        """Ask about results that were not saved; then end the run, the worker and the thread.

        A run under way is not asked about: what it has measured so far is kept, and offered at the next start.
        """
        if self._closed:
            return
        if self._must_ask and not self.bridge.busy and not self.files.may_close():
            event.ignore()
            return
        self._closed = True
        self._save_settings()
        self._tick.stop()
        self._drain()
        self.bridge.happened.disconnect(self._take)
        self.ended = self.bridge.close()
        self.journal.release()
        event.accept()


def _go(dock: QDockWidget, widget: QWidget) -> None:
    """Bring a dock to the front and put the keyboard into it."""
    dock.show()
    dock.raise_()
    target: QWidget | None = widget
    while target is not None and target.focusPolicy() == Qt.FocusPolicy.NoFocus:
        target = target.nextInFocusChain()
        if target is widget:
            return
    if target is not None:
        target.setFocus(Qt.FocusReason.ShortcutFocusReason)
