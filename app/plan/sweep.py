"""Sweeps: several values of one whole number written as text, and every combination of several sweeps."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

MAX_VALUES = 1000
_DIGITS = 15  # more is no size of anything, and Python refuses to parse thousands of digits
_NUMBER = re.compile(rf"[+-]?[0-9]{{1,{_DIGITS}}}")
_RANGE = re.compile(rf"([+-]?[0-9]{{1,{_DIGITS}}})\.\.([+-]?[0-9]{{1,{_DIGITS}}})(?:([*+])(-?[0-9]{{1,{_DIGITS}}}))?")


def parse(text: str) -> tuple[int, ...]:
    """Return the values that a sweep names, in the order written, each once.

    A sweep is one value (``512``), several (``512,1024``), a range that multiplies (``256..8192*2``) or one that adds
    (``64..256+64``), both ends included; commas join any of these. Raises ValueError with one sentence for anything
    else, for values below 1, and for more than ``MAX_VALUES`` values.
    """
    values = tuple(dict.fromkeys(itertools.chain.from_iterable(_part(part.strip(), text) for part in text.split(","))))
    if len(values) > MAX_VALUES:
        raise ValueError(f"{text!r} names {len(values)} values, and a sweep may hold at most {MAX_VALUES}")
    return values


def combinations(sweeps: Mapping[str, Sequence[int]]) -> tuple[dict[str, int], ...]:
    """Return every combination of the named sweeps' values, the last name varying fastest.

    Raises ValueError with one sentence when there are more than ``MAX_VALUES`` of them.
    """
    count = math.prod(len(values) for values in sweeps.values())
    if count > MAX_VALUES:
        sizes = " × ".join(str(len(values)) for values in sweeps.values() if len(values) > 1)
        raise ValueError(f"the sweeps multiply to {sizes} = {count} cases, and a session may hold at most {MAX_VALUES}")
    return tuple(dict(zip(sweeps, values, strict=True)) for values in itertools.product(*sweeps.values()))


def _part(part: str, text: str) -> Iterator[int]:
    """Yield the values of one piece between commas; at most one beyond ``MAX_VALUES``."""
    if _NUMBER.fullmatch(part):
        yield _at_least_one(int(part), text)
        return
    match = _RANGE.fullmatch(part)
    if match is None:
        raise ValueError(f"{text!r} is not a sweep; write it like 512, 512,1024, 256..8192*2 or 64..256+64")
    first, last = (_at_least_one(int(match[end]), text) for end in (1, 2))
    if match[3] is None:
        raise ValueError(f"the range {part!r} needs a step; write it like {first}..{last}*2 or {first}..{last}+{first}")
    multiplies, step = match[3] == "*", int(match[4])
    if multiplies and step < 2:
        raise ValueError(f"the range {part!r} must multiply by at least 2, got {step}")
    if step < 1:
        raise ValueError(f"the range {part!r} must step by at least 1, got {step}")
    if last < first:
        raise ValueError(f"the range {part!r} ends at {last}, below its start {first}")
    value = first
    for _ in range(MAX_VALUES + 1):
        if value > last:
            return
        yield value
        value = value * step if multiplies else value + step
    raise ValueError(f"the range {part!r} names more than {MAX_VALUES} values")


def _at_least_one(value: int, text: str) -> int:
    if value < 1:
        raise ValueError(f"every value of {text!r} must be at least 1, got {value}")
    return value
