"""Colours: readable on their paper, each kernel's own in light and dark, told apart by the colour-blind."""

from __future__ import annotations

import itertools

import numpy as np
import pyqtgraph as pg
import pytest
from numpy.typing import NDArray

from app.report.theme import DARK, LIGHT, Palette, kernel_colour, kernel_symbol, mixed, on_cpu
from engine.kernels.registry import DEFAULT_KERNELS

PALETTES = pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
# Viénot, Brettel and Mollon 1999: what is left of linear RGB without one kind of cone
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": np.array([[0.1124, 0.8876, 0.0], [0.1124, 0.8876, 0.0], [0.0040, -0.0040, 1.0]]),
    "deuteranopia": np.array([[0.2928, 0.7072, 0.0], [0.2928, 0.7072, 0.0], [-0.0223, 0.0223, 1.0]]),
}


def linear(colour: str) -> NDArray[np.float64]:
    """Linear RGB, 0 to 1."""
    encoded = np.frombuffer(bytes.fromhex(colour[1:]), np.uint8) / 255
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """The contrast of WCAG 2, 1 to 21."""
    darker, lighter = sorted(float(linear(colour) @ (0.2126, 0.7152, 0.0722)) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


@PALETTES
def test_text_is_readable_on_window_paper_and_selection(palette: Palette) -> None:
    for text in (palette.ink, palette.muted, palette.good, palette.caution, palette.bad):
        for ground in (palette.window, palette.paper):
            assert contrast(text, ground) >= 4.5, (text, ground)
    assert contrast(palette.ink, palette.selection) >= 7


@PALETTES
def test_every_kernel_shows_on_the_paper(palette: Palette) -> None:
    for kernel in DEFAULT_KERNELS:
        assert contrast(palette.kernel(kernel), palette.paper) >= 2.2, kernel


@PALETTES
@pytest.mark.parametrize("blindness", BLINDNESS)
def test_kernels_are_told_apart(palette: Palette, blindness: str) -> None:
    seen = {kernel: BLINDNESS[blindness] @ linear(palette.kernel(kernel)) for kernel in DEFAULT_KERNELS}
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 0.08, (one, other)


def test_symbols_are_fixed_and_all_different() -> None:
    assert len({kernel_symbol(kernel) for kernel in DEFAULT_KERNELS}) == len(DEFAULT_KERNELS)
    for kernel in (*DEFAULT_KERNELS, "my-kernel"):
        assert kernel_symbol(kernel) in pg.graphicsItems.ScatterPlotItem.Symbols


def test_an_unknown_kernel_keeps_its_colour() -> None:
    assert kernel_colour("my-kernel") == kernel_colour("my-kernel")
    assert kernel_colour("my-kernel") not in {kernel_colour(kernel) for kernel in DEFAULT_KERNELS}


def test_a_mixture_lies_between_its_colours() -> None:
    assert mixed("#000000", "#FFFFFF", 0.0) == "#FFFFFF"
    assert mixed("#000000", "#FFFFFF", 1.0) == "#000000"
    assert mixed("#0000FF", "#FF0000", 0.5) == "#800080"


def test_lines_of_the_processor_go_by_where_a_kernel_runs() -> None:
    assert [on_cpu(kernel) for kernel in ("cpu-flash", "torch-sdpa", "cpu-flash-jit")] == [True] * 3
    assert [on_cpu(kernel) for kernel in ("gpu-flash", "torch-sdpa-cuda", "mine")] == [False] * 3
