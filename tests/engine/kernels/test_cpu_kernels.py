"""What the CPU kernels hold, how they stop, and what they leave as they found it."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import astuple

from engine.common.running import Cancelled
from engine.devices.blas import blas_name, blas_threads, hold_blas, unpacked_product
from engine.devices.cpu import CpuDevice, open_cpu
from engine.devices.device import Limits, Tuned
from engine.kernels import cpu as cpu_common
from engine.kernels.cpu_flash import jit as cpu_flash_jit
from engine.kernels.cpu_flash import kernel as cpu_flash
from engine.kernels.registry import get_kernel
from engine.measure.memory import traced
from engine.measure.verify import expect, verify
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs, seeded
from engine.reference.forward import reference

MIB = 1 << 20
NAMES = [name for name in ("cpu-flash", "cpu-flash-jit", "cpu-naive") if get_kernel(name).missing() is None]
BACKWARD = ["cpu-flash", "cpu-naive"]


def traced_peak(
    name: str,
    problem: AttentionProblem,
    device: CpuDevice,
    stop_after: int | None = None,
    inputs: Inputs | None = None,
) -> int:
    """Bytes held at the peak of prepare and a run (to its end, or to the given look at should_stop), input included."""
    inputs = seeded(problem, 0) if inputs is None else inputs
    looks = 0

    def should_stop() -> bool:
        nonlocal looks
        looks += 1
        return stop_after is not None and looks > stop_after

    kernel = get_kernel(name)
    kernel.load()
    with traced() as seen:
        prepared = kernel.prepare(problem, inputs, device)
        try:
            prepared.run(should_stop=should_stop)
        except Cancelled:
            assert stop_after is not None
        finally:
            prepared.close()
    return seen.peak_bytes + inputs.nbytes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options",
    [
        {"heads": 4, "seq_q": 1024},
        {"heads": 4, "seq_q": 700, "causal": True, "head_dim": 128},
        {"batch": 2, "heads": 8, "kv_heads": 2, "seq_q": 40, "seq_k": 900, "head_dim": 256, "head_dim_v": 16},
        {"batch": 2, "heads": 2, "seq_q": 300, "seq_k": 3000, "key_mask": np.arange(6000).reshape(2, 3000) % 3 > 0},
        {"heads": 8, "kv_heads": 1, "seq_q": 1, "seq_k": 20_000},
        {"heads": 2, "seq_q": 600, "window": 100, "softcap": 10.0, "head_dim": 80},
        {"heads": 1, "seq_q": 7, "head_dim": 3},
        {"batch": 1000, "heads": 2, "seq_q": 2, "head_dim": 32},
    ],
    ids=["plain", "causal", "grouped", "key_mask", "decode", "window", "tiny", "many short"],
)
def test_memory_is_what_was_predicted(name: str, options: dict[str, Any]) -> None:
    problem = AttentionProblem(**options)
    with open_cpu(threads=2) as device:
        predicted = get_kernel(name).predict(problem, device.limits)
        held = traced_peak(name, problem, device)
    assert abs(held - predicted) <= max(0.05 * predicted, 256 << 10), (held, predicted)


@pytest.mark.parametrize("name", BACKWARD)
@pytest.mark.parametrize(
    "options",
    [
        {"heads": 4, "seq_q": 600},
        {"heads": 4, "seq_q": 500, "causal": True, "head_dim": 128},
        {"batch": 2, "heads": 8, "kv_heads": 2, "seq_q": 40, "seq_k": 900, "head_dim": 256, "head_dim_v": 16},
        {"batch": 2, "heads": 2, "seq_q": 100, "seq_k": 3000, "key_mask": np.arange(6000).reshape(2, 3000) % 3 > 0},
        {"heads": 8, "kv_heads": 1, "seq_q": 1, "seq_k": 20_000},
        {"heads": 2, "seq_q": 600, "window": 100, "softcap": 10.0, "head_dim": 80},
        {"heads": 1, "seq_q": 50_000, "seq_k": 4, "head_dim": 1, "causal": True},
        {"heads": 1, "seq_q": 7, "head_dim": 3},
    ],
    ids=["plain", "causal", "grouped", "key_mask", "decode", "window", "many rows", "tiny"],
)
def test_memory_backward_is_what_was_predicted(name: str, options: dict[str, Any]) -> None:
    """The forward pass, which is made first, and the gradient of the output included."""
    problem = AttentionProblem(direction="backward", **options)
    with open_cpu(threads=2) as device:
        predicted = get_kernel(name).predict(problem, device.limits)
        held = traced_peak(name, problem, device)
    assert abs(held - predicted) <= max(0.05 * predicted, 256 << 10), (held, predicted)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"heads": 1}, {"heads": 32, "kv_heads": 2}], ids=str)
@pytest.mark.parametrize("threads", [1, 16])
@pytest.mark.parametrize("l2_bytes", [256 << 10, 64 * MIB])
def test_scratch_of_flash_backward_at_most_doubles_with_the_sequence(
    options: dict[str, Any], threads: int, l2_bytes: int
) -> None:
    """From where the keys of few heads are cut into as many strips as there ever are."""
    limits = Limits(memory_bytes=1 << 50, threads=threads, l2_bytes=l2_bytes)
    scratch = []
    for seq in (4096 << n for n in range(6)):
        problem = AttentionProblem(**{"heads": 4, "seq_q": seq, "head_dim": 64, "direction": "backward"} | options)
        scratch.append(get_kernel("cpu-flash").predict(problem, limits) - problem.tensor_bytes)
        partial = 15 * 4 * problem.heads * seq * 64
        assert scratch[-1] <= threads * (8 * MIB) + partial
    for shorter, longer in itertools.pairwise(scratch):
        assert longer <= 2 * shorter, scratch


def test_flash_backward_of_a_long_sequence_holds_what_it_predicts() -> None:
    """The run is stopped when every buffer has been in use; a score matrix would be 1 GiB."""
    problem = AttentionProblem(heads=1, seq_q=16_384, head_dim=16, causal=True, direction="backward")
    inputs = seeded(problem, 0)
    output, lse = (np.ones(shape, np.float32) for shape in (problem.output_shape, problem.output_shape[:3]))
    with open_cpu(threads=2) as device:
        predicted = get_kernel("cpu-flash").predict(problem, device.limits)
        held = traced_peak("cpu-flash", problem, device, stop_after=8, inputs=replace(inputs, output=output, lse=lse))
    assert held < problem.tensor_bytes + 48 * MIB
    assert held <= predicted + max(0.05 * predicted, 256 << 10), (held, predicted)


def test_naive_backward_holds_two_matrices_at_once() -> None:
    problem = AttentionProblem(batch=2, heads=3, seq_q=100, seq_k=200, head_dim=8, direction="backward")
    with open_cpu(threads=1) as device:
        held = traced_peak("cpu-naive", problem, device)
    assert held >= problem.tensor_bytes + 2 * problem.score_bytes


@pytest.mark.parametrize("name", [name for name in NAMES if "flash" in name])
@pytest.mark.parametrize(
    ("seq", "heads", "head_dim", "most"),
    [(16_384, 1, 64, 16 * MIB), (16_384, 1, 256, 16 * MIB), (65_536, 8, 16, 32 * MIB), (65_536, 8, 64, 32 * MIB)],
)
def test_scratch_of_flash_does_not_grow_with_the_sequence(
    name: str, seq: int, heads: int, head_dim: int, most: int
) -> None:
    """The largest L2 there is must not matter either; the run is stopped when every buffer has been in use."""
    problem = AttentionProblem(heads=heads, seq_q=seq, head_dim=head_dim, causal=True)
    with open_cpu(threads=2) as device:
        device.limits = Limits(memory_bytes=1 << 40, threads=2, l2_bytes=64 * MIB)
        scratch = get_kernel(name).predict(problem, device.limits) - problem.tensor_bytes
        held = traced_peak(name, problem, device, stop_after=heads + 8) - problem.tensor_bytes
    assert scratch < most
    assert held < most
    longer = AttentionProblem(heads=heads, seq_q=4 * seq, head_dim=head_dim, causal=True)
    assert scratch == get_kernel(name).predict(longer, device.limits) - longer.tensor_bytes


def test_naive_holds_all_score_matrices_at_once() -> None:
    problem = AttentionProblem(batch=2, heads=3, seq_q=100, seq_k=200, head_dim=8)
    with open_cpu(threads=1) as device:
        held = traced_peak("cpu-naive", problem, device)
    assert held >= problem.tensor_bytes + problem.score_bytes


@pytest.mark.parametrize(("name", "words"), [("cpu-naive", "score matrices"), ("cpu-flash", "tiles")])
def test_what_does_not_fit_is_refused_with_both_figures(name: str, words: str) -> None:
    problem = AttentionProblem(heads=8, seq_q=16_384)
    limits = Limits(memory_bytes=100 * MIB, threads=2, l2_bytes=MIB)
    reason = get_kernel(name).supports(problem, limits)
    assert reason is not None
    assert words in reason
    assert "100 MiB" in reason
    need = get_kernel(name).predict(problem, limits)
    assert 128 * MIB < need < 136 * MIB or name == "cpu-naive"
    assert ("8.12 GiB" if name == "cpu-naive" else f"{need / MIB:.0f} MiB") in reason
    gradients = msgspec.structs.replace(problem, direction="backward")
    reason = get_kernel(name).supports(gradients, Limits(memory_bytes=100 * MIB, threads=2, l2_bytes=MIB))
    assert reason is not None
    assert words in reason
    assert "100 MiB" in reason
    assert ("16.3 GiB" if name == "cpu-naive" else "MiB") in reason.partition(",")[0]


@pytest.mark.parametrize("name", ["cpu-naive", "cpu-flash"])
def test_a_limit_of_a_few_bytes_is_said_in_bytes(name: str) -> None:
    reason = get_kernel(name).supports(AttentionProblem(), Limits(memory_bytes=3, threads=2, l2_bytes=MIB))
    assert reason is not None
    assert reason.endswith(" MiB, the limit is 3 B")


def test_work_buffers_are_kept_from_run_to_run(cpu_kernel) -> None:
    problem = AttentionProblem(heads=2, seq_q=512, head_dim=64)
    prepared = cpu_kernel.kernel.prepare(problem, seeded(problem, 0), cpu_kernel.device)
    prepared.run()
    tracemalloc.start()
    try:
        prepared.run(repeat=2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        prepared.close()
    assert peak < 256 << 10


@pytest.mark.parametrize("name", NAMES)
def test_a_run_stops_in_the_middle(name: str) -> None:
    problem = AttentionProblem(heads=8, seq_q=600, head_dim=16)
    looks = iter(range(100))
    with open_cpu(threads=1) as device:
        prepared = get_kernel(name).prepare(problem, seeded(problem, 0), device)
        prepared.poison()
        with pytest.raises(Cancelled):
            prepared.run(should_stop=lambda: next(looks) >= 12)
        unfinished = np.isnan(prepared.outputs().output)
        prepared.close()
    assert unfinished.any()
    assert next(looks) == 13  # nobody asked again


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options",
    [
        {"heads": 1, "seq_q": 1030, "head_dim": 33},
        {"heads": 1, "seq_q": 600, "seq_k": 513, "causal": True},
        {"heads": 6, "kv_heads": 2, "seq_q": 130, "seq_k": 65, "head_dim": 20, "window": 40},
        {"heads": 1, "seq_q": 4100, "seq_k": 200, "head_dim": 128},
        {"heads": 4, "kv_heads": 2, "seq_q": 219, "seq_k": 705},
    ],
)
def test_results_do_not_depend_on_the_number_of_threads(name: str, options: dict[str, Any]) -> None:
    problem = AttentionProblem(**options)
    inputs = seeded(problem, 3)
    results = []
    for threads in (1, 2, 5):
        with open_cpu(threads) as device:
            prepared = get_kernel(name).prepare(problem, inputs, device, want_lse=True)
            prepared.run()
            results.append(prepared.outputs())
            prepared.close()
    for other in results[1:]:
        np.testing.assert_array_equal(other.output, results[0].output)
        np.testing.assert_array_equal(other.lse, results[0].lse)


@pytest.mark.parametrize("name", BACKWARD)
@pytest.mark.parametrize(
    "options",
    [
        {"heads": 1, "seq_q": 1030, "head_dim": 33},
        {"heads": 2, "kv_heads": 1, "seq_q": 600, "seq_k": 513, "causal": True},
        {"heads": 6, "kv_heads": 2, "seq_q": 130, "seq_k": 65, "head_dim": 20, "window": 40, "softcap": 5.0},
        {"heads": 4, "seq_q": 400, "seq_k": 700, "key_mask": np.arange(700)[None] % 7 > 2},
    ],
    ids=["one head", "grouped", "window", "key_mask"],
)
def test_gradients_do_not_depend_on_the_number_of_threads(name: str, options: dict[str, Any]) -> None:
    problem = AttentionProblem(direction="backward", **options)
    inputs = seeded(problem, 3)
    results = []
    for threads in (1, 2, 3):
        with open_cpu(threads) as device:
            prepared = get_kernel(name).prepare(problem, inputs, device)
            for _ in range(2):
                prepared.poison()
                prepared.run()
                results.append([gradient.copy() for gradient in astuple(prepared.gradients())])
            prepared.close()
    for other in results[1:]:
        for gradient, first in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(gradient, first)


@pytest.mark.parametrize("name", BACKWARD)
def test_a_backward_run_stops_in_the_middle(name: str) -> None:
    """Wherever it is asked to; and the next run is whole."""
    problem = AttentionProblem(heads=8, kv_heads=4, seq_q=600, head_dim=16, causal=True, direction="backward")
    with open_cpu(threads=1) as device:
        prepared = get_kernel(name).prepare(problem, seeded(problem, 0), device)
        looks = iter(range(1000))
        prepared.run(should_stop=lambda: next(looks) < 0)
        whole = [gradient.copy() for gradient in astuple(prepared.gradients())]
        for stop_at in (0, 1, 2, 5, next(looks) - 1):
            prepared.poison()
            looks = iter(range(1000))
            with pytest.raises(Cancelled):
                prepared.run(should_stop=lambda looks=looks, stop_at=stop_at: next(looks) >= stop_at)
            assert next(looks) == stop_at + 1  # nobody asked again
        prepared.poison()
        prepared.run()
        for gradient, expected in zip(astuple(prepared.gradients()), whole, strict=True):
            np.testing.assert_array_equal(gradient, expected)
        prepared.close()


@pytest.mark.parametrize("name", BACKWARD)
def test_a_stop_on_the_way_back_leaves_blas_and_threads_as_found(name: str) -> None:
    problem = AttentionProblem(heads=8, kv_heads=4, seq_q=600, head_dim=16, causal=True, direction="backward")
    before = threading.enumerate()
    with hold_blas(2):
        found = blas_threads()
        with open_cpu(threads=3) as device:
            prepared = get_kernel(name).prepare(problem, seeded(problem, 0), device)
            during: list[int | None] = []

            def look() -> bool:
                during.append(blas_threads())
                return True

            with pytest.raises(Cancelled):
                prepared.run(should_stop=look)
            assert during == [1]
            assert blas_threads() == found
            prepared.run()
            assert all(np.isfinite(gradient).all() for gradient in astuple(prepared.gradients()))
            prepared.close()
    assert threading.enumerate() == before


@pytest.mark.parametrize("name", NAMES)
def test_short_items_stay_on_one_thread(name: str) -> None:
    """Handing work to threads costs more than a short problem; and short items of NumPy's are mostly Python."""
    short = {"heads": 48 if name == "cpu-naive" else 4, "seq_q": 67, "head_dim": 32}
    for options, threads in ((short, 1), ({"heads": 4, "seq_q": 600}, 2)):
        problem = AttentionProblem(**options)
        before = threading.active_count()
        with open_cpu(threads=2) as device:
            prepared = get_kernel(name).prepare(problem, seeded(problem, 0), device)
            prepared.run()
            assert threading.active_count() - before == threads - 1
            prepared.close()


