"""The CSV as spreadsheets and csv readers see it."""

from __future__ import annotations

import csv
import locale
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.records.results import COLUMNS, Row, Status
from engine.storage.csv_report import SAMPLE_COLUMNS, cell, write_rows, write_samples
from engine.storage.run_file import SampleSeries


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def test_one_header_then_a_row_for_each_result_in_the_columns_order(tmp_path: Path, row: Row) -> None:
    path = tmp_path / "out.csv"
    write_rows(path, [row, msgspec.structs.replace(row, kernel="cpu-naive")])
    lines = path.read_bytes().split(b"\r\n")
    assert lines[0].decode().split(",") == list(COLUMNS)
    assert lines[0].startswith(b"run_id,started_at,label,kernel,direction,variant,status,message,warnings,device,")
    assert lines[0].endswith(b",app_version,numpy_version,wgpu_version,python_version,cpu,blas,blas_threads,os")
    assert len(lines) == 4
    assert lines[3] == b""
    assert [r["kernel"] for r in read(path)] == ["cpu-flash", "cpu-naive"]


def test_values_are_plain(tmp_path: Path, row: Row) -> None:
    path = tmp_path / "out.csv"
    write_rows(path, [row])
    (got,) = read(path)
    assert got["status"] == "ok"
    assert got["stop_reason"] == "converged"
    assert got["verified"] == "true"
    assert got["causal"] == "false"
    assert got["scale"] == "-0.25"
    assert got["peak_bytes"] == "3221225472"
    assert got["max_abs_err"] == "2.5e-07"
    assert got["wall_ms_median"] == "1.5"
    assert got["wall_ms_p99"] == got["window"] == got["checks"] == ""
    assert got["cpu"] == "A Processor, 8 cores"


def test_an_empty_report_is_a_header(tmp_path: Path) -> None:
    write_rows(tmp_path / "out.csv", [])
    assert (tmp_path / "out.csv").read_bytes() == ",".join(COLUMNS).encode() + b"\r\n"


@pytest.mark.parametrize("text", ['comma, "quote"', "two\nlines", "cr\r\nlf", "ünï → 日本", "", " padded ", "'quoted"])
def test_text_survives_quoting(tmp_path: Path, row: Row, text: str) -> None:
    path = tmp_path / "out.csv"
    write_rows(path, [msgspec.structs.replace(row, label=text, status=Status.FAILED)])
    (got,) = read(path)
    assert got["label"] == text
    assert got["status"] == "failed"


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\tx", "\rx", "-", "-1e5x"])
def test_formulas_are_neutralised(tmp_path: Path, row: Row, text: str) -> None:
    path = tmp_path / "out.csv"
    write_rows(path, [msgspec.structs.replace(row, label=text)])
    assert read(path)[0]["label"] == "'" + text


@pytest.mark.parametrize(("value", "text"), [(-0.25, "-0.25"), (-3, "-3"), (-1e-9, "-1e-09"), ("-1.5e3", "-1.5e3")])
def test_negative_numbers_stay_numbers(value: object, text: str) -> None:
    assert cell(value) == text


@given(st.floats(allow_nan=False))
def test_floats_read_back_the_same(value: float) -> None:
    assert float(cell(value)) == value


def test_non_finite_floats_are_words() -> None:
    assert [cell(x) for x in (math.nan, math.inf, -math.inf)] == ["nan", "inf", "-inf"]


@given(st.text())
def test_no_text_cell_starts_like_a_formula_unless_it_is_a_number(text: str) -> None:
    got = cell(text)
    if got[:1] in ("=", "+", "-", "@", "\t", "\r"):
        float(got)
    assert got in (text, "'" + text)


def test_the_locale_does_not_matter(tmp_path: Path, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locale, "localeconv", lambda: {"decimal_point": ",", "thousands_sep": "."})
    monkeypatch.setattr(locale, "getpreferredencoding", lambda do_setlocale=True: "iso8859-15")
    path = tmp_path / "out.csv"
    write_rows(path, [msgspec.structs.replace(row, label="ü")])
    assert read(path)[0]["wall_ms_median"] == "1.5"
    assert "ü".encode() in path.read_bytes()


def test_a_path_that_is_not_utf8_is_still_written(tmp_path: Path, row: Row) -> None:
    path = tmp_path / "out.csv"
    write_rows(path, [msgspec.structs.replace(row, input="q\udcff.npz")])
    assert read(path)[0]["input"] == "q\\udcff.npz"


def test_samples(tmp_path: Path, series: SampleSeries) -> None:
    path = tmp_path / "samples.csv"
    write_samples(path, "r1", [series])
    assert path.read_text(encoding="utf-8").splitlines() == [
        ",".join(SAMPLE_COLUMNS),
        "r1,gpu-flash,4,0,0.5,1.25,1.125,1",
        "r1,gpu-flash,4,1,0.625,1.5,,8",
    ]
