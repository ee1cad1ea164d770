"""Whether a window can open here; run as a program, it says so by its exit status.

Qt itself aborts without a display, and blames a library that may well be there.
"""

from __future__ import annotations

import ctypes
import os
import sys

_ON_A_SCREEN = ("xcb", "wayland")


def why_no_window() -> str | None:
    """Return why no window can open, None where one can. Looks at what is set, and asks an X server if it is there."""
    if sys.platform in ("darwin", "win32"):
        return None
    platform = os.environ.get("QT_QPA_PLATFORM", "").partition(":")[0].partition(";")[0]
    if platform and not platform.startswith(_ON_A_SCREEN):
        return None  # drawn into memory or sent elsewhere: whoever set it wants that
    if os.environ.get("WAYLAND_DISPLAY") and platform != "xcb":
        return None
    display = os.environ.get("DISPLAY")
    if not display:
        return "there is no display: neither DISPLAY nor WAYLAND_DISPLAY is set"
    return None if _answers() else f"the display {display} does not answer"


def on_a_screen() -> bool:
    """Return whether a window would be seen, rather than drawn into memory."""
    platform = os.environ.get("QT_QPA_PLATFORM", "")
    return why_no_window() is None and (not platform or platform.startswith((*_ON_A_SCREEN, "cocoa", "windows")))


def _answers() -> bool:
    """Try the X server; without the library to ask it, take it to be there."""
    try:
        xcb = ctypes.CDLL("libxcb.so.1")
    except OSError:
        return True
    xcb.xcb_connect.restype = ctypes.c_void_p
    for function in (xcb.xcb_connection_has_error, xcb.xcb_disconnect):
        function.argtypes = [ctypes.c_void_p]
    connection = xcb.xcb_connect(None, None)
    broken = xcb.xcb_connection_has_error(connection)
    xcb.xcb_disconnect(connection)
    return not broken


if __name__ == "__main__":
    sys.exit(0 if on_a_screen() else 1)
