"""The environment, and what about it makes numbers doubtful."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import engine
from engine.measure import environment
from engine.measure.environment import OthersLoad


def test_it_names_versions_processor_and_blas() -> None:
    got = environment.describe()
    assert (got.app_version, got.numpy_version) == (engine.__version__, np.__version__)
    assert got.wgpu_version.startswith("0.32")
    assert got.python_version == ".".join(map(str, sys.version_info[:3]))
    assert got.cpu
    assert got.blas
    assert got.os


def test_describing_does_not_load_wgpu() -> None:
    code = "import sys; from engine.measure import environment; environment.describe(); print('wgpu' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("governor", "preference", "warned"),
    [
        ("powersave", None, True),
        ("powersave", "power", True),
        ("powersave", "balance_power", True),
        ("powersave", "balance_performance", False),  # the normal mode of Intel's and AMD's own drivers
        ("performance", None, False),
        ("schedutil", "power", False),
        (None, None, False),
    ],
)
def test_a_power_save_governor_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, governor: str | None, preference: str | None, warned: bool
) -> None:
    monkeypatch.setattr(environment, "_CPUFREQ", tmp_path)
    for name, text in (("scaling_governor", governor), ("energy_performance_preference", preference)):
        if text is not None:
            (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    warning = environment.power_warning()
    assert (warning is not None) is warned
    if warning:
        assert "power-save governor" in warning


@pytest.mark.parametrize(
    ("elapsed", "busy", "own", "warned"),
    [
        (10.0, 30.0, 29.0, None),  # 1 of 40 core seconds
        (10.0, 30.0, 20.0, "load by others: 25% of the machine's 4 cores"),
        (10.0, 0.0, 20.0, None),  # a system that counts nothing
        (0.1, 10.0, 0.0, None),  # too short a look
        (1.0, 9.0, 0.0, "load by others: 100% of the machine's 4 cores"),
    ],
)
def test_load_by_others_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, elapsed: float, busy: float, own: float, warned: str | None
) -> None:
    now = [5.0, 100.0, 7.0]
    cpu = SimpleNamespace(
        cpu_count=lambda: 4,
        cpu_times=lambda: SimpleNamespace(user=now[1] / 2, system=now[1] / 2),
        Process=lambda: SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=now[2], system=0.0)),
    )
    monkeypatch.setattr(environment, "psutil", cpu)
    monkeypatch.setattr(environment, "time", SimpleNamespace(monotonic=lambda: now[0]))
    load = OthersLoad()
    now[:] = [now[0] + elapsed, now[1] + busy, now[2] + own]
    assert load.warning() == warned