@pytest.mark.parametrize("name", NAMES)
def test_threads_and_blas_are_left_as_found(name: str) -> None:
    problem = AttentionProblem(heads=4, seq_q=300, head_dim=16)
    before = threading.enumerate()
    with hold_blas(2):
        found = blas_threads()
        with open_cpu(threads=3) as device:
            prepared = get_kernel(name).prepare(problem, seeded(problem, 0), device)
            during: list[int | None] = []

            def look() -> bool:
                during.append(blas_threads())
                return False

            prepared.run(should_stop=look)
            assert set(during) == {1}
            assert blas_threads() == found
            prepared.close()
    assert threading.enumerate() == before


def test_blas_and_threads_come_back_after_an_error(cpu_kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = AttentionProblem(heads=4, seq_q=100, head_dim=16)
    found = blas_threads()

    def broken(*_: Any) -> None:
        raise MemoryError("no room")

    prepared = cpu_kernel.kernel.prepare(problem, seeded(problem, 0), cpu_kernel.device)
    for name in ("_block", "_item", "_score"):
        monkeypatch.setattr(type(prepared), name, broken, raising=False)
    with pytest.raises(MemoryError, match="no room"):
        prepared.run()
    assert blas_threads() == found
    monkeypatch.undo()
    prepared.run()
    prepared.close()


@pytest.mark.parametrize("name", BACKWARD)
def test_blas_comes_back_after_an_error_on_the_way_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = AttentionProblem(heads=4, seq_q=100, head_dim=16, direction="backward")
    found = blas_threads()

    def broken(*_: Any) -> None:
        raise MemoryError("no room")

    with open_cpu(threads=2) as device:
        prepared = get_kernel(name).prepare(problem, seeded(problem, 0), device)
        for method in ("_strip", "_of_keys"):
            monkeypatch.setattr(type(prepared), method, broken, raising=False)
        with pytest.raises(MemoryError, match="no room"):
            prepared.run()
        assert blas_threads() == found
        monkeypatch.undo()
        prepared.run()
        assert all(np.isfinite(gradient).all() for gradient in astuple(prepared.gradients()))
        prepared.close()


@pytest.mark.parametrize("size", [1e-30, 1e34])
@pytest.mark.parametrize("shift", [-44, 0, 60])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"key_mask": np.arange(600)[None] % 3 > 0}])
def test_values_near_the_ends_of_float32_are_not_lost(
    cpu_kernel, options: dict[str, Any], shift: float, size: float
) -> None:
    """Of all scores near -44 or 60, for which cpu-flash looks for no maximum, and far apart, for which it does."""
    problem = AttentionProblem(heads=2, seq_q=600, head_dim=33, **options)
    for larger in (1, 10, 100):
        inputs = seeded(problem, 0)
        inputs.q[...] *= larger
        inputs.v[...] *= np.float32(size)
        inputs.q[..., -1], inputs.k[..., -1] = 1, shift / problem.scale
        cpu_kernel.check(problem, inputs)


