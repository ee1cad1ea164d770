"""Colours: one per kernel, the same in every chart, told apart by the colour-blind and in grey."""

from __future__ import annotations

# Okabe and Ito's palette (2008): safe for all common kinds of colour blindness. Flash is strong, naive is warm.
_KERNEL_COLOURS = {
    "gpu-flash": "#0072B2",
    "gpu-naive": "#E69F00",
    "cpu-flash": "#009E73",
    "cpu-naive": "#D55E00",
}
_FURTHER = ("#CC79A7", "#56B4E9", "#8C6BB1", "#7F7F7F")

INK = "#1F2933"
MUTED = "#616E7C"
RULE = "#D9DEE4"
PAPER = "#FFFFFF"


def kernel_colour(kernel: str) -> str:
    """Return the kernel's colour as ``#RRGGBB``: its own, or for a kernel unknown here one that depends on its name."""
    return _KERNEL_COLOURS.get(kernel) or _FURTHER[sum(kernel.encode()) % len(_FURTHER)]
