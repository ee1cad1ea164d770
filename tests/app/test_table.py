"""The result table: whole at every width, plain where it is no terminal, and nothing told twice."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from app.outcome import CaseRows
from app.table import print_report


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
    for title in ("kernel", "device", "status", "wall ms", "±IQR", "gpu ms", "GFLOP/s", "% peak", "vs naive", "scratch",
                  "peak mem", "error", "verified"):  # fmt: skip
        assert title in text


def test_one_table_at_120_columns_and_two_parts_at_80(race: CaseRows) -> None:
    assert printed([race], 120).count("kernel  ") == 1
    assert printed([race], 80).count("kernel  ") == 2


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


def test_a_terminal_gets_colour(race: CaseRows) -> None:
    assert "\x1b[" in printed([race], 120, terminal=True)


def test_text_of_strangers_is_no_markup(race: CaseRows) -> None:
    assert "[bold]q [1,12,512,32]" in printed([race], 120, "[bold]q [1,12,512,32]")
