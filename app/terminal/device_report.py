"""The terminal's answers to ``devices`` and ``doctor``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from app.report.units import size
from engine.devices.device import DeviceInfo
from engine.devices.doctor import Check

_MARKS = {"ok": ("✓ ok     ", "green"), "warn": ("! warn   ", "yellow"), "missing": ("✗ missing", "bold red")}


def print_devices(console: Console, gpus: Sequence[DeviceInfo], cpu: DeviceInfo, chosen: DeviceInfo | str) -> None:
    """Print every device; ``chosen`` is the one that ``auto`` takes, or the sentence that says why there is none."""
    for device in (*gpus, cpu):
        index = "cpu" if device.index is None else str(device.index)
        auto = "   what --device auto takes" if device == chosen else ""
        _print(console, Text.assemble((f"{index:>4}", "bold cyan"), "  ", (device.name, "bold"), (auto, "green")))
        for topic, text in _facts(device):
            first, *others = textwrap.wrap(text, max(20, console.width - 16), break_on_hyphens=False)
            _print(console, Text.assemble((f"      {topic:<10}", "dim"), first))
            for line in others:
                _print(console, Text(f"{'':16}{line}"))
    if isinstance(chosen, str):
        _print(console, Text(f"\nGPU kernels will be skipped: {chosen}.", style="yellow"))


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    """Print the doctor's findings, each with the command that mends it."""
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark, style = _MARKS[check.status]
        _print(console, Text.assemble((mark, style), f"  {check.name:<{width}}  {check.detail}"))
        if check.mend:
            _print(console, Text(f"{'':{width + 13}}{check.mend}", style="bold"))
    missing = [check.name for check in checks if check.status == "missing"]
    summary = f"Missing: {', '.join(missing)}." if missing else "Nothing that FlashScope needs is missing."
    _print(console, Text(f"\n{summary}", style="bold"))


def _print(console: Console, text: Text) -> None:
    """Print a line as it is: a command that is broken over two lines cannot be copied."""
    console.print(text, soft_wrap=True)


def _facts(device: DeviceInfo) -> Iterable[tuple[str, str]]:
    limits = device.limits
    software = " (runs on the processor, so it says little of a GPU)" if device.adapter_type == "software" else ""
    yield "type", f"{device.adapter_type}{software}"
    yield "backend", device.backend
    yield "driver", device.driver or "unknown"
    if device.index is None:
        memory, cache = size(limits.memory_bytes), size(limits.l2_bytes)
        yield "limits", f"{limits.threads} threads, {memory} for a kernel, {cache} of level-2 cache"
        return
    yield (
        "limits",
        (
            f"binding {size(limits.binding_bytes)}, buffer {size(limits.buffer_bytes)}, "
            f"workgroup memory {size(limits.workgroup_bytes)}, {limits.workgroup_threads:,} threads a workgroup, "
            f"{limits.workgroups_per_dimension:,} workgroups a dimension"
        ),
    )
    yield "features", ", ".join(device.features) or "none"
