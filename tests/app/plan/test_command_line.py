"""Copy as command line: what is copied, when typed, makes the very same plan."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.plan import command_line, options
from app.plan.options import Rule, Shape
from app.plan.presets import presets
from app.window.setup.setup import Setup
from engine.problem.attention_problem import AttentionProblem
from engine.records.plan import Case, Plan

Typed = Callable[[str], Plan]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, flashscope: Callable[..., Any]) -> Typed:
    """The plan that a typed line makes."""
    plans: list[Plan] = []
    monkeypatch.setattr("app.terminal.race.race", lambda plan, outputs, console: plans.append(plan) or 0)
    monkeypatch.setattr("app.plan.options.check_device", lambda selector: None)

    def make(line: str) -> Plan:
        start, *words = shlex.split(line)[2:]
        assert start == "app"
        assert flashscope(*words).status == 0
        return plans[-1]

    return make


@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.name)
def test_every_preset_comes_back(preset: Any, typed: Typed) -> None:
    plan = Setup().with_preset(preset).plan(None)
    assert typed(command_line.text(plan)) == plan


@pytest.mark.parametrize(
    "setup",
    [
        Setup(),
        Setup(batch="1,2", heads="4..16*2", seq="64..256+64", head_dim="32,64", threads="1,2", kernels=("cpu-flash",)),
        Setup(seq="1", seq_k="4096", heads="32", kv_heads="8", head_dim="128", head_dim_v="64", mask="causal"),
        Setup(mask="window", window="128", softcap="50", scale="-0.125", dtype="f16"),
        Setup(by_count=True, samples=7, min_samples=3, seed="99", memory_limit="1.5GiB", checks=False, device="cpu"),
        Setup(label='it\'s = "mine"; $HOME | rm *', seconds=0.25, device="NVIDIA GeForce"),
        Setup(label="--seq", device="-1"),
        Setup(direction="backward"),
        Setup(direction="both", seq="64,128", threads="1,2"),
    ],
    ids=lambda setup: setup.label or f"{setup.seq} {setup.direction}",
)
def test_a_set_up_comes_back(setup: Setup, typed: Typed) -> None:
    plan = setup.plan(None)
    assert typed(command_line.text(plan)) == plan


@pytest.mark.parametrize("direction", options.DIRECTIONS)
def test_a_tensor_file_comes_back(sample_file: Path, tmp_path: Path, typed: Typed, direction: str) -> None:
    copy = tmp_path / "a file, with spaces.npz"
    copy.write_bytes(sample_file.read_bytes())
    cases = options.cases(Shape(), Rule(causal=True), str(copy), "1,2", direction)
    plan = Plan(cases=cases, kernels=("cpu-flash", "cpu-naive"))
    assert typed(command_line.text(plan)) == plan


def test_defaults_need_no_words() -> None:
    words = command_line.words(Setup().plan(None))
    assert words == ["run", "--batch", "1", "--heads", "8", "--seq", "1024", "--head-dim", "64"]


sizes = st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(batch=sizes, heads=sizes, seq=sizes, head_dim=sizes, scale=st.none() | st.floats(-2, 2), causal=st.booleans(),
       direction=st.sampled_from(sorted(options.DIRECTIONS)))  # fmt: skip
def test_any_sweep_comes_back(
    typed: Typed, batch: list[int], heads: list[int], seq: list[int], head_dim: list[int], scale: float | None,
    causal: bool, direction: str,
) -> None:  # fmt: skip
    texts = {
        name: ",".join(map(str, values))
        for name, values in (("batch", batch), ("heads", heads), ("seq", seq), ("head_dim", head_dim))
    }
    plan = Plan(
        cases=options.cases(Shape(**texts), Rule(causal=causal, scale=scale), None, None, direction),
        kernels=("gpu-naive", "cpu-flash"),
    )
    assert typed(command_line.text(plan)) == plan


def test_cases_that_no_one_command_has_are_refused() -> None:
    cases = tuple(
        Case(index=index, problem=AttentionProblem(heads=heads, seq_q=seq))
        for index, (heads, seq) in enumerate(((1, 64), (2, 128)))
    )
    with pytest.raises(ValueError, match="not all combinations"):
        command_line.text(Plan(cases=cases, kernels=("cpu-flash",)))


def test_no_command_takes_the_backward_pass_first() -> None:
    cases = Setup(direction="both").plan(None).cases[::-1]
    with pytest.raises(ValueError, match="not all combinations"):
        command_line.text(Plan(cases=cases, kernels=("cpu-flash",)))


def test_the_line_is_quoted_as_this_system_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = msgspec.structs.replace(Setup().plan(None), label="two words")
    assert "'two words'" in command_line.text(plan)
    monkeypatch.setattr("sys.platform", "win32")
    assert '"two words"' in command_line.text(plan)
