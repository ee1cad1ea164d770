"""A plan as the command that runs it without a window: the other direction of ``options``."""

from __future__ import annotations

import itertools
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.plan.options import DIRECTIONS, Shape, option
from engine.kernels.registry import DEFAULT_KERNELS
from engine.problem.attention_problem import AttentionProblem
from engine.records.plan import Case, Plan

_DEFAULTS = Plan(cases=(), kernels=DEFAULT_KERNELS)
_SWEPT = {"batch": "batch", "heads": "heads", "seq": "seq_q", "head_dim": "head_dim"}  # options, and their fields
_FOLLOWING = {"kv_heads": "heads", "seq_k": "seq_q", "head_dim_v": "head_dim"}  # fields, and what they default to


def text(plan: Plan) -> str:
    """Return the line to type, quoted for the shell of this system. Raises ValueError as ``words`` does."""
    line = ["python", "-m", "app", *words(plan)]
    return subprocess.list2cmdline(line) if sys.platform == "win32" else shlex.join(line)


def words(plan: Plan) -> list[str]:
    """Return ``run`` and its options.

    Raises ValueError where no one command has these cases: they must be all combinations of their values, in order.
    """
    said = ["run"]
    if plan.kernels != _DEFAULTS.kernels:
        said += ["--kernels", ",".join(plan.kernels)]
    said += _given("device", plan.device, _DEFAULTS.device)
    said += _cases(plan.cases)
    for name in ("seed", "seconds", "samples", "min_samples", "memory_limit", "label"):
        said += _given(name, getattr(plan, name), getattr(_DEFAULTS, name))
    return said + ["--no-checks"] * (not plan.checks)


def _given(name: str, value: object, default: object) -> list[str]:
    return [] if value == default else [option(name), str(value)]


def _cases(cases: Sequence[Case]) -> list[str]:
    first = cases[0]
    problem = first.problem
    values = _values(cases)
    said = ["--input", first.input] if first.from_file else _shape([case.problem for case in cases], values)
    if values["threads"] != [None]:
        said += ["--threads", _sweep(values["threads"])]
    if problem.window is not None:
        said += ["--window", str(problem.window)]
    elif problem.causal:
        said += ["--causal"]
    said += _given("softcap", problem.softcap, None)
    if any(case.problem.scale != AttentionProblem(head_dim=case.problem.head_dim).scale for case in cases):
        said += ["--scale", str(problem.scale)]
    said += _given("dtype", problem.dtype, "f32")
    words = {directions: word for word, directions in DIRECTIONS.items()}
    return said + _given("direction", words[tuple(values["direction"])], "forward")


def _values(cases: Sequence[Case]) -> dict[str, list[Any]]:
    """Return the values of each option that may have several. Raises ValueError as ``words`` does."""
    problems = [case.problem for case in cases]
    swept = {} if cases[0].from_file else _SWEPT
    columns: dict[str, list[Any]] = {name: [getattr(p, field) for p in problems] for name, field in swept.items()}
    columns |= {"threads": [case.threads for case in cases], "direction": [p.direction for p in problems]}
    values = {name: list(dict.fromkeys(column)) for name, column in columns.items()}
    whole = list(zip(*columns.values(), strict=True)) == list(itertools.product(*values.values()))
    if not whole or tuple(values["direction"]) not in DIRECTIONS.values():
        raise ValueError("these cases are not all combinations of their sizes, so one command cannot run them")
    return values


def _shape(problems: Sequence[AttentionProblem], values: Mapping[str, list[Any]]) -> list[str]:
    said: list[str] = []
    for name in Shape.__dataclass_fields__:
        if name in values:
            said += [option(name), _sweep(values[name])]
        elif any(getattr(p, name) != getattr(p, _FOLLOWING[name]) for p in problems):
            said += [option(name), str(getattr(problems[0], name))]
    return said


def _sweep(values: Iterable[int | None]) -> str:
    return ",".join(map(str, values))
