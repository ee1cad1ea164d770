"""The layer of single vectors on the CPU: right at every block size and temperature, honest about memory and time."""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.devices.cpu import open_cpu
from engine.layers import CpuFlashAttention, CpuFlashAttentionConfig, MemoryEstimate
from engine.measure.memory import traced

Array = np.ndarray


def vectors(count: int, width: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((count, width), np.float32)


def layer_of(block_size: int, dimensions: int, temperature: float = 1.0) -> CpuFlashAttention:
    return CpuFlashAttention(CpuFlashAttentionConfig(block_size, dimensions, temperature))


def by_definition(q: Array, k: Array, v: Array, temperature: float) -> Array:
    scores = q.astype(np.float64) @ k.T.astype(np.float64) / (temperature * math.sqrt(q.shape[1]))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v.astype(np.float64)


@pytest.mark.parametrize("block_size", [1, 2, 7, 16, 64, 100, 2048, 1_000_000])
@pytest.mark.parametrize("temperature", [0.05, 1.0, 30.0])
def test_every_block_size_and_temperature_is_right(block_size: int, temperature: float) -> None:
    layer = layer_of(block_size, 16, temperature)
    q, k, v = vectors(37, 16), vectors(150, 16, 1), vectors(150, 9, 2)
    want = by_definition(q, k, v, temperature)
    for output in (layer.attention(q, k, v), layer.naive_attention(q, k, v)):
        assert output.dtype == np.float32
        assert output.shape == (37, 9)
        np.testing.assert_allclose(output, want, rtol=0, atol=2e-5 / min(temperature, 1))


@given(
    block_size=st.integers(1, 70), dimensions=st.integers(1, 40), width=st.integers(1, 40),
    queries=st.integers(1, 90), keys=st.integers(1, 90), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_shape(block_size: int, dimensions: int, width: int, queries: int, keys: int, seed: int) -> None:
    q, k, v = vectors(queries, dimensions, seed), vectors(keys, dimensions, seed + 1), vectors(keys, width, seed + 2)
    output = layer_of(block_size, dimensions).attention(q, k, v)
    np.testing.assert_allclose(output, by_definition(q, k, v, 1.0), rtol=0, atol=1e-5)


def test_many_blocks_of_rows_and_the_same_bits_again() -> None:
    layer = CpuFlashAttention.with_dimensions(32)
    x = vectors(1500, 32)
    first = layer.self_attention(x)
    np.testing.assert_allclose(first, by_definition(x, x, x, 1.0), rtol=0, atol=5e-6)
    np.testing.assert_array_equal(layer.self_attention(x), first)


def test_self_and_cross_attention_and_lists() -> None:
    layer = CpuFlashAttention.with_dimensions(8)
    x, y = vectors(5, 8), vectors(7, 8, 1)
    before = x.tobytes()
    np.testing.assert_array_equal(layer.self_attention(x), layer.attention(x, x, x))
    np.testing.assert_array_equal(layer.cross_attention(x, y), layer.attention(x, y, y))
    np.testing.assert_array_equal(layer.cross_attention(x.tolist(), y.tolist()), layer.cross_attention(x, y))
    np.testing.assert_array_equal(layer.cross_attention(np.asfortranarray(x), y), layer.cross_attention(x, y))
    half = x.astype(np.float16)
    np.testing.assert_array_equal(layer.self_attention(half), layer.self_attention(half.astype(np.float32)))
    assert x.tobytes() == before


def test_what_is_not_finite_is_not_hidden() -> None:
    layer = layer_of(2, 4)
    q, k, v = vectors(6, 4), vectors(6, 4, 1), vectors(6, 4, 2)
    q[2, 1] = np.nan
    v[5, 3] = np.inf
    for output in (layer.attention(q, k, v), layer.naive_attention(q, k, v)):
        np.testing.assert_array_equal(np.flatnonzero(~np.isfinite(output[:, :3]).all(axis=1)), [2])
        assert not np.isfinite(output[:, 3]).any()


def test_the_config() -> None:
    layer = CpuFlashAttention.with_dimensions(48)
    assert layer.config == CpuFlashAttentionConfig(block_size=64, dimensions=48, temperature=1.0)
    assert layer.config.scale == pytest.approx(1 / math.sqrt(48))
    assert layer_of(8, 16, 0.5).config.scale == pytest.approx(0.5)
    assert repr(layer) == "CpuFlashAttention(CpuFlashAttentionConfig(block_size=64, dimensions=48, temperature=1.0))"
    with pytest.raises(AttributeError):
        layer.config.block_size = 3


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ((0, 8, 1.0), "block_size must be a whole number from 1 on, got 0"),
        ((-4, 8, 1.0), "block_size"),
        ((2.5, 8, 1.0), "block_size"),
        ((True, 8, 1.0), "block_size"),
        ((64, 0, 1.0), "dimensions must be a whole number from 1 on, got 0"),
        ((64, 257, 1.0), "dimensions must be at most 256, got 257"),
        ((64, 8, 0), "temperature must be a finite number above 0, got 0"),
        ((64, 8, -1.0), r"temperature must be a finite number above 0, got -1\.0"),
        ((64, 8, math.nan), "temperature"),
        ((64, 8, math.inf), "temperature"),
        ((64, 8, "1"), "temperature"),
        ((64, 8, 10**400), "temperature must be a finite number above 0"),
        ((64, 8, 1e-320), "temperature must not be so small that the scale is infinite, got 1e-320"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(config: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        CpuFlashAttentionConfig(*config)
    assert "\n" not in str(error.value)


def test_what_is_no_config_is_refused() -> None:
    with pytest.raises(ValueError, match="config must be a CpuFlashAttentionConfig, got 64"):
        CpuFlashAttention(64)  # type: ignore[arg-type]


X = np.ones((4, 8), np.float32)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ((X, X[:0], X[:0]), r"keys must not be empty, got shape \[0, 8\]"),
        ((X, [], []), "keys must not be empty"),
        ((X[:0], X, X), "queries must not be empty"),
        ((X, X, X[:, :0]), "values must not be empty"),
        ((X, X, X[:3]), "keys and values must be equally many, got 4 and 3"),
        ((X, [[1.0] * 8, [1.0] * 7], X), "keys must be an array, but its nested lists differ in length"),
        ((X[:, :7], X, X), "queries must have 8 dimensions, got 7"),
        ((X, X[:, :5], X), "keys must have 8 dimensions, got 5"),
        ((X[0], X, X), r"queries must be rows of numbers, \[count, dimensions\], got shape \[8\]"),
        ((X, X[None], X), "keys must be rows of numbers"),
        ((X, X, X.astype(complex)), "values must hold real numbers"),
        ((X, X, [["a"] * 8] * 4), "values must hold real numbers"),
        ((X, X, np.ones((4, 257))), "at most 256"),
    ],
)
def test_what_is_no_attention_is_refused_in_a_sentence(arrays: Any, words: str) -> None:
    layer = CpuFlashAttention.with_dimensions(8)
    for attend in (layer.attention, layer.naive_attention):
        with pytest.raises(ValueError, match=words) as error:
            attend(*arrays)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_lengths_are_whole_numbers(bad: Any) -> None:
    layer = CpuFlashAttention.with_dimensions(8)
    with pytest.raises(ValueError, match="seq_len must be a whole number from 1 on"):
        layer.memory_estimate(bad)
    with pytest.raises(ValueError, match="num_vectors must be a whole number from 1 on"):
        layer.benchmark(bad)


@pytest.mark.parametrize(
    ("seq", "block_size", "dimensions"),
    [(1, 1, 8), (1, 64, 64), (64, 64, 64), (64, 5000, 256), (700, 1, 8), (700, 64, 64), (3000, 64, 64),
     (3000, 5000, 256)],
)  # fmt: skip
@pytest.mark.parametrize("threads", [1, 2, 16])
def test_the_estimate_bounds_what_the_calls_take(
    seq: int, block_size: int, dimensions: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is held when the threads overlap; one thread alone holds it always."""
    monkeypatch.setattr("engine.layers.cpu_flash_attention.open_cpu", partial(open_cpu, threads=threads))
    layer = layer_of(block_size, dimensions)
    x = vectors(seq, dimensions)
    layer.self_attention(x)
    estimate = layer.memory_estimate(seq)
    assert estimate.reduction_ratio == 1 - estimate.flash_bytes / estimate.naive_bytes
    for attend, want in ((layer.attention, estimate.flash_bytes), (layer.naive_attention, estimate.naive_bytes)):
        with traced() as trace:
            attend(x, x, x)
        slack = max(0.05 * want, 256 << 10)
        assert trace.peak_bytes <= want + slack, (attend, trace.peak_bytes, want)
        assert threads > 1 or trace.peak_bytes >= want - slack, (attend, trace.peak_bytes, want)


def test_larger_blocks_take_more_memory() -> None:
    sizes = (1, 64, np.int64(512), 2048, 9999)
    held = [layer_of(size, 64).memory_estimate(4096).flash_bytes for size in sizes]
    assert held[0] < held[1] < held[2] < held[3] == held[4]


def test_flash_needs_more_for_a_few_vectors_and_far_less_for_many() -> None:
    layer = CpuFlashAttention.with_dimensions(64)
    assert layer.memory_estimate(1).reduction_ratio < 0
    assert layer.memory_estimate(16_384).reduction_ratio > 0.98
    short, long = (layer.memory_estimate(seq) for seq in (100_000, 200_000))
    assert long.flash_bytes < 2.01 * short.flash_bytes  # nothing of it grows with the square
    assert long.naive_bytes > 3.9 * short.naive_bytes
    assert MemoryEstimate.of(0, 0).reduction_ratio == 0


def test_the_benchmark() -> None:
    layer = CpuFlashAttention.with_dimensions(32)
    threads = threading.enumerate()
    result = layer.benchmark(300, seconds=0.05)
    assert (result.num_queries, result.dimensions) == (300, 32)
    assert result.memory_reduction == layer.memory_estimate(300).reduction_ratio
    assert result.naive_time_ms > 0
    assert result.flash_time_ms > 0
    assert result.speedup == result.naive_time_ms / result.flash_time_ms
    assert result.equivalent
    assert 0 < result.max_abs_error < 1e-5
    assert threading.enumerate() == threads
    fields = "naive_time_ms flash_time_ms speedup memory_reduction num_queries dimensions max_abs_error equivalent"
    assert msgspec.structs.asdict(result).keys() == set(fields.split())


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, "1"])
def test_the_benchmark_takes_some_time(bad: Any) -> None:
    with pytest.raises(ValueError, match="seconds must be a finite number above 0, got"):
        CpuFlashAttention.with_dimensions(8).benchmark(5, seconds=bad)


def test_a_benchmark_that_does_not_fit_is_refused_before_its_vectors_are_drawn() -> None:
    with pytest.raises(ValueError, match=r"cpu-naive cannot .*: its tensors and score matrices need .* the limit is"):
        CpuFlashAttention.with_dimensions(8).benchmark(4_000_000_000)


def test_a_wrong_result_gets_no_speedup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.kernels.cpu_flash.kernel._OnlineSoftmax.add", lambda self, *_: self.totals.fill(1))
    result = CpuFlashAttention.with_dimensions(8).benchmark(20, seconds=0.02)
    assert not result.equivalent
    assert math.isnan(result.speedup)
    assert result.max_abs_error > 0.01


def test_the_benchmark_takes_turns_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.layers import cpu_flash_attention

    seen: list[str] = []
    sampler = cpu_flash_attention.sampler
    warm_up, race = sampler.warm_up, sampler.race
    monkeypatch.setattr(sampler, "warm_up", lambda *args: (seen.append("warm-up"), warm_up(*args)))
    monkeypatch.setattr(sampler, "race", lambda *args, **kw: (seen.append("race"), race(*args, **kw)))
    CpuFlashAttention.with_dimensions(8).benchmark(20, seconds=0.02)
    assert seen == ["warm-up", "warm-up", "race"]


def test_naive_that_does_not_fit_is_refused_with_both_figures() -> None:
    layer = CpuFlashAttention.with_dimensions(1)
    many = np.zeros((1_000_000, 1), np.float32)
    with pytest.raises(ValueError, match=r"cpu-naive cannot .*: its tensors and score matrices need .* the limit is"):
        layer.naive_attention(many, many, many)
