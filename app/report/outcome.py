"""What a race came to, in words: its cases with their rows, what tells the cases apart, and who won by how much."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePath

from app.report.units import duration, ratio
from engine.records.plan import Case, Plan
from engine.records.results import Row, Status

_UNSAID = {"direction": "forward"}  # goes without saying, until another case differs


@dataclass(frozen=True)
class CaseRows:
    """One case and the rows of its kernels, in the order of the plan."""

    case: Case
    rows: tuple[Row, ...]


_NEAR = 0.1  # two kernels further apart are never called level, however much they vary
_MOST_OF_A_REASON = 100  # characters, in the answer


def shortened(text: str, most: int) -> str:
    """Return a text on one line, without its full stop, cut where it is longer than ``most`` characters."""
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= most else line[: most - 1] + "…"


def whisker(row: Row) -> tuple[float, float] | None:
    """Return the ends of the latency's whisker, the first and third quartile in ms; None where they say nothing."""
    return None if row.samples == 1 else row.wall_ms_quartiles


def by_case(plan: Plan, rows: Iterable[Row]) -> tuple[CaseRows, ...]:
    """Return the rows of a session case by case; cases without a row are left out.

    A session takes its cases in order, so the n-th row of a kernel belongs to the n-th case. Raises ValueError where a
    kernel has more rows than there are cases, as only a made-up run file can have.
    """
    found: list[dict[str, Row]] = [{} for _ in plan.cases]
    seen: Counter[str] = Counter()
    for row in rows:
        if seen[row.kernel] == len(plan.cases):
            raise ValueError(f"{row.kernel} has more rows than the run's {len(plan.cases)} cases")
        found[seen[row.kernel]][row.kernel] = row
        seen[row.kernel] += 1
    order = {kernel: place for place, kernel in enumerate(plan.kernels)}
    return tuple(
        CaseRows(case, tuple(sorted(of_case.values(), key=lambda row: order.get(row.kernel, len(order)))))
        for case, of_case in zip(plan.cases, found, strict=True)
        if of_case
    )


def facets(case: Case) -> dict[str, str]:
    """Return what there is to say about a case, by topic and in reading order: ``{"seq": "seq 1024", …}``."""
    problem = case.problem
    said = {"direction": "backward"} if problem.backward else {}
    said |= {"batch": f"batch {problem.batch}", "heads": f"heads {problem.heads}"}
    if problem.kv_heads != problem.heads:
        said["kv_heads"] = f"kv_heads {problem.kv_heads}"
    if problem.seq_q == problem.seq_k:
        said["seq"] = f"seq {problem.seq_q}"
    else:
        said["seq"] = f"seq_q {problem.seq_q}"
        said["seq_k"] = f"seq_k {problem.seq_k}"
    said["head_dim"] = f"head_dim {problem.head_dim}"
    if problem.head_dim_v != problem.head_dim:
        said["head_dim_v"] = f"head_dim_v {problem.head_dim_v}"
    if problem.window is not None:
        said["mask"] = f"window {problem.window}"
    elif problem.causal:
        said["mask"] = "causal"
    if problem.key_mask is not None:
        said["key_mask"] = "key mask"
    if problem.softcap is not None:
        said["softcap"] = f"softcap {problem.softcap:g}"
    if not math.isclose(problem.scale, 1 / math.sqrt(problem.head_dim), rel_tol=1e-6):
        said["scale"] = f"scale {problem.scale:g}"
    said["dtype"] = problem.dtype
    if case.from_file:
        said["input"] = ", ".join(PurePath(part).name for part in case.input.split(","))
    if case.threads is not None:
        said["threads"] = f"{case.threads} thread" + "s" * (case.threads != 1)
    return said


def common(cases: Sequence[Case]) -> str:
    """Return what holds for every case, as one line."""
    described = [facets(case) for case in cases]
    return " · ".join(text for topic, text in described[0].items() if all(d.get(topic) == text for d in described))


def distinct(case: Case, cases: Sequence[Case]) -> str:
    """Return what sets ``case`` apart from the others, as one line; empty where there are no others."""
    described = [_UNSAID | facets(other) for other in cases]
    return " · ".join(
        text for topic, text in (_UNSAID | facets(case)).items() if not all(d.get(topic) == text for d in described)
    )


