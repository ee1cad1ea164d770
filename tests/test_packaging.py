"""The wheel: everything the program reads is in it, and it works outside the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("app", "engine", "resources", "shaders")
MODULE = "flashscope.py"


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tracked folders so that nothing is left in the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", MODULE):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path_factory.mktemp("wheel")
    backend = f"from setuptools.build_meta import build_wheel; build_wheel({str(target)!r})"
    run(sys.executable, "-c", backend, cwd=source)
    (built,) = target.glob("flashscope-*.whl")
    return built


def test_it_holds_every_file_of_the_four_packages_the_one_module_and_nothing_else(wheel: Path) -> None:
    expected = {MODULE} | {
        str(path.relative_to(ROOT).as_posix())
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == expected


def test_it_says_who_it_is(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    folder = next(name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name)
    assert "flashscope = app.__main__:main" in archive.read(f"{folder}/entry_points.txt").decode()
    metadata = archive.read(f"{folder}/METADATA").decode()
    assert "License-Expression: MIT" in metadata
    assert "\nRequires-Dist: wgpu<0.33,>=0.32\n" in metadata
    assert {f"{folder}/licenses/LICENSE", f"{folder}/licenses/resources/samples/LICENSE-APACHE-2.0.txt"} <= set(
        archive.namelist()
    )


def test_it_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import importlib.resources as r, engine, app, shaders\n"
        "from engine.problem.inputs import load\n"
        "with r.as_file(r.files('resources') / 'samples' / 'minilm_layer2_128.npz') as path:\n"
        "    print(load(str(path)).q.shape)\n"
        "print(engine.__file__)\n"
    )
    shape, where = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site")).splitlines()
    assert shape == "(1, 12, 128, 32)"
    assert Path(where).is_relative_to(tmp_path)
    for name in ("app", "flashscope"):
        version = run(sys.executable, "-m", name, "--version", cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
        assert "0.1.0" in version


def test_what_must_not_be_used_is_excluded_and_all_versions_are_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert any("!=6.12.*" in entry and "python_version < '3.12'" in entry for entry in project["dependencies"])
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {line.partition("==")[0].lower().replace("_", "-") for line in lines if not line.startswith("#")}
    assert all("==" in line and "/" not in line and not line.startswith("-") for line in lines if line[0] != "#")
    for entry in project["dependencies"] + project["optional-dependencies"]["test"]:
        assert re.split("[<>!=; ]", entry)[0].lower() in pins
