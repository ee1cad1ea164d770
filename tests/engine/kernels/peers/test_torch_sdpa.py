"""PyTorch's attention as a peer: what is asked of it, that its answer is the reference's, and life without it.

Every test runs on a stand-in for PyTorch; those on numbers also on PyTorch itself where it is installed.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import msgspec
import numpy as np
import pytest
import stand_in_torch
from stand_in_torch import StandIn

import engine.devices.cuda
from engine import attention
from engine.common.running import Cancelled
from engine.devices.cpu import CpuDevice, open_cpu
from engine.devices.cuda import CudaDevice, open_cuda
from engine.devices.device import Device, DeviceUnavailable, Limits
from engine.kernels.base import Prepared
from engine.kernels.peers import torch_sdpa
from engine.kernels.peers.torch_sdpa import TorchSdpa, TorchSdpaCuda
from engine.kernels.registry import get_kernel, installed_kernels, kernel_names
from engine.measure.peaks import Peak, Peaks
from engine.measure.verify import expect, verify
from engine.measure.verify_backward import expect_gradients
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs, seeded

CARD = "NVIDIA Test 100"
ROOMY = Limits(memory_bytes=1 << 30, threads=2, f16=True)
INSTALLED = ["pytorch"] if find_spec("torch") else []


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return stand_in_torch.install(monkeypatch)


@pytest.fixture
def on_card(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return stand_in_torch.install(monkeypatch, CARD)


@pytest.fixture(params=["stand-in on the CPU", "stand-in on a card", *INSTALLED])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "pytorch":
        stand_in_torch.install(monkeypatch, CARD if "card" in request.param else None)
    return str(request.param)


def cpu(memory_bytes: int = 1 << 30) -> CpuDevice:
    return open_cpu(2, memory_bytes)


def prepared(problem: AttentionProblem, device: Device, inputs: Inputs | None = None) -> Prepared:
    kernel = TorchSdpaCuda() if isinstance(device, CudaDevice) else TorchSdpa()
    return kernel.prepare(problem, inputs or seeded(problem, 0), device)


def hidden(seq_k: int, *keys: int, batch: int = 1) -> np.ndarray:
    mask = np.ones((batch, seq_k), np.bool_)
    mask[0, list(keys)] = False
    return mask


PROBLEMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "decode": {"seq_q": 1, "seq_k": 65, "causal": True},
    "lower right": {"seq_q": 4, "seq_k": 24, "causal": True},
    "more queries than keys": {"seq_q": 40, "seq_k": 26, "causal": True},
    "one key": {"seq_q": 128, "seq_k": 1, "causal": True},
    "window": {"seq_q": 65, "window": 7},
    "window of one with history": {"seq_q": 65, "seq_k": 80, "window": 1},
    "window wider than all": {"seq_q": 65, "window": 70},
    "key mask": {"key_mask": hidden(33, 0, 5, 6)},
    "a row that sees nothing": {"causal": True, "key_mask": hidden(33, 0)},
    "leading rows that see nothing": {"batch": 2, "causal": True, "key_mask": hidden(33, *range(14), batch=2)},
    "a batch entry that sees nothing": {"batch": 2, "key_mask": hidden(33, *range(33), batch=2)},
    "grouped": {"kv_heads": 2},
    "grouped, one key head, lower right": {"kv_heads": 1, "seq_k": 60, "causal": True},
    "grouped and masked": {"kv_heads": 2, "key_mask": hidden(33, 3)},
    "values of another size": {"head_dim_v": 7, "causal": True},
    "large heads": {"head_dim": 256},
    "scale of zero": {"scale": 0.0, "causal": True},
    "negative scale": {"scale": -0.5, "causal": True},
}


@pytest.mark.parametrize("which", PROBLEMS)
def test_the_result_is_the_references(which: str, place: str) -> None:
    problem = AttentionProblem(**{"heads": 6, "seq_q": 33, "head_dim": 16} | PROBLEMS[which])
    device = open_cuda() if "card" in place else cpu()
    inputs = seeded(problem, 1)
    run = prepared(problem, device, inputs)
    assert np.isnan(run.outputs().output).all()
    timing = run.run(3)
    output = run.outputs().output
    assert output.dtype == np.float32
    assert output.flags.c_contiguous
    assert (verdict := verify(expect(problem, inputs), output)).verified, verdict.message
    assert (timing.gpu_ms is not None) == ("card" in place)
    run.poison()
    assert np.isnan(run.outputs().output).all()
    run.close()
    run.close()


def test_garbage_in_hidden_positions_does_not_leak(place: str) -> None:
    problem = AttentionProblem(heads=2, seq_q=33, head_dim=16, key_mask=hidden(33, 5, 6, 7))
    inputs = seeded(problem, 0)
    inputs.k[:, :, 5:7] = np.nan
    inputs.v[:, :, 6:8] = np.inf
    run = prepared(problem, open_cuda() if "card" in place else cpu(), inputs)
    run.run()
    assert verify(expect(problem, inputs), run.outputs().output).verified
    assert np.isnan(inputs.k[:, :, 5:7]).all()  # the caller's arrays are left alone


def test_arrays_that_cannot_be_written_are_taken(place: str) -> None:
    problem = AttentionProblem(heads=2, seq_q=9, head_dim=8)
    inputs = seeded(problem, 0)
    for array in (inputs.q, inputs.k, inputs.v):
        array.flags.writeable = False
    run = prepared(problem, open_cuda() if "card" in place else cpu(), inputs)
    run.run()
    assert verify(expect(problem, inputs), run.outputs().output).verified


def back(problem: AttentionProblem) -> AttentionProblem:
    return msgspec.structs.replace(problem, direction="backward")


@pytest.mark.parametrize("which", PROBLEMS)
def test_the_gradients_are_the_references(which: str, place: str) -> None:
    problem = back(AttentionProblem(**{"heads": 6, "seq_q": 33, "head_dim": 16} | PROBLEMS[which]))
    device = open_cuda() if "card" in place else cpu()
    inputs = seeded(problem, 1)
    run = prepared(problem, device, inputs)
    assert np.isnan(run.gradients().dq).all()
    timing = run.run(3)
    got = run.gradients()
    for gradient, shape in ((got.dq, problem.q_shape), (got.dk, problem.k_shape), (got.dv, problem.v_shape)):
        assert (gradient.dtype, gradient.shape, gradient.flags.c_contiguous) == (np.float32, shape, True)
    assert (verdict := expect_gradients(problem, inputs).verdict(got)).verified, verdict.message
    assert (timing.gpu_ms is not None) == ("card" in place)
    run.poison()
    assert np.isnan(run.gradients().dv).all()
    run.close()
    run.close()


def test_garbage_in_hidden_positions_does_not_leak_into_gradients(place: str) -> None:
    problem = back(AttentionProblem(heads=2, seq_q=33, head_dim=16, key_mask=hidden(33, 5, 6, 7)))
    inputs = seeded(problem, 0)
    inputs.k[:, :, 5:7] = np.nan
    inputs.v[:, :, 6:8] = np.inf
    run = prepared(problem, open_cuda() if "card" in place else cpu(), inputs)
    run.run()
    got = run.gradients()
    assert expect_gradients(problem, inputs).verdict(got).verified
    assert not got.dk[:, :, 5:8].any()
    assert not got.dv[:, :, 5:8].any()


def test_gradients_are_not_confused_with_output(on_cpu: StandIn) -> None:
    problem = AttentionProblem(heads=2, seq_q=9, head_dim=8)
    with pytest.raises(TypeError, match="gives no gradients"):
        prepared(problem, cpu()).gradients()
    with pytest.raises(TypeError, match="gives gradients"):
        prepared(back(problem), cpu()).outputs()


def test_the_quickest_backend_is_raced_backward_too(on_cpu: StandIn) -> None:
    """Rows that see nothing included: what a backend keeps of its output is not written to."""
    for options in ({}, {"causal": True, "key_mask": hidden(9, 0)}):
        run = prepared(back(AttentionProblem(heads=2, seq_q=9, head_dim=8, **options)), cpu())
        assert run.variant.startswith("flash"), options
        on_cpu.asked.clear()
        run.run(4)
        assert on_cpu.asked == [("flash", 2, "highest")] * 4
    assert (on_cpu.threads, on_cpu.precision, on_cpu.grad_enabled) == (7, "high", False)


@pytest.mark.parametrize("backend", ["flash", "math"])
def test_each_backend_goes_back_where_rows_see_nothing(
    backend: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "card" in place and backend == "flash":
        backend = "efficient"  # of a card, whose flash is for halves
    for of_place in ("_Cpu", "_Card"):
        monkeypatch.setattr(f"engine.kernels.peers.torch_sdpa.{of_place}.backends", (backend,))
    problem = back(AttentionProblem(heads=2, seq_q=33, head_dim=16, causal=True, key_mask=hidden(33, 0)))
    inputs = seeded(problem, 3)
    run = prepared(problem, open_cuda() if "card" in place else cpu(), inputs)
    assert run.variant.startswith(backend)
    run.run()
    got = run.gradients()
    assert (verdict := expect_gradients(problem, inputs).verdict(got)).verified, verdict.message
    assert not got.dq[:, :, 0].any()


def test_a_backend_that_makes_finite_gradients_nonfinite_is_not_raced(on_cpu: StandIn) -> None:
    on_cpu.spoilt = {"flash"}
    assert prepared(back(AttentionProblem(heads=2, seq_q=9, head_dim=8)), cpu()).variant == "math"


def test_repeated_keys_and_values_are_summed_on_the_way_back(on_card: StandIn) -> None:
    problem = back(AttentionProblem(heads=4, kv_heads=1, seq_q=9, head_dim=8))
    inputs = seeded(problem, 2)
    run = prepared(problem, open_cuda(), inputs)
    assert run.variant == "efficient, K and V repeated"
    run.run()
    assert (verdict := expect_gradients(problem, inputs).verdict(run.gradients())).verified, verdict.message
    run.close()


def test_a_stop_is_heard_between_two_backward_runs(on_cpu: StandIn) -> None:
    run = prepared(back(AttentionProblem(heads=2, seq_q=9, head_dim=8)), cpu())
    on_cpu.asked.clear()
    answers = iter([False, False, True])
    with pytest.raises(Cancelled):
        run.run(5, lambda: next(answers))
    assert len(on_cpu.asked) == 2
    run.run()
    assert np.isfinite(run.gradients().dk).all()


@pytest.mark.parametrize(("card", "workspace"), [(None, 5_000), (CARD, 7_000)])
def test_memory_backward_counts_the_pass_it_goes_back(
    card: str | None, workspace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_torch.install(monkeypatch, card)
    problem = back(AttentionProblem(heads=2, seq_q=9, head_dim=8, window=3, key_mask=hidden(9, 0)))
    used = prepared(problem, open_cuda() if card else cpu()).memory()
    assert used is not None
    mask, blind, tensor = 9 * 9, 9, 4 * 2 * 9 * 8
    both_passes = (tensor + workspace) + (3 * tensor + workspace)
    assert used.peak_bytes == 4 * tensor + mask + blind + both_passes
    assert used.scratch_bytes == used.peak_bytes - problem.tensor_bytes
    assert TorchSdpa().predict(problem, ROOMY) == problem.tensor_bytes + mask


def test_pytorchs_own_count_of_its_memory_backward(place: str) -> None:
    problem = back(AttentionProblem(heads=2, seq_q=64, head_dim=16))
    used = prepared(problem, open_cuda() if "card" in place else cpu()).memory()
    assert used is not None
    assert problem.tensor_bytes <= used.peak_bytes == problem.tensor_bytes + used.scratch_bytes
    assert used.scratch_bytes < 1 << 20


def test_half_precision_on_a_card(on_card: StandIn) -> None:
    problem = AttentionProblem(heads=2, seq_q=33, head_dim=16, dtype="f16", causal=True)
    inputs = seeded(problem, 0)
    run = prepared(problem, open_cuda(), inputs)
    run.run()
    assert run.variant == "flash"
    assert verify(expect(problem, inputs), run.outputs().output).verified


@pytest.mark.parametrize(
    ("what", "variant"),
    [
        ({}, "efficient"),
        ({"dtype": "f16"}, "flash"),
        ({"dtype": "f16", "seq_k": 20, "causal": True}, "flash"),  # PyTorch's own lower-right bias
        ({"dtype": "f16", "window": 3}, "cudnn, masked"),  # flash takes no mask
        ({"kv_heads": 1}, "efficient, K and V repeated"),
        ({"kv_heads": 1, "dtype": "f16"}, "flash"),
    ],
)
def test_the_quickest_backend_that_can_is_raced(what: dict[str, Any], variant: str, on_card: StandIn) -> None:
    run = prepared(AttentionProblem(**{"heads": 2, "seq_q": 9, "head_dim": 8} | what), open_cuda())
    assert run.variant == variant
    on_card.asked.clear()
    run.run(4)
    assert [backend for backend, *_ in on_card.asked] == [variant.partition(",")[0]] * 4


def test_the_choice_follows_the_clock(on_cpu: StandIn) -> None:
    problem = AttentionProblem(heads=2, seq_q=9, head_dim=8)
    assert prepared(problem, cpu()).variant == "flash"
    on_cpu.cost["math"] = 0.001
    assert prepared(problem, cpu()).variant == "math"


def test_a_backend_that_makes_finite_input_nonfinite_is_not_raced(on_cpu: StandIn) -> None:
    problem = AttentionProblem(heads=2, seq_q=9, head_dim=8)
    on_cpu.spoilt = {"flash"}
    assert prepared(problem, cpu()).variant == "math"
    inputs = seeded(problem, 0)
    inputs.v[0, 0, 0, 0] = np.nan
    assert prepared(problem, cpu(), inputs).variant == "flash"


def test_slow_runs_are_not_repeated_to_choose(on_cpu: StandIn) -> None:
    on_cpu.cost["flash"] = 5.0
    prepared(AttentionProblem(heads=2, seq_q=9, head_dim=8), cpu())
    assert [backend for backend, *_ in on_cpu.asked] == ["flash"]


def test_large_score_matrices_are_not_written_out_to_choose(on_cpu: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.kernels.peers.torch_sdpa._SMALL_SCORES", 100)
    prepared(AttentionProblem(heads=2, seq_q=9, head_dim=8), cpu())
    assert {backend for backend, *_ in on_cpu.asked} == {"flash"}


def test_score_matrices_beyond_the_memory_limit_are_never_tried(
    on_cpu: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandIn, "refusal", lambda self, *_: "" if self.backend == "math" else "cannot")
    with pytest.raises(RuntimeError, match=r"no way to run this; .* needs .* MiB, the memory limit is 1\.00 MiB"):
        prepared(AttentionProblem(heads=2, seq_q=600, head_dim=8), cpu(1 << 20))
    assert on_cpu.asked == []


def test_where_no_backend_works_pytorch_has_the_last_word(on_cpu: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn, "refusal", lambda self, *_: f"{self.backend} is out of order")
    with pytest.raises(RuntimeError, match="PyTorch has no way to run this; math: math is out of order"):
        prepared(AttentionProblem(heads=2, seq_q=9, head_dim=8), cpu())


def test_threads_and_precision_are_held_and_given_back(on_cpu: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    run = prepared(AttentionProblem(heads=2, seq_q=9, head_dim=8), cpu())
    run.run()
    assert {(threads, precision) for _, threads, precision in on_cpu.asked} == {(2, "highest")}
    assert (on_cpu.threads, on_cpu.precision) == (7, "high")
    monkeypatch.setattr(StandIn, "refusal", lambda self, *_: "lost")
    with pytest.raises(RuntimeError, match="lost"):
        run.run()
    assert (on_cpu.threads, on_cpu.precision) == (7, "high")


def test_a_run_on_the_cpu_ends_when_pytorchs_threads_rest_and_that_is_not_timed(on_cpu: StandIn) -> None:
    run = prepared(AttentionProblem(heads=2, seq_q=9, head_dim=8), cpu())
    begin = on_cpu.now
    timing = run.run()
    assert on_cpu.now - begin - timing.wall_ms / 1e3 == pytest.approx(torch_sdpa._SPIN_S)


def test_a_stop_is_heard_between_two_runs(on_cpu: StandIn) -> None:
    run = prepared(AttentionProblem(heads=2, seq_q=9, head_dim=8), cpu())
    on_cpu.asked.clear()
    answers = iter([False, False, True])
    with pytest.raises(Cancelled):
        run.run(5, lambda: next(answers))
    assert len(on_cpu.asked) == 2
    run.run()
    assert np.isfinite(run.outputs().output).all()


def test_both_clocks_of_a_card(on_card: StandIn) -> None:
    run = prepared(AttentionProblem(heads=2, seq_q=9, head_dim=8), open_cuda())
    timing = run.run(4)
    assert timing.wall_ms == pytest.approx(4 * 30)
    assert timing.gpu_ms == pytest.approx(4 * 27)
    assert run.upload_ms is not None
    run.outputs()
    assert run.readback_ms is not None


@pytest.mark.parametrize(("card", "workspace"), [(None, 5_000), (CARD, 7_000)])
def test_memory_is_what_the_allocator_counted(
    card: str | None, workspace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_torch.install(monkeypatch, card)
    problem = AttentionProblem(heads=2, seq_q=9, head_dim=8, window=3, key_mask=hidden(9, 0))
    device = open_cuda() if card else cpu()
    run = prepared(problem, device)
    used = run.memory()
    assert used is not None
    mask, blind = 9 * 9, 9
    assert used.scratch_bytes == mask + blind + workspace
    assert used.peak_bytes == problem.tensor_bytes + used.scratch_bytes
    assert TorchSdpa().predict(problem, ROOMY) == problem.tensor_bytes + mask
    run.close()


def test_pytorchs_own_count_of_its_memory(place: str) -> None:
    problem = AttentionProblem(heads=2, seq_q=64, head_dim=16)
    run = prepared(problem, open_cuda() if "card" in place else cpu())
    used = run.memory()
    assert used is not None
    assert problem.tensor_bytes < used.peak_bytes == problem.tensor_bytes + used.scratch_bytes
    assert used.scratch_bytes < 1 << 20


def test_memory_is_unknown_where_pytorch_keeps_no_record(on_cpu: StandIn) -> None:
    on_cpu.keeps_record = False
    assert prepared(AttentionProblem(heads=2, seq_q=9, head_dim=8), cpu()).memory() is None


def test_repeated_keys_and_values_count(on_card: StandIn) -> None:
    problem = AttentionProblem(heads=4, kv_heads=1, seq_q=9, head_dim=8)
    run = prepared(problem, open_cuda())
    used = run.memory()
    assert run.variant == "efficient, K and V repeated"
    assert used is not None
    assert used.scratch_bytes == 7_000 + 3 * 2 * 9 * 8 * 4


def test_a_mask_that_the_chosen_way_does_not_need_is_dropped(on_card: StandIn) -> None:
    run = prepared(AttentionProblem(heads=2, seq_q=9, seq_k=20, head_dim=8, causal=True, dtype="f16"), open_cuda())
    used = run.memory()
    assert used is not None
    assert used.scratch_bytes == 5_000


@pytest.mark.parametrize("kernel", [TorchSdpa(), TorchSdpaCuda()], ids=lambda kernel: kernel.name)
def test_what_pytorch_cannot_do_is_refused_in_a_sentence(kernel: TorchSdpa | TorchSdpaCuda) -> None:
    capped = AttentionProblem(heads=2, seq_q=9, head_dim=8, softcap=2.0)
    assert kernel.supports(capped, ROOMY) == "PyTorch's scaled_dot_product_attention has no soft cap"
    masked = AttentionProblem(heads=2, seq_q=2000, head_dim=8, window=3)
    tight = msgspec.structs.replace(ROOMY, memory_bytes=4 << 20)
    assert kernel.supports(masked, ROOMY) is None
    assert kernel.supports(masked, tight) == f"{kernel.name} needs 4.30 MiB, the memory limit is 4.00 MiB"
    half = AttentionProblem(heads=2, seq_q=9, head_dim=8, dtype="f16")
    refused = kernel.supports(half, ROOMY)
    assert refused == (None if "cuda" in kernel.name else "torch-sdpa works in f32, not f16")
    assert kernel.supports(back(half), ROOMY) == f"{kernel.name} is raced backward in f32 only, not f16"
    assert kernel.supports(back(capped), ROOMY) == "PyTorch's scaled_dot_product_attention has no soft cap"


def test_it_gives_no_log_sum_exp(on_cpu: StandIn) -> None:
    problem = AttentionProblem(heads=2, seq_q=9, head_dim=8)
    with pytest.raises(ValueError, match="no log-sum-exp"):
        TorchSdpa().prepare(problem, seeded(problem, 0), cpu(), want_lse=True)


def test_the_simple_call(place: str) -> None:
    inputs = seeded(AttentionProblem(heads=2, seq_q=9, head_dim=8), 0)
    kernel = "torch-sdpa-cuda" if "card" in place else "torch-sdpa"
    want = attention(inputs.q, inputs.k, inputs.v, kernel="cpu-naive", causal=True)
    got = attention(inputs.q, inputs.k, inputs.v, kernel=kernel, causal=True)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)


def test_without_pytorch_the_kernels_are_known_and_say_what_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.kernels.base.find_spec", lambda package: None)
    for name in ("torch-sdpa", "torch-sdpa-cuda"):
        assert name in kernel_names()
        assert name not in installed_kernels()
        assert get_kernel(name).missing() == "not installed: pip install flashscope[torch]"
    inputs = seeded(AttentionProblem(heads=2, seq_q=9, head_dim=8), 0)
    with pytest.raises(DeviceUnavailable, match=r"torch-sdpa is not installed: pip install flashscope\[torch\]"):
        attention(inputs.q, inputs.k, inputs.v, kernel="torch-sdpa")


def test_with_pytorch_they_are_installed(on_cpu: StandIn) -> None:
    assert {"torch-sdpa", "torch-sdpa-cuda", "cpu-flash"} <= set(installed_kernels())


def test_the_card_as_a_device(on_card: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.devices.cuda, "_driver_version", lambda: "580.1")
    device = open_cuda(memory_bytes=5)
    assert (device.info.name, device.info.adapter_type, device.info.backend) == (CARD, "discrete", "cuda")
    assert device.info.driver == "580.1, CUDA 13.0, PyTorch 2.99.0"
    assert (device.index, device.limits.memory_bytes, device.limits.f16) == (0, 5, True)
    assert device.memory_in_use() == stand_in_torch.HELD
    assert open_cuda("nvidia test 100 (Direct3D)").index == 0
    assert open_cuda("NVIDIA Other").info.adapter_type == "integrated"
    with pytest.raises(DeviceUnavailable, match="llvmpipe is no card that PyTorch sees; it sees NVIDIA Test 100, NVID"):
        open_cuda("llvmpipe")


def test_no_card(on_cpu: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceUnavailable, match=r"PyTorch 2\.99\.0 is built without CUDA"):
        open_cuda()
    stand_in_torch.install(monkeypatch, CARD)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match="PyTorch sees no NVIDIA card; install NVIDIA's driver"):
        open_cuda()


def test_a_machine_without_the_drivers_library_has_no_driver_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", absent)
    assert engine.devices.cuda._driver_version() == ""


def test_a_cards_peaks_depend_on_the_dtype(on_card: StandIn) -> None:
    device, peaks = open_cuda(), Peaks()
    gpu_s = 0.9 * on_card.product_s  # the card's clock
    copied = 2 * (512 << 20) / (0.9 * on_card.copy_s) / 1e9
    assert peaks.of(device, "f32") == Peak(pytest.approx(2 * 4096**3 / gpu_s / 1e9), pytest.approx(copied))
    on_card.product_s /= 10
    assert peaks.of(device, "f16") == Peak(pytest.approx(2 * 8192**3 / gpu_s / 1e8), pytest.approx(copied))
    known = peaks.of(device, "f32")
    assert known is not None
    assert math.isclose(known.gflops, 2 * 4096**3 / gpu_s / 1e9)
    assert on_card.precision == "high"
