"""Set-up: what is missing is found by name or by what provides it, and never installed without the right to."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "system_libraries.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script on a Debian-like system where everything is there but libegl1; libglib2.0-0 has another name."""
    spec = importlib.util.spec_from_file_location("system_libraries", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    there = [name for name in module.PACKAGES if name not in ("libegl1", "libglib2.0-0")]
    listing = "".join(f"installed\t{name}, \n" for name in there)
    listing += "installed\tlibglib2.0-0t64, libglib2.0-0 (= 2.80), libgio-fam\nconfig-files\tlibegl1, \n"
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(stdout=listing, returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    module.commands = commands
    return module


def test_only_what_is_missing_is_named_in_the_command(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main() == 0
    assert capsys.readouterr().err == "System libraries are missing; install them with: sudo apt-get install libegl1\n"
    assert [command[0] for command in script.commands] == ["dpkg-query"]


def test_root_installs_it(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    assert script.main() == 0
    assert script.commands[-2][-1] == "update"
    assert script.commands[-1][-3:] == ["--yes", "--no-install-recommends", "libegl1"]


def test_nothing_can_be_set_up_without_a_python_that_makes_environments(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert script.main() == 1
    assert "sudo apt-get install python3-venv libegl1" in capsys.readouterr().err


def test_other_systems_are_left_alone(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert script.main() == 0
    assert script.commands == []
