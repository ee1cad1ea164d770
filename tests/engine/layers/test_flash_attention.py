"""The multi-head layer: layouts, kinds and devices against each other and the reference, memory, and refusals."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import engine
from engine import Tensor
from engine.devices.cpu import open_cpu
from engine.devices.gpu import buffers
from engine.kernels.base import Gradients
from engine.layers import FlashAttention, FlashAttentionGrads
from engine.layers.memory import MemoryEstimate
from engine.measure.memory import traced
from engine.measure.verify import expect, verify
from engine.measure.verify_backward import expect_gradients
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs, as_inputs, load, problem_for, seeded
from engine.reference.forward import reference

PLACES = ["cpu", "gpu"]
BATCH, HEADS, HEAD_DIM = 2, 4, 6
DIM = HEADS * HEAD_DIM


def problem_of(causal: bool = False, kv_heads: int = HEADS, seq_q: int = 9, seq_k: int = 12) -> AttentionProblem:
    return AttentionProblem(
        batch=BATCH, heads=HEADS, kv_heads=kv_heads, seq_q=seq_q, seq_k=seq_k, head_dim=HEAD_DIM, causal=causal
    )


def layer_of(problem: AttentionProblem, device: str) -> FlashAttention:
    return FlashAttention(
        problem.heads * problem.head_dim, problem.heads, problem.causal, num_kv_heads=problem.kv_heads, device=device
    )


def joined(array: np.ndarray, rank: int = 4) -> np.ndarray:
    """[batch, heads, seq, head_dim] as a layer takes it, with its last axes joined where the rank is 3."""
    array = np.ascontiguousarray(array.swapaxes(1, 2))
    return array if rank == 4 else array.reshape(*array.shape[:2], -1)


def given(inputs: Inputs, rank: int = 3) -> list[np.ndarray]:
    return [joined(array, rank) for array in (inputs.q, inputs.k, inputs.v)]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_every_layout_and_kind_gives_the_reference(device: str, causal: bool, kv_heads: int) -> None:
    problem = problem_of(causal, kv_heads)
    inputs = seeded(problem, 1)
    layer = layer_of(problem, device)
    _, want_lse, _ = reference(problem, inputs)
    wide, wide_lse = layer.forward(*given(inputs, 3), return_lse=True)
    assert wide.dtype == wide_lse.dtype == np.float32
    assert verify(expect(problem, inputs), wide.reshape(BATCH, 9, HEADS, HEAD_DIM).swapaxes(1, 2)).verified
    np.testing.assert_allclose(wide_lse, want_lse, rtol=0, atol=2e-6)

    split, split_lse = layer.forward(*given(inputs, 4), return_lse=True)
    np.testing.assert_array_equal(split, wide.reshape(BATCH, 9, HEADS, HEAD_DIM))
    np.testing.assert_array_equal(split_lse, wide_lse)

    one, one_lse = layer.forward(*(array[1] for array in given(inputs, 3)), return_lse=True)
    assert one.shape == (9, DIM)
    assert one_lse.shape == (HEADS, 9)
    np.testing.assert_allclose(one, wide[1], rtol=0, atol=1e-6)
    np.testing.assert_allclose(one_lse, wide_lse[1], rtol=0, atol=2e-6)

    for rank, arrays in ((3, given(inputs, 3)), (4, given(inputs, 4))):
        tensors = [Tensor.from_numpy(array, device) for array in arrays]
        output, lse = layer.forward(*tensors, return_lse=True)
        assert isinstance(output, Tensor)
        assert output.device == lse.device == layer.device
        np.testing.assert_array_equal(output.numpy(), wide if rank == 3 else split)
        np.testing.assert_array_equal(lse.numpy(), wide_lse)
        np.testing.assert_array_equal(layer.forward(*tensors).numpy(), output.numpy())


@pytest.mark.parametrize("device", PLACES)
def test_real_tensors(device: str, sample_file: Any) -> None:
    tensors = load(str(sample_file))
    problem = problem_for(tensors)
    inputs = as_inputs(tensors, problem)
    output = layer_of(problem, device).forward(*given(inputs, 4))
    assert verify(expect(problem, inputs), output.swapaxes(1, 2)).verified


def test_the_cpu_layer_is_the_simple_call() -> None:
    inputs = seeded(problem_of(causal=True), 2)
    want = engine.attention(inputs.q, inputs.k, inputs.v, causal=True)
    got = layer_of(problem_of(causal=True), "cpu").forward(*given(inputs))
    np.testing.assert_array_equal(got, joined(want, 3))


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("seq_q", [1, 9])
def test_the_same_input_gives_the_same_bits(device: str, seq_q: int) -> None:
    problem = problem_of(seq_q=seq_q, seq_k=200)
    layer, arrays = layer_of(problem, device), given(seeded(problem, 3))
    before = [array.tobytes() for array in arrays]
    first = layer.forward(*arrays)
    np.testing.assert_array_equal(layer.forward(*arrays), first)
    assert [array.tobytes() for array in arrays] == before


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize(
    "give",
    [lambda a: a.tolist(), np.asfortranarray, lambda a: np.repeat(a, 2, axis=2)[..., ::2], lambda a: a.astype(">f8")],
    ids=["lists", "Fortran", "strided", "big-endian float64"],
)
def test_any_array_gives_the_same(device: str, give: Callable[[np.ndarray], Any]) -> None:
    layer, arrays = layer_of(problem_of(), device), given(seeded(problem_of(), 0))
    np.testing.assert_array_equal(layer.forward(*map(give, arrays)), layer.forward(*arrays))


@pytest.mark.parametrize("device", PLACES)
def test_half_precision_is_how_tensors_are_stored_not_computed(device: str) -> None:
    layer = layer_of(problem_of(), device)
    halves = [array.astype(np.float16) for array in given(seeded(problem_of(), 0))]
    want = layer.forward(*halves)
    assert want.dtype == np.float32
    output, lse = layer.forward(*(Tensor.from_numpy(half, device) for half in halves), return_lse=True)
    assert output.dtype == np.float16
    assert lse.dtype == np.float32
    np.testing.assert_allclose(output.numpy(), want, rtol=2**-10, atol=1e-6)


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize(("which", "at"), [(0, (1, 4, 2, 0)), (1, (0, 7, 3, 5)), (2, (1, 11, 0, 1))])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_reaches_the_rows_that_see_it_and_no_other(
    device: str, kind: Any, which: int, at: tuple[int, int, int, int], bad: float
) -> None:
    problem = problem_of(causal=True)
    arrays = [array.astype(kind) for array in given(seeded(problem, 5), 4)]
    arrays[which][at] = bad
    swapped = Inputs(*(np.ascontiguousarray(array.swapaxes(1, 2), np.float32) for array in arrays))
    want, _, _ = reference(problem, swapped)
    output = layer_of(problem, device).forward(*(Tensor.from_numpy(array, device) for array in arrays)).numpy()
    np.testing.assert_array_equal(np.isfinite(output), np.isfinite(joined(want)))
    assert not np.isfinite(output).all()


def test_tensors_on_the_gpu_are_not_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_of(problem_of(), "gpu")
    tensors = [Tensor.from_numpy(array) for array in given(seeded(problem_of(), 0))]
    queue, seen = type(layer.device.device.queue), []
    real = queue.read_buffer

    def counted(self: Any, buffer: Any, offset: int = 0, size: int | None = None) -> Any:
        seen.append(buffer.size if size is None else size)
        return real(self, buffer, offset, size)

    monkeypatch.setattr(queue, "read_buffer", counted)
    monkeypatch.setattr(buffers.Buffers, "upload", _refuse(buffers.Buffers.upload))
    output, _ = layer.forward(*tensors, return_lse=True)
    assert sum(seen) == 16  # the word that tells of NaN and infinity, in the smallest buffer there is
    output.numpy()
    assert len(seen) == 2


def _refuse(upload: Callable[..., Any]) -> Callable[..., Any]:
    def only_buffers_and_masks(self: Any, label: str, array: Any) -> Any:
        assert not isinstance(array, np.ndarray) or label == "key_mask", f"{label} was uploaded"
        return upload(self, label, array)

    return only_buffers_and_masks


@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_two_hundred_calls_leave_no_memory_behind(kind: str) -> None:
    layer = FlashAttention(8, 2)
    device = layer.device.device
    arrays = [random(3, 8, seed=seed) for seed in range(3)]
    gc.collect()
    before = device.memory_in_use()
    tensors = [Tensor.from_numpy(array) for array in arrays] if kind == "tensors" else arrays
    held = device.memory_in_use()
    pipelines = None
    for _ in range(200):
        layer.forward(*tensors)
        pipelines = pipelines or len(device._pipelines)
    assert device.memory_in_use() == held
    assert len(device._pipelines) == pipelines
    del tensors
    assert device.memory_in_use() == before


def test_a_call_that_fails_leaves_no_memory_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, array = FlashAttention(8, 2), random(3, 8)
    gc.collect()
    before = layer.device.device.memory_in_use()
    monkeypatch.setattr("engine.kernels.gpu.GpuPrepared.launch", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        layer.forward(array, array, array)
    gc.collect()
    assert layer.device.device.memory_in_use() == before


def gpu_peak(layer: FlashAttention, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """The most bytes held on the GPU during a call."""
    device, held = layer.device.device, []
    count = device.count
    gc.collect()
    before = device.memory_in_use()

    def counted(nbytes: int) -> None:
        count(nbytes)
        held.append(device.memory_in_use())

    with monkeypatch.context() as patch:
        patch.setattr(device, "count", counted)
        call()
    return max(held) - before


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("seq", [1, 65, 300])
def test_the_estimate_of_a_whole_call_is_what_the_gpu_holds(
    heads: int, seq: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = FlashAttention(16 * heads, heads)
    array = random(2, seq, 16 * heads)
    estimate = layer.memory_estimate(seq, batch=2).call
    assert gpu_peak(layer, lambda: layer.forward(array, array, array), monkeypatch) == estimate.flash_bytes
    output, lse = layer.forward(array, array, array, return_lse=True)
    held = gpu_peak(layer, lambda: layer.backward(*[array] * 3, output, array, lse=lse), monkeypatch)
    assert held == layer.memory_estimate(seq, batch=2, direction="backward").call.flash_bytes


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "batch", "seq"),
    [(1, 1, 32, 1, 512), (4, 4, 32, 1, 512), (8, 8, 64, 2, 300), (2, 1, 256, 1, 700), (8, 1, 256, 50, 1)],
)
@pytest.mark.parametrize("threads", [1, 2, 16])
def test_the_estimate_of_a_whole_call_bounds_what_the_cpu_holds(
    heads: int, kv_heads: int, head_dim: int, batch: int, seq: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.layers.backends.open_cpu", partial(open_cpu, threads=threads))
    layer = FlashAttention(heads * head_dim, heads, num_kv_heads=kv_heads, device="cpu")
    q, k, v = (random(batch, seq, n * head_dim, seed=seed) for seed, n in enumerate((heads, kv_heads, kv_heads)))
    layer.forward(q, k, v)

    def check(peak: int, want: int) -> None:
        """All of the estimate is held when the threads overlap; one thread alone holds it always."""
        slack = max(0.05 * want, 256 << 10)
        assert peak <= want + slack, (peak, want)
        assert threads > 1 or peak >= want - slack, (peak, want)

    with traced() as trace:
        output, lse = layer.forward(q, k, v, return_lse=True)
    check(trace.peak_bytes, layer.memory_estimate(seq, batch).call.flash_bytes - q.nbytes - k.nbytes - v.nbytes)
    with traced() as trace:
        layer.backward(q, k, v, output, q, lse=lse)
    given = 3 * q.nbytes + k.nbytes + v.nbytes + lse.nbytes
    check(trace.peak_bytes, layer.memory_estimate(seq, batch, "backward").call.flash_bytes - given)


def test_scratch_grows_with_the_sequence_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = FlashAttention(16, 1)
    peaks = []
    for seq in (256, 512, 1024):
        array = random(seq, 16)
        peaks.append(gpu_peak(layer, lambda array=array: layer.forward(array, array, array), monkeypatch))
    assert peaks[1] < 3 * peaks[0]  # twice, and more where a GPU splits the keys to fill itself; never four times
    assert peaks[2] < 3 * peaks[1]
    for device, direction in itertools.product(PLACES, ("forward", "backward")):
        wide = FlashAttention(512, 8, device=device)
        short, long = (wide.memory_estimate(seq, direction=direction).call for seq in (65_536, 131_072))
        assert long.flash_bytes < 2.01 * short.flash_bytes
        assert long.naive_bytes > 3.9 * short.naive_bytes
        assert long.reduction_ratio > 0.99


@pytest.mark.parametrize(
    ("seq", "sentence"),
    [
        (0, "seq 0: 0 B for the full score matrix, 0 B for the accumulator of flash attention: as much"),
        (1, "seq 1: 4 B for the full score matrix, 256 B for the accumulator of flash attention: 64.0× more"),
        (32, "seq 32: 4.00 KiB for the full score matrix, 8.00 KiB for the accumulator of flash attention: 2.00× more"),
        (64, "seq 64: 16.0 KiB for the full score matrix, 16.0 KiB for the accumulator of flash attention: as much"),
        (2048, "seq 2,048: 16.0 MiB for the full score matrix, 512 KiB for the accumulator of flash attention: "
               "32.0× less"),
        (1_000_000, "seq 1,000,000: 3.64 TiB for the full score matrix, 244 MiB for the accumulator of flash "
                    "attention: 15,600× less"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("device", PLACES)
def test_memory_savings_at_any_length(device: str, seq: int, sentence: str) -> None:
    layer = FlashAttention(512, 8, device=device)
    assert layer.memory_savings(seq) == sentence
    estimate = layer.memory_estimate(seq)
    assert estimate.scores == MemoryEstimate.of(4 * seq * seq, 4 * seq * 64)
    assert estimate.call.naive_bytes >= 8 * estimate.scores.naive_bytes
    assert estimate.call.flash_bytes >= 4 * 4 * seq * 512


@pytest.mark.parametrize("ask", ["memory_savings", "memory_estimate"])
def test_a_length_beyond_any_call_is_refused(ask: str) -> None:
    with pytest.raises(ValueError, match=r"batch 1 × heads 2 × seq 10+ is too large"):
        getattr(FlashAttention(8, 2, device="cpu"), ask)(10**200)


@pytest.mark.parametrize("seq", [0, 8])
def test_an_estimate_of_no_call_is_refused(seq: int) -> None:
    layer = FlashAttention(8, 2, device="cpu")
    with pytest.raises(ValueError, match="batch must be at least 1, got -1"):
        layer.memory_estimate(seq, batch=-1)
    with pytest.raises(ValueError, match="direction must be forward or backward, got 'both'"):
        layer.memory_estimate(seq, direction="both")  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [-1, 1.5, True, "8"])
def test_a_length_is_a_whole_number(bad: Any) -> None:
    layer = FlashAttention(8, 2, device="cpu")
    for ask in (layer.memory_savings, layer.memory_estimate):
        with pytest.raises(ValueError, match="seq_len must be a whole number from 0 on"):
            ask(bad)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((10, 3), {}, "dim must be a multiple of num_heads, got 10 and 3"),
        ((12, 4), {"num_kv_heads": 3}, "num_heads must be a multiple of num_kv_heads, got 4 and 3"),
        ((0, 1), {}, "dim must be a whole number from 1 on, got 0"),
        ((8, 2.0), {}, r"num_heads must be a whole number from 1 on, got 2\.0"),
        ((8, True), {}, "num_heads must be"),
        ((8, 2), {"num_kv_heads": 0}, "num_kv_heads must be"),
        ((514, 2), {}, "at most 256, got 257"),
        ((8, 2, "yes"), {}, "causal must be True or False, got 'yes'"),
        ((8, 2), {"device": "no such GPU"}, "unknown"),
        ((8, 2), {"device": 7}, "got 7"),
    ],
)
def test_a_layer_that_makes_no_sense_is_refused(arguments: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        FlashAttention(*arguments, **({"device": "cpu"} | options))
    assert "\n" not in str(error.value)


ONE = np.ones((1, 4, 8), np.float32)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ((ONE[0, 0], ONE, ONE), r"q must be \[seq_q, 8\] or \[batch, seq_q, 8\] or \[batch, seq_q, 4, 2\], .* \[8\]"),
        ((ONE[..., :6], ONE, ONE), r"q must be \[batch, seq_q, 8\], got shape \[1, 4, 6\]"),
        ((ONE, ONE, ONE), r"k must be \[batch, seq_k, 4\] beside q of shape \[1, 4, 8\], got shape \[1, 4, 8\]"),
        ((ONE, ONE[0, :, :4], ONE[..., :4]), r"k must be \[batch, seq_k, 4\] beside q"),
        ((ONE.reshape(1, 4, 4, 2), ONE.reshape(1, 4, 4, 2), ONE), r"k must be \[batch, seq_k, 2, 2\] beside q"),
        ((ONE.reshape(1, 4, 2, 4), ONE, ONE), r"q must be \[batch, seq_q, 4, 2\]"),
        ((np.ones((2, 4, 8)), ONE[..., :4], ONE[..., :4]), "q and k must agree in batch, got 2 and 1"),
        ((ONE, ONE[..., :4], ONE[:, :3, :4]), "k and v must agree in seq_k, got 4 and 3"),
        ((ONE[:, :0], ONE[..., :4], ONE[..., :4]), "seq_q must be at least 1"),
        ((ONE, ONE[:, :0, :4], ONE[:, :0, :4]), "seq_k must be at least 1"),
        ((ONE, ONE[..., :4].astype(complex), ONE[..., :4]), "k must hold real numbers"),
        ((ONE, ONE[..., :4], [[[1.0], [1.0, 2.0]]]), "v must be an array, but its nested lists"),
        ((ONE, None, ONE), "k must hold real numbers"),
    ],
)
@pytest.mark.parametrize("device", PLACES)
def test_shapes_that_do_not_fit_are_refused_with_both_figures(device: str, arrays: Any, words: str) -> None:
    layer = FlashAttention(8, 4, num_kv_heads=2, device=device)
    with pytest.raises(ValueError, match=words) as error:
        layer.forward(*arrays)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("bad", [None, "no", 1])
def test_return_lse_is_true_or_false(device: str, bad: Any) -> None:
    with pytest.raises(ValueError, match="return_lse must be True or False, got"):
        FlashAttention(8, 2, device=device).forward(ONE, ONE, ONE, return_lse=bad)


def test_kinds_and_devices_are_not_mixed() -> None:
    layer = FlashAttention(8, 2)
    here, there, closed = Tensor.from_numpy(ONE), Tensor.from_numpy(ONE, "cpu"), Tensor.from_numpy(ONE)
    half = Tensor.from_numpy(ONE.astype(np.float16))
    closed.close()
    for tensors, words in (
        ((here, ONE, here), "give Tensors or arrays, not both: q is a Tensor and k is not"),
        ((here, here, there), "v is on cpu, the layer computes on GpuContext"),
        ((here, closed, here), r"tensor of shape \[1, 4, 8\] is closed"),
        ((here, half, half), "k must hold float32 beside q of float32, got float16"),
    ):
        with pytest.raises(ValueError, match=words):
            layer.forward(*tensors)
    with pytest.raises(ValueError, match=r"q is on GpuContext.*, the layer computes on cpu"):
        FlashAttention(8, 2, device="cpu").forward(here, here, here)


@pytest.mark.parametrize("device", PLACES)
def test_what_does_not_fit_in_memory_is_refused_with_both_figures(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, array = FlashAttention(8, 2, device=device), random(64, 8)
    limits, need = layer._backend.limits(), layer.memory_estimate(64).call.flash_bytes
    for memory, words in ((100, "cannot run this problem: .* limit is"), (need - 1, "this call needs .* the limit is")):
        small = replace(limits, memory_bytes=memory)
        monkeypatch.setattr(type(layer._backend), "limits", lambda self, small=small: small)
        with pytest.raises(ValueError, match=words):
            layer.forward(array, array, array)


def test_without_an_adapter_only_the_cpu_computes() -> None:
    code = (
        "import numpy as np, engine\nfrom engine.layers import FlashAttention\n"
        "x = np.ones((3, 8), np.float32)\n"
        "print(FlashAttention(8, 2, device='cpu').forward(x, x, x).tolist() == x.tolist())\n"
        "try:\n    FlashAttention(8, 2)\nexcept engine.DeviceUnavailable as error:\n    print(error)\n"
    )
    hidden = {"VK_ICD_FILENAMES": "/nowhere/icd.json", "VK_DRIVER_FILES": "/nowhere/icd.json"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | hidden, capture_output=True, text=True, check=True, timeout=60
    )
    computed, sentence = run.stdout.strip().splitlines()
    assert computed == "True"
    assert "install" in sentence


def test_it_says_what_it_is() -> None:
    assert repr(FlashAttention(16, 4, True, num_kv_heads=2, device="cpu")) == (
        "FlashAttention(dim=16, num_heads=4, causal=True, num_kv_heads=2, device='cpu')"
    )
    assert repr(FlashAttention(16, 4)) == (
        f"FlashAttention(dim=16, num_heads=4, causal=False, device={engine.GpuContext()!r})"
    )


def backward_of(problem: AttentionProblem, seed: int) -> tuple[AttentionProblem, Inputs]:
    problem = replace(problem, direction="backward")
    return problem, seeded(problem, seed)


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_gradients_in_every_layout_and_kind_are_those_of_the_reference(
    device: str, causal: bool, kv_heads: int
) -> None:
    problem, inputs = backward_of(problem_of(causal, kv_heads), 1)
    layer, expected = layer_of(problem, device), expect_gradients(problem, inputs)
    arrays, grad_output = given(inputs, 4), joined(inputs.grad_output, 4)
    output, lse = layer.forward(*arrays, return_lse=True)
    grads = layer.backward(*arrays, output, grad_output, lse=lse)
    assert isinstance(grads, FlashAttentionGrads)
    assert [grad.shape for grad in grads] == [array.shape for array in arrays]
    verdict = expected.verdict(Gradients(*(np.ascontiguousarray(grad.swapaxes(1, 2)) for grad in grads)))
    assert verdict.verified, verdict.message

    for one, other in zip(layer.backward(*arrays, output, grad_output), grads, strict=True):
        np.testing.assert_array_equal(one, other)  # lse made anew

    wide = [array.reshape(*array.shape[:2], -1) for array in (*arrays, output, grad_output)]
    for one, other in zip(layer.backward(*wide, lse=lse), grads, strict=True):
        np.testing.assert_array_equal(one, other.reshape(one.shape))

    allowed = max(bound.max() for bound in expected.bounds.values())
    for one, other in zip(layer.backward(*(array[1] for array in wide), lse=lse[1]), grads, strict=True):
        np.testing.assert_allclose(one, other[1].reshape(one.shape), rtol=0, atol=allowed)

    tensors = [Tensor.from_numpy(array, device) for array in (*wide, lse)]
    for one, other in zip(layer.backward(*tensors[:5], lse=tensors[5]), grads, strict=True):
        assert isinstance(one, Tensor)
        assert one.device == layer.device
        np.testing.assert_array_equal(one.numpy(), other.reshape(one.shape))


@pytest.mark.parametrize("device", PLACES)
def test_a_nan_in_the_gradient_reaches_what_depends_on_it(device: str) -> None:
    problem, inputs = backward_of(problem_of(), 2)
    inputs.grad_output[1, 2, 3, 4] = np.nan
    layer, arrays = layer_of(problem, device), given(inputs)
    grads = layer.backward(*arrays, layer.forward(*arrays), joined(inputs.grad_output, 3))
    got = Gradients(*(grad.reshape(BATCH, -1, HEADS, HEAD_DIM).swapaxes(1, 2) for grad in grads))
    assert expect_gradients(problem, inputs).verdict(got).verified
    assert not np.isfinite(got.dq[1, 2, 3]).any()


@pytest.mark.parametrize("device", PLACES)
def test_what_does_not_fit_the_forward_pass_is_refused(device: str) -> None:
    layer, x = FlashAttention(8, 2, device=device), np.ones((1, 4, 8), np.float32)
    for output, grad_output, lse, words in (
        (x[:, :3], x, None, "q and output must agree in seq_q, got 4 and 3"),
        (x, x[0], None, r"grad_output must be \[batch, seq_q, 8\] beside q of shape \[1, 4, 8\], got shape \[4, 8\]"),
        (x, x, np.ones((1, 3, 4)), r"lse must be \[batch, 2, seq_q\] beside q of .* \[1, 4, 8\], got .* \[1, 3, 4\]"),
        (x, Tensor.from_numpy(x, device), None, "give Tensors or arrays, not both"),
    ):
        with pytest.raises(ValueError, match=words):
            layer.backward(x, x, x, output, grad_output, lse=lse)
    there, half = Tensor.from_numpy(x, device), Tensor.zeros((1, 2, 4), np.float16, device)
    with pytest.raises(ValueError, match="lse must hold float32 beside q of float32, got float16"):
        layer.backward(*[there] * 5, lse=half)


def test_gradients_of_half_precision() -> None:
    x = random(1, 4, 8).astype(np.float16)
    on_cpu, on_gpu = (Tensor.from_numpy(x, device) for device in PLACES)
    wide = FlashAttention(8, 2, device="cpu").backward(*[x.astype(np.float32)] * 5)
    for one, other in zip(FlashAttention(8, 2, device="cpu").backward(*[on_cpu] * 5), wide, strict=True):
        assert one.dtype == np.float16
        np.testing.assert_allclose(one.numpy(), other, rtol=2**-10, atol=1e-6)
    with pytest.raises(ValueError, match="backward in f32 only"):
        FlashAttention(8, 2).backward(*[on_gpu] * 5)
