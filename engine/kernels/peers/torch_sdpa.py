"""torch-sdpa and torch-sdpa-cuda: PyTorch's scaled_dot_product_attention, a peer to race on the CPU or an NVIDIA card.

Optional: PyTorch is imported when a kernel is prepared, never with this module. What is decided here:

- Backend: flash, cuDNN, memory-efficient and math are tried on the given problem when it is prepared. The fastest that
  supports it is raced, and its name is the variant.
- Mask: none where every query sees every key, PyTorch's causal flag where the triangle is square (the flag aligns it to
  the upper left), else a bool mask built once. On a card a triangle that is not square may also be PyTorch's own
  lower-right bias, which needs no mask in memory. Rows that see nothing are set to 0 after each run.
- Grouped queries: PyTorch's own way where a backend has it, else, or where that is quicker, K and V repeated once.
- Backward: the forward pass is made once for each way, and kept; a run is PyTorch's automatic differentiation of it.
- float32 is true float32: TensorFloat-32 is off while a kernel runs.
- Memory: PyTorch's allocators count it, on the card in their statistics, on the CPU in the profiler's record of one
  run. Both include what a backend needs for itself.

Values that are not finite and visible to some rows alone may spread to others: PyTorch multiplies them by zero weights.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.common.messages import sentence
from engine.common.running import Cancelled, ShouldStop, Timing, never_stop
from engine.devices.cpu import CpuDevice
from engine.devices.cuda import CudaDevice
from engine.devices.device import Device, Limits
from engine.kernels.base import Array, Gradients, Kernel, MemoryUse, Outputs, Prepared
from engine.kernels.gpu import too_large
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import has_nonfinite, visible, without_hidden_garbage

_MASK_ROWS = 64  # rows of the mask built at a time, so that building it takes no more than keeping it
_ROUNDS, _ROUNDS_S = 3, 0.2  # ways that work take turns at least so often and so long; the quickest run of each counts
_PATIENCE_S = 1.0  # where a run takes longer, the first way that works has to do
_SMALL_SCORES = 64 << 20  # bytes of score matrices beyond which writing them out is never the quickest way
_MATH_SCORES = 2.25  # score matrices that the math backend holds at once: scores, weights, a mask of bytes
_SPIN_S = 6e-3  # that PyTorch's threads keep their cores busy after their work, waiting for more; 5.4 ms were measured
_QUIET_PROFILER = "6"  # PyTorch's profiler announces itself on stderr below this level


class _Sdpa(Kernel):
    """What both kernels are: their limits, and a problem made ready."""

    honours = ("causal", "window", "softcap", "scale", "key_mask")  # of a soft cap: that PyTorch has none
    needs = ("torch", "torch")
    counts_memory = True
    dtypes: ClassVar[tuple[str, ...]]

    def supports(self, problem: AttentionProblem, limits: Limits) -> str | None:
        """Return None, or why the problem cannot run: a soft cap, a storage it lacks, or more than the memory limit."""
        if problem.softcap is not None:
            return "PyTorch's scaled_dot_product_attention has no soft cap"
        if problem.backward and problem.dtype != "f32":
            return f"{self.name} is raced backward in f32 only, not {problem.dtype}"
        if problem.dtype not in self.dtypes:
            return f"{self.name} works in {' or '.join(self.dtypes)}, not {problem.dtype}"
        need = self.predict(problem, limits)
        if need > limits.memory_bytes:
            return too_large(self.name, need, limits.memory_bytes, "the memory limit")
        return None

    def predict(self, problem: AttentionProblem, limits: Limits) -> int:
        """Return the bytes of Q, K, V, output and mask: the least, as a backend's own needs are known by running it."""
        return problem.tensor_bytes + math.prod(_mask_shape(problem))

    def prepare(self, problem: AttentionProblem, inputs: Inputs, device: Any, *, want_lse: bool = False) -> Prepared:
        """Place the tensors and find the quickest way. Raises RuntimeError where PyTorch has none."""
        if want_lse:
            raise ValueError("PyTorch's scaled_dot_product_attention gives no log-sum-exp")
        return _PreparedSdpa(problem, inputs, device)


