"""What the race scripts share: problems become a plan, the product's session runs it, one table says how it went."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from app.report.outcome import adapters, by_case, facets, message
from app.report.units import duration, ratio, significant
from engine.measure.peaks import Peak
from engine.problem.attention_problem import AttentionProblem
from engine.records.events import Event, KernelFailed, KernelFinished, KernelSkipped
from engine.records.plan import Case, Plan
from engine.records.results import Row, Status
from engine.session import session

_UNKNOWN = "–"


@dataclass(frozen=True, kw_only=True)
class Race:
    """Who races on which problems. ``contests`` are pairs: the first one's speed as a multiple of the second's.

    ``quick`` are the problems that ``--quick`` keeps; ``runs`` is how often everything is measured.
    """

    about: str
    kernels: tuple[str, ...]
    contests: tuple[tuple[str, str], ...]
    problems: tuple[AttentionProblem, ...]
    quick: tuple[AttentionProblem, ...]
    runs: int = 1


@dataclass(frozen=True)
class Line:
    """A problem and what was measured on it, run by run and by kernel."""

    problem: AttentionProblem
    runs: tuple[dict[str, Row], ...]

    def each(self, kernel: str, value: Callable[[Row], float | None]) -> list[float]:
        """Return a figure of a kernel's right rows, one a run."""
        rows = (run[kernel] for run in self.runs if kernel in run)
        return [found for row in rows if row.status is Status.OK and (found := value(row)) is not None]


def main(race: Race, words: Sequence[str] | None = None) -> int:
    """Follow the command line, print the table and return the exit status: 1 where a row is wrong or failed."""
    parser = argparse.ArgumentParser(description=race.about)
    parser.add_argument("--seconds", type=float, default=0.5, help="budget of each kernel on each problem [0.5]")
    parser.add_argument("--runs", type=int, default=race.runs, help=f"times that all is measured [{race.runs}]")
    parser.add_argument("--quick", action="store_true", help="only the problems that matter most")
    parser.add_argument("--device", default="auto", help="as of the command line's run [auto]")
    parser.add_argument("--threads", type=int, help="of the CPU kernels [all cores]")
    asked = parser.parse_args(words)
    problems = (race.quick if asked.quick else race.problems) * asked.runs
    cases = tuple(Case(index=i, problem=problem, threads=asked.threads) for i, problem in enumerate(problems))
    plan = Plan(cases=cases, kernels=race.kernels, device=asked.device, seconds=asked.seconds)
    rows = measured(plan)
    print(report(race, plan, rows))
    return int(any(row.status in (Status.WRONG, Status.FAILED) for row in rows))


def measured(plan: Plan) -> list[Row]:
    """Return the rows of a session, telling of each on stderr."""
    rows: list[Row] = []

    def emit(event: Event) -> None:
        if isinstance(event, (KernelFinished, KernelSkipped, KernelFailed)):
            rows.append(event.row)
            time = _time(event.row)
            told = message(event.row) or f"{event.kernel}: {_UNKNOWN if time is None else duration(time)}"
            print(f"{event.case.index + 1}/{len(plan.cases)} {_named(event.case.problem)}: {told}", file=sys.stderr)

    session.run(plan, emit)
    return rows


def report(race: Race, plan: Plan, rows: Iterable[Row]) -> str:
    """Return the table in Markdown, and below it what it was measured on, and with what."""
    groups = by_case(plan, rows)
    of_problem: dict[AttentionProblem, list[dict[str, Row]]] = {}
    for group in groups:
        of_problem.setdefault(group.case.problem, []).append({row.kernel: row for row in group.rows})
    lines = [Line(problem, tuple(runs)) for problem, runs in of_problem.items()]
    peak = _peak(race.kernels[0], lines)
    titles = ["problem", *race.kernels, *(f"{one} : {other}" for one, other in race.contests)]
    table = [titles, ["---"] + ["---:"] * (len(titles) - 1)]
    for line in lines:
        cells = [_cell(line, kernel, peak) for kernel in race.kernels]
        table.append([_named(line.problem), *cells, *(_contest(line, *pair) for pair in race.contests)])
    said = [f"| {' | '.join(cells)} |" for cells in table]
    if not groups:
        return "\n".join(said)
    about = groups[0].rows[0]
    said += ["", f"Measured on {about.started_at[:10]} by FlashScope {about.app_version}, {about.os}:"]
    said += ["- a : b is how many times as fast as b a is; kernels of a problem took turns, all verified"]
    said += [f"- {adapter}" for adapter in adapters(groups)]
    if peak is not None:
        said += [f"- peak: {_rate(peak.gflops)}, copy: {significant(peak.gbytes_per_s)} GB/s, both measured here"]
    reasons = {message(row): None for group in groups for row in group.rows if row.status is not Status.OK}
    return "\n".join(said + [f"- {reason}" for reason in reasons])


def _named(problem: AttentionProblem) -> str:
    return ", ".join(facets(Case(index=0, problem=problem)).values())


def _time(row: Row) -> float | None:
    """Return milliseconds by the GPU's clock where it is sound, else by the wall's."""
    return row.gpu_ms_median if row.clock == "gpu" else row.wall_ms_median


def _peak(kernel: str, lines: Iterable[Line]) -> Peak | None:
    """Return the peaks of that kernel's device, by which all are judged; None where they were not measured."""
    for row in (run[kernel] for line in lines for run in line.runs if kernel in run):
        if row.peak_gflops and row.gbytes_per_s and row.percent_of_bandwidth:
            return Peak(row.peak_gflops, 100 * row.gbytes_per_s / row.percent_of_bandwidth)
    return None


def _cell(line: Line, kernel: str, peak: Peak | None) -> str:
    """Return time, rate and share of the peak: of computing, or of copying where that is the nearer limit."""
    times = line.each(kernel, _time)
    if not times:
        return next((run[kernel].status.value for run in line.runs if kernel in run), _UNKNOWN)
    time, gflop, gbyte = median(times), line.problem.flops() / 1e9, line.problem.moved_bytes() / 1e9
    moving = peak is not None and gflop / gbyte < peak.gflops / peak.gbytes_per_s
    rate = 1e3 * (gbyte if moving else gflop) / time
    parts = [duration(time), f"{significant(rate)} GB/s" if moving else _rate(rate)]
    if peak is not None:
        parts.append(f"{significant(100 * rate / (peak.gbytes_per_s if moving else peak.gflops), 2)} %")
    return " · ".join(parts)


def _contest(line: Line, one: str, other: str) -> str:
    """Return how many times as fast the one is, with the range over the runs."""
    if len(line.each(one, _time)) < len(line.runs) or len(line.each(other, _time)) < len(line.runs):
        return _UNKNOWN
    ratios = [theirs / ours for ours, theirs in zip(line.each(one, _time), line.each(other, _time), strict=True)]
    span = f" ({significant(min(ratios))} to {significant(max(ratios))})" if len(ratios) > 1 else ""
    return ratio(median(ratios)) + span


def _rate(gflops: float) -> str:
    return f"{significant(gflops / 1e3)} TFLOP/s" if gflops >= 1e3 else f"{significant(gflops)} GFLOP/s"