def in_full(case: Case, cases: Sequence[Case]) -> str:
    """Return all there is to say about one of the cases, its number among several first, as one line."""
    number = [f"case {case.index + 1} of {len(cases)}"] if len(cases) > 1 else []
    unsaid = _UNSAID if any(other.problem.backward for other in cases) else {}
    return " · ".join([*number, *(unsaid | facets(case)).values()])


def adapters(groups: Sequence[CaseRows]) -> tuple[str, ...]:
    """Return each device that rows ran on, as ``software: llvmpipe … · vulkan · Mesa 22.3.6``, first seen first."""
    lines = [
        f"{row.adapter_type}: " + " · ".join(_unrepeated(row.device, row.backend, row.driver))
        for group in groups
        for row in group.rows
        if row.device and row.adapter_type
    ]
    return tuple(dict.fromkeys(lines))


def notes(groups: Sequence[CaseRows], note: Callable[[Row], str]) -> Iterator[str]:
    """Yield every sentence that rows carry, once for all the cases that share it, saying which unless it is all."""
    cases = [group.case for group in groups]
    where: dict[str, list[str]] = {}
    for group in groups:
        for row in group.rows:
            if text := note(row):
                where.setdefault(text, []).append(distinct(group.case, cases))
    for text, found in where.items():
        yield text + cases_named(found, len(groups))


def cases_named(found: Sequence[str], cases: int) -> str:
    """Return which cases are meant, in brackets and no more than three, or nothing where it is all of them."""
    return "" if len(found) == cases else f" ({'; '.join(found[:3])}{'; …' * (len(found) > 3)})"


def message(row: Row) -> str:
    """Return the row's message with its kernel, and with its status where that is not ``ok``; empty without one."""
    subject = row.kernel if row.status is Status.OK else f"{row.kernel} {row.status.value}"
    return f"{subject}: {row.message}" if row.message else ""


def memory_bound(row: Row) -> bool:
    """Whether this device is nearer to its limit in moving Q, K, V and the output than in computing with them.

    That is so where the problem's arithmetic intensity is below the device's (peak computing over peak bandwidth), and
    the quotient of the two shares is the quotient of the two intensities.
    """
    computing, moving = row.percent_of_peak, row.percent_of_bandwidth
    return computing is not None and moving is not None and moving > computing


@dataclass(frozen=True)
class Standing:
    """How a kernel does by the wall clock: median and interquartile range in milliseconds."""

    kernel: str
    median: float
    iqr: float


def lead(standings: Iterable[Standing]) -> str:
    """Return who is fastest and by how much, in one sentence on at least one standing."""
    return _answer_for_case(sorted(standings, key=lambda standing: standing.median))


def answer(groups: Sequence[CaseRows]) -> str:
    """Return who won and by how much, in one sentence about wall-clock medians of rows with status ``ok``.

    What failed or is wrong is named too. Of both directions there are two, a line each. What was stopped might have
    been the fastest: of a single case the sentence says so, of several it has no winner.
    """
    of_direction: dict[str, list[CaseRows]] = {}
    for group in groups:
        of_direction.setdefault(group.case.problem.direction, []).append(group)
    if len(of_direction) > 1:
        return "\n".join(f"{direction.capitalize()}: {answer(those)}" for direction, those in of_direction.items())
    return " ".join(filter(None, (_won(groups), _failures(groups))))


def _failures(groups: Sequence[CaseRows]) -> str:
    """Which kernels failed or are wrong, in a sentence each; of several cases in how many."""
    said = []
    for status, words in ((Status.FAILED, "failed"), (Status.WRONG, "is wrong")):
        rows = [row for group in groups for row in group.rows if row.status is status]
        for kernel, count in Counter(row.kernel for row in rows).items():
            if len(groups) > 1:
                said.append(f"{kernel} {words} in {_cases(count, len(groups))}.")
            else:
                why = next(row.message for row in rows if row.kernel == kernel)
                said.append(f"{kernel} {words}{': ' * bool(why)}{shortened(why, _MOST_OF_A_REASON)}.")
    return " ".join(said)


def _won(groups: Sequence[CaseRows]) -> str:
    stopped = sum(map(_stopped, groups))
    rankings = [ranking for group in groups if (ranking := _ranking(group))]
    if not rankings:
        return "Stopped before a kernel finished." if stopped else "No kernel finished with a right result."
    if len(groups) == 1:
        return _answer_for_stopped(rankings[0]) if stopped else _answer_for_case(rankings[0])
    whole = [ranking for group in groups if not _stopped(group) and (ranking := _ranking(group))]
    return _answer_for_sweep(whole, len(groups), stopped)


