"""The File menu: runs and tensors opened and dropped, everything that can be written, nothing overwritten unasked."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QMimeData, QPoint, Qt, QTimer, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QGuiApplication, QImage
from PySide6.QtWidgets import QApplication, QMenu, QMessageBox
from pytestqt.qtbot import QtBot

from app.window.dialogs.export_picture import ExportPicture
from app.window.files import questions
from app.window.files.files import free_name
from engine.records.results import COLUMNS
from engine.storage import run_file

Window = Any  # app.window.main_window.MainWindow


@pytest.fixture
def finished(qtbot: QtBot, window: Window) -> Window:
    """A window in which a run has finished, under a label that a spreadsheet would take for a formula."""
    window.setup_panel.texts["label"].show_text("=1+1")
    window.setup_panel._touch()
    with qtbot.waitSignal(window.data.finished):
        window.actions_.run.trigger()
    return window


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths that a person will choose, one after the other."""
    paths: list[Path] = []
    monkeypatch.setattr("app.window.files.questions.file_to_write", lambda *_: paths.pop(0))
    return paths


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# --- saving and opening -----------------------------------------------------------------------------------------------


def test_a_saved_run_opens_as_it_was(
    finished: Window, open_window: Callable[..., Window], chosen: list[Path], tmp_path: Path
) -> None:
    chosen.append(tmp_path / "race.json")
    finished.actions_.save.trigger()
    assert finished.windowTitle().startswith("race.json[*]")
    assert not finished.isWindowModified()
    assert list(finished.journal.folder.glob("*.run")) == []
    assert finished.notices.texts() == [f"Wrote {tmp_path / 'race.json'}"]
    assert run_file.load(tmp_path / "race.json") == finished.data.run()
    assert finished.close()  # and asks nothing

    other = open_window(tmp_path / "race.json")
    assert other.data.run() == run_file.load(tmp_path / "race.json")
    assert other.windowTitle() == "race.json[*] — FlashScope (software GPU)"
    menu = QMenu(other)
    other.files.fill_recent(menu)
    assert [action.text() for action in menu.actions()] == ["&1  race.json"]


def test_saving_on_the_way_out(finished: Window, chosen: list[Path], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("app.window.files.questions.what_of_unsaved", lambda *_: questions.Answer.SAVE)
    monkeypatch.setattr("app.window.files.questions.file_to_write", lambda *_: None)
    assert not finished.close()  # the file dialog was cancelled, so nothing is lost
    monkeypatch.setattr("app.window.files.questions.file_to_write", lambda *_: tmp_path / "race.json")
    assert finished.close()
    assert len(run_file.load(tmp_path / "race.json").results) == 4


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"{}", "race.json is not a sound FlashScope"), (b'{"schema": 99}', "update FlashScope"), (None, "No such file")],
)
def test_what_cannot_be_opened_is_said_and_changes_nothing(
    finished: Window, tmp_path: Path, content: bytes | None, words: str
) -> None:
    before = finished.data.run()
    if content is not None:
        (tmp_path / "race.json").write_bytes(content)
    finished.files.open([str(tmp_path / "race.json")])
    assert words in finished.notices.texts()[0]
    assert finished.data.run() == before
    assert finished.files.unsaved


