"""Saved runs on the terminal, where there is no display for a window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from app.plan.usage import TENSOR_ENDINGS, UsageError
from app.report.outcome import by_case
from app.terminal.console import console
from app.terminal.table import print_report
from engine.storage import run_file


def print_runs(paths: Sequence[str]) -> None:
    """Print the result of every saved run. Raises UsageError, before any is printed, for a file that is none."""
    found = []
    for path in paths:
        if Path(path).suffix.lower() in TENSOR_ENDINGS:
            raise UsageError(f"{path} holds tensors; without a window race them with `flashscope run --input {path}`")
        try:
            run = run_file.load(path)
            found.append((path, by_case(run.plan, run.results)))
        except OSError as error:
            raise UsageError(f"{path} could not be read: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(str(error)) from error
    out = console()
    for path, groups in found:
        if len(found) > 1:
            out.rule(path)
        print_report(out, groups)
