"""The result table on the terminal: the answer first, then the figures, then every sentence that belongs to them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from app.report.outcome import CaseRows, adapters, answer, cases_named, common, distinct, memory_bound, message, notes
from app.report.units import ratio, significant, size
from engine.records.results import Row, Status

_GAP = "  "
_NARROW_GAP = " "
_MOST_LINES = 16  # of sentences or warnings; the report has them all
_UNKNOWN = Text("–", style="dim")
_MARKS = {
    Status.OK: ("✓", "green"),
    Status.WRONG: ("✗", "bold red"),
    Status.FAILED: ("✗", "bold red"),
    Status.SKIPPED: ("–", "yellow"),
    Status.CANCELLED: ("■", "yellow"),
}


@dataclass(frozen=True)
class _Column:
    title: str
    cell: Callable[[Row], Text]
    right: bool = True


def _number(value: float | None, digits: int = 3) -> Text:
    return _UNKNOWN if value is None else Text(significant(value, digits))


def _bytes(value: int | None) -> Text:
    return _UNKNOWN if value is None else Text(size(value))


def _speedup(value: float | None) -> Text:
    return _UNKNOWN if value is None else Text(ratio(value), style="yellow" if value < 1 else "")


def _status(row: Row) -> Text:
    mark, style = _MARKS[row.status]
    return Text(f"{mark} {row.status.value}", style=style)


def _verified(row: Row) -> Text:
    if row.verified is None:
        return _UNKNOWN
    return Text("✓ yes", style="green") if row.verified else Text("✗ NO", style="bold red")


def _error(row: Row) -> Text:
    return _UNKNOWN if row.max_abs_err is None else Text(f"{row.max_abs_err:.1e}")


def _rate(row: Row) -> Text:
    """Return the headline's figure: bytes a second where moving them is the limit, else operations."""
    return _number(row.gbytes_per_s if memory_bound(row) else row.gflops)


def _share(row: Row) -> Text:
    return _number(row.percent_of_bandwidth if memory_bound(row) else row.percent_of_peak, 2)


def _with_unit(cell: Callable[[Row], Text], moving: str, computing: str) -> Callable[[Row], Text]:
    def labelled(row: Row) -> Text:
        text = cell(row)
        return text if text is _UNKNOWN else Text.assemble(text, moving if memory_bound(row) else computing)

    return labelled


def _rates(groups: Sequence[CaseRows]) -> tuple[_Column, _Column]:
    """Return the headline's columns; their titles carry the unit, or where rows differ in it the cells do."""
    bound = {memory_bound(row) for group in groups for row in group.rows if row.gflops is not None}
    if len(bound) == 2:
        rate, share = _with_unit(_rate, " GB/s", " GFLOP/s"), _with_unit(_share, " copy", " peak")
        return _Column("rate", rate), _Column("% of", share)
    moving = bound == {True}
    return _Column("GB/s" if moving else "GFLOP/s", _rate), _Column("% copy" if moving else "% peak", _share)


_KERNEL = _Column("kernel", lambda row: Text(row.kernel, style="bold"), right=False)
_TIMES = (
    _Column("device", lambda row: Text(row.adapter_type) if row.adapter_type else _UNKNOWN, right=False),
    _Column("status", _status, right=False),
    _Column("wall ms", lambda row: _number(row.wall_ms_median)),
    _Column("IQR", lambda row: _number(None if row.samples == 1 else row.wall_ms_iqr, 2)),
    _Column("gpu ms", lambda row: _number(row.gpu_ms_median)),
)
_VS_NAIVE = _Column("vs naive", lambda row: _speedup(row.speedup_vs_naive))
_MEMORY_AND_ERROR = (
    _Column("scratch", lambda row: _bytes(row.scratch_bytes)),
    _Column("peak mem", lambda row: _bytes(row.peak_bytes)),
    _Column("error", _error),
    _Column("verified", _verified, right=False),
)


