"""The kernels that must be exact under one fixture, judged by the float64 reference: four, and one more with Numba."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from msgspec.structs import astuple

from engine.devices.cpu import open_cpu
from engine.devices.device import Device
from engine.devices.gpu.device import open_gpu
from engine.kernels.base import Gradients, Kernel, Outputs
from engine.kernels.gpu_flash import backward as gpu_flash_backward
from engine.kernels.registry import DEFAULT_KERNELS, get_kernel
from engine.measure.verify import expect, verify
from engine.measure.verify_backward import expect_gradients
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs
from engine.problem.masks import visible
from engine.reference.forward import reference

EPS = 2.0**-23
EXACT = [name for name in (*DEFAULT_KERNELS, "cpu-flash-jit") if get_kernel(name).missing() is None]
TWO_PASSES = "gpu-flash in two passes"  # as on a GPU that a round would not fill
BACKWARD = (*DEFAULT_KERNELS, TWO_PASSES)  # the kernels that have a backward pass


@dataclass(frozen=True)
class Contestant:
    """A kernel and the device it runs on."""

    kernel: Kernel
    device: Device

    @property
    def on_cpu(self) -> bool:
        return self.kernel.device_kind == "cpu"

    def run(self, problem: AttentionProblem, inputs: Inputs, *, want_lse: bool = False) -> Outputs:
        """Run once on poisoned output."""
        assert self.kernel.supports(problem, self.device.limits) is None, problem
        prepared = self.kernel.prepare(problem, inputs, self.device, want_lse=want_lse)
        try:
            prepared.poison()
            prepared.run()
            return prepared.outputs()
        finally:
            prepared.close()

    def check(self, problem: AttentionProblem, inputs: Inputs) -> Outputs:
        """Run once; output and log-sum-exp must be those of the reference, within float32 rounding."""
        got = self.run(problem, inputs, want_lse=True)
        verdict = verify(expect(problem, inputs), got.output)
        assert verdict.verified is not False, f"{self.kernel.name} on {problem}: {verdict}"
        _, lse, largest = reference(problem, inputs)
        finite = np.isfinite(lse)
        assert got.lse is not None
        np.testing.assert_array_equal(got.lse[np.isneginf(lse)], -np.inf)
        np.testing.assert_array_equal(np.isfinite(got.lse), finite)
        bound = 4 * EPS * (4 + largest + np.abs(lse[finite]))
        assert (np.abs(got.lse[finite] - lse[finite]) <= bound).all(), f"{self.kernel.name} on {problem}: lse"
        return got

    def gradients(self, problem: AttentionProblem, inputs: Inputs) -> Gradients:
        """Run backward once on poisoned gradients."""
        assert self.kernel.supports(problem, self.device.limits) is None, problem
        prepared = self.kernel.prepare(problem, inputs, self.device)
        try:
            prepared.poison()
            prepared.run()
            got = prepared.gradients()
        finally:
            prepared.close()
        for gradient, shape in zip(astuple(got), (problem.q_shape, problem.k_shape, problem.v_shape), strict=True):
            assert (gradient.dtype, gradient.shape) == (np.float32, shape)
        return got

    def check_gradients(self, problem: AttentionProblem, inputs: Inputs) -> Gradients:
        """Run backward once; gradients must be those of the reference, and nothing where nothing is seen."""
        got = self.gradients(problem, inputs)
        verdict = expect_gradients(problem, inputs).verdict(got)
        assert verdict.verified is not False, f"{self.kernel.name} on {problem}: {verdict}"
        for batch in range(problem.batch):
            seen = visible(problem, batch, np.arange(problem.seq_q), 0, problem.seq_k)
            assert not got.dq[batch][:, ~seen.any(axis=1)].any(), f"{self.kernel.name} on {problem}: rows that see none"
            for gradient in (got.dk, got.dv):
                assert not gradient[batch][:, ~seen.any(axis=0)].any(), f"{self.kernel.name} on {problem}: hidden keys"
        return got


@pytest.fixture(scope="session")
def devices() -> Iterator[dict[str, Device]]:
    """The CPU with two threads, and the GPU, which may be Mesa's software one but must be there."""
    with open_cpu(threads=2) as cpu:
        yield {"cpu": cpu, "gpu": open_gpu()}


@pytest.fixture(params=EXACT)
def kernel(request: pytest.FixtureRequest, devices: dict[str, Device]) -> Contestant:
    chosen = get_kernel(request.param)
    return Contestant(chosen, devices[chosen.device_kind])


@pytest.fixture(params=[name for name in EXACT if name.startswith("cpu")])
def cpu_kernel(request: pytest.FixtureRequest, devices: dict[str, Device]) -> Contestant:
    return Contestant(get_kernel(request.param), devices["cpu"])


@pytest.fixture(params=[name for name in EXACT if name.startswith("cpu-flash")])
def flash_kernel(request: pytest.FixtureRequest, devices: dict[str, Device]) -> Contestant:
    return Contestant(get_kernel(request.param), devices["cpu"])


@pytest.fixture(params=[name for name in EXACT if name.startswith("gpu")])
def gpu_kernel(request: pytest.FixtureRequest, devices: dict[str, Device]) -> Contestant:
    return Contestant(get_kernel(request.param), devices["gpu"])


@pytest.fixture(params=BACKWARD)
def backward_kernel(request: pytest.FixtureRequest, devices: dict[str, Device]) -> Iterator[Contestant]:
    with _contestant(request.param, devices) as contestant:
        yield contestant


@pytest.fixture(params=[name for name in BACKWARD if name.startswith("cpu")])
def cpu_backward(request: pytest.FixtureRequest, devices: dict[str, Device]) -> Contestant:
    return Contestant(get_kernel(request.param), devices["cpu"])


@pytest.fixture(params=[name for name in BACKWARD if name.startswith("gpu")])
def gpu_backward(request: pytest.FixtureRequest, devices: dict[str, Device]) -> Iterator[Contestant]:
    with _contestant(request.param, devices) as contestant:
        yield contestant


@contextmanager
def _contestant(name: str, devices: dict[str, Device]) -> Iterator[Contestant]:
    chosen = get_kernel(name.split()[0])
    with pytest.MonkeyPatch.context() as patch:
        if name == TWO_PASSES:
            patch.setattr(gpu_flash_backward, "choose_rounds", lambda *_: None)
        yield Contestant(chosen, devices[chosen.device_kind])
