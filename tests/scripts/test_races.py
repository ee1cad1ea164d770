"""The race scripts: the product's own rows in one table, right about who is how many times as fast."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from made_up import make_row

from engine.problem.attention_problem import AttentionProblem
from engine.records.events import KernelFinished, KernelSkipped
from engine.records.plan import Case, Plan
from engine.records.results import Row, Status

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
PREFILL = AttentionProblem(heads=16, seq_q=4096, head_dim=64)
DECODE = AttentionProblem(heads=32, kv_heads=8, seq_q=1, seq_k=65_536, head_dim=128)
PEAK_GFLOPS, PEAK_GBYTES = 60_000.0, 4_000.0


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The shared module, loaded as the scripts load it."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield import_module("race_table")
    for name in ("race_table", "race_gpu", "race_cpu"):
        sys.modules.pop(name, None)


def gpu_row(case: Case, kernel: str, gpu_ms: float, **fields: Any) -> Row:
    """A row whose GPU clock says ``gpu_ms``; the wall's says ten times as much."""
    moved = case.problem.moved_bytes() / gpu_ms / 1e6
    known = {"gpu_ms_median": gpu_ms, "clock": "gpu", "gbytes_per_s": moved, "peak_gflops": PEAK_GFLOPS,
             "percent_of_bandwidth": 100 * moved / PEAK_GBYTES}  # fmt: skip
    return make_row(case, kernel, 10 * gpu_ms, **known | fields)


def race(table: ModuleType, *problems: AttentionProblem, runs: int = 1) -> Any:
    contests = (("gpu-flash", "torch-sdpa-cuda"), ("gpu-flash", "gpu-naive"))
    kernels = ("gpu-flash", "gpu-naive", "torch-sdpa-cuda")
    return table.Race(about="x", kernels=kernels, contests=contests, problems=problems, quick=problems[:1], runs=runs)


def cells(text: str, line: int) -> list[str]:
    return [cell.strip() for cell in text.splitlines()[line].strip("|").split("|")]


def test_time_rate_share_and_contests(table: ModuleType) -> None:
    cases = tuple(Case(index=i, problem=problem) for i, problem in enumerate((PREFILL, DECODE)))
    rows = [
        gpu_row(cases[0], "gpu-flash", 2.0),
        gpu_row(cases[0], "gpu-naive", status=Status.SKIPPED, gpu_ms=1.0, message="too large"),
        gpu_row(cases[0], "torch-sdpa-cuda", 2.5, peak_gflops=1.0),  # of another kind: not what the table goes by
        gpu_row(cases[1], "gpu-flash", 0.2),
        gpu_row(cases[1], "gpu-naive", 0.6),
        gpu_row(cases[1], "torch-sdpa-cuda", 0.1),
    ]
    asked = race(table, PREFILL, DECODE)
    text = table.report(asked, Plan(cases=cases, kernels=asked.kernels), rows)
    assert cells(text, 0)[-2:] == ["gpu-flash : torch-sdpa-cuda", "gpu-flash : gpu-naive"]
    flops, moved = PREFILL.flops(), DECODE.moved_bytes()
    assert (flops, moved) == (4 * 16 * 4096**2 * 64, 4 * (2 * 65_536 * 8 * 128 + 2 * 32 * 128))
    assert cells(text, 2) == [
        "batch 1, heads 16, seq 4096, head_dim 64, f32",
        "2.00 ms · 34.4 TFLOP/s · 57 %", "skipped", "2.50 ms · 27.5 TFLOP/s · 46 %", "1.25×", "–",
    ]  # fmt: skip
    assert cells(text, 3)[1:] == [
        "0.200 ms · 2,680 GB/s · 67 %", "0.600 ms · 895 GB/s · 22 %", "0.100 ms · 5,370 GB/s · 130 %",
        "0.500×", "3.00×",
    ]  # fmt: skip
    assert "- peak: 60.0 TFLOP/s, copy: 4,000 GB/s, both measured here" in text
    assert "- gpu-naive skipped: too large" in text
    assert "llvmpipe" in text


def test_a_backward_problem_is_named_and_a_kernel_without_a_backward_pass_has_no_figures(table: ModuleType) -> None:
    backward = AttentionProblem(heads=16, seq_q=4096, head_dim=64, direction="backward")
    cases = tuple(Case(index=i, problem=problem) for i, problem in enumerate((PREFILL, backward)))
    rows = [
        *(gpu_row(cases[0], kernel, 2.0) for kernel in ("gpu-flash", "gpu-naive", "torch-sdpa-cuda")),
        gpu_row(cases[1], "gpu-flash", 5.0),
        gpu_row(cases[1], "gpu-naive", 9.0, status=Status.SKIPPED, message="gpu-naive has no backward pass"),
        gpu_row(cases[1], "torch-sdpa-cuda", 10.0),
    ]
    asked = race(table, PREFILL, backward)
    text = table.report(asked, Plan(cases=cases, kernels=asked.kernels), rows)
    assert cells(text, 2)[:2] == ["batch 1, heads 16, seq 4096, head_dim 64, f32", "2.00 ms · 34.4 TFLOP/s · 57 %"]
    assert cells(text, 3) == [
        "backward, batch 1, heads 16, seq 4096, head_dim 64, f32",
        "5.00 ms · 34.4 TFLOP/s · 57 %", "skipped", "10.0 ms · 17.2 TFLOP/s · 29 %", "2.00×", "–",
    ]  # fmt: skip
    assert "- gpu-naive skipped: gpu-naive has no backward pass" in text


