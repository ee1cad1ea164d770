"""From the words of the command line to a plan: everything is checked here, before any slow work begins."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from app.plan import sweep
from engine.kernels.registry import kernel_names
from engine.problem.attention_problem import AttentionProblem, Direction, Dtype
from engine.records.plan import Case, Plan

DIRECTIONS: dict[str, tuple[Direction, ...]] = {
    "forward": ("forward",), "backward": ("backward",), "both": ("forward", "backward"),
}  # fmt: skip
_SWEPT = {"batch": 1, "heads": 8, "seq": 1024, "head_dim": 64}  # with their defaults; --threads sweeps too
_ALL_CORES = 0
_MAX_THREADS = 1024
_MAX_SEED = 2**63 - 1  # what the run file can hold
_MAX_LABEL = 200
_BYTES = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([kmgt]?)(i?b)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The options that give a shape, as text where they may sweep; None where not given."""

    batch: str | None = None
    heads: str | None = None
    kv_heads: int | None = None
    seq: str | None = None
    seq_k: int | None = None
    head_dim: str | None = None
    head_dim_v: int | None = None

    @property
    def given(self) -> list[str]:
        """The names of the options that were given, as a person types them."""
        return [option(name) for name in self.__dataclass_fields__ if getattr(self, name) is not None]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The options that say how scores are made from any tensors."""

    causal: bool | None = None
    window: int | None = None
    softcap: float | None = None
    scale: float | None = None
    dtype: str = "f32"

    def arguments(self) -> dict[str, Any]:
        """Return them as arguments of a problem. Raises ValueError for a window with ``--no-causal``."""
        if self.window is not None and self.causal is False:
            raise ValueError(f"--window {self.window} implies a causal mask, so it clashes with --no-causal")
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"causal": bool(self.causal)}


@dataclass(frozen=True)
class Tune:
    """What is to be tuned: each kernel for each of these kinds of problem, in so many ``seconds`` each."""

    head_dims: tuple[int, ...]
    causal: tuple[bool, ...]
    dtype: Dtype
    seconds: float


def option(name: str) -> str:
    """Return a parameter's name as it is typed: ``head_dim`` is ``--head-dim``."""
    return "--" + name.replace("_", "-")


