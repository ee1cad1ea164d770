"""Text from outside is shown as it is, wherever a run file's strings come up."""

from __future__ import annotations

from pathlib import Path

import msgspec
from made_up import batch, make_row, started
from PySide6.QtCore import QAbstractItemModel, QModelIndex, Qt
from PySide6.QtGui import QTextDocument
from PySide6.QtWidgets import QAbstractItemView, QLabel, QWidget
from pytestqt.qtbot import QtBot

from app.window.look.plain import plain_caption, plain_tip
from app.window.main_window import MainWindow
from engine.problem.attention_problem import AttentionProblem
from engine.records.plan import Case, Plan
from engine.records.results import Status
from engine.storage import run_file
from engine.storage.run_file import RunFile, SampleSeries

HOSTILE = "<img src='/dev/zero'><b>&bold</b>"


def hostile_run(folder: Path) -> Path:
    cases = tuple(
        Case(index=n, problem=AttentionProblem(heads=2, seq_q=seq, head_dim=8), input=HOSTILE)
        for n, seq in enumerate((64, 128))
    )
    kernels = (HOSTILE, "cpu-naive")
    event = started(Plan(cases=cases, kernels=kernels, label=HOSTILE, device=HOSTILE))
    texts = {"message": HOSTILE, "warnings": f"{HOSTILE}; {HOSTILE}", "device": HOSTILE, "driver": HOSTILE}
    rows = tuple(make_row(case, kernel, 2.0 + n, **texts) for case in cases for n, kernel in enumerate(kernels))
    rows = (*rows[:-1], msgspec.structs.replace(rows[-1], status=Status.FAILED, verified=None))
    series = tuple(
        SampleSeries(kernel=kernel, case=case.index, samples=batch(case, kernel, 0, 20).samples)
        for case in cases
        for kernel in kernels
    )
    environment = msgspec.structs.replace(event.environment, cpu=HOSTILE, os=HOSTILE, blas=HOSTILE)
    path = folder / "hostile.json"
    run = RunFile(
        run_id="r", started_at=event.started_at, reason="done", environment=environment, plan=event.plan, results=rows,
        samples=series,
    )  # fmt: skip
    run_file.save(path, run)
    return path


def tips(model: QAbstractItemModel) -> list[str]:
    root = QModelIndex()
    return [
        str(model.data(model.index(row, column, root), Qt.ItemDataRole.ToolTipRole) or "")
        for row in range(model.rowCount(root))
        for column in range(model.columnCount(root))
    ]


def rendered(text: str) -> str:
    """What a tooltip shows of a text, which Qt takes for markup where it looks like it."""
    document = QTextDocument()
    if text.lstrip().startswith("<") or "<img" in text:
        document.setHtml(text)
    else:
        document.setPlainText(text)
    return document.toPlainText()


def test_markup_in_a_run_file_is_text_everywhere(qtbot: QtBot, window: MainWindow, tmp_path: Path) -> None:
    window.show()
    window.files.open([str(hostile_run(tmp_path))])
    for number in range(3):
        window.tabs.setCurrentIndex(number)
        window.grab()
    shown = window.findChildren(QLabel)
    assert any(HOSTILE in label.text() for label in shown)
    for label in shown:
        if label.textFormat() != Qt.TextFormat.PlainText:
            assert "<img" not in label.text(), label.text()
    for widget in window.findChildren(QWidget):
        assert "<img" not in widget.toolTip(), widget.toolTip()
    for view in window.findChildren(QAbstractItemView):
        if view.model() is not None:
            found = tips(view.model())
            assert not any("<img" in tip for tip in found)
    table = next(tip for view in window.findChildren(QAbstractItemView) for tip in tips(view.model()) if "bold" in tip)
    assert HOSTILE in rendered(table)


def test_only_what_looks_like_markup_is_escaped() -> None:
    assert plain_tip("spread 12 %") == "spread 12 %"
    assert plain_tip("a < b\nc") == "<qt>a &lt; b<br>c</qt>"
    assert plain_caption("a & b") == "a && b"
