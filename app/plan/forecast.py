"""What a plan will take, told before it runs: each kernel's memory against its limit, and how long it may last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from app.report.outcome import distinct
from engine.devices.cuda import DEFAULT_MEMORY_BYTES
from engine.devices.device import DeviceInfo, Limits
from engine.kernels import registry
from engine.measure.sampler import SHORTEST_S, WARM_UP_S
from engine.problem.attention_problem import AttentionProblem
from engine.records.plan import Case, Plan

# Rates that a first guess goes by, in GFLOP/s: of a thread, and of a GPU. What was measured takes their place.
_THREAD_RATE, _SOFTWARE_THREAD_RATE, _GPU_RATE = 15.0, 0.5, 500.0
_COMPILE_S = 0.3  # shaders, buffers and upload
_REFERENCE_S = 0.3  # the float64 check of a case; it is bounded, but backward takes at least one group of heads whole
_REFERENCE_RATE = 2e7  # of its scores, in a second
_PEAKS_S = 0.3  # the device's peak, measured once


@dataclass(frozen=True)
class Machine:
    """What there is to run on. ``gpu`` is the device that GPU kernels get, None where ``no_gpu`` says why, if known.

    ``free_bytes`` is the machine's free memory; ``rates`` are GFLOP/s as measured before, by kernel and direction.
    """

    cpu: Limits
    free_bytes: int
    gpu: DeviceInfo | None = None
    no_gpu: str = "no GPU was found"
    rates: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def rate(self, kernel: str, direction: str) -> float | None:
        """Return what a kernel was measured to do: in this direction, else in the other; None where in neither."""
        of_kernel = {way: rate for (name, way), rate in self.rates.items() if name == kernel}
        return of_kernel.get(direction) or next(iter(of_kernel.values()), None)

    def limits(self, kind: str, plan: Plan, case: Case) -> Limits | None:
        """Return what a kernel for such a device (``cpu``, ``gpu``, ``cuda``) may use, None where there is none."""
        half = self.free_bytes // 2
        if kind == "cpu":
            memory = half if plan.memory_limit is None else plan.memory_limit
            return msgspec.structs.replace(self.cpu, threads=case.threads or self.cpu.threads, memory_bytes=memory)
        if kind == "cuda" and plan.device != "cpu":  # whether there is such a card only the engine can find out
            return Limits(memory_bytes=plan.memory_limit or DEFAULT_MEMORY_BYTES, f16=True)
        if self.gpu is None or kind != "gpu":
            return None
        limits = self.gpu.limits
        memory = min(limits.memory_bytes, half) if limits.software else limits.memory_bytes
        return msgspec.structs.replace(limits, memory_bytes=plan.memory_limit or memory)


@dataclass(frozen=True)
class Footprint:
    """A kernel's predicted memory over all cases in bytes, the limit it is held against, and why cases cannot run.

    ``least`` and ``most`` are None, and ``limit`` is 0, where there is no device to predict for; ``reason`` is that of
    the first case that cannot run, empty while the devices are not known, and ``where`` says which of several cannot.
    """

    kernel: str
    least: int | None
    most: int | None
    limit: int
    cases: int
    refused: int
    reason: str = ""
    where: str = ""

    @property
    def runs(self) -> bool:
        """Whether at least one case can run."""
        return self.refused < self.cases


def footprint(kernel: str, plan: Plan, machine: Machine) -> Footprint:
    """Predict a kernel's memory in every case of the plan."""
    kind = registry.get_kernel(kernel).device_kind
    sizes: list[int] = []
    refusals: list[tuple[Case, str]] = []
    limit = 0
    for case in plan.cases:
        limits = machine.limits(kind, plan, case)
        if limits is None:
            return Footprint(kernel, None, None, 0, len(plan.cases), len(plan.cases), machine.no_gpu)
        limit = limits.memory_bytes
        nbytes, reason = _predicted(kernel, case.problem, limits)
        sizes.append(nbytes)
        if reason is not None:
            refusals.append((case, reason))
    reason = refusals[0][1] if refusals else ""
    where = _where([case for case, _ in refusals], plan.cases)
    return Footprint(kernel, min(sizes), max(sizes), limit, len(plan.cases), len(refusals), reason, where)


def seconds(plan: Plan, machine: Machine) -> float:
    """Return about how long the whole plan takes at most: sampling may end sooner where the spread is small."""
    total = 0.0
    for case in plan.cases:
        turns = [_turn_seconds(kernel, plan, case, machine) for kernel in plan.kernels]
        total += sum(turns) + (_reference_seconds(case.problem) if any(turns) else 0.0)
    kinds = {registry.get_kernel(kernel).device_kind for kernel in plan.kernels}
    return total + _PEAKS_S * len(kinds) if total else 0.0


@lru_cache(maxsize=8192)
def _predicted(kernel: str, problem: AttentionProblem, limits: Limits) -> tuple[int, str | None]:
    found = registry.get_kernel(kernel)
    return found.predict(problem, limits), found.refusal(problem, limits)


@lru_cache(maxsize=8192)
def _flops(problem: AttentionProblem) -> int:
    return problem.flops()


def _where(refused: Sequence[Case], cases: Sequence[Case]) -> str:
    """Return how many of several cases are refused, and what sets the first of them apart; empty of a single case."""
    if not refused or len(cases) == 1:
        return ""
    if len(refused) == len(cases):
        return "in any case"
    first = "the first " * (len(refused) > 1) + distinct(refused[0], cases)
    return f"in {len(refused)} of {len(cases)} cases, {first}"


def _turn_seconds(kernel: str, plan: Plan, case: Case, machine: Machine) -> float:
    """Return what a kernel's turn at a case takes, 0 where it cannot run."""
    kind = registry.get_kernel(kernel).device_kind
    limits = machine.limits(kind, plan, case)
    if limits is None or _predicted(kernel, case.problem, limits)[1] is not None:
        return 0.0
    rate = machine.rate(kernel, case.problem.direction)
    run = _flops(case.problem) / (rate or _guessed_rate(kind, limits, machine)) / 1e9
    before = 2 * run if kind == "cpu" else run + _COMPILE_S  # a CPU kernel is traced in a run of its own
    warm_up = 0.0 if run > plan.seconds / 4 else min(max(WARM_UP_S, 2 * run), plan.seconds / 4)
    sampling = max(plan.seconds, run) if plan.samples is None else plan.samples * max(run, SHORTEST_S)
    return before + warm_up + sampling


def _reference_seconds(problem: AttentionProblem) -> float:
    whole = problem.group * problem.seq_q * problem.seq_k if problem.backward else 0
    return max(_REFERENCE_S, whole / _REFERENCE_RATE)


def _guessed_rate(kind: str, limits: Limits, machine: Machine) -> float:
    if kind == "cpu":
        return _THREAD_RATE * limits.threads
    return _SOFTWARE_THREAD_RATE * machine.cpu.threads if limits.software else _GPU_RATE