def test_several_runs_are_opened_and_the_last_is_shown(finished: Window, chosen: list[Path], tmp_path: Path) -> None:
    chosen.append(tmp_path / "a.json")
    finished.actions_.save.trigger()
    shutil.copy(tmp_path / "a.json", tmp_path / "b.json")
    finished.files.open([str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert finished.files.name == "b.json"
    assert finished.notices.texts()[0].startswith("2 runs were opened and the last is shown")
    assert [Path(path).name for path in finished._store.settings.recent] == ["b.json", "a.json"]


def test_a_run_replaced_by_another_is_kept_under_earlier_runs(
    qtbot: QtBot, finished: Window, chosen: list[Path], tmp_path: Path
) -> None:
    chosen.append(tmp_path / "a.json")
    finished.actions_.export_csv.trigger()
    run_file.save(tmp_path / "b.json", finished.data.run())
    finished.files.open([str(tmp_path / "b.json")])
    menu = QMenu(finished)
    finished.files.fill_earlier(menu)
    (entry,) = menu.actions()
    assert entry.text() == "2026-11-30 12:13: 4 rows"
    entry.trigger()
    assert finished.files.unsaved
    assert finished.files.name == ""
    menu.clear()
    finished.files.fill_earlier(menu)
    assert not menu.actions()[0].isEnabled()  # it is shown, so it is no earlier one


def test_nothing_is_opened_while_a_run_is_under_way(finished: Window, tmp_path: Path) -> None:
    run_file.save(tmp_path / "a.json", finished.data.run())
    finished.data.running = True
    finished.files.open([str(tmp_path / "a.json")])
    finished.data.running = False
    assert finished.notices.texts() == ["a.json was not opened: stop the run that is under way first."]


# --- dropping ---------------------------------------------------------------------------------------------------------


def drop(window: Window, *paths: Path) -> bool:
    """Drag files onto the window and drop them; return whether they were taken."""
    mime = QMimeData()
    mime.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    where, actions = QPoint(50, 50), Qt.DropAction.CopyAction
    buttons, keys = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    enter = QDragEnterEvent(where, actions, mime, buttons, keys)
    QApplication.sendEvent(window, enter)
    if enter.isAccepted():
        QApplication.sendEvent(window, QDropEvent(where, actions, mime, buttons, keys))
    return enter.isAccepted()


def test_a_dropped_run_is_opened(finished: Window, tmp_path: Path) -> None:
    run_file.save(tmp_path / "a.json", finished.data.run())
    assert drop(finished, tmp_path / "a.json")
    assert finished.files.name == "a.json"
    assert not drop(finished)


def test_dropped_tensors_go_to_the_set_up(window: Window, sample_file: Path, tmp_path: Path) -> None:
    assert drop(window, sample_file)
    (case,) = window.setup_panel.plan().cases
    assert case.input == str(sample_file)
    assert case.problem.q_shape == (1, 12, 128, 32)
    (tmp_path / "bad.npz").write_bytes(b"no tensors")
    drop(window, tmp_path / "bad.npz")
    assert "bad.npz" in window.notices.texts()[0]
    assert window.setup_panel.plan().cases == (case,)


def test_three_arrays_are_one_input_in_whatever_order(window: Window, tmp_path: Path) -> None:
    import numpy as np

    for name in "qkv":
        np.save(tmp_path / f"layer_{name}.npy", np.zeros((1, 2, 8, 4), np.float32))
    drop(window, *(tmp_path / f"layer_{name}.npy" for name in "vqk"))
    assert window.setup_panel.plan().cases[0].input == ",".join(str(tmp_path / f"layer_{n}.npy") for n in "qkv")


# --- exporting --------------------------------------------------------------------------------------------------------


def test_the_csv_is_the_result(finished: Window, chosen: list[Path], tmp_path: Path) -> None:
    chosen += [tmp_path / "out.csv", tmp_path / "samples.csv"]
    finished.actions_.export_csv.trigger()
    finished.actions_.export_samples.trigger()
    found = rows_of(tmp_path / "out.csv")
    assert list(found[0]) == list(COLUMNS)
    for cells, row in zip(found, finished.data.rows, strict=True):
        assert (cells["kernel"], cells["status"], cells["label"]) == (row.kernel, row.status.value, "'=1+1")
        assert float(cells["wall_ms_median"]) == row.wall_ms_median
    samples = rows_of(tmp_path / "samples.csv")
    assert len(samples) == 80
    assert {line["kernel"] for line in samples} == {row.kernel for row in finished.data.rows}


@pytest.mark.parametrize("tab", [0, 1])
@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_the_chart_as_a_picture(
    finished: Window, chosen: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, tab: int
) -> None:
    def accept(self: ExportPicture) -> int:
        self._format.setCurrentIndex(self._format.findData(ending))
        self._scale.setValue(3)
        return 1

    monkeypatch.setattr(ExportPicture, "exec", accept)
    finished.tabs.setCurrentIndex(tab)
    chosen.append(tmp_path / f"chart{ending}")
    finished.actions_.export_picture.trigger()
    data = (tmp_path / f"chart{ending}").read_bytes()
    if ending == ".svg":
        assert b"<svg" in data[:500]
    else:
        assert QImage.fromData(data).width() > 1000  # three times the screen, whose tab is some 500 wide
    assert finished._store.settings.picture_scale == 3


def test_copies(finished: Window) -> None:
    finished.actions_.copy_table.trigger()
    lines = QGuiApplication.clipboard().text().splitlines()
    assert len(lines) == 5
    assert lines[0].split("\t")[1] == "kernel"
    finished.actions_.copy_chart.trigger()
    assert QGuiApplication.clipboard().image().width() > 300


def test_a_place_that_cannot_be_written_is_said(finished: Window, chosen: list[Path], tmp_path: Path) -> None:
    chosen += [tmp_path / "missing" / "out.csv", tmp_path / "missing" / "out.json"]
    finished.actions_.export_csv.trigger()
    finished.actions_.save.trigger()
    assert [text.partition(" could not be written: No such file")[1] != "" for text in finished.notices.texts()] == [
        True,
        True,
    ]
    assert finished.isWindowModified()


# --- questions --------------------------------------------------------------------------------------------------------


@pytest.fixture
def answer(qtbot: QtBot) -> Iterator[Callable[[str], None]]:
    """Press a button of the next message box, by its text."""
    timers: list[QTimer] = []

    def press(text: str) -> None:
        def look() -> None:
            box = QApplication.activeModalWidget()
            if isinstance(box, QMessageBox):
                timer.stop()
                next(b for b in box.buttons() if b.text().replace("&", "").startswith(text)).click()

        timer = QTimer(interval=10)
        timer.timeout.connect(look)
        timer.start()
        timers.append(timer)

    yield press
    assert not any(timer.isActive() for timer in timers), "a question that was expected was not asked"


def test_overwriting_asks(window: Window, tmp_path: Path, answer: Callable[[str], None]) -> None:
    there = tmp_path / "there.csv"
    there.write_text("x")
    assert questions.may_overwrite(window, tmp_path / "new.csv")
    answer("Overwrite")
    assert questions.may_overwrite(window, there)
    answer("Cancel")
    assert not questions.may_overwrite(window, there)


@pytest.mark.parametrize(("button", "found"), [("Save", "SAVE"), ("Don't save", "DISCARD"), ("Cancel", "CANCEL")])
def test_what_of_unsaved(window: Window, answer: Callable[[str], None], button: str, found: str) -> None:
    answer(button)
    assert questions.what_of_unsaved(window, "The last run") is questions.Answer[found]


@pytest.mark.parametrize(
    ("typed", "found"), [("", None), ("race", "race.csv"), ("race.CSV", "race.CSV"), ("v1.5", "v1.5.csv")]
)
def test_the_ending_is_added_before_it_is_asked_about(
    window: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, found: str | None
) -> None:
    asked: list[Path] = []
    path = str(tmp_path / typed) if typed else ""
    monkeypatch.setattr("app.window.files.questions.QFileDialog.getSaveFileName", lambda *_, **__: (path, ""))
    monkeypatch.setattr("app.window.files.questions.may_overwrite", lambda _, path: asked.append(path) or True)
    result = questions.file_to_write(window, "Export", tmp_path / "proposal.csv", "CSV (*.csv)")
    assert result == (tmp_path / found if found else None)
    assert asked == ([tmp_path / found] if found else [])


def test_default_names_never_collide(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        path = free_name(tmp_path, "flashscope-x", ".csv")
        path.write_text("")
        names.append(path.name)
    assert names == ["flashscope-x.csv", "flashscope-x-2.csv", "flashscope-x-3.csv"]


def test_proposals_are_named_after_the_run_in_the_folder_used_last(
    finished: Window, chosen: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen.append(tmp_path / "race.json")
    finished.actions_.save.trigger()
    proposals: list[Path] = []
    monkeypatch.setattr(
        "app.window.files.questions.file_to_write", lambda _, __, proposal, ___: proposals.append(proposal)
    )
    finished.actions_.export_csv.trigger()
    finished.actions_.export_samples.trigger()
    finished.actions_.save.trigger()
    assert proposals == [tmp_path / name for name in ("race.csv", "race-samples.csv", "race-2.json")]
