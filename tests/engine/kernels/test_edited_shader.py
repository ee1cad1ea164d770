"""A shader that is edited while the program runs is measured as edited."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.devices import tuning_store
from engine.devices.gpu import shaders
from engine.problem.attention_problem import AttentionProblem
from engine.records.events import Event, KernelFailed, KernelFinished
from engine.records.plan import Case, Plan
from engine.records.results import Row
from engine.session import session

ROOT = Path(__file__).parents[3]
PROBLEM = AttentionProblem(batch=1, heads=1, seq_q=8, head_dim=4, softcap=2.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the shaders, which the program reads for its own."""
    copy = tmp_path / "shaders"
    shutil.copytree(ROOT / "shaders", copy)
    for module in (shaders, tuning_store):
        monkeypatch.setattr(module, "files", lambda package: copy)
    return copy


def race(kernel: str, checks: bool) -> Row:
    """Return the row of one kernel, run in this process."""
    told: list[Event] = []
    plan = Plan(cases=(Case(index=0, problem=PROBLEM),), kernels=(kernel,), samples=1, seconds=0.0, checks=checks)
    session.run(plan, told.append)
    return next(event.row for event in told if isinstance(event, KernelFinished | KernelFailed))


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")


@pytest.mark.parametrize("checks", [True, False])
def test_an_edit_between_two_runs_is_run(folder: Path, checks: bool) -> None:
    assert race("gpu-naive", checks).status == "ok"
    edit(folder / "gpu_naive" / "output.wgsl.j2", "] = acc{{ r }}", "] = 2.0 * acc{{ r }}")
    assert race("gpu-naive", checks).status == "wrong"
    edit(folder / "gpu_naive" / "output.wgsl.j2", "] = 2.0 * acc{{ r }}", "] = acc{{ r }}")
    assert race("gpu-naive", checks).status == "ok"


@pytest.mark.parametrize("checks", [True, False])
def test_an_edit_to_nonsense_fails_with_the_compilers_words(folder: Path, checks: bool) -> None:
    assert race("gpu-naive", checks).status == "ok"
    edit(folder / "gpu_naive" / "output.wgsl.j2", "] = acc{{ r }}", "] = no_such_name{{ r }}")
    row = race("gpu-naive", checks)
    assert row.status == "failed"
    assert "no_such_name" in row.message


def test_an_edit_of_an_included_file_is_run(folder: Path) -> None:
    assert race("gpu-flash", True).status == "ok"
    edit(folder / "common" / "softcap.wgsl", "return select(capped, x,", "return select(0.5 * capped, x,")
    assert race("gpu-flash", True).status == "wrong"


def test_a_tuning_holds_for_the_sources_it_was_measured_with(folder: Path) -> None:
    before = tuning_store._shaders()
    edit(folder / "gpu_flash" / "tiles.wgsl.j2", "{% include", "// another\n{% include")
    assert tuning_store._shaders() != before
