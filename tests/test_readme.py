"""What the README shows in Python runs as it stands there, one block after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest


def test_its_python_runs_and_the_loss_goes_down(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "16.0 MiB for the full score matrix, 512 KiB for the accumulator" in printed
    losses = [float(loss) for loss in re.findall(r"'(\d\.\d+)'", printed)]
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)
