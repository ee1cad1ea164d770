"""The doctor: each fault it knows is found, and comes with the command that mends it."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest

from engine.devices import doctor as doctor_module
from engine.devices.device import AdapterType, DeviceInfo, Limits
from engine.devices.doctor import Check, doctor

ROOT = Path(__file__).parent.parent.parent.parent


def device(adapter_type: AdapterType, name: str = "card", backend: str = "vulkan") -> DeviceInfo:
    return DeviceInfo(
        index=0, name=name, adapter_type=adapter_type, backend=backend, driver="", limits=Limits(memory_bytes=1)
    )


def check(name: str, devices: list[DeviceInfo] | None = None) -> Check:
    """The doctor's finding of that name, on a machine with a good card unless told otherwise."""
    found = {check.name: check for check in doctor([device("discrete")] if devices is None else devices)}
    return found[name]


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"})


def test_every_finding_that_is_not_good_says_what_to_do() -> None:
    findings = doctor([device("discrete")])
    assert len({finding.name for finding in findings}) == len(findings)
    for finding in findings:
        assert finding.detail
        assert (finding.status == "ok") == (finding.mend == "")


def test_it_lists_the_adapters_itself_when_nobody_did() -> None:
    found = {finding.name: finding for finding in doctor()}
    assert "vulkan" in found["GPU adapters"].detail


def test_the_packages_it_asks_for_are_those_the_project_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split("[<>!=; ]", entry)[0] for entry in project["dependencies"]}
    assert declared == set(doctor_module._REQUIREMENTS)


def test_a_missing_package_comes_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "wgpu":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(sys, "executable", "/opt/my python/bin/python")
    assert check("wgpu") == Check(
        "wgpu", "missing", "not installed", "'/opt/my python/bin/python' -m pip install 'wgpu>=0.32,<0.33'"
    )


@pytest.mark.parametrize(
    ("version", "python", "status"),
    [("6.12.0", (3, 11, 7), "missing"), ("6.12.1", (3, 12, 0), "ok"), ("6.11.3", (3, 11, 7), "ok")],
)
def test_the_qt_that_aborts_is_flagged(
    monkeypatch: pytest.MonkeyPatch, version: str, python: tuple[int, int, int], status: str
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    monkeypatch.setattr(sys, "version_info", python)
    assert check("PySide6-Essentials").status == status


def test_another_wgpu_is_worth_knowing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.33.1")
    assert check("wgpu").status == "warn"


def test_a_python_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 2))
    assert check("Python").status == "missing"
    assert check("Python").detail == "3.10.2, 3.11 or newer is needed"


@pytest.mark.parametrize(
    ("system", "command"),
    [
        ({"ID": "debian"}, "sudo apt-get install libvulkan1"),
        ({"ID": "fedora"}, "sudo dnf install vulkan-loader"),
        ({"ID": "endeavouros", "ID_LIKE": "arch"}, "sudo pacman -S vulkan-icd-loader"),
        ({"ID": "gentoo"}, "install what Debian calls libvulkan1"),
    ],
)
def test_a_missing_library_is_named_as_this_system_names_it(
    monkeypatch: pytest.MonkeyPatch, system: dict[str, str], command: str
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: system)
    monkeypatch.setattr(doctor_module, "_loads", lambda library: "vulkan" not in library)
    found = check("Vulkan loader")
    assert found == Check("Vulkan loader", "missing", "not found: libvulkan.so.1", command)
    assert check("Qt libraries").status == "ok"


@pytest.mark.usefixtures("debian")
def test_only_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "_loads", lambda library: library not in ("libEGL.so.1", "libxcb-xkb.so.1"))
    assert check("Qt libraries").mend == "sudo apt-get install libegl1"
    assert check("X11 libraries").mend == "sudo apt-get install libxcb-xkb1"


def test_a_library_that_does_not_exist_does_not_load() -> None:
    assert not doctor_module._loads("libflashscope-nowhere.so.7")


@pytest.mark.parametrize(("platform", "word"), [("darwin", "macOS"), ("win32", "driver")])
def test_other_systems_need_no_libraries(monkeypatch: pytest.MonkeyPatch, platform: str, word: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    names = [finding.name for finding in doctor([])]
    assert "Qt libraries" not in names
    assert word in check("GPU adapters", []).mend
    assert check("display").status == "ok"


@pytest.mark.usefixtures("debian")
@pytest.mark.parametrize(
    ("devices", "status", "words"),
    [
        ([], "missing", "found: none"),
        ([device("software", "llvmpipe", "opengl")], "missing", "found: llvmpipe (software, opengl)"),
        ([device("software", "llvmpipe")], "warn", "only software: llvmpipe (software, vulkan)"),
        ([device("software", "llvmpipe"), device("integrated", "Iris")], "ok", "Iris (integrated, vulkan)"),
    ],
)
def test_adapters(devices: list[DeviceInfo], status: str, words: str) -> None:
    found = check("GPU adapters", devices)
    assert found.status == status
    assert words in found.detail
    assert ("mesa-vulkan-drivers" in found.mend) == (status == "missing")


def test_a_driver_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("the driver fell over")

    monkeypatch.setattr("engine.devices.gpu.device.list_devices", fail)
    found = {finding.name: finding for finding in doctor()}["GPU adapters"]
    assert found.status == "missing"
    assert "the driver fell over" in found.detail


@pytest.mark.usefixtures("debian")
def test_the_display(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QT_QPA_PLATFORM", "WAYLAND_DISPLAY", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert check("display").status == "warn"
    monkeypatch.setenv("DISPLAY", ":7")
    assert check("display") == Check("display", "ok", "DISPLAY=:7")


def test_a_cache_folder_below_a_file_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_, **__: str(tmp_path / "file" / "flashscope"))
    assert check("cache folder").status == "warn"
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_, **__: str(tmp_path / "new" / "flashscope"))
    assert check("cache folder").status == "ok"
    assert not (tmp_path / "new").exists(), "looking writes nothing"
