"""What the window asks a person in dialogs of the system: a file, a yes, what to do with results."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QMessageBox, QWidget


class Answer(Enum):
    """What is to become of results that were not saved."""

    SAVE = "save"
    DISCARD = "discard"
    CANCEL = "cancel"


def files_to_open(parent: QWidget, title: str, folder: str, kinds: str) -> list[str]:
    """Return the files chosen, none where the dialog was cancelled. ``kinds`` is a filter as Qt writes them."""
    return QFileDialog.getOpenFileNames(parent, title, folder, kinds)[0]


def file_to_write(parent: QWidget, title: str, proposal: Path, kinds: str) -> Path | None:
    """Return the file to write, with its ending; None where the dialog or the overwriting was declined."""
    ending = proposal.suffix
    # Qt's dialogs differ by system in whether an ending they add is asked about too, so it is asked here
    option = QFileDialog.Option.DontConfirmOverwrite
    chosen = QFileDialog.getSaveFileName(parent, title, str(proposal), kinds, options=option)[0]
    if not chosen:
        return None
    path = Path(chosen)
    if path.suffix.lower() != ending:
        path = path.with_name(path.name + ending)
    return path if may_overwrite(parent, path) else None


def may_overwrite(parent: QWidget, path: Path) -> bool:
    """Ask before a file is overwritten; True where there is none."""
    if not path.exists():
        return True
    box = QMessageBox(QMessageBox.Icon.Question, "FlashScope", f"{path.name} exists already.", parent=parent)
    box.setInformativeText(f"It lies in {path.parent}. Overwriting replaces what it holds.")
    overwrite = box.addButton("&Overwrite", QMessageBox.ButtonRole.DestructiveRole)
    box.setDefaultButton(box.addButton(QMessageBox.StandardButton.Cancel))
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.exec()
    return box.clickedButton() is overwrite


def what_of_unsaved(parent: QWidget, what: str) -> Answer:
    """Ask what is to become of results that were not saved."""
    box = QMessageBox(QMessageBox.Icon.Question, "FlashScope", f"{what} was not saved.", parent=parent)
    box.setInformativeText("Without saving, its figures and samples are lost.")
    save = box.addButton("&Save…", QMessageBox.ButtonRole.AcceptRole)
    discard = box.addButton("&Don't save", QMessageBox.ButtonRole.DestructiveRole)
    box.addButton(QMessageBox.StandardButton.Cancel)
    box.setDefaultButton(save)
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.exec()
    if box.clickedButton() is save:
        return Answer.SAVE
    return Answer.DISCARD if box.clickedButton() is discard else Answer.CANCEL
