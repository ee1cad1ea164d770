"""How long to sample: by a budget of seconds, or by a count."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QDoubleSpinBox, QHBoxLayout, QSpinBox, QStackedWidget, QWidget

from app.window.setup.labelled import Labelled
from app.window.setup.setup import Setup

_MOST_SAMPLES = 1_000_000


class RunLength(QWidget):
    """The budget, or the count, of every kernel in every case."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.by = QComboBox()
        self.by.addItems(["by time", "by count"])
        self.seconds = QDoubleSpinBox(minimum=0.05, maximum=3600.0, singleStep=0.5, decimals=2, suffix=" s")
        self.samples = QSpinBox(minimum=1, maximum=_MOST_SAMPLES)
        self.least = QSpinBox(minimum=1, maximum=_MOST_SAMPLES)
        for count in (self.samples, self.least):
            count.setGroupSeparatorShown(True)
        self._amount = QStackedWidget()
        self._amount.addWidget(self.seconds)
        self._amount.addWidget(self.samples)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        for name, unit, meaning, field in (
            ("sample", "", "By time ends when the spread has settled or the budget is spent, by count when all are "
             "taken.", self.by),
            ("at most", "each", "The budget, or the number of samples, of each kernel in each case.", self._amount),
            ("at least", "samples", "How many samples are taken before a small spread may end it.", self.least),
        ):  # fmt: skip
            layout.addWidget(Labelled(name, unit, meaning, field), 1)
        self.by.currentIndexChanged.connect(self._switch)
        for spin in (self.seconds, self.samples, self.least):
            spin.valueChanged.connect(lambda: self.changed.emit())

    def values(self) -> dict[str, Any]:
        """Return the fields of a ``Setup`` that are chosen here."""
        return {
            "by_count": self.by.currentIndex() == 1,
            "seconds": self.seconds.value(),
            "samples": self.samples.value(),
            "min_samples": self.least.value(),
        }

    def show_values(self, setup: Setup) -> None:
        """Show a set-up's; a spin box keeps what is beyond its range at its end."""
        self.by.setCurrentIndex(int(setup.by_count))
        self.seconds.setValue(setup.seconds)
        self.samples.setValue(min(setup.samples, _MOST_SAMPLES))
        self.least.setValue(min(setup.min_samples, _MOST_SAMPLES))

    def _switch(self, index: int) -> None:
        self._amount.setCurrentIndex(index)
        self.least.setEnabled(index == 0)
        self.changed.emit()
