"""The set-up dock: device, problem, kernels and run length, checked as typed, with what it costs told beforehand."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, get_type_hints

import psutil
from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QFileDialog,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QMessageBox,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.plan import command_line, forecast
from app.plan.forecast import Footprint, Machine
from app.plan.options import DIRECTIONS
from app.plan.presets import presets
from app.report.units import operations, remaining, significant, size
from app.window.look.local_numbers import localised
from app.window.look.plain import plain_tip
from app.window.setup.device_box import DeviceBox
from app.window.setup.kernel_picker import KernelPicker
from app.window.setup.labelled import Labelled, TextField
from app.window.setup.run_length import RunLength
from app.window.setup.setup import MASKS, Setup, joined
from engine.devices.device import DeviceInfo, Limits
from engine.devices.processor import cache_bytes, usable_cores
from engine.problem.inputs import Preview, preview
from engine.records.plan import Plan

_WAIT_MS = 60  # after the last key before the forecast is made anew: a sweep's takes a moment
_FREE_STEP = 26  # bits: free memory in steps of 64 MiB, so that a forecast can be kept
_UNKNOWN_CPU = Limits(memory_bytes=0, threads=usable_cores(), l2_bytes=cache_bytes(2))  # until it has been asked
_TENSOR_FILES = "Tensors (*.npz *.npy *.safetensors);;All files (*)"

# name: label, unit, placeholder, meaning
_TEXTS: dict[str, tuple[str, str, str, str]] = {
    "batch": ("batch", "", "1", "Independent entries computed at once. Sweeps: 1,2,4 or 1..16*2."),
    "heads": ("heads", "", "8", "Query heads. Sweeps: 8,16 or 4..32*2."),
    "kv_heads": ("kv_heads", "", "as heads", "Key and value heads; it divides heads (grouped-query attention)."),
    "seq": ("seq", "queries", "1024", "Number of queries. Sweeps: 512,1024 or 256..8192*2 or 64..256+64."),
    "seq_k": ("seq_k", "keys", "as seq", "Number of keys; more than queries is a cache that a decode step reads."),
    "head_dim": ("head_dim", "values", "64", "Numbers in a query and in a key of one head, at most 256. Sweeps too."),
    "head_dim_v": ("head_dim_v", "values", "as head_dim", "Numbers in a value, and in the output, of one head."),
    "window": ("window", "keys", "4096", "How many keys a query sees, itself included."),
    "softcap": ("softcap", "", "none", "Bounds the scores smoothly: c · tanh(score / c), as Gemma 2 does."),
    "scale": ("scale", "", "1/√head_dim", "Factor of the scores before the softmax."),
    "seed": ("seed", "", "0", "Seed of the random tensors, and of the output's gradient that a backward pass begins "
             "with: the same seed gives the same tensors on any machine."),
    "threads": ("threads", "", f"all {usable_cores()}", "Threads of the CPU kernels. Sweeps: 1,2,4 or 1..8*2."),
    "memory_limit": ("memory limit", "", "half of free RAM", "What one kernel may hold: 8GiB, 512M. "
                     "By default half of the free RAM, on a GPU 8 GiB."),
    "label": ("label", "", "a name for the report", "Stands in every row of the report."),
}  # fmt: skip
_MASK_NAMES = {"none": "none: all keys", "causal": "causal: no later keys", "window": "causal, sliding window"}


class SetupPanel(QWidget):
    """Everything that makes a plan. ``plan`` is None, and ``reason`` says why, while there is none to run."""

    plan_changed = Signal()
    devices_refresh_requested = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._presets = presets()
        self._preview: Preview | None = None
        self._cpu: Limits | None = None
        self._rates: Mapping[tuple[str, str], float] = {}
        self._plan: Plan | None = None
        self._reason = "the set-up is not complete yet"
        self._tensors = ""
        self._filling = False
        self._stale = False
        self.texts = {
            key: TextField(name, unit, meaning, placeholder)
            for key, (name, unit, placeholder, meaning) in _TEXTS.items()
        }
        self.preset = QComboBox()
        self.mask_box = QComboBox()
        self.dtype = QComboBox()
        self.direction = QComboBox()
        self.checks = QCheckBox("bounds checks in shaders")
        self.device = DeviceBox()
        self.kernels = KernelPicker()
        self.length = RunLength()
        self.load_button = QPushButton("Load tensors…")
        self.forget_button = QPushButton("Back to random tensors")
        self.copy_button = QPushButton("Copy as command line")
        self._file = QLabel()
        self._file.setTextFormat(Qt.TextFormat.RichText)  # of what it shows, what is from outside is escaped
        self._cost = QLabel()
        self._estimate = QLabel()
        self._later = QTimer(self, singleShot=True, interval=_WAIT_MS)
        self._build()
        self._connect()
        self.show_setup(Setup())

    # --- what the window asks ---------------------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        """Return the plan, None while there is none that can run."""
        self._settle()
        return self._plan

    def reason(self) -> str:
        """Return why there is no plan, as one sentence; empty where there is one."""
        self._settle()
        return self._reason

    def set_devices(self, devices: Sequence[DeviceInfo]) -> None:
        """Take the devices of this machine, the CPU among them."""
        self._cpu = next((device.limits for device in devices if device.adapter_type == "cpu"), None)
        self.device.show_devices([device for device in devices if device.adapter_type != "cpu"])
        self._touch()

    def set_rates(self, gflops: Mapping[tuple[str, str], float]) -> None:
        """Take what kernels were measured to do, in GFLOP/s by kernel and direction, for better estimates."""
        self._rates = dict(gflops)
        self._touch()

    def set_running(self, running: bool) -> None:
        """Hold the set-up still while its plan runs."""
        self._scrolled.setEnabled(not running)

    def load_tensors(self, path: str) -> None:
        """Race what a tensor file holds. Raises ValueError with one sentence where that cannot be."""
        self._preview = preview(path)
        self.show_setup(replace(self.setup(), tensors=path))

    def state(self) -> dict[str, Any]:
        """Return the set-up as plain values, to be kept until the next start."""
        return asdict(replace(self.setup(), device="")) | {
            "kernels": list(self.kernels.chosen),
            "device": self.device.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what ``state`` gave; a value of the wrong kind, or a tensor file that is gone, is left out."""
        hints = get_type_hints(Setup)
        known = {
            name: value
            for name, value in state.items()
            if name in hints and name not in ("device", "kernels") and type(value) is hints[name]
        }
        setup = replace(Setup(), **known)
        kernels = state.get("kernels")
        if isinstance(kernels, list):
            setup = replace(setup, kernels=tuple(name for name in self.kernels.rows if name in kernels))
        if setup.tensors:
            try:
                self._preview = preview(setup.tensors)
            except ValueError:
                setup = replace(setup, tensors="")
        self.device.restore(state.get("device"))
        self.show_setup(setup)

    # --- the fields as one value ------------------------------------------------------------------------------------

    def setup(self) -> Setup:
        """Return what the fields hold."""
        texts: dict[str, Any] = {name: field.text for name, field in self.texts.items()}
        return Setup(
            **texts,
            **self.length.values(),
            mask=MASKS[max(0, self.mask_box.currentIndex())],
            dtype=self.dtype.currentText(),
            direction=self.direction.currentText(),
            tensors=self._tensors,
            kernels=self.kernels.chosen,
            device=self.device.selector,
            checks=self.checks.isChecked(),
        )

    def show_setup(self, setup: Setup) -> None:
        """Fill the fields; the device stays as chosen."""
        self._filling = True
        for name, field in self.texts.items():
            field.show_text(getattr(setup, name))
        self.length.show_values(setup)
        self.mask_box.setCurrentIndex(MASKS.index(setup.mask) if setup.mask in MASKS else 0)
        self.dtype.setCurrentIndex(max(0, self.dtype.findText(setup.dtype)))
        self.direction.setCurrentIndex(max(0, self.direction.findText(setup.direction)))
        self.kernels.choose(setup.kernels)
        self.checks.setChecked(setup.checks)
        self._tensors = setup.tensors
        if not setup.tensors:
            self._preview = None
        self._filling = False
        self._touch()

    # --- building ---------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self.preset.setAccessibleName("Preset")
        self.preset.setToolTip("Shapes of real models; choosing one fills the problem below.")
        self.preset.setPlaceholderText("Preset: shapes of a real model…")
        for number, preset in enumerate(self._presets):
            self.preset.addItem(preset.name)
            self.preset.setItemData(number, preset.about, Qt.ItemDataRole.ToolTipRole)
        self.preset.setCurrentIndex(-1)
        self.mask_box.addItems([_MASK_NAMES[mask] for mask in MASKS])
        self.dtype.addItems(["f32", "f16"])
        self.direction.addItems(list(DIRECTIONS))
        self.checks.setToolTip("Keeps the driver's bounds checks in our own shaders: slower, and safe.")
        self.load_button.setToolTip("Races the Q, K and V of an .npz or .safetensors file, or of three .npy files.")
        self.forget_button.setToolTip("Leaves the file, so that the shape can be typed again.")
        self.copy_button.setToolTip("Copies the command that runs this very race without a window.")
        for label, role in ((self._file, "muted"), (self._cost, "muted"), (self._estimate, "muted")):
            label.setWordWrap(True)
            label.setProperty("role", role)

        inside = QWidget()
        column = QVBoxLayout(inside)
        column.setContentsMargins(10, 8, 10, 8)
        column.setSpacing(6)
        for title, contents in (
            ("Device", [self.device]),
            ("Problem", [self._sources(), self._file, self.forget_button, self._shape(), self._rule(), self._cost]),
            ("Kernels", [self.kernels]),
            ("Run length", [self.length, self._further(), self.checks]),
        ):
            heading = QLabel(title)
            heading.setProperty("role", "heading")
            column.addWidget(heading)
            for widget in contents:
                column.addWidget(widget)
            column.addSpacing(8)
        column.addStretch(1)
        self._scrolled = inside
        scroll = QScrollArea()
        scroll.setWidget(inside)
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setMinimumWidth(inside.minimumSizeHint().width() + scroll.verticalScrollBar().sizeHint().width())
        below = QVBoxLayout()
        below.setContentsMargins(10, 6, 10, 8)
        below.addWidget(self._estimate)
        below.addWidget(self.copy_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(scroll, 1)
        layout.addLayout(below)

    def _sources(self) -> QWidget:
        widget = QWidget()
        row = QHBoxLayout(widget)
        row.setContentsMargins(0, 0, 0, 0)
        self.preset.setMinimumContentsLength(12)
        self.preset.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        row.addWidget(self.preset, 1)
        row.addWidget(self.load_button)
        return widget

    def _shape(self) -> QWidget:
        names = (("batch", "heads", "kv_heads"), ("seq", "seq_k"), ("head_dim", "head_dim_v"))
        self._shape_fields = _rows([[self.texts[name] for name in row] for row in names])
        return self._shape_fields

    def _rule(self) -> QWidget:
        meaning = "Which keys a query sees; with more keys than queries the last ones meet."
        mask = Labelled("mask", "", meaning, self.mask_box)
        dtype = Labelled("storage", "", "How Q, K, V and the output are stored; sums are always float32.", self.dtype)
        meaning = "The attention call, its gradients (dQ, dK and dV), or two cases of each problem: one and the other."
        direction = Labelled("direction", "", meaning, self.direction)
        return _rows([[mask, self.texts["window"]], [self.texts["softcap"], self.texts["scale"]], [dtype, direction]])

    def _further(self) -> QWidget:
        names = (("threads", "seed"), ("memory_limit", "label"))
        return _rows([[self.texts[name] for name in row] for row in names])

    def _connect(self) -> None:
        for field in self.texts.values():
            field.changed.connect(self._touch)
        for combo in (self.mask_box, self.dtype, self.direction):
            combo.currentIndexChanged.connect(self._touch)
        self.checks.toggled.connect(self._touch)
        for part in (self.kernels, self.length, self.device):
            part.changed.connect(self._touch)
        self.device.refresh_requested.connect(self.devices_refresh_requested)
        self.preset.activated.connect(self._take_preset)
        self.load_button.clicked.connect(self.ask_for_tensors)
        self.forget_button.clicked.connect(lambda: self.show_setup(replace(self.setup(), tensors="")))
        self.copy_button.clicked.connect(self.copy_command_line)
        self._later.timeout.connect(self._settle)

    # --- what a person does -----------------------------------------------------------------------------------------

    def ask_for_tensors(self) -> None:
        """Let a person choose a tensor file, or three, and load it."""
        paths, _ = QFileDialog.getOpenFileNames(self, "Load tensors", "", _TENSOR_FILES)
        if not paths:
            return
        try:
            self.load_tensors(joined(paths))
        except ValueError as error:
            QMessageBox.warning(self, "Load tensors", _sentence(str(error)))

    def copy_command_line(self) -> None:
        """Put the command that runs this plan on the clipboard."""
        plan = self.plan()
        if plan is not None:
            QGuiApplication.clipboard().setText(command_line.text(plan))

    def _take_preset(self, number: int) -> None:
        self.show_setup(self.setup().with_preset(self._presets[number]))

    # --- checking and telling ---------------------------------------------------------------------------------------

    def _touch(self) -> None:
        """Something changed: check the fields now, which is quick, and the rest in a moment."""
        if self._filling:
            return
        setup = self.setup()
        complaints = setup.complaints()
        for name, field in self.texts.items():
            field.complain(complaints.get(name, ""))
        from_file = bool(setup.tensors)
        self.texts["window"].setEnabled(setup.mask == "window")
        self.texts["seed"].setEnabled(not from_file or setup.direction != "forward")
        self._shape_fields.setVisible(not from_file)
        self._file.setVisible(from_file)
        self.forget_button.setVisible(from_file)
        if self._preview is not None:
            self._file.setText(_described(setup, self._preview))
            self._file.setToolTip(plain_tip(setup.tensors))
        numbers = (n for n, preset in enumerate(self._presets) if setup == setup.with_preset(preset))
        self.preset.setCurrentIndex(next(numbers, -1))
        self._stale = True
        self._later.start()

    def _settle(self) -> None:
        """Make the plan of the fields as they are and tell what it costs."""
        if not self._stale:
            return
        self._stale = False
        self._later.stop()
        machine = self._machine()
        plan, reason = None, ""
        footprints: dict[str, Footprint] = {}
        try:
            plan = self.setup().plan(self._preview)
            footprints = {kernel: forecast.footprint(kernel, plan, machine) for kernel in plan.kernels}
            if not any(found.runs for found in footprints.values()):
                reasons = "; ".join(dict.fromkeys(found.reason for found in footprints.values()))
                reason = f"no chosen kernel can run: {reasons}" if reasons else "the devices are not known yet"
        except ValueError as error:
            reason = str(error)
        self.kernels.forecast(footprints)
        self._cost.setText("" if plan is None else localised(_cost(plan)))
        self._plan, self._reason = (None, reason) if reason else (plan, "")
        self._tell(localised(_estimate(plan, machine)) if plan and not reason else _sentence(reason), bool(reason))
        self.copy_button.setEnabled(self._plan is not None)
        self.plan_changed.emit()

    def _machine(self) -> Machine:
        gpu, no_gpu = self.device.gpu()
        free = psutil.virtual_memory().available >> _FREE_STEP << _FREE_STEP
        return Machine(cpu=self._cpu or _UNKNOWN_CPU, free_bytes=free, gpu=gpu, no_gpu=no_gpu, rates=self._rates)

    def _tell(self, text: str, wrong: bool) -> None:
        self._estimate.setText(text)
        self._estimate.setProperty("role", "bad" if wrong else "")
        self._estimate.style().polish(self._estimate)


def _rows(rows: Sequence[Sequence[QWidget]]) -> QWidget:
    """Lay widgets out in rows of equal parts."""
    widget = QWidget()
    grid = QGridLayout(widget)
    grid.setContentsMargins(0, 0, 0, 0)
    grid.setHorizontalSpacing(8)
    grid.setVerticalSpacing(5)
    columns = math.lcm(*(len(row) for row in rows))
    for number, row in enumerate(rows):
        span = columns // len(row)
        for place, field in enumerate(row):
            grid.addWidget(field, number, place * span, 1, span)
    for column in range(columns):
        grid.setColumnStretch(column, 1)
    return widget


def _described(setup: Setup, found: Preview) -> str:
    """Return what a tensor file holds, as rich text."""
    said = [f"{name} {count}" for name, count in found.sizes.items()]
    said += ["key mask"] * (found.key_mask is not None)
    note = f"<br>{html.escape(found.note)}" if found.note else ""
    return f"<b>{html.escape(setup.tensor_names)}</b><br>{' · '.join(said)}{note}"


def _cost(plan: Plan) -> str:
    """Return what one run computes and what its tensors take, over all cases."""
    problems = [case.problem for case in plan.cases]
    flops = sorted({problem.flops() for problem in problems})
    said = [f"{_span([operations(value) for value in flops])} a run"]
    for what, backward in (("Q, K, V and output", False), ("Q, K, V, output and gradients", True)):
        if sizes := sorted({problem.tensor_bytes for problem in problems if problem.backward is backward}):
            said.append(f"{what} {_span([size(value) for value in sizes])}")
    return " · ".join(said)


def _span(texts: Sequence[str]) -> str:
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def _estimate(plan: Plan, machine: Machine) -> str:
    """Return how long the run may take, and what that is made of."""
    cases = f" × {len(plan.cases)} cases" if len(plan.cases) > 1 else ""
    kernels = f"{len(plan.kernels)} kernel" + "s" * (len(plan.kernels) != 1)
    budget = f"up to {significant(plan.seconds, 2)} s of samples" if plan.samples is None else f"{plan.samples} samples"
    return f"About {remaining(forecast.seconds(plan, machine))}: {kernels}{cases}, {budget} each."


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}."