@pytest.mark.parametrize("name", ["cpu-flash", "cpu-naive"])
@pytest.mark.parametrize("causal", [False, True])
def test_means_of_the_largest_values_are_finite(name: str, causal: bool) -> None:
    """Sums of two of them are not, and a mean that is rounded up may not be."""
    problem = AttentionProblem(heads=2, seq_q=600, head_dim=33, causal=causal)
    inputs = seeded(problem, 0)
    inputs.v[...] = np.finfo(np.float32).max * (1 - np.minimum(np.abs(inputs.v) * np.float32(1e-6), 1))
    with open_cpu(threads=2) as device:
        for larger in (1, 30):
            inputs.q[...] *= larger
            prepared = get_kernel(name).prepare(problem, inputs, device)
            prepared.run()
            verdict = verify(expect(problem, inputs), prepared.outputs().output)
            assert verdict.verified is not False, verdict
            prepared.close()


@pytest.mark.parametrize("causal", [False, True])
def test_rows_all_of_whose_scores_are_minus_infinity_have_no_mean(cpu_kernel, causal: bool) -> None:
    """And rows that see one other key have its value, whether it comes before those or after."""
    problem = AttentionProblem(heads=2, seq_q=300, seq_k=600, head_dim=4, causal=causal)
    for others in ([], [0], [590]):
        inputs = seeded(problem, 0)
        inputs.q[..., 0], inputs.k[..., 0] = -1, np.inf
        inputs.k[:, :, others, 0] = 300
        inputs.v[..., 1] = 1
        got = cpu_kernel.run(problem, inputs)
        verdict = verify(expect(problem, inputs), got.output)
        assert verdict.verified is not False, verdict
        seeing = {(): 0, (0,): 300, (590,): 10 if causal else 300}[tuple(others)]
        assert verdict.nonfinite == 2 * (300 - seeing)


