"""A chart's keys, axes and crosshair; drawing from a timer; pictures of it."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PySide6.QtCore import QEvent, QLocale, QObject, Qt
from PySide6.QtGui import QImage, QShortcut
from PySide6.QtWidgets import QApplication, QLabel
from pytestqt.qtbot import QtBot

from app.report.theme import DARK, LIGHT
from app.window.charts import picture
from app.window.charts.axes import Axis
from app.window.charts.chart import Chart
from app.window.charts.legend import KernelLegend
from app.window.charts.refresher import Refresher
from app.window.look.appearance import appearance


@pytest.fixture
def chart(qtbot: QtBot) -> Chart:
    chart = Chart()
    qtbot.addWidget(chart)
    chart.resize(500, 300)
    chart.plot(np.arange(100.0), np.arange(100.0))
    with qtbot.waitActive(chart):
        chart.show()
        chart.activateWindow()
    chart.setFocus()
    qtbot.waitUntil(chart.hasFocus)
    chart.view.setRange(xRange=(20, 80), yRange=(30, 70), padding=0)
    return chart


def span(chart: Chart) -> tuple[float, float]:
    """How much of x and of y is shown."""
    (left, right), (low, high) = chart.view.viewRange()
    return right - left, high - low


def middle(chart: Chart) -> tuple[float, float]:
    (left, right), (low, high) = chart.view.viewRange()
    return (left + right) / 2, (low + high) / 2


@pytest.mark.parametrize(
    ("key", "modifier", "x", "y"),
    [
        (Qt.Key.Key_Plus, Qt.KeyboardModifier.NoModifier, -1, -1),
        (Qt.Key.Key_Equal, Qt.KeyboardModifier.NoModifier, -1, -1),
        (Qt.Key.Key_Minus, Qt.KeyboardModifier.NoModifier, 1, 1),
        (Qt.Key.Key_X, Qt.KeyboardModifier.NoModifier, -1, 0),
        (Qt.Key.Key_X, Qt.KeyboardModifier.ShiftModifier, 1, 0),
        (Qt.Key.Key_Y, Qt.KeyboardModifier.NoModifier, 0, -1),
        (Qt.Key.Key_Y, Qt.KeyboardModifier.ShiftModifier, 0, 1),
    ],
)
def test_keys_zoom_both_axes_or_one(
    chart: Chart, qtbot: QtBot, key: Qt.Key, modifier: Qt.KeyboardModifier, x: int, y: int
) -> None:
    before = span(chart)
    qtbot.keyClick(chart, key, modifier)
    after = span(chart)
    for was, now, sign in zip(before, after, (x, y), strict=True):
        assert math.isclose(now, was * 0.8**-sign, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("key", "x", "y"),
    [(Qt.Key.Key_Left, -1, 0), (Qt.Key.Key_Right, 1, 0), (Qt.Key.Key_Up, 0, 1), (Qt.Key.Key_Down, 0, -1)],
)
def test_arrows_move(chart: Chart, qtbot: QtBot, key: Qt.Key, x: int, y: int) -> None:
    before, size = middle(chart), span(chart)
    qtbot.keyClick(chart, key)
    for was, now, room, sign in zip(before, middle(chart), size, (x, y), strict=True):
        assert math.isclose(now - was, sign * 0.1 * room, rel_tol=1e-6, abs_tol=1e-9)


def test_home_fits_and_follows_again(chart: Chart, qtbot: QtBot) -> None:
    qtbot.keyClick(chart, Qt.Key.Key_Home)
    qtbot.waitUntil(lambda: 99 <= span(chart)[0] < 130)
    chart.plot(np.arange(200.0), np.arange(200.0))
    qtbot.waitUntil(lambda: span(chart)[0] >= 199)


def test_the_crosshair_goes_by_key(chart: Chart, qtbot: QtBot) -> None:
    told: list[float | None] = []
    chart.crosshair_moved.connect(told.append)
    for key in (Qt.Key.Key_Period, Qt.Key.Key_Period, Qt.Key.Key_Comma, Qt.Key.Key_Escape):
        qtbot.keyClick(chart, key)
    first, second, third, gone = told
    assert first == pytest.approx(middle(chart)[0])
    assert second == pytest.approx(first + span(chart)[0] / 100)
    assert third == pytest.approx(first)
    assert gone is None
    assert chart.crosshair is None


def test_every_key_says_what_it_does(chart: Chart) -> None:
    shortcuts = chart.findChildren(QShortcut)
    assert len(shortcuts) == 14
    assert len({shortcut.whatsThis() for shortcut in shortcuts}) == 14


def test_it_follows_light_and_dark(chart: Chart) -> None:
    assert chart.backgroundBrush().color().name().upper() == LIGHT.paper
    try:
        appearance().follow(Qt.ColorScheme.Dark)
        assert chart.backgroundBrush().color().name().upper() == DARK.paper
        assert chart.x_axis.textPen().color().name().upper() == DARK.muted
    finally:
        appearance().follow(Qt.ColorScheme.Light)


def texts(axis: Axis, low: float, high: float) -> list[str]:
    ((_, places),) = axis.tickValues(low, high, 500)
    return axis.tickStrings(places, 1.0, 1.0)


def test_axes_have_round_marks(qtbot: QtBot) -> None:
    assert texts(Axis("bottom"), 0, 100) == ["0", "20", "40", "60", "80", "100"]
    assert texts(Axis("left", log=True), 0, 2) == ["1", "3", "10", "30", "100"]
    assert texts(Axis("left", of_bytes=True), 0, 4 << 20) == ["0", "1 MiB", "2 MiB", "3 MiB", "4 MiB"]
    assert texts(Axis("left", log=True, of_bytes=True), math.log10(1 << 10), math.log10(1 << 13)) == [
        "1 KiB", "2 KiB", "4 KiB", "8 KiB",
    ]  # fmt: skip
    near = texts(Axis("left", log=True), math.log10(5.1), math.log10(5.9))
    assert len(near) > 2  # less than a decade still has marks


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.0), (math.nan, 1.0), (-math.inf, math.inf), (1e300, 1e300), (-400, 400)]
)
def test_a_senseless_range_has_no_marks_and_does_no_harm(qtbot: QtBot, low: float, high: float) -> None:
    for axis in (Axis("left"), Axis("left", log=True), Axis("left", log=True, of_bytes=True)):
        assert isinstance(texts(axis, low, high), list)


def test_marks_speak_the_locale(qtbot: QtBot) -> None:
    before = QLocale()
    QLocale.setDefault(QLocale("de_DE"))
    try:
        assert texts(Axis("bottom"), 0, 2)[1:3] == ["0,5", "1"]
        assert texts(Axis("bottom"), 0, 5000)[1] == "1.000"
    finally:
        QLocale.setDefault(before)


def test_many_requests_make_one_drawing(qtbot: QtBot) -> None:
    parent = QObject()
    drawn: list[int] = []
    refresher = Refresher(lambda: drawn.append(1), parent)
    for _ in range(1000):
        refresher.request()
    assert drawn == []
    qtbot.waitUntil(lambda: drawn == [1])
    assert not refresher._timer.isActive()  # nothing runs while nothing is asked
    for _ in range(1000):
        refresher.request()
    assert refresher._timer.interval() > 0  # the next one keeps its distance
    qtbot.waitUntil(lambda: drawn == [1, 1])


def test_while_cpu_kernels_run_it_keeps_calm(qtbot: QtBot) -> None:
    parent = QObject()
    refresher = Refresher(lambda: None, parent)
    refresher.calm = True
    refresher.now()
    refresher.request()
    assert refresher._timer.interval() > 100  # at most ten drawings a second
    refresher.now()
    assert not refresher._timer.isActive()


def test_the_legend_hides_and_brings_out(qtbot: QtBot) -> None:
    legend = KernelLegend()
    qtbot.addWidget(legend)
    legend.show_kernels(["gpu-flash", "cpu-flash"])
    with qtbot.waitActive(legend):
        legend.show()
        legend.activateWindow()
    for kernel in ("cpu-flash", "gpu-flash"):
        legend.buttons[kernel].setFocus()
        qtbot.waitUntil(lambda kernel=kernel: legend.highlighted == kernel)
    with qtbot.waitSignal(legend.changed):
        qtbot.keyClick(legend.buttons["gpu-flash"], Qt.Key.Key_Space)
    assert legend.hidden == {"gpu-flash"}
    legend.show_kernels(["gpu-flash", "cpu-naive"])
    assert not legend.buttons["gpu-flash"].isChecked()  # hidden it stays in the next session
    legend.show_kernels(["cpu-naive"])
    assert legend.hidden == set()


def test_pictures_hold_everything_at_the_scale_asked_for(chart: Chart, qtbot: QtBot) -> None:
    label = QLabel("who won")
    qtbot.addWidget(label)
    label.resize(300, 40)
    unit, double = picture.image([label, chart], 1.0), picture.image([label, chart], 2.0)
    assert double.width() == 2 * unit.width()
    assert double.height() == 2 * unit.height()
    assert unit.width() > chart.width()
    assert unit.height() > chart.height() + label.height()
    read = QImage.fromData(picture.png([label, chart], 1.5))
    assert read.width() == round(1.5 * unit.width())
    colours = {read.pixelColor(x, y).name() for x in range(0, read.width(), 3) for y in range(0, read.height(), 3)}
    assert len(colours) > 2


def test_an_svg_holds_text_and_paths_with_plain_pens_and_clips_to_the_view(chart: Chart) -> None:
    chart.name_axes("sample", "latency")
    chart.plot([0.0, 50.0], [1e9, 1e9], symbol="o")
    root = ElementTree.fromstring(picture.svg([chart]).decode())
    namespace = "{http://www.w3.org/2000/svg}"
    inside = root.findall(f"{namespace}svg")
    assert len(inside) == 1  # an SVG of its own clips what lies outside of it
    area = chart.view.sceneBoundingRect()
    assert float(inside[0].attrib["width"]) == pytest.approx(area.width(), abs=0.01)
    assert len(list(inside[0].iter(f"{namespace}path"))) >= 4  # two curves, two marks
    assert all(element.attrib.get("vector-effect") != "non-scaling-stroke" for element in inside[0].iter())
    words = {"".join(element.itertext()).strip() for element in root.iter(f"{namespace}text")}
    assert {"sample", "latency"} <= words
    assert not list(root.iter(f"{namespace}image"))


@pytest.mark.parametrize("log", [False, True])
def test_zooming_out_stops_near_the_data(qtbot: QtBot, log: bool) -> None:
    chart = Chart(log_x=log, log_y=log)
    qtbot.addWidget(chart)
    chart.resize(500, 300)
    chart.plot(np.linspace(1.0, 2.0, 50), np.linspace(-1.0, 3.0, 50))
    chart.show()
    for _ in range(60):
        chart.view.scaleBy((1.5, 1.5))  # as a notch of the wheel does
        chart.grab()
    across, up = span(chart)
    assert across <= 1.5 * 1.0 + 1e-9
    assert up <= 1.5 * 4.0 + 1e-9
    chart.zoom(0.5, 0.5)
    assert span(chart)[0] < across


def test_a_kernel_is_brought_out_only_while_the_pointer_rests_on_it(qtbot: QtBot) -> None:
    legend = KernelLegend()
    qtbot.addWidget(legend)
    legend.show_kernels(["one", "two"])
    legend.show()
    button = legend.buttons["one"]
    QApplication.sendEvent(button, QEvent(QEvent.Type.Enter))
    assert legend.highlighted == "one"
    button.click()  # hidden now: nothing else fades for it
    assert (legend.hidden, legend.highlighted) == ({"one"}, None)
    QApplication.sendEvent(legend.buttons["two"], QEvent(QEvent.Type.Enter))
    assert legend.highlighted == "two"
    legend.hide()  # with its tab: the pointer never leaves
    assert legend.highlighted is None