def kernel_list(text: str) -> tuple[str, ...]:
    """Return the kernels of a comma-separated list. Raises ValueError for an empty, repeated or unknown name."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not name:
            raise ValueError(f"--kernels {text!r} has an empty name; write names with one comma between them")
        if names.count(name) > 1:
            raise ValueError(f"--kernels names {name} {names.count(name)} times; name each kernel once")
        if name not in kernel_names():
            raise ValueError(f"unknown kernel {name!r}; known are {', '.join(kernel_names())}")
    return names


def cases(
    shape: Shape, rule: Rule, input_text: str | None, threads: str | None, direction: str = "forward"
) -> tuple[Case, ...]:
    """Return the cases: every combination of the sweeps, or what the input file holds at every number of threads.

    ``direction`` is ``forward``, ``backward`` or ``both``, which makes two cases of each, forward first. Raises
    ValueError for a value, a combination or a file that cannot be raced.
    """
    counts, directions = _threads(threads), _directions(direction)
    if input_text is not None:
        if shape.given:
            raise ValueError(f"{', '.join(shape.given)} clashes with --input, whose file gives the shape; leave it out")
        return tensor_cases(_problem_of_file(input_text, rule), input_text, threads, direction)
    given = {name: _swept(name, getattr(shape, name), default) for name, default in _SWEPT.items()}
    fixed = {name: getattr(shape, name) for name in ("kv_heads", "seq_k", "head_dim_v")}
    return tuple(
        Case(
            index=index,
            problem=AttentionProblem(
                batch=chosen["batch"],
                heads=chosen["heads"],
                seq_q=chosen["seq"],
                head_dim=chosen["head_dim"],
                direction=directions[chosen["direction"]],
                **fixed,
                **rule.arguments(),
            ),
            threads=chosen["threads"] or None,
        )
        for index, chosen in enumerate(
            sweep.combinations({**given, "threads": counts, "direction": range(len(directions))})
        )
    )


def tensor_cases(
    problem: AttentionProblem, input_text: str, threads: str | None, direction: str = "forward"
) -> tuple[Case, ...]:
    """Return the cases of a tensor file, which poses ``problem``: one for every number of threads and direction."""
    problems = [msgspec.structs.replace(problem, direction=one) for one in _directions(direction)]
    combinations = sweep.combinations({"threads": _threads(threads), "direction": range(len(problems))})
    return tuple(
        Case(index=index, problem=problems[one["direction"]], input=input_text, threads=one["threads"] or None)
        for index, one in enumerate(combinations)
    )


def plan(
    *,
    kernels: str,
    cases: tuple[Case, ...],
    device: str,
    seed: int,
    seconds: float,
    samples: int | None,
    min_samples: int,
    memory_limit: str | None,
    checks: bool,
    label: str,
) -> Plan:
    """Return the plan of a session. Raises ValueError with one sentence for an option that has no sound value."""
    if not 0 <= seed <= _MAX_SEED:
        raise ValueError(f"--seed must be between 0 and {_MAX_SEED}, got {seed}")
    _check_seconds(seconds)
    for name, count in (("--samples", samples), ("--min-samples", min_samples)):
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    if len(label) > _MAX_LABEL:
        raise ValueError(f"--label must have at most {_MAX_LABEL} characters, got {len(label)}")
    if not label.isprintable():
        raise ValueError("--label must be one line of printable characters")
    return Plan(
        cases=cases,
        kernels=kernel_list(kernels),
        device=device,
        seed=seed,
        seconds=seconds,
        samples=samples,
        min_samples=min_samples,
        memory_limit=None if memory_limit is None else byte_count(memory_limit),
        checks=checks,
        label=label,
    )


def tuning(head_dim: str, causal: bool | None, dtype: str, seconds: float) -> Tune:
    """Return what ``tune`` is to do. Raises ValueError with one sentence for an option that has no sound value."""
    _check_seconds(seconds)
    head_dims = _swept("head_dim", head_dim, 0)
    problems = [AttentionProblem(head_dim=size, dtype=dtype) for size in head_dims]  # type: ignore[arg-type]
    return Tune(head_dims, (False, True) if causal is None else (causal,), problems[0].dtype, seconds)


def byte_count(text: str) -> int:
    """Return the bytes of ``8GiB``, ``512M``, ``1.5 g`` or plain digits; every unit is a power of 1,024."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"--memory-limit {text!r} is no size; write it like 8GiB, 512M or 1000000")
    count = int(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " "))
    if count < 1:
        raise ValueError(f"--memory-limit must be at least 1 byte, got {text!r}")
    return count


def input_paths(text: str | None) -> list[Path]:
    """Return the files that ``--input`` names: one, or three with commas between them."""
    return [] if text is None else [Path(text)] if Path(text).exists() else [Path(part) for part in text.split(",")]


def check_device(selector: str) -> None:
    """Check that a device exists, without asking the driver for ``auto`` and ``cpu``.

    Raises ValueError with the list of devices where the selector matches none or several.
    """
    if selector not in ("auto", "cpu"):
        from engine.devices.gpu.device import choose, list_devices

        choose(list_devices(), selector)


def _check_seconds(seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"--seconds must be a finite number above 0, got {seconds:g}")


def _threads(text: str | None) -> tuple[int, ...]:
    counts = _swept("threads", text, _ALL_CORES)
    if max(counts) > _MAX_THREADS:
        raise ValueError(f"--threads must be at most {_MAX_THREADS}, got {max(counts)}")
    return counts


def _directions(text: str) -> tuple[Direction, ...]:
    if text not in DIRECTIONS:
        raise ValueError(f"--direction must be forward, backward or both, got {text!r}")
    return DIRECTIONS[text]


def _swept(name: str, text: str | None, default: int) -> tuple[int, ...]:
    if text is None:
        return (default,)
    try:
        return sweep.parse(text)
    except ValueError as error:
        raise ValueError(f"{option(name)}: {error}") from None


def _problem_of_file(text: str, rule: Rule) -> AttentionProblem:
    from engine.problem.inputs import preview  # headers alone: the problem is judged before anything is unpacked

    return preview(text).problem(**rule.arguments())
