"""cpu-flash-jit: what holds with Numba or without it, and where it is installed, the parts that are compiled."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from engine.devices.blas import sgemm
from engine.devices.cpu import open_cpu
from engine.devices.device import DeviceUnavailable, Limits
from engine.kernels import base
from engine.kernels.cpu_flash import jit as cpu_flash_jit
from engine.kernels.cpu_flash.jit import CpuFlashJit
from engine.layers.functional import attention
from engine.measure.verify import expect, verify
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs, seeded

INSTALLED = find_spec("numba") is not None
PROBLEM = AttentionProblem(heads=8, seq_q=4096)


def test_it_is_absent_without_an_error_where_numba_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "find_spec", lambda name: None)
    assert CpuFlashJit().missing() == "not installed: pip install flashscope[jit]"
    with pytest.raises(DeviceUnavailable, match=r"cpu-flash-jit is not installed: pip install flashscope\[jit\]"):
        attention([[[[1.0]]]], [[[[1.0]]]], [[[[1.0]]]], kernel="cpu-flash-jit")


def test_it_is_absent_where_blas_cannot_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_flash_jit, "sgemm", lambda: None)
    assert "no cblas_sgemm" in (CpuFlashJit().missing() or "")


def test_numpys_matrix_product_is_found() -> None:
    found = sgemm()
    assert found is not None
    assert found.address > 0


def test_few_threads_get_larger_blocks_of_the_same_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where BLAS need not pack and all rows see the same keys; else the cut is the same for all."""
    monkeypatch.setattr(cpu_flash_jit, "unpacked_product", lambda: 1_000_000)
    two, many = (Limits(memory_bytes=1 << 30, threads=threads, l2_bytes=2 << 20) for threads in (2, 16))
    problem = AttentionProblem(heads=4, seq_q=2048, head_dim=128)
    step = cpu_flash_jit._few_rows(problem, 192)
    few, fine = cpu_flash_jit._blocks(problem, two), cpu_flash_jit._blocks(problem, many)
    assert few.count == 8
    assert fine.count >= 16
    assert step > 0
    assert few.rows % step == fine.rows % step == 0
    assert all(cut.rows * cut.row_blocks >= 2048 > cut.rows * (cut.row_blocks - 1) for cut in (few, fine))
    causal = AttentionProblem(heads=4, seq_q=2048, head_dim=128, causal=True)
    assert cpu_flash_jit._blocks(causal, two) == cpu_flash_jit._blocks(causal, many)


def test_what_fits_is_told_without_numba() -> None:
    limits = Limits(memory_bytes=1 << 30, threads=2, l2_bytes=1 << 20)
    kernel = CpuFlashJit()
    assert kernel.supports(PROBLEM, limits) is None
    assert PROBLEM.tensor_bytes < kernel.predict(PROBLEM, limits) < PROBLEM.tensor_bytes + (16 << 20)
    assert "float32" in (kernel.supports(AttentionProblem(dtype="f16"), limits) or "")


def test_threads_are_those_of_the_device_it_renames() -> None:
    with open_cpu(threads=2) as device:
        other = device.called("numba", "numba 1")
        assert (other.info.backend, other.info.driver, other.info.name) == ("numba", "numba 1", device.info.name)
        workers: set[int] = set()
        other.each(8, lambda worker, item, stopped: workers.add(worker), lambda: False)
        assert workers <= {0, 1}
        assert other._executor() is device._executor()


if INSTALLED:
    import numba

    from engine.kernels.cpu_flash import compiled as compiled

    def over(function):  # type: ignore[no-untyped-def]
        """Return a compiled function that applies a compiled function of one number to an array."""

        @numba.njit
        def apply(numbers, results):  # type: ignore[no-untyped-def]
            for i in range(numbers.size):
                results[i] = function(numbers[i])

        def call(numbers: np.ndarray) -> np.ndarray:
            results = np.empty_like(numbers)
            apply(numbers, results)
            return results

        return call

    def units_off(got: np.ndarray, wanted: np.ndarray) -> float:
        """Return the largest error in units of the last place of what was wanted."""
        return float((np.abs(got - wanted) / np.spacing(np.abs(wanted).astype(np.float32))).max())

    def test_exp2_is_right_to_about_the_last_place() -> None:
        exp2 = over(compiled._exp2)
        numbers = np.linspace(-126, 127, 1_000_001).astype(np.float32)
        assert units_off(exp2(numbers), np.exp2(numbers.astype(np.float64))) < 1.3
        edges = np.array([0, 1, -126.6, -1e9, -np.inf], np.float32)
        np.testing.assert_array_equal(exp2(edges), [1, 2, 0, 0, 0])
        assert not np.isfinite(exp2(np.array([128, 1e9, np.inf, np.nan], np.float32))).any()

    def test_tanh_is_right_to_two_last_places_and_for_the_smallest_numbers() -> None:
        tanh = over(compiled._tanh)
        numbers = np.concatenate([np.linspace(-12, 12, 1_000_001), np.logspace(-37, 1, 10_001)]).astype(np.float32)
        assert units_off(tanh(numbers), np.tanh(numbers.astype(np.float64))) < 2.5
        np.testing.assert_array_equal(tanh(np.array([0, np.inf, -np.inf, 1e30], np.float32)), [0, 1, -1, 1])
        assert np.isnan(tanh(np.array([np.nan], np.float32))).all()

    @pytest.mark.parametrize("flip", [0, -1])
    def test_the_top_is_the_greatest_or_the_least(flip: int) -> None:
        rng = np.random.default_rng(0)
        for count in (1, 7, 8, 100, 513):
            scores = (rng.standard_normal(count) * 10.0 ** rng.integers(-30, 30, count)).astype(np.float32)
            assert compiled._top(scores, np.int32(flip)) == (scores.min() if flip else scores.max())
        infinite = np.array([-np.inf, 3, np.inf, -2], np.float32)
        assert compiled._top(infinite, np.int32(flip)) == (-np.inf if flip else np.inf)

    def test_read_only_and_strange_memory_needs_no_compiling_anew() -> None:
        problem = AttentionProblem(heads=2, kv_heads=1, seq_q=40, seq_k=70, head_dim=12, causal=True)
        given = seeded(problem, 0)
        unaligned = np.frombuffer(b"\0" + given.k.tobytes(), np.float32, offset=1).reshape(problem.k_shape)
        given.v.setflags(write=False)
        inputs = Inputs(given.q, unaligned, given.v)
        with open_cpu(threads=1) as device:
            prepared = CpuFlashJit().prepare(problem, inputs, device)
            prepared.run()
            output = prepared.outputs().output
            prepared.close()
        assert verify(expect(problem, inputs), output).verified
        assert len(compiled.attend.signatures) == 1
        assert not given.v.flags.writeable

    def test_compiling_is_told_apart() -> None:
        problem = AttentionProblem(heads=1, seq_q=8, head_dim=8)
        with open_cpu(threads=1) as device:
            prepared = CpuFlashJit().prepare(problem, seeded(problem, 0), device)
            assert prepared.compile_ms is not None
            assert prepared.compile_ms > 0
            prepared.close()