def _unrepeated(*parts: str | None) -> list[str]:
    """Drop what is unknown, and what the next part begins with anyway (``numpy · numpy 2.4``)."""
    known = [part for part in parts if part]
    return [part for part, after in zip(known, [*known[1:], ""], strict=True) if not after.startswith(part)]


def _stopped(group: CaseRows) -> bool:
    return any(row.status is Status.CANCELLED for row in group.rows)


def _ranking(group: CaseRows) -> list[Standing]:
    timed = [
        Standing(row.kernel, row.wall_ms_median, row.wall_ms_iqr or 0.0)
        for row in group.rows
        if row.status is Status.OK and row.wall_ms_median
    ]
    return sorted(timed, key=lambda standing: standing.median)


def _answer_for_case(ranking: list[Standing]) -> str:
    winner = ranking[0]
    best = winner.median
    if len(ranking) == 1:
        return f"{winner.kernel} took {duration(best)} (wall clock); there is no other result to compare it with."
    level = list(takewhile(lambda standing: _level(winner, standing), ranking))
    if len(level) > 1:
        kernels, times = _listed([one.kernel for one in level]), _listed([duration(one.median) for one in level])
        return f"{kernels} are level: {times}, closer than their spread (wall clock)."
    runner_up, *others = ranking[1:]
    leads = [f"{ratio(runner_up.median / best)} as fast as {runner_up.kernel}"]
    leads += [f"{ratio(other.median / best)} {other.kernel}" for other in others]
    wide = [other.kernel for other in ranking[1:] if _open(winner, other)]
    doubt = f"; {_listed(wide)} varied by more than that" if wide else ""
    return f"{winner.kernel} is fastest: {duration(best)}, {_listed(leads)} (wall clock){doubt}."


def _answer_for_stopped(finished: list[Standing]) -> str:
    if len(finished) == 1:
        return f"{finished[0].kernel} took {duration(finished[0].median)} (wall clock); no other kernel finished."
    return f"Of the kernels that finished, {_answer_for_case(finished)}"


def _answer_for_sweep(rankings: list[list[Standing]], cases: int, stopped: int) -> str:
    if not rankings:
        return "Stopped before all kernels of a case finished."
    if all(len(ranking) == 1 and ranking[0].kernel == rankings[0][0].kernel for ranking in rankings):
        return _answer_for_one(rankings, cases)
    clear = [ranking for ranking in rankings if not (ranking[1:] and _level(*ranking[:2]))]
    level = len(rankings) - len(clear)
    if not clear:
        return f"No kernel is clearly fastest: the best are level in {_cases(level, cases)} (wall clock)."
    (champion, count), *others = Counter(ranking[0].kernel for ranking in clear).most_common()
    won = [ranking for ranking in clear if ranking[0].kernel == champion and ranking[1:]]
    leads = [ranking[1].median / ranking[0].median for ranking in won]
    by = f", by {_span(leads, ratio)} over the next" if leads else ""
    rest = [f"; {kernel} in {number}" for kernel, number in others] + [f"; level in {level}"] * (level > 0)
    rest += [f"; {stopped} stopped"] * (stopped > 0)
    return f"{champion} is fastest in {_cases(count, cases)}{by}{''.join(rest)} (wall clock)."


def _answer_for_one(rankings: list[list[Standing]], cases: int) -> str:
    took = f"{rankings[0][0].kernel} took {_span([standing.median for (standing,) in rankings], duration)}"
    return f"{took} in {_cases(len(rankings), cases)} (wall clock); there is no other result to compare it with."


def _span(values: list[float], text: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys(text(value) for value in (min(values), max(values))))


def _cases(count: int, cases: int) -> str:
    if count < cases:
        return f"{count} of {cases} cases"
    return "both cases" if cases == 2 else f"all {cases} cases"


def _level(first: Standing, other: Standing) -> bool:
    """Whether two medians are within ``_NEAR`` of each other and closer than their spread."""
    return _open(first, other) and other.median <= (1 + _NEAR) * first.median


def _open(first: Standing, other: Standing) -> bool:
    """Whether two medians differ by no more than half the sum of their interquartile ranges."""
    return other.median - first.median <= (first.iqr + other.iqr) / 2


def _listed(words: Sequence[str]) -> str:
    return " and ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} and {words[-1]}"
