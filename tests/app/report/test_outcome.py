"""Who won and by how much, and which rows belong to which case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from app.report.outcome import CaseRows, adapters, answer, by_case, common, distinct, in_full, memory_bound, whisker
from engine.problem.attention_problem import AttentionProblem
from engine.records.plan import Case, Plan
from engine.records.results import Row, Status

MakeRow = Callable[..., Row]
CASE = Case(index=0, problem=AttentionProblem())


def _answer(*rows: Row) -> str:
    return answer([CaseRows(CASE, rows)])


def test_the_fastest_of_four_is_compared_with_each(make_row: MakeRow) -> None:
    walls = {"gpu-flash": 1.0, "gpu-naive": 4.0, "cpu-flash": 2.0, "cpu-naive": 3.0}
    said = _answer(*(make_row(CASE, kernel, wall) for kernel, wall in walls.items()))
    assert said == (
        "gpu-flash is fastest: 1.00 ms, 2.00× as fast as cpu-flash, 3.00× cpu-naive and 4.00× gpu-naive (wall clock)."
    )


def test_medians_within_the_spread_are_level(make_row: MakeRow) -> None:
    rows = [make_row(CASE, "cpu-flash", 1.31, wall_ms_iqr=0.05), make_row(CASE, "cpu-naive", 1.34, wall_ms_iqr=0.02)]
    assert _answer(*rows) == (
        "cpu-flash and cpu-naive are level: 1.31 ms and 1.34 ms, closer than their spread (wall clock)."
    )


def test_kernels_far_apart_are_not_level_however_much_they_vary(make_row: MakeRow) -> None:
    walls = {"cpu-flash": (2.61, 1.0), "gpu-flash": (2.77, 1.0), "cpu-naive": (12.0, 37.0)}
    rows = [make_row(CASE, kernel, wall, wall_ms_iqr=iqr) for kernel, (wall, iqr) in walls.items()]
    said = _answer(*rows)
    assert said == "cpu-flash and gpu-flash are level: 2.61 ms and 2.77 ms, closer than their spread (wall clock)."
    assert _answer(rows[0], rows[2]) == (
        "cpu-flash is fastest: 2.61 ms, 4.60× as fast as cpu-naive (wall clock); cpu-naive varied by more than that."
    )


def test_the_answer_names_what_failed(make_row: MakeRow) -> None:
    failed = make_row(CASE, "gpu-naive", status=Status.FAILED, message="line 12: unresolved identifier 'x'\nmore " * 9)
    said = _answer(make_row(CASE, "cpu-flash", 1.0), make_row(CASE, "cpu-naive", 2.0), failed)
    assert said.startswith("cpu-flash is fastest: 1.00 ms, 2.00× as fast as cpu-naive (wall clock). gpu-naive failed: ")
    assert "line 12: unresolved identifier 'x'" in said
    assert len(said) < 250
    other = CaseRows(CASE, (make_row(CASE, "cpu-flash", 1.0), make_row(CASE, "cpu-naive", 2.0)))
    assert answer([CaseRows(CASE, (failed, *other.rows)), other]).endswith("gpu-naive failed in 1 of 2 cases.")


def test_whiskers_are_the_quartiles_and_one_sample_has_none(make_row: MakeRow) -> None:
    row = make_row(CASE, "cpu-flash", 0.383, wall_ms_min=0.243, wall_ms_iqr=0.626, wall_ms_quartiles=(0.3, 0.926))
    ends = whisker(row)
    assert ends == (0.3, 0.926)
    assert row.wall_ms_min is not None
    assert ends[0] >= row.wall_ms_min
    assert whisker(replace(row, samples=1)) is None
    assert whisker(replace(row, wall_ms_quartiles=None)) is None


def test_a_wrong_kernel_never_wins(make_row: MakeRow) -> None:
    wrong = make_row(CASE, "gpu-flash", 0.1, status=Status.WRONG, verified=False)
    assert _answer(wrong, make_row(CASE, "cpu-naive", 5.0)).startswith("cpu-naive took 5.00 ms")


def test_the_nearer_limit_is_the_one_that_binds(make_row: MakeRow) -> None:
    peak_gflops, peak_gbytes_per_s = 60_000.0, 4_000.0  # the device does 15 operations in the time of a byte
    for seq_q, bound in ((1, True), (64, False)):
        problem = AttentionProblem(heads=32, seq_q=seq_q, seq_k=4096, head_dim=128)
        gflops, gbytes_per_s = problem.flops() / 1e6, problem.tensor_bytes / 1e6  # in a millisecond
        row = make_row(
            Case(index=0, problem=problem), "gpu-flash", 1.0, gflops=gflops, gbytes_per_s=gbytes_per_s,
            percent_of_peak=100 * gflops / peak_gflops, percent_of_bandwidth=100 * gbytes_per_s / peak_gbytes_per_s,
        )  # fmt: skip
        assert memory_bound(row) is bound
        assert (problem.flops() / problem.tensor_bytes < peak_gflops / peak_gbytes_per_s) is bound
    assert not memory_bound(make_row(CASE, "gpu-flash", 1.0, percent_of_peak=None, percent_of_bandwidth=9.0))
    assert not memory_bound(make_row(CASE, "gpu-flash", status=Status.SKIPPED))


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (Status.SKIPPED, "No kernel finished with a right result."),
        (Status.FAILED, "No kernel finished with a right result. gpu-flash failed."),
        (Status.CANCELLED, "Stopped before a kernel finished."),
    ],
)
def test_no_winner(make_row: MakeRow, status: Status, said: str) -> None:
    assert _answer(make_row(CASE, "gpu-flash", status=status)) == said


def test_a_sweep_counts_wins(sweep: tuple[CaseRows, ...], make_row: MakeRow) -> None:
    assert answer(sweep) == "cpu-flash is fastest in all 5 cases, by 1.40× to 84.0× over the next (wall clock)."
    case = sweep[0].case
    lost = CaseRows(case, (make_row(case, "cpu-naive", 1.0), make_row(case, "cpu-flash", 2.0)))
    assert "fastest in 4 of 5 cases" in answer([lost, *sweep[1:]])
    assert "; cpu-naive in 1 (wall clock)." in answer([lost, *sweep[1:]])


def test_what_cases_share_and_what_sets_them_apart(sweep: tuple[CaseRows, ...]) -> None:
    cases = [group.case for group in sweep]
    assert common(cases) == "batch 1 · heads 4 · head_dim 64 · f32"
    assert [distinct(case, cases) for case in cases[:2]] == ["seq 128", "seq 256"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"heads": 8, "kv_heads": 2}, "kv_heads 2"),
        ({"seq_q": 1, "seq_k": 4096}, "seq_q 1 · seq_k 4096"),
        ({"head_dim_v": 32}, "head_dim_v 32"),
        ({"causal": True}, "causal"),
        ({"window": 128}, "window 128"),
        ({"softcap": 30.0}, "softcap 30"),
        ({"scale": 0.0}, "scale 0"),
        ({"dtype": "f16"}, "f16"),
        ({"direction": "backward"}, "backward"),
    ],
)
def test_every_part_of_a_problem_is_named(fields: dict[str, Any], said: str) -> None:
    assert said in common([Case(index=0, problem=AttentionProblem(**fields))])


def test_forward_is_said_only_where_another_case_is_backward() -> None:
    forward, backward = AttentionProblem(), AttentionProblem(direction="backward")
    both = [Case(index=index, problem=problem) for index, problem in enumerate((forward, backward))]
    plain = "batch 1 · heads 8 · seq 1024 · head_dim 64 · f32"
    assert common(both) == common(both[:1]) == in_full(both[0], both[:1]) == plain
    assert [distinct(case, both) for case in both] == ["forward", "backward"]
    assert in_full(both[0], both) == f"case 1 of 2 · forward · {plain}"
    assert in_full(both[1], both) == f"case 2 of 2 · backward · {plain}"
    gradients = [Case(index=n, problem=AttentionProblem(seq_q=64 << n, direction="backward")) for n in range(2)]
    assert common(gradients).startswith("backward · batch 1")
    assert [distinct(case, gradients) for case in gradients] == ["seq 64", "seq 128"]
    assert (distinct(both[0], both[:1]), distinct(both[1], both[1:])) == ("", "")


def test_adapters_are_listed_once(race: CaseRows) -> None:
    software, processor = adapters([race, race])
    assert software.startswith("software: llvmpipe")
    assert processor == "cpu: AMD EPYC 7B13 64-Core Processor · numpy 2.4.6, OpenBLAS 0.3.30"


def test_rows_find_their_cases_in_the_order_of_the_plan(sweep: tuple[CaseRows, ...]) -> None:
    kernels = ("cpu-naive", "cpu-flash", "gpu-naive", "gpu-flash")
    plan = Plan(cases=tuple(group.case for group in sweep), kernels=kernels)
    rows = [row for group in sweep for row in group.rows]
    found = by_case(plan, rows)
    assert [group.case for group in found] == list(plan.cases)
    for group, original in zip(found, sweep, strict=True):
        assert tuple(row.kernel for row in group.rows) == plan.kernels
        assert set(map(id, group.rows)) == set(map(id, original.rows))


def test_cases_without_rows_are_left_out_and_rows_without_a_case_refused(sweep: tuple[CaseRows, ...]) -> None:
    plan = Plan(cases=tuple(group.case for group in sweep), kernels=("gpu-flash",))
    rows = [group.rows[0] for group in sweep]
    assert len(by_case(plan, rows[:2])) == 2
    with pytest.raises(ValueError, match="more rows than the run's 5 cases"):
        by_case(plan, [*rows, rows[0]])


def test_two_cases_are_both(sweep: tuple[CaseRows, ...]) -> None:
    assert answer(sweep[:2]).startswith("cpu-flash is fastest in both cases, by 1.40× over the next")


def test_each_direction_has_an_answer_of_its_own(sweep: tuple[CaseRows, ...], make_row: MakeRow) -> None:
    forward = sweep[0].case
    backward = replace(forward, problem=replace(forward.problem, direction="backward"))
    gradients = CaseRows(backward, (make_row(backward, "cpu-naive", 1.0), make_row(backward, "cpu-flash", 2.0)))
    assert answer([*sweep, gradients]) == f"Forward: {answer(sweep)}\nBackward: {answer([gradients])}"
    assert answer([gradients]).startswith("cpu-naive is fastest: 1.00 ms")


def test_a_lead_within_the_spread_is_no_win(sweep: tuple[CaseRows, ...], make_row: MakeRow) -> None:
    case = sweep[0].case
    level = CaseRows(case, (make_row(case, "cpu-naive", 1.0), make_row(case, "cpu-flash", 1.01)))
    said = answer([level, *sweep[1:]])
    assert said.startswith("cpu-flash is fastest in 4 of 5 cases, by 1.40× to 84.0× over the next; level in 1 (wall")
    assert answer([level, level]) == "No kernel is clearly fastest: the best are level in both cases (wall clock)."


def test_what_was_stopped_might_have_been_the_fastest(sweep: tuple[CaseRows, ...], make_row: MakeRow) -> None:
    case = sweep[0].case
    slow = [make_row(case, "gpu-flash", 102.0), make_row(case, "gpu-naive", 300.0)]
    stopped = [make_row(case, kernel, 10.0, status=Status.CANCELLED) for kernel in ("cpu-flash", "cpu-naive")]
    assert _answer(*slow, *stopped) == (
        "Of the kernels that finished, gpu-flash is fastest: 102 ms, 2.94× as fast as gpu-naive (wall clock)."
    )
    assert _answer(slow[0], *stopped) == "gpu-flash took 102 ms (wall clock); no other kernel finished."
    cut = CaseRows(case, (slow[1], *stopped))
    assert answer([*sweep[1:], cut]) == (
        "cpu-flash is fastest in 4 of 5 cases, by 1.40× to 84.0× over the next; 1 stopped (wall clock)."
    )
    assert answer([cut, cut]) == "Stopped before all kernels of a case finished."


def test_a_kernel_that_runs_alone_beats_none(sweep: tuple[CaseRows, ...], make_row: MakeRow) -> None:
    alone = [CaseRows(group.case, (make_row(group.case, "cpu-flash", 2.0 + n),)) for n, group in enumerate(sweep)]
    assert answer(alone) == (
        "cpu-flash took 2.00 ms to 6.00 ms in all 5 cases (wall clock); there is no other result to compare it with."
    )
    skipped = CaseRows(sweep[1].case, (make_row(sweep[1].case, "cpu-flash", status=Status.SKIPPED),))
    assert answer([alone[0], skipped]).startswith("cpu-flash took 2.00 ms in 1 of 2 cases (wall clock); there is no")
