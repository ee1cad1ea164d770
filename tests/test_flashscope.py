"""The one importable name: it gives the engine's public calls and runs the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import engine
import flashscope

ROOT = Path(__file__).parent.parent


def test_it_gives_what_the_engine_gives() -> None:
    assert flashscope.__all__ == engine.__all__
    for name in engine.__all__:
        assert getattr(flashscope, name) is getattr(engine, name)
        assert name in dir(flashscope)
    with pytest.raises(AttributeError, match="'flashscope' has no attribute 'nothing'"):
        _ = flashscope.nothing


def test_it_computes_attention() -> None:
    x = np.ones((1, 1, 2, 4), np.float32)
    assert flashscope.attention(x, x, x, kernel="cpu-flash").tolist() == x.tolist()


def test_it_is_the_program_whose_worker_processes_start_too(tmp_path: Path) -> None:
    report = tmp_path / "race.csv"
    words = ["run", "--kernels", "cpu-flash", "--device", "cpu", "--seq", "32", "--samples", "2", "--csv", str(report)]
    done = subprocess.run(
        [sys.executable, "-m", "flashscope", *words], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ",ok," in report.read_text(encoding="utf-8").splitlines()[1]
