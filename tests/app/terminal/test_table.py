"""The result table: whole at every width, plain where it is no terminal, and nothing told twice."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace
from rich.console import Console

from app.report.outcome import CaseRows
from app.terminal.table import print_report
from engine.problem.attention_problem import AttentionProblem
from engine.records.plan import Case
from engine.records.results import Row, Status


def printed(groups: Sequence[CaseRows], width: int, *warnings: str, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal)
    print_report(console, groups, warnings)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("which", ["race", "sweep"])
def test_fits_the_width_and_shows_every_figure(width: int, which: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(which)
    groups = [found] if which == "race" else found
    text = printed(groups, width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "\x1b" not in text
    for title in ("kernel", "device", "status", "wall ms", "IQR", "gpu ms", "GFLOP/s", "% peak", "vs naive", "scratch",
                  "peak mem", "error", "verified"):  # fmt: skip
        assert title in text


def test_one_table_at_120_columns_and_two_parts_at_80(race: CaseRows) -> None:
    assert printed([race], 120).count("kernel  ") == 1
    assert printed([race], 80).count("kernel  ") == 2


def test_the_range_of_one_sample_is_not_known(make_row: Callable[..., Row]) -> None:
    case = Case(index=0, problem=AttentionProblem())
    many = make_row(case, "cpu-flash", 3.0)
    known, unknown = (printed([CaseRows(case, (row,))], 120) for row in (many, replace(many, samples=1)))
    assert unknown.count("–") == known.count("–") + 1


def test_the_answer_comes_first(race: CaseRows) -> None:
    assert printed([race], 120).startswith("cpu-flash is fastest: 6.12 ms, 21.4× as fast as gpu-flash (wall clock).")


def test_marks_are_words_too(race: CaseRows) -> None:
    text = printed([race], 120)
    for words in ("✓ ok", "– skipped", "✗ wrong", "✓ yes", "✗ NO", "software"):
        assert words in text


def test_sentences_and_warnings_stand_below(race: CaseRows) -> None:
    text = printed([race], 120, "the machine is busy")
    below = text.split("cpu-naive")[-1] + text
    assert "gpu-naive skipped: one pair's score matrix needs 2.0 GiB, the adapter binds at most 128 MiB" in below
    assert "cpu-naive wrong: max abs error 0.3 is above the bound 3e-06" in below
    assert "the machine is busy" in below
    assert "gpu-flash: software adapter" in below
    assert "gpu-flash: spread 12 %" in below


def test_a_sweep_groups_by_case_and_says_a_reason_once(sweep: Sequence[CaseRows]) -> None:
    lines = printed(sweep, 120).splitlines()
    headings = [line for line in lines if line.startswith("seq ")]
    assert headings == ["seq 128", "seq 256", "seq 512", "seq 1024", "seq 2048"]
    assert sum("its scores need 64 MiB" in line for line in lines) == 2  # once for each naive kernel
    assert any(line.endswith("(seq 2048)") for line in lines)


def test_where_moving_is_the_limit_the_figures_are_bytes(make_row: Callable[..., Row]) -> None:
    decode = Case(index=0, problem=AttentionProblem(heads=32, seq_q=1, seq_k=4096, head_dim=128))
    moved = {"gflops": 1111.0, "percent_of_peak": 2.0, "gbytes_per_s": 3210.0, "percent_of_bandwidth": 77.0}
    rows = make_row(decode, "gpu-flash", 1.0, **moved), make_row(decode, "gpu-naive", status=Status.SKIPPED)
    text = printed([CaseRows(decode, rows)], 120)
    assert "GB/s % copy" in " ".join(text.split())
    assert "GFLOP/s" not in text
    (line,) = (line for line in text.splitlines() if line.startswith("gpu-flash  "))
    assert ("3,210" in line, " 77 " in line, "1,110" in line) == (True, True, False)


def test_where_both_limits_occur_every_figure_has_its_unit(make_row: Callable[..., Row]) -> None:
    cases = [Case(index=i, problem=AttentionProblem(seq_q=seq, seq_k=4096)) for i, seq in enumerate((1, 4096))]
    moved = {"gbytes_per_s": 3210.0, "percent_of_bandwidth": 77.0}
    rows = [make_row(case, "gpu-flash", 1.0, percent_of_peak=50.0, gflops=1234.0, **moved) for case in cases]
    rows[1] = make_row(cases[1], "gpu-flash", 1.0, percent_of_peak=80.0, gflops=1234.0, **moved)
    groups = [CaseRows(case, (row,)) for case, row in zip(cases, rows, strict=True)]
    for width in (80, 120):
        text = printed(groups, width)
        assert all(len(line) <= width for line in text.splitlines())
        assert all(figure in text for figure in ("3,210 GB/s", "77 copy", "1,230 GFLOP/s", "80 peak"))


def test_a_terminal_gets_colour(race: CaseRows) -> None:
    assert "\x1b[" in printed([race], 120, terminal=True)


def test_text_of_strangers_is_no_markup(race: CaseRows) -> None:
    assert "[bold]q [1,12,512,32]" in printed([race], 120, "[bold]q [1,12,512,32]")


def test_both_directions_stand_under_their_names(make_row: Callable[..., Row]) -> None:
    problems = [AttentionProblem(seq_q=64), AttentionProblem(seq_q=64, direction="backward")]
    cases = [Case(index=index, problem=problem) for index, problem in enumerate(problems)]
    groups = [CaseRows(case, (make_row(case, "cpu-flash", 1.0, warnings="hot"),)) for case in cases]
    groups[1] = CaseRows(cases[1], (make_row(cases[1], "cpu-flash", status=Status.SKIPPED, message="it cannot"),))
    lines = printed(groups, 120).splitlines()
    assert lines[2] == "batch 1 · heads 8 · seq 64 · head_dim 64 · f32"
    assert lines.index("forward") < lines.index("backward")
    assert "  cpu-flash skipped: it cannot (backward)" in lines
    assert "  cpu-flash: hot (forward)" in lines
