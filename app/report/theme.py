"""Colours and marks, light and dark: one of each per kernel, told apart by the colour-blind and in grey."""

from __future__ import annotations

from dataclasses import dataclass

from engine.kernels import registry

# Okabe and Ito's palette (2008): safe for all common kinds of colour blindness. Flash is strong, naive is warm.
_KERNEL_COLOURS = {
    "gpu-flash": "#0072B2",
    "gpu-naive": "#E69F00",
    "cpu-flash": "#009E73",
    "cpu-naive": "#D55E00",
    "cpu-flash-jit": "#56B4E9",
    "torch-sdpa": "#8C6BB1",
    "torch-sdpa-cuda": "#CC79A7",
}
_FURTHER = ("#CC79A7", "#56B4E9", "#8C6BB1", "#7F7F7F")
# The same hues, lifted where they would sink into dark paper
_ON_DARK = {
    "#0072B2": "#3D9EE0",
    "#E69F00": "#F2B63C",
    "#009E73": "#25BC8F",
    "#D55E00": "#EE7A35",
    "#CC79A7": "#DB92BB",
    "#8C6BB1": "#AB8DD0",
    "#7F7F7F": "#A3A3A3",
}
_KERNEL_SYMBOLS = {
    "gpu-flash": "o",
    "gpu-naive": "s",
    "cpu-flash": "t1",
    "cpu-naive": "d",
    "cpu-flash-jit": "p",
    "torch-sdpa": "h",
    "torch-sdpa-cuda": "star",
}
_FURTHER_SYMBOLS = ("star", "p", "h", "t")


@dataclass(frozen=True)
class Palette:
    """The colours of one appearance, each ``#RRGGBB``.

    ``window`` lies behind controls, ``paper`` behind charts, tables and fields, ``selection`` behind selected rows;
    text is ``ink``, or ``muted`` where it explains; ``rule`` draws lines between things; ``accent`` marks the focus.
    """

    dark: bool
    window: str
    paper: str
    ink: str
    muted: str
    rule: str
    accent: str
    selection: str
    good: str
    caution: str
    bad: str

    def kernel(self, kernel: str) -> str:
        """Return the kernel's colour on this paper."""
        colour = kernel_colour(kernel)
        return _ON_DARK.get(colour, colour) if self.dark else colour


LIGHT = Palette(
    dark=False,
    window="#F3F5F7",
    paper="#FFFFFF",
    ink="#1F2933",
    muted="#616E7C",
    rule="#D9DEE4",
    accent="#0B66AD",
    selection="#D3E5F6",
    good="#1A7A48",
    caution="#8A5A00",
    bad="#C0262D",
)
DARK = Palette(
    dark=True,
    window="#20252B",
    paper="#171B20",
    ink="#E4E8EC",
    muted="#9DA8B4",
    rule="#39414A",
    accent="#4AA3E8",
    selection="#27425C",
    good="#4CC38A",
    caution="#E5B454",
    bad="#FF8078",
)

# The picture that the command line draws is on light paper, whatever the screen
INK, MUTED, RULE, PAPER = LIGHT.ink, LIGHT.muted, LIGHT.rule, LIGHT.paper


def on_cpu(kernel: str) -> bool:
    """Return whether the kernel runs on the processor, as its lines and marks say; an unknown one by its name."""
    if kernel in registry.kernel_names():
        return registry.get_kernel(kernel).device_kind == "cpu"
    return kernel.startswith("cpu")


def kernel_colour(kernel: str) -> str:
    """Return the kernel's colour as ``#RRGGBB``: its own, or for a kernel unknown here one that depends on its name."""
    return _KERNEL_COLOURS.get(kernel) or _FURTHER[sum(kernel.encode()) % len(_FURTHER)]


def kernel_symbol(kernel: str) -> str:
    """Return the kernel's mark, by pyqtgraph's name: its own, or for a kernel unknown here one by its name."""
    return _KERNEL_SYMBOLS.get(kernel) or _FURTHER_SYMBOLS[sum(kernel.encode()) % len(_FURTHER_SYMBOLS)]


def mixed(colour: str, other: str, share: float) -> str:
    """Return ``colour`` laid over ``other`` with so much of its strength: opaque, for opaque lines are drawn fast."""
    pairs = zip(*(bytes.fromhex(text[1:]) for text in (colour, other)), strict=True)
    return "#" + bytes(round(share * one + (1 - share) * two) for one, two in pairs).hex().upper()
