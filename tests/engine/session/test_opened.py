"""The devices of a session: opened once, named in rows as their kernels see them, absent with a reason."""

from __future__ import annotations

from typing import Any

import pytest
import stand_in_torch

import engine.devices.gpu.device
from engine.devices.device import DeviceInfo, DeviceUnavailable, Limits
from engine.measure import peaks
from engine.measure.peaks import Peak
from engine.problem.attention_problem import AttentionProblem
from engine.records.events import KernelFailed, KernelFinished, KernelSkipped
from engine.records.plan import Case, Plan
from engine.records.results import Row, Status
from engine.session import session
from engine.session.opened import OpenedDevices

CARD = "NVIDIA Test 100"
CASE = Case(index=0, problem=AttentionProblem(heads=2, seq_q=33, head_dim=16), threads=2)


def plan(*kernels: str, **changes: Any) -> Plan:
    return Plan(**{"cases": (CASE,), "kernels": kernels, "samples": 3, "seconds": 0.05} | changes)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give tests a session without its peaks: kernels in, rows out."""
    monkeypatch.setattr(peaks, "measure_cpu", lambda threads: Peak(100.0, 10.0))
    monkeypatch.setattr(peaks, "measure_cuda", lambda device, dtype: Peak(1000.0, 50.0))

    def run(asked: Plan) -> dict[str, Row]:
        events: list[Any] = []
        session.run(asked, events.append)
        return {e.row.kernel: e.row for e in events if isinstance(e, (KernelFinished, KernelSkipped, KernelFailed))}

    return run


def test_a_kernel_of_another_library_names_it_in_its_row(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_torch.install(monkeypatch)
    monkeypatch.setattr("importlib.metadata.version", lambda package: "2.99.0")
    got = rows(plan("torch-sdpa", "cpu-naive"))
    peer, naive = got["torch-sdpa"], got["cpu-naive"]
    assert (peer.status, peer.variant, peer.verified) == (Status.OK, "flash", True)
    assert (peer.backend, peer.driver, peer.adapter_type) == ("pytorch", "PyTorch 2.99.0", "cpu")
    assert (naive.backend, naive.device, naive.threads) == ("numpy", peer.device, peer.threads)
    assert peer.scratch_bytes == 5_000
    assert peer.peak_gflops == naive.peak_gflops == 100
    assert peer.speedup_vs_naive is not None


def test_a_card_and_its_two_clocks_in_a_row(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_torch.install(monkeypatch, CARD)
    row = rows(plan("torch-sdpa-cuda"))["torch-sdpa-cuda"]
    assert (row.status, row.variant, row.verified, row.clock) == (Status.OK, "efficient", True, "gpu")
    assert (row.device, row.adapter_type, row.backend) == (CARD, "discrete", "cuda")
    assert row.driver is not None
    assert row.driver.endswith("CUDA 13.0, PyTorch 2.99.0")
    assert (row.checks, row.threads, row.peak_gflops) == (None, None, 1000)
    assert row.gpu_ms_median == pytest.approx(0.9 * row.wall_ms_median)


def test_what_cannot_run_is_skipped_with_the_reason(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_torch.install(monkeypatch)
    row = rows(plan("torch-sdpa-cuda"))["torch-sdpa-cuda"]
    assert (row.status, row.device) == (Status.SKIPPED, None)
    assert row.message == "PyTorch 2.99.0 is built without CUDA; install one that is built with it"
    left_out = rows(plan("torch-sdpa-cuda", device="cpu"))["torch-sdpa-cuda"]
    assert left_out.message.startswith("left out by --device cpu")
    monkeypatch.setattr("engine.kernels.base.find_spec", lambda package: None)
    got = rows(plan("torch-sdpa", "cpu-naive"))
    assert (got["torch-sdpa"].status, got["torch-sdpa"].device) == (Status.SKIPPED, None)
    assert got["torch-sdpa"].message == "not installed: pip install flashscope[torch]"
    assert got["cpu-naive"].status is Status.OK


def test_the_card_is_the_gpu_that_the_plan_names(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_torch.install(monkeypatch, CARD)
    limits = Limits(memory_bytes=1)
    listed = [
        DeviceInfo(index=i, name=name, adapter_type="discrete", backend="vulkan", driver="", limits=limits)
        for i, name in enumerate((CARD, "NVIDIA Other", "Soft"))
    ]
    monkeypatch.setattr(engine.devices.gpu.device, "list_devices", lambda: listed)
    for device, name in (("auto", CARD), ("1", "NVIDIA Other"), ("test 100", CARD)):
        assert OpenedDevices(plan(device=device)).open("cuda", None).info.name == name
    opened = OpenedDevices(plan(device="soft", memory_limit=9))
    for _ in range(2):
        with pytest.raises(DeviceUnavailable, match="Soft is no card that PyTorch sees"):
            opened.open("cuda", None)
    assert opened.gpu_bytes() == 0


def test_a_card_is_opened_once_and_its_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_torch.install(monkeypatch, CARD)
    opened = OpenedDevices(plan(memory_limit=9))
    card = opened.open("cuda", None)
    assert card is opened.open("cuda", 3)
    assert card.limits.memory_bytes == 9
    assert opened.gpu_bytes() == stand_in_torch.HELD
    opened.close()
