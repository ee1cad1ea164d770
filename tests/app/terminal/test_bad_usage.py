"""What cannot be done gets one plain sentence and exit status 2, before anything is run or written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Program = Callable[..., Any]


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(*arguments: object) -> None:
        raise AssertionError("the session was started")

    monkeypatch.setattr("engine.session.session.run", run)
    monkeypatch.chdir(tmp_path)


def refused(ended: Any, *words: str) -> None:
    """Assert that the program printed one sentence that holds these words, and nothing else, and wrote no file."""
    assert ended.status == 2
    assert ended.out == ""
    assert ended.err.count("\n") == 1
    assert ended.err.endswith("\n")
    assert not {"Usage:", "Traceback", "│", "╭"} & set(ended.err.split())
    for word in words:
        assert word in ended.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--kernels nope", ("nope", "gpu-flash, gpu-naive, cpu-flash, cpu-naive")),
        ("--kernels cpu-flash,cpu-flash", ("cpu-flash 2 times",)),
        ("--kernels cpu-flash,", ("empty name",)),
        ("--kernels ,", ("empty name",)),
        ("--dtype f64", ("f32 or f16", "f64")),
        ("--dtype F32", ("f32 or f16", "F32")),
        ("--direction sideways", ("--direction must be forward, backward or both", "sideways")),
        ("--direction=", ("--direction must be",)),
        ("--direction both --seq 1..600+1", ("600 × 2 = 1200 cases",)),
        ("--seq abc", ("--seq", "abc")),
        ("--seq 512..128*2", ("--seq", "128", "512")),
        ("--heads 16..64*1", ("--heads", "at least 2")),
        ("--seq 0", ("--seq", "at least 1")),
        ("--batch -1", ("--batch", "-1")),
        ("--head-dim 300", ("256", "300")),
        ("--head-dim-v 300", ("256", "300")),
        ("--head-dim 0", ("--head-dim",)),
        ("--heads 3 --kv-heads 2", ("3 and 2",)),
        ("--heads 4,6 --kv-heads 4", ("6 and 4",)),
        ("--kv-heads 0", ("kv_heads", "0")),
        ("--seq-k -5", ("seq_k", "-5")),
        ("--seq 999999999999", ("too large",)),
        ("--seq 1..500+1 --heads 1..3+1", ("1500 cases",)),
        ("--seconds 0", ("--seconds", "0")),
        ("--seconds -1", ("--seconds", "-1")),
        ("--seconds nan", ("--seconds", "nan")),
        ("--seconds inf", ("--seconds", "inf")),
        ("--seconds x", ("--seconds",)),
        ("--samples 0", ("--samples", "0")),
        ("--samples 1.5", ("--samples",)),
        ("--min-samples 0", ("--min-samples",)),
        ("--threads 0", ("--threads",)),
        ("--threads 100000", ("1024", "100000")),
        ("--seed -1", ("--seed",)),
        ("--seed 99999999999999999999", ("--seed",)),
        ("--memory-limit 8QiB", ("8QiB", "8GiB")),
        ("--memory-limit 0", ("--memory-limit",)),
        ("--memory-limit -1G", ("--memory-limit",)),
        ("--memory-limit 0.1B", ("--memory-limit",)),
        ("--window 0", ("window", "0")),
        ("--window 5 --no-causal", ("--window 5", "--no-causal")),
        ("--softcap 0", ("softcap", "0")),
        ("--softcap nan", ("softcap", "nan")),
        ("--scale inf", ("scale", "inf")),
        ("--device nope --kernels cpu-flash", ("nope", "cpu")),
        ("--device 99", ("99",)),
        ("--device=", ("device",)),
        ("--input missing.npz", ("missing.npz",)),
        ("--input .", (".",)),
        ("--csv missing/out.csv", ("--csv", "missing", "does not exist")),
        ("--json .", ("--json", "folder")),
        ("--csv same --json same", ("--csv", "--json", "same")),
        ("--csv same --png ./same", ("--csv", "--png")),
        ("--png race.svg", ("--png", "race.svg", ".png")),
        ("--png RACE.JPG", ("--png", "RACE.JPG", ".png")),
        ("--nonsense", ("--nonsense",)),
        ("--seq", ("--seq",)),
        ("--causal=yes", ("--causal",)),
        ("surplus", ("surplus",)),
    ],
)
def test_bad_options(flashscope: Program, tmp_path: Path, options: str, words: tuple[str, ...]) -> None:
    refused(flashscope("run", *options.split()), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("label", ["x" * 201, "two\nlines", "\x1b[31m"])
def test_bad_labels(flashscope: Program, label: str) -> None:
    refused(flashscope("run", "--label", label), "--label")


@pytest.mark.parametrize("name", ["batch", "heads", "kv-heads", "seq", "seq-k", "head-dim", "head-dim-v"])
def test_a_shape_clashes_with_an_input(flashscope: Program, sample_file: Path, name: str) -> None:
    refused(flashscope("run", "--input", sample_file, f"--{name}", "4"), f"--{name}", "--input")


def test_a_pickle_is_refused(flashscope: Program, tmp_path: Path) -> None:
    np.savez(tmp_path / "pickled.npz", q=np.array([{"a": 1}], dtype=object))
    refused(flashscope("run", "--input", "pickled.npz"), "pickled.npz")


def test_shapes_that_clash_in_a_file(flashscope: Program, tmp_path: Path) -> None:
    q, k = np.zeros((1, 12, 512, 32), np.float32), np.zeros((1, 12, 100, 16), np.float32)
    np.savez(tmp_path / "clash.npz", q=q, k=k, v=k)
    refused(flashscope("run", "--input", "clash.npz"), "[1, 12, 512, 32]", "[1, 12, 100, 16]")


def test_an_output_must_not_replace_the_input(flashscope: Program, sample_file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tensors.npz"
    copy.write_bytes(sample_file.read_bytes())
    refused(flashscope("run", "--input", "tensors.npz", "--json", copy), "--json", "--input")
    link = tmp_path / "link.csv"
    link.symlink_to(copy)
    refused(flashscope("run", "--input", "tensors.npz", "--csv", link), "--csv", "--input")
    assert copy.read_bytes() == sample_file.read_bytes()


def test_a_folder_that_cannot_be_written(flashscope: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    refused(flashscope("run", "--csv", tmp_path / "out.csv"), "--csv", "Permission denied")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("not json", ("saved.json",)),
        ("{}", ("saved.json",)),
        ('{"schema": 999}', ("saved.json", "newer")),
        (None, ("saved.json", "neither a command", "run, devices, doctor")),
    ],
)
@pytest.mark.usefixtures("no_display")
def test_files_that_are_no_runs(
    flashscope: Program, tmp_path: Path, content: str | None, words: tuple[str, ...]
) -> None:
    if content is not None:
        (tmp_path / "saved.json").write_text(content)
    refused(flashscope("saved.json"), *words)


def test_a_folder_is_no_run(flashscope: Program, tmp_path: Path) -> None:
    refused(flashscope(tmp_path), "directory")


@pytest.mark.parametrize("words", [("--nonsense",), ("devices", "surplus"), ("doctor", "--nonsense")])
def test_bad_words_elsewhere(flashscope: Program, words: tuple[str, ...]) -> None:
    refused(flashscope(*words), words[-1])


def test_from_a_shell_in_a_bare_environment(tmp_path: Path) -> None:
    """No runtime folder, no UTF-8, GPUs listed for the sentence: still one line and nothing else."""
    bare = {name: value for name, value in os.environ.items() if name not in ("XDG_RUNTIME_DIR", "PYTHONUTF8")}
    words = [sys.executable, "-m", "app", "run", "--device", "nope", "--kernels", "cpu-flash", "--csv", "out.csv"]
    root = Path(__file__).parent.parent.parent.parent
    environment = bare | {"PYTHONPATH": str(root), "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("device 'nope' is unknown")
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_display")
def test_no_window_without_a_display(flashscope: Program, tmp_path: Path) -> None:
    refused(flashscope(), "no window can open", "DISPLAY", "flashscope run")
    (tmp_path / "q.npz").write_bytes(b"")
    refused(flashscope("q.npz"), "q.npz holds tensors", "--input q.npz")


def test_no_window_where_the_display_does_not_answer(flashscope: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QT_QPA_PLATFORM", "xcb")
    monkeypatch.setenv("DISPLAY", ":9317")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    refused(flashscope(), "no window can open", "the display :9317 does not answer")