def print_report(console: Console, groups: Sequence[CaseRows], warnings: Sequence[str] = ()) -> None:
    """Print the answer, the table (in two parts where the console is narrow), and the rows' sentences and warnings."""
    cases = [group.case for group in groups]
    _say(console, Text(answer(groups), style="bold"))
    _say(console, Text(common(cases), style="dim"))
    for line in adapters(groups):
        _say(console, Text(line, style="dim"))
    for columns in _parts(groups, console.width):
        console.print()
        _print_table(console, groups, columns)
    for heading, lines in (("", list(notes(groups, message))), ("Warnings", [*warnings, *_cautions(groups)])):
        if not lines:
            continue
        console.print()
        _say(console, Text(heading, style="yellow"))
        shown = lines[:_MOST_LINES]
        shown[_MOST_LINES:] = [f"… and {len(lines) - len(shown)} more, in the report"] * (len(lines) > len(shown))
        for line in shown:
            _say(console, Text(textwrap.fill(line, console.width, initial_indent="  ", subsequent_indent="    ")))


def _say(console: Console, text: Text) -> None:
    if text:
        console.print(text, highlight=False)


def _parts(groups: Sequence[CaseRows], width: int) -> tuple[tuple[_Column, ...], ...]:
    times = (_KERNEL, *_TIMES, *_rates(groups), _VS_NAIVE)
    whole = (*times, *_MEMORY_AND_ERROR)
    if sum(_widths(groups, whole)) + len(_NARROW_GAP) * (len(whole) - 1) <= width:
        return (whole,)
    return times, (_KERNEL, *_MEMORY_AND_ERROR)


def _widths(groups: Sequence[CaseRows], columns: Sequence[_Column]) -> list[int]:
    rows = [row for group in groups for row in group.rows]
    return [max([len(column.title), *(column.cell(row).cell_len for row in rows)]) for column in columns]


def _print_table(console: Console, groups: Sequence[CaseRows], columns: Sequence[_Column]) -> None:
    """Print one header, then the rows case by case, each case under a line that says what sets it apart."""
    widths = _widths(groups, columns)
    gap = _GAP if sum(widths) + len(_GAP) * (len(columns) - 1) <= console.width else _NARROW_GAP
    cases = [group.case for group in groups]
    rule = gap.join("─" * width for width in widths)
    _print_line(console, (Text(column.title, style="bold") for column in columns), columns, widths, gap)
    console.print(Text(rule, style="dim"), no_wrap=True, overflow="ignore", crop=False)
    for group in groups:
        if heading := distinct(group.case, cases):
            _say(console, Text(heading, style="cyan"))
        for row in group.rows:
            _print_line(console, (column.cell(row) for column in columns), columns, widths, gap)


def _print_line(
    console: Console, cells: Iterable[Text], columns: Sequence[_Column], widths: Sequence[int], gap: str
) -> None:
    line = Text()
    for cell, column, width in zip(cells, columns, widths, strict=True):
        padding = " " * (width - cell.cell_len)
        line.append(gap if line else "")
        line.append_text(Text.assemble(padding, cell) if column.right else Text.assemble(cell, padding))
    line.rstrip()
    console.print(line, no_wrap=True, overflow="ignore", crop=False)


def _cautions(groups: Sequence[CaseRows]) -> Iterator[str]:
    """Yield every warning once, with the kernels it concerns and, unless that is all of them, the cases."""
    cases = [group.case for group in groups]
    kernels: dict[str, dict[str, None]] = {}
    where: dict[str, dict[str, None]] = {}
    for group in groups:
        for row in group.rows:
            for warning in row.cautions:
                kernels.setdefault(warning, {})[row.kernel] = None
                where.setdefault(warning, {})[distinct(group.case, cases)] = None
    for warning, concerned in kernels.items():
        yield f"{', '.join(concerned)}: {warning}{cases_named(list(where[warning]), len(groups))}"