def test_runs_give_the_median_and_the_range(table: ModuleType) -> None:
    cases = tuple(Case(index=i, problem=PREFILL) for i in range(3))
    rows = [
        gpu_row(case, kernel, ms)
        for case, times in zip(cases, ((2.0, 4.0, 2.0), (3.0, 6.0, 6.0), (1.0, 2.0, 1.5)), strict=True)
        for kernel, ms in zip(("gpu-flash", "gpu-naive", "torch-sdpa-cuda"), times, strict=True)
    ]
    asked = race(table, PREFILL, runs=3)
    text = table.report(asked, Plan(cases=cases, kernels=asked.kernels), rows)
    assert len([line for line in text.splitlines() if line.startswith("|")]) == 3
    assert cells(text, 2)[1].startswith("2.00 ms")
    assert cells(text, 2)[-2:] == ["1.50× (1.00 to 2.00)", "2.00× (2.00 to 2.00)"]


def test_without_peaks_there_is_no_share(table: ModuleType) -> None:
    case = Case(index=0, problem=DECODE)
    asked = race(table, DECODE)
    row = gpu_row(case, "gpu-flash", 0.2, peak_gflops=None, clock="wall")
    text = table.report(asked, Plan(cases=(case,), kernels=asked.kernels), [row])
    assert cells(text, 2)[1:] == ["2.00 ms · 537 GFLOP/s", "–", "–", "–", "–"]
    assert "peak" not in text


@pytest.mark.parametrize(("status", "code"), [(Status.OK, 0), (Status.SKIPPED, 0), (Status.WRONG, 1)])
def test_the_session_is_the_products_own(
    status: Status, code: int, table: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans: list[Plan] = []

    def run(plan: Plan, emit: Any) -> None:
        plans.append(plan)
        for case in plan.cases:
            row = gpu_row(case, "gpu-flash", 2.0, status=status, message="so")
            emit((KernelSkipped(case, "gpu-flash", "so", row)) if code else KernelFinished(case, "gpu-flash", row))

    monkeypatch.setattr("engine.session.session.run", run)
    words = ["--quick", "--runs", "2", "--seconds", "0.1", "--device", "1", "--threads", "3"]
    assert table.main(race(table, PREFILL, DECODE), words) == code
    (plan,) = plans
    assert [(case.problem, case.threads) for case in plan.cases] == [(PREFILL, 3)] * 2
    assert (plan.seconds, plan.device, plan.kernels[2]) == (0.1, "1", "torch-sdpa-cuda")
    printed = capsys.readouterr()
    assert printed.out.startswith("| problem | gpu-flash |")
    assert printed.err.startswith("1/2 batch 1, heads 16, seq 4096, head_dim 64, f32: gpu-flash")


def test_a_small_race_end_to_end(table: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    small = AttentionProblem(heads=2, seq_q=64, head_dim=16)
    kernels = ("cpu-flash", "cpu-naive")
    asked = table.Race(about="x", kernels=kernels, contests=(kernels,), problems=(small,), quick=(small,))
    assert table.main(asked, ["--seconds", "0.05", "--threads", "1"]) == 0
    line = cells(capsys.readouterr().out, 2)
    assert line[0] == "batch 1, heads 2, seq 64, head_dim 16, f32"
    assert line[1].endswith(" %")
    assert line[3].endswith("×")


def test_what_is_raced(table: ModuleType) -> None:
    gpu, cpu = import_module("race_gpu").RACE, import_module("race_cpu").RACE
    for dtype in ("f32", "f16"):
        for batch, head_dim in ((4, 64), (2, 128)):
            for causal in (False, True):
                wanted = AttentionProblem(
                    batch=batch, heads=16, seq_q=4096, head_dim=head_dim, causal=causal, dtype=dtype
                )
                assert wanted in gpu.quick
        assert AttentionProblem(heads=32, kv_heads=8, seq_q=1, seq_k=65_536, head_dim=128, dtype=dtype) in gpu.quick
    assert {(p.batch, p.heads, p.seq_q, p.head_dim, p.causal, p.dtype) for p in gpu.quick if p.backward} == {
        (batch, 16, 4096, head_dim, causal, "f32")
        for batch, head_dim in ((4, 64), (2, 128))
        for causal in (False, True)
    }
    assert set(gpu.quick) < set(gpu.problems)
    assert len(set(gpu.problems)) == len(gpu.problems)
    assert {problem.seq_q for problem in gpu.problems} >= {512, 1024, 2048, 4096, 8192, 16_384, 32_768}
    assert {problem.head_dim for problem in gpu.problems} == {32, 64, 80, 96, 128, 256}
    assert ("gpu-flash", "torch-sdpa-cuda") in gpu.contests
    assert {(p.heads, p.seq_q, p.head_dim, p.causal, p.direction) for p in cpu.problems} == {
        (heads, seq, head_dim, causal, direction)
        for heads, seq, head_dim in ((8, 2048, 64), (4, 4096, 64), (4, 2048, 128))
        for causal in (False, True)
        for direction in ("forward", "backward")
    }
    assert {"cpu-flash", "cpu-naive", "torch-sdpa"} <= set(cpu.kernels)
    assert (cpu.runs, gpu.runs) == (5, 1)
