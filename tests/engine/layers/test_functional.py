"""The simple call: what it takes, what it gives, what it refuses."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import engine
from engine import AttentionProblem, DeviceUnavailable, attention
from engine.devices.blas import blas_threads
from engine.kernels.registry import DEFAULT_KERNELS
from engine.problem.inputs import Inputs, seeded
from engine.reference.forward import reference

PROBLEM = AttentionProblem(
    batch=2, heads=4, kv_heads=2, seq_q=9, seq_k=12, head_dim=6, head_dim_v=5, window=7, softcap=3.0, scale=0.4,
    key_mask=np.arange(24).reshape(2, 12) % 5 > 0,
)  # fmt: skip
OPTIONS: dict[str, Any] = {
    "window": 7, "softcap": 3.0, "scale": 0.4, "key_mask": np.arange(24).reshape(2, 12) % 5 > 0
}  # fmt: skip


@pytest.fixture
def inputs() -> Inputs:
    return seeded(PROBLEM, 0)


@pytest.mark.parametrize("kernel", DEFAULT_KERNELS)
def test_all_kernels_give_the_reference(kernel: str, inputs: Inputs) -> None:
    want, want_lse, _ = reference(PROBLEM, inputs)
    output, lse = attention(inputs.q, inputs.k, inputs.v, kernel=kernel, return_lse=True, **OPTIONS)
    assert output.dtype == lse.dtype == np.float32
    assert output.shape == PROBLEM.output_shape
    np.testing.assert_allclose(output, want, rtol=0, atol=2e-6)
    np.testing.assert_allclose(lse, want_lse, rtol=0, atol=2e-6)
    alone = attention(inputs.q, inputs.k, inputs.v, kernel=kernel, **OPTIONS)
    np.testing.assert_array_equal(alone, output)


@pytest.mark.parametrize("kernel", DEFAULT_KERNELS)
@pytest.mark.parametrize(
    "give",
    [
        lambda a: a.tolist(),
        np.asfortranarray,
        lambda a: np.repeat(a, 2, axis=3)[..., ::2],
        lambda a: a[:, :, ::-1].copy()[:, :, ::-1],
        lambda a: a.astype(np.float64),
        lambda a: a.astype(">f4"),
        lambda a: np.lib.stride_tricks.as_strided(a, writeable=False),
    ],
    ids=["lists", "Fortran", "strided", "negative strides", "float64", "big-endian", "read-only"],
)
def test_any_layout_gives_the_same(kernel: str, give: Any, inputs: Inputs) -> None:
    want = attention(inputs.q, inputs.k, inputs.v, kernel=kernel, causal=True)
    given = [give(array) for array in (inputs.q, inputs.k, inputs.v)]
    np.testing.assert_array_equal(attention(*given, kernel=kernel, causal=True), want)


@pytest.mark.parametrize("kernel", DEFAULT_KERNELS)
def test_half_precision_is_computed_in_float32(kernel: str, inputs: Inputs) -> None:
    halves = [array.astype(np.float16) for array in (inputs.q, inputs.k, inputs.v)]
    output = attention(*halves, kernel=kernel)
    assert output.dtype == np.float32
    np.testing.assert_array_equal(output, attention(*(half.astype(np.float32) for half in halves), kernel=kernel))


@pytest.mark.parametrize("kernel", DEFAULT_KERNELS)
def test_inputs_are_never_changed(kernel: str, inputs: Inputs) -> None:
    inputs.v[0, 0, 2, 1] = np.nan
    inputs.k[1, 0, 0, 0] = np.inf  # a key that the mask hides
    arrays = [inputs.q, inputs.k, inputs.v, OPTIONS["key_mask"]]
    before = [array.tobytes() for array in arrays]
    attention(inputs.q, inputs.k, inputs.v, kernel=kernel, return_lse=True, **OPTIONS)
    assert [array.tobytes() for array in arrays] == before


ONES = np.ones((1, 2, 4, 3), np.float32)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((ONES[0], ONES, ONES), {}, "q must have 4 dimensions"),
        ((ONES, None, ONES), {}, "k must have 4 dimensions"),
        ((ONES, ONES[..., :2], ONES), {}, "q and k must agree"),
        ((ONES, ONES, ONES[:, :, :3]), {}, "k and v must agree"),
        ((np.ones((1, 3, 4, 3)), ONES, ONES), {}, "multiple of kv_heads"),
        ((ONES[:, :, :0], ONES, ONES), {}, "seq_q must be at least 1"),
        ((ONES.astype(complex), ONES, ONES), {}, "real numbers"),
        ((ONES.astype(bool), ONES, ONES), {}, "real numbers"),
        ((np.full((1, 1, 1, 1), "a"), ONES, ONES), {}, "real numbers"),
        (([[[[1.0], [1.0, 2.0]]]], ONES, ONES), {}, "nested lists"),
        ((np.ones((1, 1, 1, 257)),) * 3, {}, "at most 256"),
        ((ONES, ONES, ONES), {"kernel": "cpu-fast"}, "unknown kernel"),
        ((ONES, ONES, ONES), {"causal": "yes"}, "causal must be True or False"),
        ((ONES, ONES, ONES), {"return_lse": None}, "return_lse must be True or False"),
        ((ONES, ONES, ONES), {"window": 0}, "window must be at least 1"),
        ((ONES, ONES, ONES), {"window": 2.5}, "window must be a whole number"),
        ((ONES, ONES, ONES), {"softcap": -1}, "softcap must be above 0"),
        ((ONES, ONES, ONES), {"scale": float("nan")}, "scale must be finite"),
        ((ONES, ONES, ONES), {"key_mask": np.ones((1, 3), bool)}, "key_mask must have shape"),
        ((ONES, ONES, ONES), {"key_mask": np.ones((1, 4))}, "key_mask must be a bool array"),
        ((np.ones((1, 64, 65_536, 1)),) * 3, {"kernel": "cpu-naive"}, "cannot run this problem: its tensors and score"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(arguments: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        attention(*arguments, **options)
    assert "\n" not in str(error.value)


def test_no_warning_and_no_thread_is_left(inputs: Inputs) -> None:
    before, found = threading.enumerate(), blas_threads()
    inputs.q[0, 0, 0] = np.inf
    inputs.v[1, 1, 1] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kernel in ("cpu-flash", "cpu-naive"):
            attention(inputs.q, inputs.k, inputs.v, kernel=kernel)
            attention(inputs.q.astype(np.float64) * 1e300, inputs.k, inputs.v, kernel=kernel)
    assert threading.enumerate() == before
    assert blas_threads() == found


def test_several_callers_at_once(inputs: Inputs) -> None:
    want, found = attention(inputs.q, inputs.k, inputs.v), blas_threads()
    got: list[np.ndarray] = []
    callers = [
        threading.Thread(target=lambda: got.extend(attention(inputs.q, inputs.k, inputs.v) for _ in range(5)))
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(got) == 20
    for output in got:
        np.testing.assert_array_equal(output, want)
    assert blas_threads() == found


def test_a_gpu_kernel_without_a_device_says_so(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here(*_: Any, **__: Any) -> None:
        raise DeviceUnavailable("no Vulkan here")

    monkeypatch.setattr("engine.devices.gpu.device.open_gpu", none_here)
    with pytest.raises(DeviceUnavailable, match="no Vulkan here"):
        attention(inputs.q, inputs.k, inputs.v, kernel="gpu-flash")


def test_importing_the_engine_loads_nothing_heavy() -> None:
    code = (
        "import sys, engine; heavy = {'numpy', 'wgpu', 'PySide6'} & set(sys.modules);"
        "from engine import attention; heavy |= {'wgpu', 'PySide6'} & set(sys.modules);"
        "print(sorted(heavy), engine.__version__, 'attention' in dir(engine))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.split() == ["[]", engine.__version__, "True"]
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = engine.nonsense
