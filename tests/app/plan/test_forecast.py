"""What a plan will take: memory against limits, refusals with their case, and how long it may last."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from made_up import CPU, GPU

from app.plan import forecast
from app.plan.forecast import Machine
from app.window.setup.setup import Setup
from engine.kernels.registry import get_kernel
from engine.records.plan import Plan

MACHINE = Machine(cpu=CPU.limits, free_bytes=16 << 30, gpu=GPU)
LONG = Setup(seq="1024..16384*2", heads="4", head_dim="64").plan(None)


def test_memory_is_what_the_kernel_predicts_within_the_limits_of_its_device() -> None:
    plan = Setup(seq="512").plan(None)
    for kernel in plan.kernels:
        kind = get_kernel(kernel).device_kind
        limits = MACHINE.limits(kind, plan, plan.cases[0])
        assert limits is not None
        found = forecast.footprint(kernel, plan, MACHINE)
        assert found.least == found.most == get_kernel(kernel).predict(plan.cases[0].problem, limits)
        assert found.limit == limits.memory_bytes
        assert found.runs
        assert found.reason == ""


def test_a_sweep_gives_the_span_and_the_first_case_that_cannot_run() -> None:
    found = forecast.footprint("gpu-naive", LONG, MACHINE)
    assert found.least is not None
    assert found.most is not None
    assert found.least < found.most
    assert (found.cases, found.refused) == (5, 2)  # from 8,192 on, one pair's matrix passes the binding limit
    assert found.where == "in 2 of 5 cases, the first seq 8192"
    assert "256 MiB" in found.reason
    assert found.runs


def test_what_cannot_run_at_all_says_so_once() -> None:
    plan = Setup(seq="256,512", dtype="f16").plan(None)
    found = forecast.footprint("cpu-flash", plan, MACHINE)
    assert not found.runs
    assert found.where == "in any case"
    assert found.reason == "CPU kernels work in float32 only, not f16"


def test_without_a_gpu_its_kernels_say_why_and_cpu_kernels_do_not_mind() -> None:
    machine = Machine(cpu=CPU.limits, free_bytes=16 << 30, no_gpu="no driver")
    plan = Setup().plan(None)
    found = forecast.footprint("gpu-flash", plan, machine)
    assert (found.most, found.limit, found.runs, found.reason) == (None, 0, False, "no driver")
    assert forecast.footprint("cpu-flash", plan, machine).runs


def test_limits_are_those_of_the_engine() -> None:
    plan, case = Setup(threads="1").plan(None), Setup(threads="1").plan(None).cases[0]
    cpu, gpu = MACHINE.limits("cpu", plan, case), MACHINE.limits("gpu", plan, case)
    assert cpu is not None
    assert gpu is not None
    assert (cpu.threads, cpu.memory_bytes) == (1, 8 << 30)
    assert gpu.memory_bytes == 8 << 30
    small = Machine(cpu=CPU.limits, free_bytes=2 << 30, gpu=GPU)  # a software adapter's memory is the machine's
    limits = small.limits("gpu", plan, case)
    assert limits is not None
    assert limits.memory_bytes == 1 << 30
    held = msgspec.structs.replace(plan, memory_limit=1000)
    for kind in ("cpu", "gpu"):
        limits = MACHINE.limits(kind, held, case)
        assert limits is not None
        assert limits.memory_bytes == 1000


def seconds(**fields: object) -> float:
    plan: Plan = Setup(**fields).plan(None)  # type: ignore[arg-type]
    return forecast.seconds(plan, MACHINE)


def test_longer_runs_are_forecast_to_take_longer() -> None:
    base = seconds(seq="128", kernels=("cpu-flash",))
    assert 2.0 < base < 4.0
    assert seconds(seq="128", kernels=("cpu-flash",), seconds=4.0) > base + 1.9
    assert seconds(seq="128,256", kernels=("cpu-flash",)) > base + 1.9
    assert seconds(seq="128", kernels=("cpu-flash", "cpu-naive")) > base + 1.9
    assert seconds(seq="128", kernels=("cpu-flash",), by_count=True, samples=10) < base
    assert seconds(seq="8192", kernels=("cpu-flash",), by_count=True, samples=100) > 60


def test_what_cannot_run_takes_no_time() -> None:
    assert seconds(dtype="f16") == 0
    both = seconds(seq="16384", heads="1", kernels=("gpu-naive", "cpu-flash"))
    assert both < seconds(seq="16384", heads="1", kernels=("cpu-naive", "cpu-flash"))


def test_measured_rates_take_the_place_of_guesses() -> None:
    plan = Setup(seq="2048", kernels=("cpu-flash",), by_count=True, samples=10).plan(None)
    slow = Machine(cpu=CPU.limits, free_bytes=16 << 30, rates={("cpu-flash", "forward"): 1.0})
    run_s = plan.cases[0].problem.flops() / 1e9
    assert forecast.seconds(plan, slow) >= 12 * run_s
    assert forecast.seconds(plan, MACHINE) < 2 * run_s


def test_a_backward_case_counts_with_what_it_is() -> None:
    both = Setup(seq="512", direction="both").plan(None)
    forward, backward = (Setup(seq="512", direction=word).plan(None) for word in ("forward", "backward"))
    for kernel in both.kernels:
        one, other, span = (forecast.footprint(kernel, plan, MACHINE) for plan in (forward, backward, both))
        assert one.most is not None
        assert other.most is not None
        assert one.most < other.most
        assert (span.least, span.most, span.refused) == (one.most, other.most, 0)
    limited = msgspec.structs.replace(both, memory_limit=forecast.footprint("cpu-flash", forward, MACHINE).most)
    refused = forecast.footprint("cpu-flash", limited, MACHINE)
    assert refused.runs
    assert refused.where == "in 1 of 2 cases, backward"


def test_a_backward_pass_takes_two_and_a_half_times_as_long_or_what_was_measured() -> None:
    counted = {"seq": "4096", "kernels": ("cpu-flash",), "by_count": True, "samples": 100}
    assert 2.3 < seconds(**counted, direction="backward") / seconds(**counted) < 2.7
    assert seconds(**counted, direction="both") > 3 * seconds(**counted)
    plan = Setup(**counted, direction="backward").plan(None)  # type: ignore[arg-type]
    for rates, gflops in (
        ({"forward": 1000.0}, 1000),  # not measured backward, so the other direction is the best guess
        ({"forward": 1000.0, "backward": 500.0}, 500),
    ):
        machine = replace(MACHINE, rates={("cpu-flash", way): rate for way, rate in rates.items()})
        run_s = plan.cases[0].problem.flops() / gflops / 1e9
        assert 100 * run_s < forecast.seconds(plan, machine) < 110 * run_s + 2


def test_the_reference_of_a_long_backward_case_is_counted_in() -> None:
    long = {"seq": "16384", "heads": "1", "kernels": ("cpu-flash",), "by_count": True, "samples": 1}
    machine = replace(MACHINE, rates={("cpu-flash", "forward"): 1e9})
    plans = [Setup(**long, direction=word).plan(None) for word in ("forward", "backward")]  # type: ignore[arg-type]
    forward, backward = (forecast.seconds(plan, machine) for plan in plans)
    assert forward < 2
    assert backward > 5
