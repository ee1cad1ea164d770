"""Opening, saving and exporting: what the File menu does, and what becomes of runs nobody saved."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject, QSize, Signal
from PySide6.QtWidgets import QMenu, QWidget

from app.plan.usage import TENSOR_ENDINGS
from app.window.dialogs.export_picture import ExportPicture
from app.window.files import autosave, questions
from app.window.files.autosave import Autosave, Kept
from app.window.files.questions import Answer
from app.window.look.plain import plain_caption, plain_tip
from app.window.notices import Notices, Tone
from app.window.results.session_data import SessionData
from app.window.settings import SettingsStore
from app.window.setup.setup import joined
from app.window.views.tab import ChartTab
from engine.storage import csv_report, run_file

_RUNS = "FlashScope runs (*.json);;All files (*)"


class Files(QObject):
    """Keeps track of the run that is shown: its file, whether it is saved, and where it is autosaved meanwhile."""

    changed = Signal()  # what is shown has another name, or is saved or not
    tensors_chosen = Signal(str)  # as the set-up takes them: one file, or three with commas between them

    def __init__(
        self, window: QWidget, data: SessionData, notices: Notices, store: SettingsStore, journal: Autosave
    ) -> None:
        super().__init__(window)
        self._window, self._data, self._notices = window, data, notices
        self._store, self._journal = store, journal
        self._kept_folder = journal.folder
        self.name = ""  # of the file that is shown, empty for a run of this window
        self.unsaved = False

    # --- opening ----------------------------------------------------------------------------------------------------

    def choose_run(self) -> None:
        """Ask for saved runs and open them."""
        self.open(questions.files_to_open(self._window, "Open run", self._folder(), _RUNS))

    def open(self, paths: Sequence[str]) -> None:
        """Open saved runs and tensor files, told apart by their endings; of several runs the last is shown."""
        tensors = [path for path in paths if Path(path).suffix.lower() in TENSOR_ENDINGS]
        runs = [path for path in paths if path not in tensors]
        if tensors:
            self._remember_folder(tensors[0])
            self.tensors_chosen.emit(joined(tensors))
        opened = [path for path in runs if self._open_run(path)]
        if len(opened) > 1:
            self._notices.say(
                f"{len(opened)} runs were opened and the last is shown; the others are under File, Open recent."
            )

    def fill_recent(self, menu: QMenu) -> None:
        """Put the runs that were opened or saved last into a menu."""
        for number, path in enumerate(self._store.settings.recent, 1):
            name = plain_caption(Path(path).name)
            text = f"&{number % 10}  {name}"
            action = menu.addAction(text, partial(self.open, [path]))
            action.setToolTip(plain_tip(path))
            action.setStatusTip(path)
        if menu.isEmpty():
            menu.addAction("No run was opened or saved yet").setEnabled(False)

    def _open_run(self, path: str) -> bool:
        if self._data.running:
            self._notices.say(f"{Path(path).name} was not opened: stop the run that is under way first.", Tone.CAUTION)
            return False
        try:
            run = run_file.load(path)
            self._data.load(run)
        except OSError as error:
            return self._refuse(f"{path} could not be read: {error.strerror or error}.")
        except ValueError as error:
            return self._refuse(f"{error}.")
        self._journal.set_aside()
        self._shown(Path(path), unsaved=False)
        return True

    def _refuse(self, sentence: str) -> bool:
        self._notices.say(sentence, Tone.BAD)
        return False

    # --- saving -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A run of this window has begun: what was shown before gives way to it."""
        self.name, self.unsaved = "", True
        self.changed.emit()

    def save(self) -> bool:
        """Ask where to save the run and do it; return whether it was saved."""
        path = self._ask("Save run", ".json", _RUNS)
        run = self._data.run()
        if path is None or run is None or not self._write(lambda: run_file.save(path, run), path):
            return False
        if not self._data.running:
            self._journal.forget()
            self._shown(path, unsaved=False)
        return True

    def export_csv(self) -> None:
        """Ask where to write the results and do it."""
        path = self._ask("Export CSV", ".csv", "CSV (*.csv)")
        if path is not None:
            self._write(lambda: csv_report.write_rows(path, self._data.rows), path)

    def export_samples(self) -> None:
        """Ask where to write the raw samples and do it."""
        path = self._ask("Export raw samples", ".csv", "CSV (*.csv)", "-samples")
        if path is not None:
            series = self._data.series
            self._write(lambda: csv_report.write_samples(path, self._data.run_id(), series), path)

    def export_picture(self, chart: ChartTab, title: str) -> None:
        """Ask for format, scale and file, and write the chart."""
        widget = chart.chart_widget()
        size = QSize(widget.width(), widget.height())
        dialog = ExportPicture(size, self._store.settings.picture_scale, self._window)
        if not dialog.exec():
            return
        kind = dialog.kind
        self._store.change(picture_scale=kind.scale)
        path = self._ask("Export picture", kind.ending, f"*{kind.ending}", f"-{title.lower()}")
        if path is not None and kind.ending == ".svg":
            self._write(lambda: chart.export_svg(path), path)
        elif path is not None:
            self._write(lambda: chart.export_png(path, kind.scale), path)

    def may_close(self) -> bool:
        """Ask what is to become of results that were not saved; return False where the window is to stay."""
        if not self.unsaved or not self._data.rows:
            return True
        match questions.what_of_unsaved(self._window, "The last run"):
            case Answer.SAVE:
                return self.save()
            case Answer.DISCARD:
                self._journal.forget()
                return True
            case Answer.CANCEL:
                return False

    def _ask(self, title: str, ending: str, kinds: str, more: str = "") -> Path | None:
        return questions.file_to_write(self._window, title, self._proposal(ending, more), kinds)

    def _proposal(self, ending: str, more: str) -> Path:
        """Return a file that does not exist yet, in the folder used last, named after the run."""
        stem = Path(self.name).stem if self.name else f"flashscope-{self._data.run_id()}"
        return free_name(Path(self._folder()), stem + more, ending)

    def _write(self, write: Callable[[], None], path: Path) -> bool:
        try:
            write()
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            return self._refuse(f"{path} could not be written: {reason}.")
        self._remember_folder(os.fspath(path))
        self._notices.say(f"Wrote {path}")
        return True

    # --- runs that were not saved -----------------------------------------------------------------------------------

    def offer_kept(self) -> None:
        """Offer what a window that did not close in good order left behind, each run once."""
        left = [entry for entry in autosave.kept(self._kept_folder) if entry.offer]
        if not left:
            return
        newest, *_ = [replace(entry, path=autosave.set_aside(entry.path)) for entry in left]
        text = f"The run of {_when(newest)} {_fate(newest)}; what it measured is kept ({_rows(newest.rows)})."
        if len(left) > 1:
            text += f" {len(left) - 1} more are under File, Earlier runs."
        self._notices.say(
            text, Tone.CAUTION, (("Show it", lambda: self.open_kept(newest)), ("Discard it", lambda: _discard(newest)))
        )

    def fill_earlier(self, menu: QMenu) -> None:
        """Put the runs that were never saved into a menu."""
        for entry in autosave.kept(self._kept_folder):
            if entry.path != self._journal.path:
                text = f"{_when(entry)}: {_rows(entry.rows)}{'' if entry.finished else ', unfinished'}"
                menu.addAction(text, partial(self.open_kept, entry))
        if menu.isEmpty():
            menu.addAction("Runs that were not saved appear here").setEnabled(False)

    def open_kept(self, entry: Kept) -> None:
        """Show a kept run again."""
        if self._data.running:
            self._notices.say("Stop the run that is under way first.", Tone.CAUTION)
            return
        try:
            self._data.load(autosave.read(entry.path))
        except (OSError, ValueError) as error:
            self._refuse(f"The run of {_when(entry)} could not be read: {error}.")
            return
        self._journal.adopt(entry.path)
        self.name, self.unsaved = "", True
        self.changed.emit()

    def _shown(self, path: Path, *, unsaved: bool) -> None:
        full = os.path.abspath(path)  # noqa: PTH100 - a link keeps its own name
        self._store.add_recent(full)
        self._remember_folder(full)
        self.name, self.unsaved = path.name, unsaved
        self.changed.emit()

    def _folder(self) -> str:
        folder = self._store.settings.folder
        return folder if folder and Path(folder).is_dir() else os.fspath(Path.home())

    def _remember_folder(self, path: str) -> None:
        self._store.change(folder=os.fspath(Path(path).absolute().parent))


def free_name(folder: Path, stem: str, ending: str) -> Path:
    """Return ``folder/stem.ending``, with a number where that exists already."""
    path, number = folder / (stem + ending), 2
    while path.exists():
        path, number = folder / f"{stem}-{number}{ending}", number + 1
    return path


def _discard(entry: Kept) -> None:
    autosave.remove(entry.path)


def _when(entry: Kept) -> str:
    try:
        return f"{datetime.fromisoformat(entry.started_at):%Y-%m-%d %H:%M}"
    except ValueError:
        return entry.path.stem


def _fate(entry: Kept) -> str:
    return "was not saved" if entry.finished else "did not finish"


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"
