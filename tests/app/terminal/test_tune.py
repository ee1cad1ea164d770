"""``flashscope tune``: what it prints, keeps and writes, what it refuses, and Ctrl+C."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.terminal.tune import _answer, _table
from engine.devices.cpu import open_cpu
from engine.kernels import registry
from engine.measure.tuning import Trial, Tuning
from engine.problem.attention_problem import AttentionProblem
from engine.records.results import Status

Program = Callable[..., Any]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("FLASHSCOPE_TUNING", str(path))
    monkeypatch.setattr(registry, "installed_kernels", lambda: ("cpu-flash", "cpu-naive"))  # the quickest to tune
    return path


def test_the_winner_is_printed_stored_and_used(flashscope: Program, store: Path, tmp_path: Path) -> None:
    report = tmp_path / "tuned.csv"
    ended = flashscope(
        "tune", "--device", "cpu", "--head-dim", "8,16", "--no-causal", "--seconds", "0.3", "--csv", str(report)
    )
    assert ended.status == 0, ended.err
    assert ended.err == ""
    for head_dim in (8, 16):
        assert f"cpu-flash, head_dim {head_dim}, not causal" in ended.out
    assert "cpu-naive" not in ended.out
    with report.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["head_dim"] for row in rows} == {"8", "16"}
    assert [row["default"] for row in rows].count("true") == 2
    assert [row["best"] for row in rows].count("true") == 2
    assert all(row["status"] == "ok" and float(row["ms_median"]) > 0 for row in rows)
    with open_cpu(threads=1) as device:
        kept = {tuned.head_dim: dict(tuned.variant) for tuned in device.limits.tuned}
    assert kept.keys() == {8, 16}
    assert all(variant.keys() == {"rows", "keys", "edge_keys"} for variant in kept.values())


@pytest.mark.parametrize(
    ("other_ms", "best", "sentence", "default_marks"),
    [
        (1.02, 0, "the default, a, is the quickest", "default, quickest"),
        (0.98, 0, "the default, a, stays: b at 1.02× leads by no more than the spread or 1 %", "default, stays"),
        (0.5, 1, "b takes 50 % less time than the default, a", "default"),
    ],
)
def test_the_default_is_called_the_quickest_only_where_it_is(
    other_ms: float, best: int, sentence: str, default_marks: str
) -> None:
    trials = tuple(
        Trial(variant=name, status=Status.OK, median_ms=ms, iqr_ms=0.1, samples=9)
        for name, ms in (("a", 1.0), ("b", other_ms))
    )
    tuning = Tuning(kernel="k", problem=AttentionProblem(), trials=trials, best=best, tuned=None, complete=True)
    assert _answer(tuning).endswith(f": {sentence}")
    assert next(iter(_table(tuning).columns[-1].cells)) == default_marks


def test_both_kinds_of_mask_are_tuned_unless_one_is_named(flashscope: Program, store: Path) -> None:
    ended = flashscope("tune", "--device", "cpu", "--head-dim", "8", "--seconds", "0.2", "--quiet")
    assert (ended.status, ended.out) == (0, "")
    with open_cpu(threads=1) as device:
        assert [tuned.causal for tuned in device.limits.tuned] == [False, True]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--seconds", "0"], "--seconds"),
        (["--head-dim", "0"], "--head-dim"),
        (["--head-dim", "512"], "head_dim"),
        (["--dtype", "f64"], "dtype"),
        (["--device", "no such device"], "no such device"),
        (["--csv", "no/such/folder/x.csv"], "--csv"),
    ],
)
def test_bad_usage_is_one_sentence(flashscope: Program, store: Path, words: list[str], complaint: str) -> None:
    ended = flashscope("tune", *(["--device", "cpu"] if "--device" not in words else []), *words)
    assert ended.status == 2
    assert complaint in ended.err
    assert ended.err.count("\n") == 1
    assert ended.out == ""


def test_a_device_without_variants_is_refused(
    flashscope: Program, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "installed_kernels", lambda: ("cpu-naive",))
    ended = flashscope("tune", "--device", "cpu")
    assert ended.status == 2
    assert "no kernel has variants" in ended.err


def test_a_kernel_without_this_dtype_says_so(flashscope: Program, store: Path) -> None:
    ended = flashscope("tune", "--device", "cpu", "--dtype", "f16", "--no-causal", "--seconds", "0.2")
    assert ended.status == 1
    assert "float32" in ended.err
    assert not store.exists()


def test_a_broken_store_is_told_of_and_written_anew(flashscope: Program, store: Path) -> None:
    store.write_text("nonsense")
    ended = flashscope("tune", "--device", "cpu", "--head-dim", "8", "--no-causal", "--seconds", "0.2")
    assert ended.status == 0
    assert "ignored" in ended.err
    with open_cpu(threads=1) as device:
        assert len(device.limits.tuned) == 1


def test_a_store_that_cannot_be_written_is_told_of(
    flashscope: Program, tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLASHSCOPE_TUNING", str(tmp_path / "file" / "tuning.json"))
    ended = flashscope("tune", "--device", "cpu", "--head-dim", "8", "--no-causal", "--seconds", "0.2")
    assert ended.status == 1
    assert "could not be written" in ended.err


def test_ctrl_c_keeps_what_was_learned(tmp_path: Path) -> None:
    """The first kind of problem is done when its answer is printed; the interrupt ends the second."""
    store = tmp_path / "tuning.json"
    words = ["tune", "--device", "cpu", "--head-dim", "8,256", "--no-causal", "--seconds", "1"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "app", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"FLASHSCOPE_TUNING": str(store)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "head_dim 8" in line:
                process.send_signal(signal.SIGINT)
                break
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert '"head_dim": 8' in store.read_text()
