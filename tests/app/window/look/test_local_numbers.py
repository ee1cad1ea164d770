"""Numbers in the person's locale, and back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QLocale

from app.window.look.local_numbers import localised, read_number


@pytest.fixture(autouse=True)
def _german() -> Iterator[None]:
    before = QLocale()
    QLocale.setDefault(QLocale("de_DE"))
    yield
    QLocale.setDefault(before)


@pytest.mark.parametrize(
    ("plain", "shown"),
    [
        ("1.42×", "1,42×"),
        ("1,234.5 ms and 12,000", "1.234,5 ms and 12.000"),
        ("gpu-flash is fastest: 2.10 ms, 3.11× cpu-flash", "gpu-flash is fastest: 2,10 ms, 3,11× cpu-flash"),
        ("2.1e-07", "2,1e-07"),
        ("8.00 MiB of 8.00 GiB.", "8,00 MiB of 8,00 GiB."),
        ("seq 512, heads 8", "seq 512, heads 8"),
        ("llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe (LLVM 15.0.6, 256 bits)"),
        ("numpy 2.4.6, OpenBLAS 0.3.30", "numpy 2.4.6, OpenBLAS 0.3.30"),
        ("layer1.5.npz", "layer1.5.npz"),
        ("", ""),
    ],
)
def test_numbers_and_nothing_else_change(plain: str, shown: str) -> None:
    assert localised(plain) == shown


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,5", 1.5), ("1.5", 1.5), (" 50 ", 50.0), ("-0,25", -0.25), ("1e-3", 1e-3), ("", None), ("x", None),
     ("1.000,5", None), ("1,5,0", None)],
)  # fmt: skip
def test_a_number_is_read_in_the_locale_or_with_a_point(text: str, value: float | None) -> None:
    assert read_number(text) == value


def test_english_numbers_stay_as_they_are() -> None:
    QLocale.setDefault(QLocale("en_US"))
    assert localised("1,234.5 ms") == "1,234.5 ms"
