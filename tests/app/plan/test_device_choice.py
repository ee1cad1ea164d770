"""Which devices a plan runs on, told from the list alone."""

from __future__ import annotations

import msgspec
import pytest
from made_up import CPU, GPU

from app.plan.device_choice import any_software, devices_of, in_words
from engine.devices.device import DeviceInfo
from engine.records.plan import Plan

CARD = msgspec.structs.replace(GPU, index=0, name="A Card", adapter_type="discrete")
SOFTWARE = msgspec.structs.replace(GPU, index=1)


@pytest.mark.parametrize(
    ("kernels", "device", "found"),
    [
        (("gpu-flash", "cpu-flash"), "auto", [CARD, CPU]),
        (("cpu-naive",), "auto", [CPU]),
        (("gpu-flash",), "1", [SOFTWARE]),
        (("gpu-flash", "cpu-flash"), "llvmpipe", [SOFTWARE, CPU]),
        (("gpu-flash", "cpu-flash"), "cpu", [CPU]),
        (("gpu-flash",), "no such", []),
    ],
)
def test_devices_of_a_plan(kernels: tuple[str, ...], device: str, found: list[DeviceInfo]) -> None:
    assert devices_of(Plan(cases=(), kernels=kernels, device=device), [CARD, SOFTWARE, CPU]) == found


def test_before_the_devices_are_known() -> None:
    assert devices_of(Plan(cases=(), kernels=("gpu-flash", "cpu-flash")), []) == []


def test_software_is_called_that() -> None:
    assert in_words([SOFTWARE, CPU]) == f"{SOFTWARE.name} (software)  +  {CPU.name}"
    assert any_software([SOFTWARE, CPU])
    assert not any_software([CARD, CPU])
