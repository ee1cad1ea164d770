"""How to read this: what the numbers mean and when not to believe them, on one page."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QTextBrowser, QVBoxLayout, QWidget

TEXT = """
<h3>First: is it right?</h3>
<p><b>verified</b> says that the kernel's output, on the very input that is timed, agrees with a float64 reference as
far as float32 rounding allows. A kernel that does not has the status <b>wrong</b> and gets no speed-up, however fast
it was.</p>

<h3>Then: how long?</h3>
<p>The headline is the <b>median</b> wall-clock time of one run: half of the samples were faster, half slower. The
<b>IQR</b> is the width of the middle half of the samples; two kernels closer than that are level. <b>p90</b> is the
time that nine of ten samples stayed under; <b>p99</b> appears from 100 samples on. The <b>first run</b> and shader
compilation stand apart and are never mixed in. Kernels of a case take turns, so that a machine that warms up treats
all alike.</p>
<p><b>Two clocks.</b> Wall time runs from submit to completion, for CPU and GPU alike, and is what speed-ups compare.
The GPU's own clock leaves out what it takes to start the work. Upload and read-back are in neither.</p>
<p><b>vs naive</b> is the wall time of the same device's naive kernel over this one's: 2× is twice as fast. Below 1
flash loses, as it may at small sizes.</p>

<h3>How close to the limit?</h3>
<p><b>GFLOP/s</b> counts two operations for each multiply-add over visible (query, key) pairs; a <b>backward</b> pass,
from the gradient of the output to those of Q, K and V, counts 2.5 times as many. <b>% of peak</b> is of a peak
measured on this device in this run, not of a data sheet.</p>

<h3>What does it cost in memory?</h3>
<p><b>scratch</b> is what a kernel holds beyond Q, K, V and the output (backward, and their gradients): for naive the
whole score matrices, so four times as much for twice the length; for flash a few tiles. <b>peak</b> is all of it
together. Both are counted, not guessed.</p>

<h3>When not to believe it</h3>
<p>Read the warnings. A spread above 10 %, a drift, a sample too short for the clock, load by other programs: each is a
reason not to quote the number. <b>software</b> means that the processor plays the GPU; such times say whether a kernel
is right and nothing about a real GPU.</p>

<h3>What the statuses mean</h3>
<p><b>ok</b>: right and measured. <b>wrong</b>: not the reference's result. <b>failed</b>: it raised an error.
<b>skipped</b>: it cannot run here, and the sentence says why. <b>cancelled</b>: it was stopped; its samples so far
count.</p>
"""


class HowToRead(QDialog):
    """The page, in a window that may stay open beside the results."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("How to read this")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.resize(640, 640)
        page = QTextBrowser()
        page.setHtml(TEXT)
        page.document().setDocumentMargin(12)
        page.setAccessibleName("How to read the results")
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.reject)
        layout = QVBoxLayout(self)
        layout.addWidget(page)
        layout.addWidget(buttons)
