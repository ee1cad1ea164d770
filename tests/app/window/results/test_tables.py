"""The tables under Qt's own tester: rows come and stay, sort by value, filter by word, recolour, and speak German."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from made_up import make_row, started
from PySide6.QtCore import QLocale, QPersistentModelIndex, Qt
from PySide6.QtTest import QAbstractItemModelTester
from pytestqt.qtbot import QtBot

from app.report.columns import COMPARE, ERROR, KERNEL, MEDIAN, RESULTS, SAMPLES, SPEEDUP, STATUS, WHERE
from app.report.outcome import CaseRows
from app.window.look.appearance import appearance
from app.window.results.compare_model import CompareModel
from app.window.results.results_model import ResultsModel, SortedRows
from app.window.results.row_table import COPY_ROLE, ROW_ROLE, SORT_ROLE, RowTable
from app.window.results.session_data import SessionData
from engine.records.events import KernelFinished, SessionFinished
from engine.records.plan import Plan
from engine.records.results import Status

Role = Qt.ItemDataRole
ASCENDING, DESCENDING = Qt.SortOrder.AscendingOrder, Qt.SortOrder.DescendingOrder


@pytest.fixture
def data(qtbot: QtBot) -> SessionData:
    return SessionData()


@pytest.fixture
def watched(data: SessionData) -> Iterator[tuple[ResultsModel, SortedRows]]:
    """The results' models, each under a tester that ends the program where a model lies."""
    model = ResultsModel(data)
    sorted_rows = SortedRows(model)
    mode = QAbstractItemModelTester.FailureReportingMode.Fatal
    testers = [QAbstractItemModelTester(found, mode) for found in (model, sorted_rows)]
    yield model, sorted_rows
    del testers


def feed(data: SessionData, groups: tuple[CaseRows, ...], *, backwards: bool = False) -> None:
    """Tell of these results, the kernels of each case from the last to the first where ``backwards``."""
    plan = Plan(cases=tuple(group.case for group in groups), kernels=tuple(row.kernel for row in groups[0].rows))
    data.feed(started(plan))
    for group in groups:
        for row in reversed(group.rows) if backwards else group.rows:
            data.feed(KernelFinished(group.case, row.kernel, row))
    data.feed(SessionFinished())


def column_of(model: ResultsModel | SortedRows, column: object, role: int = Role.DisplayRole) -> list[object]:
    place = RESULTS.index(column)  # type: ignore[arg-type]
    return [model.index(row, place).data(role) for row in range(model.rowCount())]


def test_rows_come_one_by_one_into_their_places(
    data: SessionData, watched: tuple[ResultsModel, SortedRows], sweep: tuple[CaseRows, ...]
) -> None:
    model, sorted_rows = watched
    sorted_rows.sort(RESULTS.index(MEDIAN), DESCENDING)
    feed(data, sweep, backwards=True)
    assert column_of(model, KERNEL) == [row.kernel for group in sweep for row in group.rows]
    assert column_of(model, WHERE)[::4] == ["seq 128", "seq 256", "seq 512", "seq 1024", "seq 2048"]
    assert sorted_rows.rowCount() == 20


def test_a_place_in_the_table_stays_while_rows_come(
    data: SessionData, watched: tuple[ResultsModel, SortedRows], sweep: tuple[CaseRows, ...]
) -> None:
    model, _ = watched
    plan = Plan(cases=tuple(group.case for group in sweep), kernels=tuple(row.kernel for row in sweep[0].rows))
    data.feed(started(plan))
    last, first = sweep[0].rows[-1], sweep[0].rows[0]
    data.feed(KernelFinished(sweep[0].case, last.kernel, last))
    held = QPersistentModelIndex(model.index(0, 0))
    data.feed(KernelFinished(sweep[0].case, first.kernel, first))
    assert held.row() == 1
    assert held.data(ROW_ROLE) == last


def test_a_new_session_empties_the_table(
    data: SessionData, watched: tuple[ResultsModel, SortedRows], sweep: tuple[CaseRows, ...]
) -> None:
    model, sorted_rows = watched
    feed(data, sweep)
    data.feed(started(Plan(cases=(sweep[0].case,), kernels=("cpu-flash",))))
    assert (model.rowCount(), sorted_rows.rowCount()) == (0, 0)


@pytest.mark.parametrize("order", [ASCENDING, DESCENDING])
def test_numbers_sort_by_value_and_unknown_ones_come_last(
    data: SessionData, watched: tuple[ResultsModel, SortedRows], sweep: tuple[CaseRows, ...], order: Qt.SortOrder
) -> None:
    _, sorted_rows = watched
    feed(data, sweep)
    sorted_rows.sort(RESULTS.index(MEDIAN), order)
    values = column_of(sorted_rows, MEDIAN, SORT_ROLE)
    known = [value for value in values if value is not None]
    assert len(known) == 18
    assert values[18:] == [None, None]
    assert known == sorted(known, reverse=order == DESCENDING)  # type: ignore[type-var]


