"""Which value is swept, and which cases make a line."""

from __future__ import annotations

import itertools

from app.report import sweep_lines
from app.report.outcome import CaseRows
from engine.problem.attention_problem import AttentionProblem
from engine.records.plan import Case

GROUPS = [
    CaseRows(Case(index=index, problem=AttentionProblem(heads=heads, seq_q=seq)), ())
    for index, (heads, seq) in enumerate(itertools.product((4, 8), (512, 128, 256)))
]


def test_the_value_with_most_steps_is_swept() -> None:
    assert sweep_lines.varied(GROUPS) == ["sequence length", "heads"]
    assert sweep_lines.swept(GROUPS) == "sequence length"
    assert sweep_lines.varied(GROUPS[:1]) == []
    assert sweep_lines.swept(GROUPS[:1]) == "sequence length"


def test_a_line_holds_one_value_of_the_others_in_ascending_order() -> None:
    lines = sweep_lines.series(GROUPS, "sequence length")
    assert list(lines) == ["heads 4", "heads 8"]
    assert [group.case.problem.seq_q for group in lines["heads 8"]] == [128, 256, 512]
    assert list(sweep_lines.series(GROUPS, "heads")) == ["seq 512", "seq 128", "seq 256"]


def test_each_direction_is_a_line_and_no_axis() -> None:
    ways = itertools.product((64, 128), ("forward", "backward"))
    groups = [
        CaseRows(Case(index=index, problem=AttentionProblem(seq_q=seq, direction=way)), ())  # type: ignore[arg-type]
        for index, (seq, way) in enumerate(ways)
    ]
    assert sweep_lines.varied(groups) == ["sequence length"]
    lines = sweep_lines.series(groups, "sequence length")
    assert list(lines) == ["forward", "backward"]
    assert [group.case.problem.direction for group in lines["backward"]] == ["backward", "backward"]
    assert sweep_lines.varied(groups[:2]) == []