class TorchSdpa(_Sdpa):
    """PyTorch's attention on the CPU, in float32."""

    name = "torch-sdpa"
    summary = "PyTorch's scaled_dot_product_attention on the CPU"
    device_kind = "cpu"
    naive = "cpu-naive"
    dtypes = ("f32",)

    def on(self, device: Device) -> Device:
        """Return the CPU with PyTorch in NumPy's place."""
        with contextlib.suppress(metadata.PackageNotFoundError):
            driver = f"PyTorch {metadata.version('torch')}"
            return CpuDevice(msgspec.structs.replace(device.info, backend="pytorch", driver=driver))
        return CpuDevice(msgspec.structs.replace(device.info, backend="pytorch", driver="PyTorch"))


class TorchSdpaCuda(_Sdpa):
    """PyTorch's attention on an NVIDIA card, in float32 or float16."""

    name = "torch-sdpa-cuda"
    summary = "PyTorch's scaled_dot_product_attention on an NVIDIA card"
    device_kind = "cuda"
    naive = "gpu-naive"
    dtypes = ("f32", "f16")


class _Place(ABC):
    """Where the tensors are: how they get there, and how a piece of work is timed and its memory counted.

    ``backends`` are those there may be, likely quick ones first; ``lower_right`` are those for which PyTorch's own
    lower-right bias comes without a mask in memory.
    """

    backends: ClassVar[tuple[str, ...]]
    lower_right: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def tensor(self, array: NDArray[Any]) -> Any:
        """Return the array as a tensor of its own dtype."""

    @abstractmethod
    def held(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which this place is PyTorch's current one."""

    @abstractmethod
    def timed(self, work: Callable[[], object]) -> Timing:
        """Do the work to its end and time it."""

    @abstractmethod
    def counted(self, work: Callable[[], object]) -> tuple[Timing, int | None]:
        """Do the work, whatever it needs loaded, and return its time and the most bytes it held beyond those before.

        The bytes are None where nobody counts them.
        """

    def free(self) -> None:  # noqa: B027 - most have nothing to do
        """Give what is no longer held back to the system."""


class _Cpu(_Place):
    """The processor, with as many of PyTorch's threads as the device has."""

    backends = ("flash", "math")

    def __init__(self, device: CpuDevice) -> None:
        self._threads = device.limits.threads

    def tensor(self, array: NDArray[Any]) -> Any:
        import torch

        return torch.from_numpy(array)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def timed(self, work: Callable[[], object]) -> Timing:
        begin = time.perf_counter()
        work()
        timing = Timing(wall_ms=(time.perf_counter() - begin) * 1e3)
        time.sleep(_SPIN_S)  # or the kernel whose turn is next would share the cores with them
        return timing

    def counted(self, work: Callable[[], object]) -> tuple[Timing, int | None]:
        from torch.autograd.profiler import profile

        os.environ.setdefault("KINETO_LOG_LEVEL", _QUIET_PROFILER)
        with profile(use_cpu=True, use_kineto=False, profile_memory=True) as record:
            timing = self.timed(work)
        try:
            changes = [event.nbytes() for event in record.kineto_results.events() if event.name() == "[memory]"]
        except AttributeError:  # the record of single allocations is no public part of PyTorch
            return timing, None
        return timing, int(np.cumsum(changes).max(initial=0))


class _Card(_Place):
    """The NVIDIA card."""

    backends = ("cudnn", "flash", "efficient", "math")
    lower_right = ("flash", "efficient")

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def tensor(self, array: NDArray[Any]) -> Any:
        import torch

        return torch.from_numpy(array).to(torch.device("cuda", self._device.index))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        import torch

        with torch.cuda.device(self._device.index):
            yield

    def timed(self, work: Callable[[], object]) -> Timing:
        return self._device.timed(work)

    def counted(self, work: Callable[[], object]) -> tuple[Timing, int | None]:
        work()  # loads what a backend needs
        nbytes = self._device.bytes_of(work)
        return self._device.timed(work), nbytes

    def free(self) -> None:
        import torch

        torch.cuda.empty_cache()


@dataclass(frozen=True)
class _Way:
    """One way to ask PyTorch: a backend, and the keys, values and arguments it is called with."""

    name: str
    backend: str
    key: Any
    value: Any
    arguments: dict[str, Any]


@dataclass(frozen=True)
class _Tried:
    """A way that works: the seconds of its runs, the bytes a run holds, and whether all of its output is finite."""

    way: _Way
    times: list[float]
    nbytes: int | None
    finite: bool


class _PreparedSdpa(Prepared):
    """Tensors in their place, and the way to ask PyTorch."""

    def __init__(self, problem: AttentionProblem, inputs: Inputs, device: CpuDevice | CudaDevice) -> None:
        self._problem = problem
        self._limits = device.limits
        self._place: _Place = _Card(device) if isinstance(device, CudaDevice) else _Cpu(device)
        self._result: tuple[Any, ...] | None = None  # the output, or the three gradients
        self._passes: dict[str, Any] = {}  # of each way, the output of the forward pass whose gradients are taken
        inputs = without_hidden_garbage(problem, inputs)
        begin = time.perf_counter()
        with self._place.held(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of arrays that cannot be written, which nobody does
            self._query, self._key, self._value = (self._place.tensor(x) for x in (inputs.q, inputs.k, inputs.v))
            self._grad: Any = None
            if inputs.grad_output is not None:
                self._grad = self._place.tensor(inputs.grad_output)
                for tensor in (self._query, self._key, self._value):
                    tensor.requires_grad_()
            if isinstance(device, CudaDevice):
                self.upload_ms = (time.perf_counter() - begin) * 1e3
            self._mask, self._blind = self._masks()
            chosen = self._quickest(finite=not has_nonfinite(inputs))
        self._way, self._run_bytes, self.variant = chosen.way, chosen.nbytes, chosen.way.name
        self._passes = {name: made for name, made in self._passes.items() if name == chosen.way.name}
        if not problem.backward:
            self._key, self._value = chosen.way.key, chosen.way.value
        if chosen.way.arguments.get("attn_mask") is not self._mask:
            self._mask = None
        self._place.free()

    def run(self, repeat: int = 1, should_stop: ShouldStop = never_stop) -> Timing:
        """Run ``repeat`` times. PyTorch cannot be interrupted, so ``should_stop`` is asked between two runs."""

        def work() -> None:
            for _ in range(repeat):
                if should_stop():
                    raise Cancelled
                self._run(self._way)

        with self._asking(self._way):
            return self._place.timed(work)

    def poison(self) -> None:
        """Drop the result: PyTorch makes a new one every time."""
        self._result = None

    def outputs(self) -> Outputs:
        """Return the last run's output; all NaN without one."""
        if self._problem.backward:
            return super().outputs()
        return Outputs(*self._read([self._problem.output_shape]))

    def gradients(self) -> Gradients:
        """Return the last run's gradients; all NaN without one."""
        problem = self._problem
        if not problem.backward:
            return super().gradients()
        return Gradients(*self._read([problem.q_shape, problem.k_shape, problem.v_shape]))

    def _read(self, shapes: list[tuple[int, ...]]) -> list[Array]:
        if self._result is None:
            return [np.full(shape, np.nan, np.float32) for shape in shapes]
        begin = time.perf_counter()
        arrays: list[Array] = [np.ascontiguousarray(tensor.cpu().numpy(), np.float32) for tensor in self._result]
        if self.upload_ms is not None:
            self.readback_ms = (time.perf_counter() - begin) * 1e3
        return arrays

    def memory(self) -> MemoryUse | None:
        """Return what PyTorch's allocator counted in a run (and the pass it goes back), and the tensors it ran on."""
        if self._run_bytes is None:
            return None
        held = (self._query, self._key, self._value, self._grad, self._mask, self._blind)
        peak = sum(tensor.numel() * tensor.element_size() for tensor in held if tensor is not None) + self._run_bytes
        return MemoryUse(max(0, peak - self._problem.tensor_bytes), peak)

    def close(self) -> None:
        """Let go of all tensors."""
        self._query = self._key = self._value = self._grad = self._mask = self._blind = self._result = None
        self._passes.clear()
        self._way = _Way("", "", None, None, {})
        self._place.free()

    def _masks(self) -> tuple[Any, Any]:
        """Return the mask, True where a query sees a key, and which rows see nothing; None where there are none."""
        if not math.prod(_mask_shape(self._problem)):
            return None, None
        seen = _seen(self._problem)
        blind: NDArray[np.bool_] = ~np.any(seen, axis=3, keepdims=True)
        return self._place.tensor(seen), self._place.tensor(blind) if blind.any() else None

    @contextlib.contextmanager
    def _asking(self, way: _Way) -> Iterator[None]:
        """Allow PyTorch one backend, this place's threads and no TensorFloat-32 for the length of a ``with`` block."""
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backends = {
            "flash": SDPBackend.FLASH_ATTENTION,
            "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION,
            "math": SDPBackend.MATH,
        }
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            graph = torch.enable_grad() if self._problem.backward else torch.inference_mode()
            with self._place.held(), graph, sdpa_kernel(backends[way.backend]):
                yield
        finally:
            torch.set_float32_matmul_precision(precision)

    def _run(self, way: _Way) -> None:
        """Run once, a way's context given."""
        self._result = None  # so that the next one can take its place
        if not self._problem.backward:
            self._result = (self._attend(way),)
            return
        import torch

        tensors = (self._query, self._key, self._value)
        self._result = torch.autograd.grad(self._passes[way.name], tensors, self._grad, retain_graph=True)

    def _attend(self, way: _Way) -> Any:
        """Return the output, a way's context given."""
        from torch.nn.functional import scaled_dot_product_attention

        output = scaled_dot_product_attention(
            self._query, way.key, way.value, scale=self._problem.scale, **way.arguments
        )
        if self._blind is None:
            return output
        # what a backend keeps of its output to go back by must not be changed under it
        return output.masked_fill(self._blind, 0) if self._problem.backward else output.masked_fill_(self._blind, 0)

    def _keep_pass(self, way: _Way) -> None:
        self._passes[way.name] = self._attend(way)

    def _quickest(self, finite: bool) -> _Tried:
        """Try the ways and return the quickest; where the input is ``finite``, of those whose output is so too.

        Raises RuntimeError with what PyTorch says where none works.
        """
        tried: list[_Tried] = []
        complaints: list[str] = []
        for way in self._ways():
            if tried and (tried[0].times[0] > _PATIENCE_S or self._too_slow(way)):
                continue
            if (too_much := self._too_much(way)) is not None:
                complaints.append(too_much)
                continue
            try:
                tried.append(self._try(way))
            except (RuntimeError, ValueError) as error:  # no such backend for this problem, or no memory left
                complaints.append(f"{way.name}: {sentence(error)}")
        if not tried:
            raise RuntimeError(f"PyTorch has no way to run this; {'; '.join(complaints[-1:])}")
        if finite and any(one.finite for one in tried):
            tried = [one for one in tried if one.finite]
        if len(tried) > 1:
            self._take_turns(tried)
        return min(tried, key=lambda one: min(one.times))

    def _ways(self) -> Iterator[_Way]:
        """Yield all ways there are, likely quick ones first."""
        groups: list[tuple[str, Any, Any, dict[str, Any]]] = [("", self._key, self._value, {})]
        if self._problem.group > 1:
            groups = [("", self._key, self._value, {"enable_gqa": True})]
            if self._problem.tensor_bytes * self._problem.group <= self._limits.memory_bytes:
                key, value = (x.repeat_interleave(self._problem.group, dim=1) for x in (self._key, self._value))
                groups.append((", K and V repeated", key, value, {}))
        for backend in self._place.backends:
            for mask_name, masking in self._maskings(backend):
                for group_name, key, value, grouping in groups:
                    yield _Way(backend + mask_name + group_name, backend, key, value, masking | grouping)

    def _maskings(self, backend: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the arguments that say who sees whom."""
        problem = self._problem
        if _sees_all(problem):
            yield "", {}
        elif _is_triangle(problem) and problem.offset == 0:
            yield "", {"is_causal": True}
        else:
            if _is_triangle(problem) and problem.offset > 0 and backend in self._place.lower_right:
                from torch.nn.attention.bias import causal_lower_right

                yield "", {"attn_mask": causal_lower_right(problem.seq_q, problem.seq_k)}
            yield ", masked", {"attn_mask": self._mask}

    def _too_slow(self, way: _Way) -> bool:
        return way.backend == "math" and self._problem.score_bytes > _SMALL_SCORES

    def _too_much(self, way: _Way) -> str | None:
        """Return why a way must not even be tried: on a CPU, a system out of memory ends the process."""
        need = int(self._problem.tensor_bytes + _MATH_SCORES * self._problem.score_bytes)
        if way.backend != "math" or need <= self._limits.memory_bytes:
            return None
        return too_large("its math backend, the only one left,", need, self._limits.memory_bytes, "the memory limit")

    def _try(self, way: _Way) -> _Tried:
        """Run a way to see that it works, what it holds, and that its output is finite."""
        kept: int | None = 0
        with self._asking(way):
            if self._problem.backward:
                _, kept = self._place.counted(lambda: self._keep_pass(way))
            timing, nbytes = self._place.counted(lambda: self._run(way))
            assert self._result is not None
            finite = all(bool(tensor.isfinite().all()) for tensor in self._result)
        self._result = None
        nbytes = None if nbytes is None or kept is None else nbytes + kept
        return _Tried(way, [timing.wall_ms / 1e3], nbytes, finite)

    def _take_turns(self, tried: list[_Tried]) -> None:
        """Time the ways in turns, so that a card whose clock has yet to climb favours none."""
        begin, rounds = time.perf_counter(), 0
        while (spent := time.perf_counter() - begin) < _PATIENCE_S and (rounds < _ROUNDS or spent < _ROUNDS_S):
            for one in tried:
                with self._asking(one.way):
                    one.times.append(self._place.timed(partial(self._run, one.way)).wall_ms / 1e3)
            rounds += 1
        self._result = None


def _sees_all(problem: AttentionProblem) -> bool:
    """Whether every query sees every key."""
    return problem.visible_pairs() == problem.batch * problem.seq_q * problem.seq_k


def _is_triangle(problem: AttentionProblem) -> bool:
    """Whether causality is all that hides keys."""
    return problem.causal and problem.key_mask is None and (problem.window is None or problem.window >= problem.seq_k)


def _mask_shape(problem: AttentionProblem) -> tuple[int, ...]:
    """Return the shape of the bool mask, [batch or 1, 1, seq_q or 1, seq_k]; (0,) where PyTorch needs none."""
    if _sees_all(problem) or (_is_triangle(problem) and problem.offset == 0):
        return (0,)
    return problem.batch if problem.key_mask else 1, 1, problem.seq_q if problem.causal else 1, problem.seq_k


def _seen(problem: AttentionProblem) -> NDArray[np.bool_]:
    """Return the mask of that shape: True where the query sees the key."""
    seen = np.empty(_mask_shape(problem), np.bool_)
    for batch, of_batch in enumerate(seen[:, 0]):
        for start in range(0, len(of_batch), _MASK_ROWS):
            rows = np.arange(start, min(start + _MASK_ROWS, len(of_batch)))
            of_batch[rows[0] : rows[-1] + 1] = visible(problem, batch, rows, 0, problem.seq_k)
    return seen