def test_every_column_sorts(
    data: SessionData, watched: tuple[ResultsModel, SortedRows], race: CaseRows, sweep: tuple[CaseRows, ...]
) -> None:
    _, sorted_rows = watched
    for groups in ((race,), sweep):
        feed(data, groups)
        for place in range(len(RESULTS)):
            for order in (ASCENDING, DESCENDING):
                sorted_rows.sort(place, order)
                assert sorted_rows.rowCount() == sum(len(group.rows) for group in groups)


def test_the_filter_keeps_rows_that_hold_every_word(
    data: SessionData, watched: tuple[ResultsModel, SortedRows], sweep: tuple[CaseRows, ...]
) -> None:
    _, sorted_rows = watched
    feed(data, sweep)
    sorted_rows.search("CPU skipped")
    assert column_of(sorted_rows, KERNEL) == ["cpu-naive"]
    sorted_rows.search("LIMIT is 48")  # from the sentence
    assert sorted_rows.rowCount() == 2
    sorted_rows.search("no such thing")
    assert sorted_rows.rowCount() == 0
    sorted_rows.search("  ")
    assert sorted_rows.rowCount() == 20


def test_cells_speak_the_locale_and_copies_do_not(
    data: SessionData, watched: tuple[ResultsModel, SortedRows], race: CaseRows
) -> None:
    model, _ = watched
    before = QLocale()
    QLocale.setDefault(QLocale("de_DE"))
    try:
        feed(data, (race,))
        assert column_of(model, MEDIAN) == ["131", "–", "6,12", "–"]
        assert column_of(model, ERROR)[0] == "2,1e-07"
        assert column_of(model, MEDIAN, COPY_ROLE) == ["131.0", "", "6.1234", ""]
    finally:
        QLocale.setDefault(before)


def test_status_and_kernel_have_pictures_that_follow_the_appearance(
    data: SessionData, watched: tuple[ResultsModel, SortedRows], race: CaseRows, qtbot: QtBot
) -> None:
    model, _ = watched
    feed(data, (race,))
    light = [picture.pixmap(16, 16).toImage() for picture in column_of(model, STATUS, Role.DecorationRole)]  # type: ignore[attr-defined]
    assert light[0] != light[1] != light[3]
    try:
        with qtbot.waitSignal(model.dataChanged):
            appearance().follow(Qt.ColorScheme.Dark)
        dark = [picture.pixmap(16, 16).toImage() for picture in column_of(model, STATUS, Role.DecorationRole)]  # type: ignore[attr-defined]
        assert dark[0] != light[0]
    finally:
        appearance().follow(Qt.ColorScheme.Light)


def test_every_figure_is_explained_in_one_sentence() -> None:
    for column in {*RESULTS, *COMPARE}:
        assert column.meaning.endswith("."), column.title
        assert 10 < len(column.meaning) < 130, column.title


def compared(model: RowTable, column: object) -> list[str]:
    place = [model.headerData(n, Qt.Orientation.Horizontal) for n in range(model.columnCount())].index(column)
    return [model.index(row, place).data() for row in range(model.rowCount())]


def test_speed_ups_are_against_naive_or_whatever_is_picked(qtbot: QtBot, sweep: tuple[CaseRows, ...]) -> None:
    model = CompareModel()
    tester = QAbstractItemModelTester(model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    rows = sweep[2].rows  # 420, 5, 700 and 7 ms
    model.show_rows(rows, None)
    assert compared(model, SPEEDUP.title) == ["1.42×", "1.42×", "1.00×", "1.00×"]
    model.show_rows(rows, "cpu-naive")
    assert compared(model, "vs cpu-naive") == ["0.0167×", "1.40×", "0.0100×", "1.00×"]
    model.show_rows(rows, "not-there")
    assert compared(model, SPEEDUP.title)[0] == "1.42×"
    assert compared(model, SAMPLES.title) == ["40"] * 4
    del tester


def test_what_is_not_right_has_no_speed_up_and_is_no_baseline(qtbot: QtBot, race: CaseRows) -> None:
    model = CompareModel()
    model.show_rows(race.rows, "cpu-flash")
    assert compared(model, "vs cpu-flash") == ["0.0467×", "–", "1.00×", "–"]
    model.show_rows(race.rows, "cpu-naive")  # which was wrong
    assert compared(model, "vs cpu-naive") == ["–"] * 4


def test_a_formula_is_no_formula_when_copied(qtbot: QtBot, race: CaseRows) -> None:
    model = ResultsModel(data := SessionData())
    row = make_row(race.case, "cpu-flash", status=Status.FAILED, message="=HYPERLINK(1)")
    feed(data, (CaseRows(race.case, (row,)),))
    assert model.index(0, len(RESULTS) - 1).data(COPY_ROLE) == "'=HYPERLINK(1)"
