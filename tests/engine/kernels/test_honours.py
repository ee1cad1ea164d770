"""A kernel refuses what it does not know: the options of a problem that it does not say it honours."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.devices.device import Limits
from engine.kernels.cpu_naive.kernel import CpuNaive
from engine.kernels.registry import DEFAULT_KERNELS, get_kernel, kernel_names
from engine.problem import options
from engine.problem.attention_problem import AttentionProblem
from engine.problem.options import asked


class Plain(CpuNaive):
    name = "plain"
    honours = ("causal",)


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, ()), ({"window": 3}, ("causal", "window")), ({"scale": 0.125}, ()), ({"scale": 0}, ("scale",))],
)
def test_a_problem_asks_for_what_is_not_at_its_default(given: dict[str, Any], found: tuple[str, ...]) -> None:
    assert asked(AttentionProblem(seq_q=8, head_dim=64, **given)) == found


def test_an_option_that_a_kernel_does_not_know_is_refused() -> None:
    problem, limits = AttentionProblem(seq_q=8, causal=True), Limits(memory_bytes=1 << 30)
    assert Plain().refusal(problem, limits) is None
    capped = msgspec.structs.replace(problem, softcap=30.0)
    assert Plain().refusal(capped, limits) == "plain does not know softcap; leave it out"
    capped = msgspec.structs.replace(capped, window=4)
    assert Plain().refusal(capped, limits) == "plain does not know window and softcap; leave them out"


def test_an_option_that_is_new_is_refused_by_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "OPTIONS", (*options.OPTIONS, "dtype"))
    problem, limits = AttentionProblem(seq_q=8, dtype="f16"), Limits(memory_bytes=1 << 30)
    for name in kernel_names():
        assert get_kernel(name).refusal(problem, limits) == f"{name} does not know dtype; leave it out"


def test_the_kernels_that_are_raced_by_default_know_every_option() -> None:
    assert all(set(get_kernel(name).honours) == set(options.OPTIONS) for name in DEFAULT_KERNELS)