@pytest.mark.parametrize("scale", [1e8, -1e9, 1e20])
def test_a_maximum_of_billions_moves(cpu_kernel, scale: float) -> None:
    """Float32 keeps multiples of 64 there, and more: a maximum is off by more than the exponential takes."""
    problem = AttentionProblem(heads=9, kv_heads=3, seq_q=1, seq_k=2000, head_dim=176, scale=scale)
    cpu_kernel.check(problem, seeded(problem, 0))


def test_a_maximum_that_rises_from_tile_to_tile(cpu_kernel) -> None:
    """Each key beats all before it, so that cpu-flash rescales at every tile; and the mirror image, at none."""
    problem = AttentionProblem(heads=1, seq_q=40, seq_k=2000, head_dim=1, scale=1.0)
    rising = np.linspace(-300, 300, 2000, dtype=np.float32).reshape(problem.k_shape)
    v = seeded(problem, 1).v
    for k in (rising, rising[:, :, ::-1].copy()):
        cpu_kernel.check(problem, Inputs(np.ones(problem.q_shape, np.float32), k, v))


def tuned_to(name: str, problem: AttentionProblem, limits: Limits, variant: msgspec.Struct) -> Limits:
    tuned = Tuned(
        kernel=name,
        dtype=problem.dtype,
        head_dim=problem.head_dim,
        causal=problem.causal,
        variant=tuple(msgspec.structs.asdict(variant).items()),
    )
    return msgspec.structs.replace(limits, tuned=(tuned,))


