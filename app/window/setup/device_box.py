"""The device to race on: automatic, a GPU, or the CPU alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QSizePolicy, QStyle, QToolButton, QVBoxLayout, QWidget

from engine.devices.device import DeviceInfo, DeviceUnavailable
from engine.devices.gpu.device import choose

AUTO, CPU = "auto", "cpu"


class DeviceBox(QWidget):
    """Lists the devices. ``selector`` is what a plan's ``device`` takes."""

    changed = Signal()
    refresh_requested = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._gpus: list[DeviceInfo] = []
        self._wanted: dict[str, str] | str = AUTO  # kept while the devices are not known yet
        self.combo = QComboBox()
        self.combo.setAccessibleName("Device")
        self.combo.setToolTip("Where GPU kernels run; CPU kernels always run on the processor.")
        self.combo.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.refresh = QToolButton()
        self.refresh.setIcon(self.style().standardIcon(QStyle.StandardPixmap.SP_BrowserReload))
        self.refresh.setToolTip("Look for devices again.")
        self.refresh.setAccessibleName("Refresh devices")
        self.refresh.clicked.connect(self._ask)
        self._about = QLabel()
        self._about.setWordWrap(True)
        self._about.setProperty("role", "muted")
        above = QHBoxLayout()
        above.addWidget(self.combo, 1)
        above.addWidget(self.refresh)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(3)
        layout.addLayout(above)
        layout.addWidget(self._about)
        self._known = False
        self._fill()
        self._say()
        self.combo.currentIndexChanged.connect(self._choose)

    @property
    def selector(self) -> str:
        """``auto``, ``cpu`` or the index of a GPU."""
        return str(self.combo.currentData() or AUTO)

    def show_devices(self, gpus: Sequence[DeviceInfo]) -> None:
        """List these GPUs, and keep the choice where its device is still there."""
        self._gpus, self._known = list(gpus), True
        self._fill()
        self._say()
        self.changed.emit()

    def gpu(self) -> tuple[DeviceInfo | None, str]:
        """Return the device that GPU kernels would get, or None and why, which is empty while nobody knows."""
        if self.selector == CPU:
            return None, "left out, for the CPU alone is chosen; choose a GPU above to run it"
        if not self._known:
            return None, ""
        try:
            return choose(self._gpus, self.selector), ""
        except (DeviceUnavailable, ValueError) as error:
            return None, str(error)

    def state(self) -> dict[str, str] | str:
        """Return the choice as it is kept: ``auto``, ``cpu``, or a device's name and backend."""
        return self._wanted

    def restore(self, choice: Any) -> None:
        """Take a kept choice up; anything else is automatic."""
        named = isinstance(choice, dict) and all(isinstance(choice.get(key), str) for key in ("name", "backend"))
        self._wanted = choice if named or choice == CPU else AUTO
        self._fill()
        self._say()

    def _fill(self) -> None:
        self.combo.blockSignals(True)
        self.combo.clear()
        self.combo.addItem(self._automatic(), AUTO)
        for gpu in self._gpus:
            self.combo.addItem(f"{gpu.name} — {gpu.adapter_type}, {gpu.backend}", str(gpu.index))
            if self._wanted == _named(gpu):
                self.combo.setCurrentIndex(self.combo.count() - 1)
        self.combo.addItem("CPU only", CPU)
        if self._wanted == CPU:
            self.combo.setCurrentIndex(self.combo.count() - 1)
        self.combo.blockSignals(False)

    def _automatic(self) -> str:
        try:
            gpu = choose(self._gpus, AUTO)
        except DeviceUnavailable:
            return "Automatic"
        return f"Automatic: {gpu.name} — {gpu.adapter_type}"

    def _choose(self) -> None:
        chosen = self.selector
        self._wanted = chosen if chosen in (AUTO, CPU) else _named(self._gpus[int(chosen)])
        self._say()
        self.changed.emit()

    def _ask(self) -> None:
        self._about.setText("Looking for devices…")
        self.refresh_requested.emit()

    def _say(self) -> None:
        """Say what is to be known of the choice, and warn of a software adapter."""
        gpu, reason = self.gpu()
        software = gpu is not None and gpu.adapter_type == "software"
        if self.selector == CPU:
            text = "GPU kernels are left out."
        elif not self._known:
            text = "Looking for devices…"
        elif gpu is None:
            text = f"{reason[:1].upper()}{reason[1:]}."
        elif software:
            text = f"software · {gpu.backend}: a processor plays this GPU, so its times say nothing of a real one."
        else:
            text = f"{gpu.adapter_type} · {gpu.backend} · {gpu.driver or 'driver unknown'}"
        warned = software or (bool(reason) and self.selector != CPU)
        self._about.setText(text)
        self._about.setProperty("role", "caution" if warned else "muted")
        self._about.style().polish(self._about)


def _named(gpu: DeviceInfo) -> dict[str, str]:
    return {"name": gpu.name, "backend": gpu.backend}
