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
    savings = re.search(r"memory_savings\(2048\)\)  # (.*) …", text)
    assert savings is not None
    assert printed.startswith(savings[1])
    losses = [float(loss) for loss in re.findall(r"'(\d\.\d+)'", printed)]
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)
    told = re.search(r"# the loss goes down: (.*), …", text)
    assert told is not None
    assert [float(loss) for loss in told[1].split(", ")] == pytest.approx(losses[:3], abs=0.005)
