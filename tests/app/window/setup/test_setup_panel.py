"""The set-up dock: what is typed is checked, a plan comes out or a reason, and what it costs is told beforehand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from made_up import CPU, GPU
from PySide6.QtCore import QLocale, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog, QLabel, QMessageBox
from pytestqt.qtbot import QtBot

from app.plan import command_line
from app.window.setup.setup import Setup
from app.window.setup.setup_panel import SetupPanel
from engine.devices.device import DeviceInfo
from engine.kernels.registry import get_kernel

ANOTHER_GPU = msgspec.structs.replace(GPU, index=1, name="NVIDIA H200", adapter_type="discrete")


@pytest.fixture
def panel(qtbot: QtBot) -> SetupPanel:
    panel = SetupPanel()
    qtbot.addWidget(panel)
    panel.resize(340, 900)
    panel.set_devices([GPU, CPU])
    return panel


@pytest.fixture
def german() -> Iterator[None]:
    before = QLocale()
    QLocale.setDefault(QLocale("de_DE"))
    yield
    QLocale.setDefault(before)


def typed(qtbot: QtBot, panel: SetupPanel, field: str, text: str) -> None:
    """Type into a field as a person does."""
    edit = panel.texts[field].edit
    edit.selectAll()
    qtbot.keyClick(edit, Qt.Key.Key_Delete)
    qtbot.keyClicks(edit, text)


def told(panel: SetupPanel) -> str:
    """The line at the bottom, with the plan made."""
    panel.plan()
    return panel._estimate.text()


def test_it_begins_with_a_plan_that_can_run(panel: SetupPanel) -> None:
    assert panel.plan() == Setup().plan(None)
    assert panel.reason() == ""
    assert told(panel).startswith("About ")


def test_what_is_typed_becomes_the_plan_after_a_moment(panel: SetupPanel, qtbot: QtBot) -> None:
    panel.plan()
    with qtbot.waitSignal(panel.plan_changed):
        typed(qtbot, panel, "seq", "256..1024*2")
    plan = panel.plan()
    assert plan is not None
    assert [case.problem.seq_q for case in plan.cases] == [256, 512, 1024]
    assert "4 kernels × 3 cases" in told(panel)


def test_nonsense_is_marked_at_once_and_leaves_no_plan(panel: SetupPanel, qtbot: QtBot) -> None:
    typed(qtbot, panel, "heads", "5x")
    field = panel.texts["heads"]
    assert field.edit.property("wrong") is True
    assert "not a sweep" in field.toolTip()
    assert panel.plan() is None
    assert "not a sweep" in panel.reason()
    assert told(panel) == panel.reason()[0].upper() + panel.reason()[1:] + "."
    assert not panel.copy_button.isEnabled()
    typed(qtbot, panel, "heads", "4")
    assert field.edit.property("wrong") is False
    assert "Query heads" in field.toolTip()
    assert panel.plan() is not None


def test_values_that_clash_are_a_reason(panel: SetupPanel, qtbot: QtBot) -> None:
    typed(qtbot, panel, "kv_heads", "3")
    assert panel.plan() is None
    assert panel.reason() == "heads must be a multiple of kv_heads, got 8 and 3"


def test_no_kernel_is_a_reason(panel: SetupPanel) -> None:
    panel.kernels.choose(())
    assert panel.plan() is None
    assert "tick at least one" in panel.reason()


def test_a_kernel_that_cannot_run_says_why_in_red_and_the_others_may(panel: SetupPanel, qtbot: QtBot) -> None:
    typed(qtbot, panel, "seq", "8192")
    assert panel.plan() is not None
    row = panel.kernels.rows["gpu-naive"]
    assert row.reason.text().startswith("Cannot run: one pair's score matrix needs 256 MiB")
    assert row.reason.property("role") == "bad"
    assert not row.reason.isHidden()
    assert panel.kernels.rows["gpu-flash"].reason.isHidden()
    assert " of 8.00 GiB" in panel.kernels.rows["gpu-flash"].memory.text()


def test_where_no_kernel_can_run_there_is_no_plan(panel: SetupPanel) -> None:
    panel.dtype.setCurrentText("f16")
    panel.kernels.choose(("cpu-flash", "cpu-naive"))
    assert panel.plan() is None
    assert panel.reason() == "no chosen kernel can run: CPU kernels work in float32 only, not f16"
    panel.direction.setCurrentText("both")
    assert panel.plan() is None
    assert panel.reason() == "no chosen kernel can run: CPU kernels work in float32 only, not f16"
    said = panel.kernels.rows["cpu-flash"].reason.text()
    assert said == "Cannot run in any case: CPU kernels work in float32 only, not f16."


def test_kernels_that_are_left_out_show_no_figures(panel: SetupPanel) -> None:
    panel.kernels.choose(("cpu-flash",))
    panel.plan()
    assert panel.kernels.rows["gpu-flash"].memory.text() == ""
    assert panel.kernels.rows["cpu-flash"].memory.text() != ""


def test_presets_fill_the_problem_and_are_recognised(panel: SetupPanel, qtbot: QtBot) -> None:
    names = [panel.preset.itemText(number) for number in range(panel.preset.count())]
    number = names.index("Mistral-7B, window")
    panel.preset.setCurrentIndex(number)
    panel.preset.activated.emit(number)
    plan = panel.plan()
    assert plan is not None
    problem = plan.cases[0].problem
    assert (problem.heads, problem.kv_heads, problem.seq_q, problem.window) == (32, 8, 8192, 4096)
    typed(qtbot, panel, "window", "1024")
    assert panel.preset.currentIndex() == -1  # it is that model no more
    typed(qtbot, panel, "window", "4096")
    assert panel.preset.currentIndex() == number


def test_the_window_field_belongs_to_the_window(panel: SetupPanel) -> None:
    assert not panel.texts["window"].isEnabled()
    panel.mask_box.setCurrentIndex(2)
    assert panel.texts["window"].isEnabled()
    assert "needs a length" in panel.reason()


def test_both_directions_double_the_cases_and_say_what_they_hold(panel: SetupPanel) -> None:
    assert panel.direction.currentText() == "forward"
    panel.plan()
    assert panel._cost.text() == "2.15 GFLOP a run · Q, K, V and output 8.00 MiB"
    panel.direction.setCurrentText("both")
    plan = panel.plan()
    assert plan is not None
    assert [case.problem.direction for case in plan.cases] == ["forward", "backward"]
    assert panel._cost.text() == (
        "2.15 GFLOP to 5.37 GFLOP a run · Q, K, V and output 8.00 MiB · Q, K, V, output and gradients 16.0 MiB"
    )
    assert " to " in panel.kernels.rows["gpu-flash"].memory.text()
    forward, backward = (get_kernel("cpu-flash").predict(case.problem, CPU.limits) for case in plan.cases)
    panel.texts["memory_limit"].show_text(str((forward + backward) // 2))  # what a thread holds goes by the processor
    panel.plan()
    assert panel.kernels.rows["cpu-flash"].reason.text().startswith("Cannot run in 1 of 2 cases, backward: its ")


def test_the_direction_is_reached_by_keyboard_and_explained(panel: SetupPanel, qtbot: QtBot) -> None:
    panel.show()
    panel.direction.setFocus(Qt.FocusReason.TabFocusReason)
    qtbot.keyClick(panel.direction, Qt.Key.Key_Down)
    assert panel.setup().direction == "backward"
    label = next(label for label in panel.findChildren(QLabel) if label.buddy() is panel.direction)
    assert (label.text(), panel.direction.accessibleName()) == ("direction", "direction")
    assert "dQ, dK and dV" in panel.direction.accessibleDescription()
    assert panel.direction.parentWidget().toolTip() == panel.direction.accessibleDescription()


def test_the_seed_counts_where_a_gradient_is_drawn(panel: SetupPanel, padded_file: Path) -> None:
    panel.load_tensors(str(padded_file))
    assert not panel.texts["seed"].isEnabled()
    panel.direction.setCurrentText("backward")
    assert panel.texts["seed"].isEnabled()


def test_a_tensor_file_takes_the_place_of_the_shape(panel: SetupPanel, padded_file: Path) -> None:
    panel.show()
    panel.load_tensors(str(padded_file))
    plan = panel.plan()
    assert plan is not None
    assert plan.cases[0].input == str(padded_file)
    assert plan.cases[0].problem.key_mask is not None
    assert not panel.texts["seq"].isVisible()
    assert padded_file.name in panel._file.text()
    assert "key mask" in panel._file.text()
    panel.forget_button.click()
    assert panel.texts["seq"].isVisible()
    again = panel.plan()
    assert again is not None
    assert again.cases[0].input == "normal"


def test_a_bad_tensor_file_changes_nothing(panel: SetupPanel, tmp_path: Path) -> None:
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"no archive")
    before = panel.plan()
    with pytest.raises(ValueError, match=r"bad\.npz"):
        panel.load_tensors(str(bad))
    assert panel.plan() == before


def test_three_files_are_put_in_order(
    panel: SetupPanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qtbot: QtBot
) -> None:
    paths = []
    for name, heads in (("v", 2), ("q", 4), ("k", 2)):
        paths.append(str(tmp_path / f"layer_{name}.npy"))
        np.save(paths[-1], np.zeros((1, heads, 8, 16), np.float32))
    monkeypatch.setattr(QFileDialog, "getOpenFileNames", lambda *_: (paths, ""))
    panel.load_button.click()
    plan = panel.plan()
    assert plan is not None
    assert (plan.cases[0].problem.heads, plan.cases[0].problem.kv_heads) == (4, 2)


def test_a_file_that_cannot_be_loaded_is_told_in_one_sentence(
    panel: SetupPanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(QFileDialog, "getOpenFileNames", lambda *_: ([str(tmp_path / "gone.npz")], ""))
    monkeypatch.setattr(QMessageBox, "warning", lambda parent, title, text: said.append(text))
    panel.load_button.click()
    assert len(said) == 1
    assert "does not exist" in said[0]


def test_the_command_line_is_copied(panel: SetupPanel) -> None:
    plan = panel.plan()
    assert plan is not None
    panel.copy_button.click()
    assert QGuiApplication.clipboard().text() == command_line.text(plan)


def test_the_set_up_is_kept_as_plain_values(panel: SetupPanel, sample_file: Path, tmp_path: Path, qtbot: QtBot) -> None:
    kept_file = tmp_path / "mine.npz"
    shutil.copy(sample_file, kept_file)
    panel.show_setup(
        Setup(heads="2,4", mask="window", window="7", scale="0.5", kernels=("cpu-flash",), by_count=True, samples=12,
              seed="5", memory_limit="1GiB", checks=False, label="=1+1", direction="both")
    )  # fmt: skip
    panel.load_tensors(str(kept_file))
    panel.device.combo.setCurrentIndex(1)
    state = json.loads(json.dumps(panel.state()))
    other = SetupPanel()
    qtbot.addWidget(other)
    other.restore(state)
    other.set_devices([ANOTHER_GPU, GPU, CPU])
    assert other.setup() == panel.setup()
    assert other.plan() == panel.plan()
    kept_file.unlink()
    other.restore(state)
    assert other.setup().tensors == ""


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"batch": 3, "seconds": "x", "samples": None, "kernels": "cpu-flash", "device": 7, "mask": "triangle"},
        {"seconds": True, "samples": 10**20, "min_samples": -5, "kernels": [1, "cpu-flash"], "nonsense": 1},
        {"device": {"name": 3}, "tensors": "/no/such/file.npz", "dtype": "f99", "direction": "sideways"},
        {"direction": ["both"]},
    ],
)
def test_values_of_the_wrong_kind_are_left_out(panel: SetupPanel, state: dict[str, object]) -> None:
    panel.restore(state)
    setup = panel.setup()
    assert (setup.batch, setup.seq, setup.mask, setup.dtype, setup.tensors) == ("1", "1024", "none", "f32", "")
    assert setup.direction == "forward"
    assert panel.plan() is not None


def test_a_chosen_device_is_found_again_wherever_it_is_listed(panel: SetupPanel) -> None:
    panel.set_devices([GPU, ANOTHER_GPU, CPU])
    panel.device.combo.setCurrentIndex(2)
    assert panel.setup().device == "1"
    moved = msgspec.structs.replace(ANOTHER_GPU, index=0), msgspec.structs.replace(GPU, index=1)
    panel.set_devices([*moved, CPU])
    assert panel.setup().device == "0"
    panel.set_devices([GPU, CPU])  # it is gone
    assert panel.setup().device == "auto"


def test_devices_say_what_they_are(panel: SetupPanel) -> None:
    entries = [panel.device.combo.itemText(number) for number in range(panel.device.combo.count())]
    assert entries == [f"Automatic: {GPU.name} — software", f"{GPU.name} — software, vulkan", "CPU only"]
    assert "a processor plays this GPU" in panel.device._about.text()
    panel.device.combo.setCurrentIndex(2)
    assert panel.setup().device == "cpu"
    panel.plan()
    assert "the CPU alone is chosen" in panel.kernels.rows["gpu-flash"].reason.text()


def test_without_a_driver_the_cpu_is_there_and_the_reason_too(panel: SetupPanel) -> None:
    panel.set_devices([CPU])
    assert panel.plan() is not None
    assert "install" in panel.device._about.text()
    assert "install" in panel.kernels.rows["gpu-flash"].reason.text()
    panel.kernels.choose(("gpu-flash",))
    assert panel.plan() is None
    assert "install" in panel.reason()


def test_before_the_devices_are_known_nothing_is_red(qtbot: QtBot) -> None:
    panel = SetupPanel()
    qtbot.addWidget(panel)
    assert panel.plan() is not None
    assert panel.kernels.rows["gpu-flash"].reason.isHidden()
    panel.kernels.choose(("gpu-flash",))
    assert panel.reason() == "the devices are not known yet"


def test_refresh_asks_for_devices(panel: SetupPanel, qtbot: QtBot) -> None:
    with qtbot.waitSignal(panel.devices_refresh_requested):
        panel.device.refresh.click()


def test_a_run_holds_the_set_up_still(panel: SetupPanel) -> None:
    panel.set_running(True)
    assert not panel.texts["seq"].isEnabled()
    assert panel.plan() is not None
    panel.set_running(False)
    assert panel.texts["seq"].isEnabled()


def test_measured_rates_change_the_estimate(panel: SetupPanel) -> None:
    before = told(panel)
    panel.set_rates({("cpu-naive", "forward"): 0.001})
    assert told(panel) != before


@pytest.mark.usefixtures("german")
def test_german_numbers_are_read_and_shown(panel: SetupPanel, qtbot: QtBot) -> None:
    typed(qtbot, panel, "softcap", "30,5")
    typed(qtbot, panel, "scale", "0.25")
    plan = panel.plan()
    assert plan is not None
    assert (plan.cases[0].problem.softcap, plan.cases[0].problem.scale) == (30.5, 0.25)
    assert "8,00 MiB" in panel._cost.text()
    assert "8,00 GiB" in panel.kernels.rows["gpu-flash"].memory.text()


def test_every_field_has_a_name_and_a_sentence(panel: SetupPanel) -> None:
    for field in panel.texts.values():
        assert field.edit.accessibleName()
        assert field.toolTip().endswith(".")
    devices: list[DeviceInfo] = []
    panel.set_devices(devices)
    assert panel.device.combo.accessibleName()
