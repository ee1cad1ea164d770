"""Tensors and the context they live on: round trips, ends of life, threads, and what they say of themselves."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import engine
from engine import GpuContext, Tensor
from engine.devices.device import DeviceUnavailable, Limits
from engine.devices.gpu.device import GpuDevice

PLACES = ["cpu", "gpu"]


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 0, 4), (5, 3), (2, 3, 4, 5)])
def test_numbers_come_back(device: str, dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.random.default_rng(0).standard_normal(shape), dtype)
    tensor = Tensor.from_numpy(array, device)
    back = tensor.numpy()
    assert back.dtype == tensor.dtype == dtype
    assert back.shape == tensor.shape == shape
    assert back.tobytes() == array.tobytes()
    assert tensor.nbytes == array.nbytes
    nothing = Tensor.zeros(shape, dtype, device)
    assert nothing.shape == shape
    assert not nothing.numpy().any()


@pytest.mark.parametrize("device", PLACES)
def test_what_it_holds_is_a_copy(device: str) -> None:
    array = np.ones(4, np.float32)
    tensor = Tensor.from_numpy(array, device)
    array[:] = 2
    tensor.numpy()[:] = 3
    np.testing.assert_array_equal(tensor.numpy(), np.ones(4))


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize(
    "given",
    [[[1, 2], [3, 4]], np.array([[1, 3], [2, 4]], ">f8").T, np.array([[1, 2], [3, 4]], np.uint8),
     np.array([[1, 9, 2], [3, 9, 4]], np.float32)[:, ::2]],
    ids=["lists", "big-endian Fortran", "integers", "strided"],
)  # fmt: skip
def test_other_real_numbers_become_float32(device: str, given: Any) -> None:
    back = Tensor.from_numpy(given, device).numpy()
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tensor.from_numpy([1j], "cpu"), "real numbers"),
        (lambda: Tensor.from_numpy([True], "cpu"), "real numbers"),
        (lambda: Tensor.from_numpy([[1], [2, 3]], "cpu"), "nested lists"),
        (lambda: Tensor.zeros((2,), np.int32, "cpu"), "float32 or float16, not int32"),
        (lambda: Tensor.zeros((2, -1), np.float32, "cpu"), "negative"),
        (lambda: Tensor.zeros(5, np.float32, "cpu"), "a shape must be a sequence of whole numbers, got 5"),
        (lambda: Tensor.zeros((2.5,), np.float32, "cpu"), "a shape must be a sequence of whole numbers"),
        (lambda: Tensor.zeros((2,), np.float32, "no such GPU"), "unknown"),
        (lambda: Tensor.zeros((2,), np.float32, 3), "got 3"),
        (lambda: Tensor.zeros((1 << 40,)), "4.00 TiB is too large for"),
    ],
)
def test_what_is_no_tensor_is_refused_in_a_sentence(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("device", PLACES)
def test_after_close_its_numbers_are_gone_and_its_shape_is_known(device: str) -> None:
    with Tensor.zeros((3, 4), device=device) as tensor:
        assert not tensor.closed
    tensor.close()
    assert tensor.closed
    assert tensor.shape == (3, 4)
    assert "closed" in repr(tensor)
    with pytest.raises(ValueError, match=r"tensor of shape \[3, 4\] is closed"):
        tensor.numpy()


def test_memory_is_freed_by_close_and_with_the_last_reference() -> None:
    device = GpuContext().device
    gc.collect()
    before = device.memory_in_use()
    tensors = [Tensor.zeros((100,)) for _ in range(3)]
    assert device.memory_in_use() == before + 3 * 400
    tensors[0].close()
    assert device.memory_in_use() == before + 2 * 400
    tensors.clear()
    assert device.memory_in_use() == before


def on_another_thread(call: Any) -> Any:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found.pop()


def test_a_gpu_is_used_on_its_own_thread_alone() -> None:
    tensor = Tensor.zeros((4,))
    for call in (tensor.numpy, lambda: Tensor.zeros((4,))):
        error = on_another_thread(call)
        assert isinstance(error, RuntimeError)
        assert "was opened on another thread" in str(error)
    assert on_another_thread(Tensor.zeros((4,), device="cpu").numpy).tolist() == [0, 0, 0, 0]


def test_a_tensor_that_ends_on_another_thread_is_freed_on_its_own() -> None:
    device = GpuContext().device
    gc.collect()
    before = device.memory_in_use()
    held = [Tensor.zeros((4,)), Tensor.zeros((4,))]
    on_another_thread(lambda: held.pop().closed)
    on_another_thread(held[0].close)
    assert held[0].closed
    assert device.memory_in_use() == before + 32
    with Tensor.zeros((4,)):
        assert device.memory_in_use() == before + 16
    assert device.memory_in_use() == before


def test_there_is_one_context_for_each_adapter() -> None:
    context = GpuContext()
    assert GpuContext() is context
    assert GpuContext(str(context.adapter.index)) is context
    assert isinstance(context.device, GpuDevice)
    assert isinstance(context.limits, Limits)
    assert context.adapter.backend != "opengl"
    assert Tensor.zeros((1,)).device is context
    assert Tensor.zeros((1,), device=context).device is context


@pytest.mark.parametrize("bad", [0, None, [], b"auto"])
def test_what_selects_no_adapter_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="selector must be 'auto', an index in quotes or part of a GPU's name, got"):
        GpuContext(bad)


def test_the_cpu_is_no_gpu_and_what_to_give_for_it_is_said() -> None:
    with pytest.raises(ValueError, match=r"a GpuContext is of a GPU; for the CPU give .* device='cpu'"):
        GpuContext("cpu")


def test_without_an_adapter_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.devices.gpu.device.list_devices", list)
    monkeypatch.setattr("engine.layers.gpu_context._opened", {})
    for make in (GpuContext, lambda: Tensor.zeros((2,)), lambda: Tensor.from_numpy([1.0])):
        with pytest.raises(DeviceUnavailable, match="install"):
            make()
    assert Tensor.zeros((2,), device="cpu").numpy().tolist() == [0, 0]


def test_they_say_what_they_are() -> None:
    context = GpuContext()
    name = context.adapter.name
    assert repr(context) == f"GpuContext({name!r}, {context.adapter.adapter_type}, {context.adapter.backend})"
    assert repr(Tensor.zeros((2, 512), device="cpu")) == "Tensor([2, 512], float32, cpu, 4.00 KiB)"
    assert repr(Tensor.zeros((2,), np.float16)) == f"Tensor([2], float16, {context!r}, 4 B)"


def test_importing_the_layers_loads_no_driver() -> None:
    code = (
        "import sys, engine; from engine import GpuContext, Tensor;"
        "Tensor.zeros((2,), device='cpu'); engine.layers.FlashAttention(8, 2, device='cpu');"
        "print(sorted({'wgpu', 'PySide6', 'jinja2'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"
    assert {"GpuContext", "Tensor"} <= set(dir(engine))
