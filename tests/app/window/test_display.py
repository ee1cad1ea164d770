"""Whether a window can open: told from what is set, before Qt is asked and aborts."""

from __future__ import annotations

import pytest

from app.window.display import on_a_screen, why_no_window


@pytest.mark.parametrize(
    ("system", "variables", "opens", "seen"),
    [
        ("linux", {}, False, False),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True, True),
        ("linux", {"DISPLAY": ":0"}, True, True),
        ("linux", {"DISPLAY": ":9317"}, False, False),
        ("linux", {"DISPLAY": ":9317", "WAYLAND_DISPLAY": "wayland-0"}, True, True),
        ("linux", {"QT_QPA_PLATFORM": "xcb", "WAYLAND_DISPLAY": "wayland-0"}, False, False),
        ("linux", {"QT_QPA_PLATFORM": "offscreen"}, True, False),
        ("linux", {"QT_QPA_PLATFORM": "offscreen:fonts=x", "DISPLAY": ":9317"}, True, False),
        ("darwin", {}, True, True),
        ("win32", {}, True, True),
    ],
)
def test_where_a_window_can_open(
    monkeypatch: pytest.MonkeyPatch, system: str, variables: dict[str, str], opens: bool, seen: bool
) -> None:
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("app.window.display._answers", lambda: variables.get("DISPLAY") == ":0")
    assert (why_no_window() is None) is opens
    assert on_a_screen() is seen


def test_a_display_that_is_not_there_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from app.window.display import _answers

    monkeypatch.setenv("DISPLAY", ":9317")
    assert not _answers()
