"""The program as people start it: help, devices, doctor, the shipped sample end to end, and Ctrl+C."""

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

import engine
from engine.kernels.registry import kernel_names

Program = Callable[..., Any]
ROOT = Path(__file__).parent.parent.parent
QT = ("PySide6", "shiboken6", "pyqtgraph")


def start(*words: object, code: str | None = None, **options: Any) -> subprocess.Popen[str]:
    """Start the program, or ``code`` in its place, in a process of its own."""
    begin = ["-c", code] if code else ["-m", "app"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, *begin, *map(str, words)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_help_and_version(flashscope: Program) -> None:
    whole = flashscope("--help")
    assert (whole.status, whole.err) == (0, "")
    for command in ("run", "devices", "doctor"):
        assert command in whole.out
    assert flashscope("--version").out == f"flashscope {engine.__version__}\n"
    helped = flashscope("run", "--help")
    assert (helped.status, helped.err) == (0, "")
    assert "256..8192*2" in helped.out


def test_kernels_are_listed(flashscope: Program) -> None:
    listed = flashscope("run", "--list-kernels")
    assert listed.status == 0
    names = [line.split()[0] for line in listed.out.splitlines()]
    assert names[:4] == ["gpu-flash", "gpu-naive", "cpu-flash", "cpu-naive"]
    assert tuple(names) == kernel_names()
    assert "not installed" not in listed.out.partition("cpu-flash-jit")[0]


def test_an_optional_kernel_is_listed_with_what_installs_it(
    flashscope: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.kernels.base.find_spec", lambda package: None)
    (line,) = (line for line in flashscope("run", "--list-kernels").out.splitlines() if line.startswith("torch-sdpa "))
    assert line.endswith("(not installed: pip install flashscope[torch])")


def test_an_optional_kernel_that_is_not_installed_is_skipped(
    flashscope: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.kernels.base.find_spec", lambda package: None)
    ended = flashscope("run", "--kernels", "cpu-naive,torch-sdpa", "--seq", "16", "--heads", "1", "--samples", "1")
    assert ended.status == 0
    assert "torch-sdpa skipped: not installed: pip install flashscope[torch]" in ended.out


def test_devices(flashscope: Program) -> None:
    listed = flashscope("devices")
    assert listed.status == 0
    assert "software" in listed.out
    assert "vulkan" in listed.out
    assert listed.out.count("what --device auto takes") == 1
    assert "numpy" in listed.out
    assert "MiB" in listed.out


def test_devices_without_a_gpu(flashscope: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.devices.gpu.device.list_devices", list)
    listed = flashscope("devices")
    assert listed.status == 0
    assert "GPU kernels will be skipped: no Vulkan, Metal or D3D12 adapter was found; install" in listed.out


@pytest.mark.parametrize(("status", "exit_status"), [("ok", 0), ("warn", 0), ("missing", 1)])
def test_doctor(flashscope: Program, monkeypatch: pytest.MonkeyPatch, status: Any, exit_status: int) -> None:
    from engine.devices.doctor import Check

    mend = "sudo apt-get install " + " ".join(f"package-{n}" for n in range(20))
    monkeypatch.setattr(
        "engine.devices.doctor.doctor", lambda: [Check("Python", "ok", "3.11"), Check("Qt", status, "x", mend)]
    )
    said = flashscope("doctor")
    assert said.status == exit_status
    assert any(line.strip() == mend for line in said.out.splitlines())  # whole, to be copied
    assert ("Missing: Qt." in said.out) == (status == "missing")


@pytest.mark.usefixtures("no_display")
def test_the_sample_end_to_end(flashscope: Program, sample_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    words = ("--kernels", "cpu-flash,cpu-naive", "--input", sample_file, "--seconds", "0.2", "--csv", out)
    ended = flashscope("run", *words, "--png", tmp_path / "out.png", "--json", tmp_path / "out.json")
    assert (ended.status, ended.err) == (0, "")
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["kernel"], row["status"], row["verified"]) for row in rows] == [
        ("cpu-flash", "ok", "true"),
        ("cpu-naive", "ok", "true"),
    ]
    assert all(float(row["wall_ms_median"]) > 0 and float(row["max_abs_err"]) <= 4e-6 for row in rows)
    assert (tmp_path / "out.png").stat().st_size > 10_000
    assert flashscope(tmp_path / "out.json").out.splitlines()[0] == ended.out.splitlines()[0]


@pytest.mark.usefixtures("no_display")
def test_both_directions_end_to_end(flashscope: Program, tmp_path: Path) -> None:
    out, saved = tmp_path / "out.csv", tmp_path / "out.json"
    size = ("--heads", "2", "--seq", "32", "--head-dim", "16", "--causal", "--samples", "3")
    process = start("run", "--direction", "both", *size, "--csv", out, "--json", saved)
    printed, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert {"forward", "backward"} < set(printed.splitlines())  # above the rows of each case
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    kernels = ("gpu-flash", "gpu-naive", "cpu-flash", "cpu-naive")
    assert [(row["direction"], row["kernel"]) for row in rows] == [
        (direction, kernel) for direction in ("forward", "backward") for kernel in kernels
    ]
    assert {(row["status"], row["verified"], row["seed"], row["recorded_output_err"]) for row in rows} == {
        ("ok", "true", "0", "")
    }
    naive = [float(row["wall_ms_median"]) for row in rows if row["kernel"] == "cpu-naive"]
    flash = [row for row in rows if row["kernel"] == "cpu-flash"]
    for row, wall in zip(flash, naive, strict=True):  # like with like: each with the naive kernel of its own case
        assert float(row["speedup_vs_naive"]) == pytest.approx(wall / float(row["wall_ms_median"]))
    assert flashscope(saved).out.splitlines()[0] == printed.splitlines()[0]


@pytest.mark.parametrize(("more", "loaded"), [((), False), (("--png", "out.png"), True)])
def test_qt_is_loaded_for_the_picture_alone(tmp_path: Path, more: tuple[str, ...], loaded: bool) -> None:
    code = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print('QT', any(name in sys.modules for name in {QT})))\n"
        "from app.__main__ import main\n"
        "main(sys.argv[1:])"
    )
    words = ("run", "--kernels", "cpu-flash", "--seq", "32", "--seconds", "0.1", *more)
    out, err = start(*words, code=code, cwd=tmp_path).communicate()
    assert err == ""
    assert out.splitlines()[-1] == f"QT {loaded}"
    assert "\x1b" not in out


LONG = ("run", "--kernels", "cpu-naive,cpu-flash", "--seq", "1024", "--heads", "4", "--threads", "1", "--seconds", "60")

# The program, with a line printed whenever samples arrive, and SIGINT ignored as in the background of a script.
WATCHED = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from app.__main__ import main
from app.terminal.progress import LiveProgress
follow = LiveProgress.__call__
def watched(self, event):
    print(type(event).__name__, flush=True)
    follow(self, event)
LiveProgress.__call__ = watched
main(sys.argv[1:])
"""


def until(program: subprocess.Popen[str], event: str) -> None:
    """Read what the program prints up to a line."""
    assert program.stdout is not None
    assert any(line.strip() == event for line in program.stdout), program.communicate()[1]


@pytest.mark.parametrize(("number", "exit_status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_race_started_in_the_background(tmp_path: Path, number: int, exit_status: int) -> None:
    program = start(*LONG, "--csv", "out.csv", code=WATCHED, cwd=tmp_path)
    until(program, "SampleBatch")
    program.send_signal(number)
    out, err = program.communicate(timeout=30)
    assert (program.returncode, err) == (exit_status, "")
    assert "SessionFinished" in out
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["kernel"] for row in rows] == ["cpu-naive", "cpu-flash"]
    assert {row["status"] for row in rows} <= {"ok", "cancelled"}
    assert "cancelled" in {row["status"] for row in rows}


# A session that will not stop when asked.
STUBBORN = """
import sys, threading
from engine.session import session
def run(plan, emit, should_stop):
    print('running', flush=True)
    while not should_stop():
        threading.Event().wait(0.01)
    print('asked', flush=True)
    threading.Event().wait()
session.run = run
from app.__main__ import main
main(sys.argv[1:])
"""


def test_a_second_ctrl_c_insists(tmp_path: Path) -> None:
    program = start("run", "--csv", "out.csv", code=STUBBORN, cwd=tmp_path)
    until(program, "running")
    program.send_signal(signal.SIGINT)
    until(program, "asked")
    program.send_signal(signal.SIGINT)
    assert program.wait(timeout=30) == 130
    assert (tmp_path / "out.csv").read_text().count("\n") == 1  # a header, and the rows so far: none
    program.communicate()


@pytest.mark.parametrize(
    ("redirect", "status", "said"),
    [
        (">&-", 0, ""),
        ("> /dev/full", 1, "standard output cannot be written: No space left on device\n"),
        ("| head -1 > /dev/null; exit ${PIPESTATUS[0]}", None, ""),
        ("2>&- > /dev/null", 0, ""),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the redirections are those of a Linux shell")
def test_the_files_are_written_wherever_standard_output_leads(
    tmp_path: Path, redirect: str, status: int | None, said: str
) -> None:
    csv = tmp_path / "race.csv"
    command = f"{sys.executable} -m app run --kernels cpu-naive --seq 32 --samples 1 --csv {csv} {redirect}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == said
    assert done.returncode == status if status is not None else done.returncode in (0, 141)
    assert csv.read_text().startswith("run_id")