@pytest.mark.parametrize("causal", [False, True])
def test_every_candidate_is_right_and_holds_what_it_predicts(flash_kernel, causal: bool) -> None:
    problem = AttentionProblem(heads=2, seq_q=700, head_dim=32, causal=causal)
    inputs = seeded(problem, 4)
    limits = flash_kernel.device.limits
    candidates = flash_kernel.kernel.candidates(problem, limits)
    variants = set()
    for candidate in candidates:
        flash_kernel.device.limits = tuned_to(flash_kernel.kernel.name, problem, limits, candidate)
        try:
            flash_kernel.check(problem, inputs)
            predicted = flash_kernel.kernel.predict(problem, flash_kernel.device.limits)
            held = traced_peak(flash_kernel.kernel.name, problem, flash_kernel.device)
            prepared = flash_kernel.kernel.prepare(problem, inputs, flash_kernel.device)
            variants.add((prepared.variant, predicted))
            prepared.close()
        finally:
            flash_kernel.device.limits = limits
        assert abs(held - predicted) <= max(0.05 * predicted, 256 << 10), candidate
    assert len(candidates) > 3
    assert len(variants) > 3


def test_the_untuned_choice_is_the_first_candidate(flash_kernel) -> None:
    problem = AttentionProblem(heads=8, seq_q=2048)
    limits, name = flash_kernel.device.limits, flash_kernel.kernel.name
    first = flash_kernel.kernel.candidates(problem, limits)[0]
    bytes_of = [
        flash_kernel.kernel.predict(problem, chosen) for chosen in (limits, tuned_to(name, problem, limits, first))
    ]
    assert bytes_of[0] == bytes_of[1]


