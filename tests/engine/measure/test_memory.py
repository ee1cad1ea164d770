"""Memory is counted, not guessed."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from engine.measure import memory

MIB = 1 << 20


def test_the_traced_peak_is_what_was_held_at_once() -> None:
    with memory.traced() as trace:
        first = np.ones(4 * MIB, np.uint8)
        del first
        second = np.ones(6 * MIB, np.uint8)
        del second
    assert trace.peak_bytes == pytest.approx(6 * MIB, abs=64 << 10)
    assert not tracemalloc.is_tracing()


def test_tracing_ends_after_an_exception_and_keeps_the_peak() -> None:
    def kernel() -> NoReturn:
        _ = np.ones(3 * MIB, np.uint8)
        raise RuntimeError("kernel")

    with pytest.raises(RuntimeError, match="kernel"), memory.traced() as trace:
        kernel()
    assert trace.peak_bytes >= 3 * MIB
    assert not tracemalloc.is_tracing()


def test_tracing_within_tracing_counts_its_own_and_leaves_the_other_on() -> None:
    tracemalloc.start()
    try:
        before = np.ones(8 * MIB, np.uint8)
        peak_before = np.ones(8 * MIB, np.uint8)
        del peak_before
        with memory.traced() as trace:
            _ = np.ones(2 * MIB, np.uint8)
        assert trace.peak_bytes == pytest.approx(2 * MIB, abs=64 << 10)
        assert tracemalloc.is_tracing()
        del before
    finally:
        tracemalloc.stop()


def test_the_high_water_mark_holds_what_has_been_freed() -> None:
    memory.reset_high_water()
    block = np.ones(64 * MIB, np.uint8)
    held = memory.resident_bytes()
    del block
    mark = memory.high_water_bytes()
    assert mark is not None
    assert mark >= held - MIB >= 63 * MIB


def test_a_system_that_forbids_the_reset_or_tells_nothing_is_tolerated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path)  # a folder: cannot be written
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "none")
    memory.reset_high_water()
    mark = memory.high_water_bytes()
    assert mark is not None
    assert mark > MIB


def test_the_mark_is_read_from_the_systems_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, refs = tmp_path / "status", tmp_path / "clear_refs"
    status.write_text("Name:\tpython\nVmHWM:\t   1234 kB\nVmRSS:\t 1 kB\n", encoding="utf-8")
    monkeypatch.setattr(memory, "_STATUS", status)
    monkeypatch.setattr(memory, "_CLEAR_REFS", refs)
    memory.reset_high_water()
    assert refs.read_bytes() == b"5"
    assert memory.high_water_bytes() == 1234 * 1024
