"""Sweeps: what their text means, and what every malformed one is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.plan.sweep import MAX_VALUES, combinations, parse


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("512", (512,)),
        (" 512 , 1024 ", (512, 1024)),
        ("1024,512", (1024, 512)),
        ("512,512", (512,)),
        ("256..8192*2", (256, 512, 1024, 2048, 4096, 8192)),
        ("64..256+64", (64, 128, 192, 256)),
        ("64..250+64", (64, 128, 192)),
        ("100..1000*3", (100, 300, 900)),
        ("128..128*2", (128,)),
        ("1..4+1,3..5+1,1000", (1, 2, 3, 4, 5, 1000)),
    ],
)
def test_values(text: str, values: tuple[int, ...]) -> None:
    assert parse(text) == values


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a sweep"),
        ("abc", "not a sweep"),
        ("5.5", "not a sweep"),
        ("1,,2", "not a sweep"),
        ("1,", "not a sweep"),
        ("512..", "not a sweep"),
        ("1..2..3", "not a sweep"),
        ("1..8*2+1", "not a sweep"),
        ("1_000", "not a sweep"),
        ("١٢", "not a sweep"),
        ("9" * 5000, "not a sweep"),
        ("0", "at least 1, got 0"),
        ("-4", "at least 1, got -4"),
        ("0..8*2", "at least 1, got 0"),
        ("-8..8+4", "at least 1, got -8"),
        ("512..128*2", "ends at 128, below its start 512"),
        ("16..64*1", "multiply by at least 2, got 1"),
        ("16..64*0", "multiply by at least 2, got 0"),
        ("16..64*-2", "multiply by at least 2, got -2"),
        ("16..64+0", "step by at least 1, got 0"),
        ("16..64+-1", "step by at least 1, got -1"),
        ("16..64", "needs a step"),
        ("1..999999999999999+1", f"more than {MAX_VALUES} values"),
        ("1..600+1,601..1200+1", f"at most {MAX_VALUES}"),
    ],
)
def test_malformed(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(text)


@given(st.text(alphabet="0123456789.,*+- ab", max_size=30))
def test_any_text_gives_sound_values_or_one_sentence(text: str) -> None:
    try:
        values = parse(text)
    except ValueError as error:
        values, sentence = (1,), str(error)
    else:
        sentence = "fine"
    assert "\n" not in sentence
    assert 1 <= len(values) <= MAX_VALUES
    assert len(set(values)) == len(values)
    assert min(values) >= 1


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_range_that_adds_is_a_range(first: int, length: int, step: int) -> None:
    last = first + min(length, step * (MAX_VALUES - 1))
    assert parse(f"{first}..{last}+{step}") == tuple(range(first, last + 1, step))


@given(st.integers(1, 1000), st.integers(2, 30), st.integers(0, 8))
def test_a_range_that_multiplies_ends_at_its_last_power(first: int, factor: int, count: int) -> None:
    powers = tuple(first * factor**n for n in range(count + 1))
    assert parse(f"{first}..{powers[-1]}*{factor}") == powers


def test_combinations_multiply_with_the_last_name_fastest() -> None:
    assert combinations({"a": (1, 2), "b": (3, 4)}) == (
        {"a": 1, "b": 3},
        {"a": 1, "b": 4},
        {"a": 2, "b": 3},
        {"a": 2, "b": 4},
    )
    assert combinations({}) == ({},)


def test_too_many_combinations() -> None:
    with pytest.raises(ValueError, match=r"40 × 30 = 1200 cases"):
        combinations({"a": range(1, 41), "b": range(1, 31), "c": (1,)})