@pytest.mark.parametrize("unpacked", [0, 100**3])
@pytest.mark.parametrize(
    "options",
    [
        {"heads": 2, "seq_q": 650, "seq_k": 777, "head_dim": 64, "causal": True},
        {"heads": 2, "seq_q": 331, "head_dim": 128, "window": 70},
        {"heads": 6, "kv_heads": 2, "seq_q": 70, "seq_k": 600, "head_dim": 48, "causal": True},
        {
            "heads": 1,
            "seq_q": 129,
            "seq_k": 900,
            "head_dim": 32,
            "softcap": 5.0,
            "key_mask": np.arange(900)[None] % 3 > 0,
        },
    ],
)
def test_both_kinds_of_products_are_right_whatever_blas_has(
    flash_kernel, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], unpacked: int
) -> None:
    for module in (cpu_flash, cpu_flash_jit):
        monkeypatch.setattr(module, "unpacked_product", lambda: unpacked)
    problem = AttentionProblem(**options)
    inputs = seeded(problem, 5)
    flash_kernel.check(problem, inputs)
    inputs.q[...] *= 40  # scores in the hundreds: maxima move
    flash_kernel.check(problem, inputs)
    inputs.v[:, :, problem.seq_k // 2] = np.nan
    nonfinite = np.isnan(flash_kernel.run(problem, inputs).output).any(axis=3)
    finite = np.isfinite(reference(problem, inputs)[0]).all(axis=3)
    np.testing.assert_array_equal(nonfinite, ~finite)


@pytest.mark.parametrize("quick_exp2", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"heads": 2, "seq_q": 333, "head_dim": 64, "causal": True},
        {"heads": 2, "seq_q": 300, "head_dim": 128, "window": 70},
        {"heads": 4, "kv_heads": 2, "seq_q": 70, "seq_k": 300, "head_dim": 40, "scale": -0.3, "causal": True},
        {"heads": 1, "seq_q": 65, "seq_k": 500, "softcap": 5.0, "key_mask": np.arange(500)[None] % 3 > 0},
        {"heads": 1, "seq_q": 100, "softcap": 50.0, "head_dim": 20, "causal": True},
    ],
)
def test_exponents_of_e_and_of_2_are_both_right(
    flash_kernel, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], quick_exp2: bool
) -> None:
    """Of modest scores, of some that are not in one block and in another are, and of scores in the hundreds."""
    monkeypatch.setattr(cpu_flash, "has_quick_exp2", lambda: quick_exp2)
    problem = AttentionProblem(**options)
    for larger in (1, 2, 40):
        inputs = seeded(problem, 3)
        inputs.q[...] *= larger
        flash_kernel.check(problem, inputs)
    inputs = seeded(problem, 3)
    with monkeypatch.context() as patch:
        patch.setattr(cpu_flash, "_MOST_IN_ALL", 0.0)  # so that maxima are looked for
        flash_kernel.check(problem, inputs)
    inputs.k[:, :, -1] = np.nan
    finite = np.isfinite(reference(problem, inputs)[0])
    np.testing.assert_array_equal(np.isfinite(flash_kernel.run(problem, inputs).output), finite)


