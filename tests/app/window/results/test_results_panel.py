"""The results dock: rows appear, sort by a click, are filtered and copied by key, and say their sentences."""

from __future__ import annotations

import csv
import io

import pytest
from made_up import started
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from app.report.columns import KERNEL, MEDIAN, RESULTS, WHERE
from app.report.outcome import CaseRows
from app.window.results.results_panel import ResultsPanel
from app.window.results.session_data import SessionData
from engine.records.events import Ending, KernelFinished, SessionFinished
from engine.records.plan import Plan

CONTROL = Qt.KeyboardModifier.ControlModifier


@pytest.fixture
def panel(qtbot: QtBot) -> ResultsPanel:
    panel = ResultsPanel(SessionData())
    qtbot.addWidget(panel)
    panel.resize(900, 260)
    panel.show()
    return panel


def show(panel: ResultsPanel, *groups: CaseRows) -> None:
    plan = Plan(cases=tuple(group.case for group in groups), kernels=tuple(row.kernel for row in groups[0].rows))
    panel._data.feed(started(plan))
    for group in groups:
        for row in group.rows:
            panel._data.feed(KernelFinished(group.case, row.kernel, row))


def shown(panel: ResultsPanel, column: object) -> list[str]:
    place = RESULTS.index(column)  # type: ignore[arg-type]
    return [panel.sorted.index(row, place).data() for row in range(panel.sorted.rowCount())]


def test_it_says_what_to_do_while_there_is_nothing(panel: ResultsPanel, race: CaseRows) -> None:
    assert not panel.table.isVisible()
    assert "press Run" in panel._hint.label.text()
    show(panel, race)
    assert panel.table.isVisible()
    assert panel._count.text() == "4 rows: 2 ok, 1 wrong, 1 skipped"


def test_it_asks_for_no_run_while_one_is_under_way(panel: ResultsPanel, race: CaseRows) -> None:
    panel._data.feed(started(Plan(cases=(race.case,), kernels=("gpu-flash",))))
    assert "press Run" not in panel._hint.label.text()
    assert "first kernel's row appears here" in panel._hint.label.text()
    panel._data.feed(SessionFinished(Ending.BROKEN, "the session broke"))
    assert "press Run" in panel._hint.label.text()


def test_a_click_on_a_title_sorts_by_number(panel: ResultsPanel, sweep: tuple[CaseRows, ...], qtbot: QtBot) -> None:
    show(panel, *sweep)
    header = panel.table.horizontalHeader()
    place = header.sectionViewportPosition(RESULTS.index(MEDIAN)) + 20
    before = shown(panel, KERNEL)
    point = header.rect().center()
    point.setX(place)
    for _ in range(2):
        qtbot.mouseClick(header.viewport(), Qt.MouseButton.LeftButton, pos=point)
    numbers = [float(text.replace(",", "")) for text in shown(panel, MEDIAN) if text != "–"]
    assert numbers in (sorted(numbers), sorted(numbers, reverse=True))
    qtbot.mouseClick(header.viewport(), Qt.MouseButton.LeftButton, pos=point)  # and as it was measured again
    assert shown(panel, KERNEL) == before


def test_words_typed_into_the_filter_leave_the_rows_that_hold_them(
    panel: ResultsPanel, race: CaseRows, qtbot: QtBot
) -> None:
    show(panel, race)
    qtbot.keyClicks(panel.filter, "gpu skipped")
    assert shown(panel, KERNEL) == ["gpu-naive"]


def test_selected_rows_are_copied_as_tsv(panel: ResultsPanel, race: CaseRows, qtbot: QtBot) -> None:
    show(panel, race)
    panel.table.selectRow(2)
    qtbot.keyClick(panel.table, Qt.Key.Key_C, CONTROL)
    lines = list(csv.reader(io.StringIO(QGuiApplication.clipboard().text()), delimiter="\t"))
    assert len(lines) == 2
    copied = dict(zip(*lines, strict=True))
    assert copied["kernel"] == "cpu-flash"
    assert copied["median ms"] == "6.1234"
    assert "case" not in copied  # there is only one


def test_without_a_selection_everything_is_copied_as_it_is_sorted(
    panel: ResultsPanel, sweep: tuple[CaseRows, ...]
) -> None:
    show(panel, *sweep)
    panel.filter.setText("cpu-flash")
    panel.sorted.sort(RESULTS.index(MEDIAN), Qt.SortOrder.DescendingOrder)
    panel.copy_table()
    lines = [line.split("\t") for line in QGuiApplication.clipboard().text().splitlines()]
    assert len(lines) == 6
    assert [line[lines[0].index("case")] for line in lines[1:3]] == ["seq 2048", "seq 1024"]


def test_the_current_row_says_its_sentences(panel: ResultsPanel, race: CaseRows) -> None:
    show(panel, race)
    assert not panel._sentences.isVisible()
    panel.table.setCurrentIndex(panel.sorted.index(1, 0))
    assert panel._sentences.text().startswith("gpu-naive skipped: one pair's score matrix needs 2.0 GiB")
    panel.table.setCurrentIndex(panel.sorted.index(0, 0))
    assert panel._sentences.text() == "software adapter · spread 12 %"
    panel.table.setCurrentIndex(panel.sorted.index(2, 0))
    assert not panel._sentences.isVisible()


def test_the_case_is_named_where_there_are_several(
    panel: ResultsPanel, race: CaseRows, sweep: tuple[CaseRows, ...]
) -> None:
    show(panel, *sweep)
    assert not panel.table.isColumnHidden(RESULTS.index(WHERE))
    show(panel, race)
    assert panel.table.isColumnHidden(RESULTS.index(WHERE))
