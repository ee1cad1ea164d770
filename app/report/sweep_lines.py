"""Several cases as lines over a swept value: which value that is, and which cases make a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.report.outcome import CaseRows, distinct

AXES: dict[str, Callable[[CaseRows], int]] = {
    "sequence length": lambda group: group.case.problem.seq_q,
    "heads": lambda group: group.case.problem.heads,
    "batch": lambda group: group.case.problem.batch,
    "head_dim": lambda group: group.case.problem.head_dim,
    "threads": lambda group: group.case.threads or 1,
}


def varied(groups: Sequence[CaseRows]) -> list[str]:
    """Return the names of the axes along which the cases differ, the one with the most values first."""
    counts = {name: len({value(group) for group in groups}) for name, value in AXES.items()}
    return sorted((name for name, count in counts.items() if count > 1), key=lambda name: -counts[name])


def swept(groups: Sequence[CaseRows]) -> str:
    """Return the name of the axis with the most different values."""
    return next(iter(varied(groups)), next(iter(AXES)))


def series(groups: Sequence[CaseRows], axis: str) -> dict[str, list[CaseRows]]:
    """Return the cases of each line, ordered by the axis's value, under what sets the line apart from the others."""
    value = AXES[axis]
    lines: dict[str, list[CaseRows]] = {}
    for group in sorted(groups, key=value):
        peers = [other.case for other in groups if value(other) == value(group)]
        lines.setdefault(distinct(group.case, peers), []).append(group)
    return lines