@pytest.mark.parametrize("kept", [0, 1, 4])
@pytest.mark.parametrize("window", [None, 600])
def test_runs_repeat_whatever_is_kept_of_what_rows_see(
    monkeypatch: pytest.MonkeyPatch, kept: int, window: int | None
) -> None:
    monkeypatch.setattr(cpu_flash, "_SIGHTS_KEPT", kept)
    problem = AttentionProblem(heads=3, seq_q=2500, head_dim=16, causal=True, window=window)
    inputs = seeded(problem, 1)
    with open_cpu(threads=2) as device:
        prepared = get_kernel("cpu-flash").prepare(problem, inputs, device)
        for _ in range(3):
            prepared.poison()
            prepared.run()
            verdict = verify(expect(problem, inputs), prepared.outputs().output)
            assert verdict.verified is not False, verdict
        prepared.close()


def test_a_product_needs_no_packing_only_with_openblas_for_avx_512() -> None:
    assert unpacked_product() in {0, 100**3}
    if not blas_name().startswith("openblas"):
        assert unpacked_product() == 0


@pytest.mark.parametrize("fields", [{}, {"rows": 0, "keys": 512, "edge_keys": 64}, {"rows": 1 << 20}, {"tile": 3}])
def test_tuned_sizes_that_make_no_sense_are_left_aside(flash_kernel, fields: dict[str, int]) -> None:
    problem = AttentionProblem(heads=8, seq_q=2048)
    limits, name = flash_kernel.device.limits, flash_kernel.kernel.name
    tuned = Tuned(kernel=name, dtype="f32", head_dim=64, causal=False, variant=tuple(fields.items()))
    odd = msgspec.structs.replace(limits, tuned=(tuned,))
    assert flash_kernel.kernel.predict(problem, odd) == flash_kernel.kernel.predict(problem, limits)


def test_every_scale_is_split_without_rounding() -> None:
    for scale in (1.0, -1.0, 0.125, 1 / np.sqrt(80), -3e-39, 1e30, 2.0**-126):
        power, rest = cpu_common.split_scale(scale)
        assert power * rest == pytest.approx(scale, rel=1e-15)
        assert abs(power) == 2.0 ** round(np.log2(abs(power)))
        assert 0 < rest < 2
    assert cpu_common.split_scale(0.0) == (0.0, 1.0)
