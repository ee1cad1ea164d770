"""Tensors from files: every format and number type, and one sentence for everything that can be wrong with a file."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from safetensors import TensorSpec, serialize_file
from safetensors.numpy import save_file

from engine.common.messages import shown
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import as_inputs, load, preview, problem_for, seeded

Arrays = dict[str, NDArray[Any]]


@pytest.fixture
def arrays() -> Arrays:
    """Grouped queries, different lengths, a wider value: nothing that could be mixed up without notice."""
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 6, 5, 8), "k": (2, 3, 7, 8), "v": (2, 3, 7, 4), "output": (2, 6, 5, 4)}
    mask = rng.random((2, 7)) < 0.6
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()} | {"key_mask": mask}


def save_npz(folder: Path, arrays: Arrays) -> str:
    np.savez(folder / "t.npz", **arrays)
    return str(folder / "t.npz")


def save_compressed(folder: Path, arrays: Arrays) -> str:
    np.savez_compressed(folder / "t.npz", **arrays)
    return str(folder / "t.npz")


def save_npy(folder: Path, arrays: Arrays) -> str:
    for name in "qkv":
        np.save(folder / f"{name}.npy", arrays[name])
    return ",".join(str(folder / f"{name}.npy") for name in "qkv")


def save_safetensors(folder: Path, arrays: Arrays) -> str:
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / "t.safetensors")
    return str(folder / "t.safetensors")


Save = Callable[[Path, Arrays], str]
FORMATS = pytest.mark.parametrize("save", [save_npz, save_compressed, save_npy, save_safetensors])


@FORMATS
def test_every_format_gives_back_what_was_saved(tmp_path: Path, arrays: Arrays, save: Save) -> None:
    tensors = load(save(tmp_path, arrays))
    for name in "qkv":
        loaded = getattr(tensors, name)
        np.testing.assert_array_equal(loaded, arrays[name])
        assert loaded.dtype == np.float32
        assert loaded.flags.c_contiguous
    if save is save_npy:
        assert tensors.output is None
        assert tensors.key_mask is None
    else:
        assert tensors.output is not None
        np.testing.assert_array_equal(tensors.output, arrays["output"])
        np.testing.assert_array_equal(tensors.key_mask, arrays["key_mask"])
    assert tensors.note == ""


@FORMATS
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats_are_converted_and_said_so(tmp_path: Path, arrays: Arrays, save: Save, dtype: type) -> None:
    stored = arrays | {name: arrays[name].astype(dtype) for name in "qv"}
    tensors = load(save(tmp_path, stored))
    np.testing.assert_array_equal(tensors.q, stored["q"].astype(np.float32))
    assert tensors.q.dtype == np.float32
    assert tensors.note == f"q, v converted from {np.dtype(dtype).name}"


def test_bfloat16_is_widened_exactly(tmp_path: Path, arrays: Arrays) -> None:
    # 1, -2.5, +inf, 2^-133 (a subnormal) and the largest: bit patterns by hand
    patterns = np.array([0x3F80, 0xC020, 0x7F80, 0x0001, 0x7F7F], np.uint16)
    bits = np.resize(patterns, arrays["q"].shape)
    stored = {name: arrays[name] for name in "kv"}
    specs = {
        name: TensorSpec(dtype="float32", shape=a.shape, data_ptr=a.ctypes.data, data_len=a.nbytes)
        for name, a in stored.items()
    }
    specs["q"] = TensorSpec(dtype="bfloat16", shape=bits.shape, data_ptr=bits.ctypes.data, data_len=bits.nbytes)
    serialize_file(specs, tmp_path / "t.safetensors")
    tensors = load(str(tmp_path / "t.safetensors"))
    np.testing.assert_array_equal(tensors.q.ravel()[:5], [1, -2.5, np.inf, 2.0**-133, (2 - 2.0**-7) * 2.0**127])
    np.testing.assert_array_equal(tensors.k, arrays["k"])
    assert tensors.note == "q converted from bfloat16"


@pytest.mark.parametrize("layout", ["fortran", "big-endian", "strided"])
@pytest.mark.parametrize("save", [save_npz, save_npy])
def test_layout_in_memory_does_not_matter(tmp_path: Path, arrays: Arrays, save: Save, layout: str) -> None:
    q = arrays["q"]
    if layout == "fortran":
        stored = np.asfortranarray(q)
    elif layout == "big-endian":
        stored = q.astype(">f4")
    else:
        stored = np.repeat(q, 2, axis=2)[:, :, ::2]
    tensors = load(save(tmp_path, arrays | {"q": stored}))
    np.testing.assert_array_equal(tensors.q, q)
    assert tensors.q.flags.c_contiguous
    assert tensors.q.dtype.isnative
    assert tensors.note == ""


def test_what_float32_cannot_hold_is_said(tmp_path: Path, arrays: Arrays) -> None:
    v = arrays["v"].astype(np.float64)
    v[0, 0, 0, 0] = 1e300
    tensors = load(save_npz(tmp_path, arrays | {"v": v}))
    assert tensors.v[0, 0, 0, 0] == np.inf
    assert tensors.note == "v converted from float64; v holds numbers beyond float32, which became infinite"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nonfinite_numbers_come_through(tmp_path: Path, arrays: Arrays, value: float) -> None:
    arrays["k"][1, 2, 3, 4] = value
    tensors = load(save_npz(tmp_path, arrays))
    np.testing.assert_array_equal(tensors.k, arrays["k"])
    assert tensors.note == ""


def test_a_mask_of_zeros_and_ones_is_a_mask(tmp_path: Path, arrays: Arrays) -> None:
    tensors = load(save_npz(tmp_path, arrays | {"key_mask": arrays["key_mask"].astype(np.int64)}))
    np.testing.assert_array_equal(tensors.key_mask, arrays["key_mask"])
    assert tensors.key_mask is not None
    assert tensors.key_mask.dtype == np.bool_


def test_the_problem_and_inputs_of_a_file(tmp_path: Path, arrays: Arrays) -> None:
    tensors = load(save_npz(tmp_path, arrays))
    problem = problem_for(tensors, causal=True, window=3, softcap=20.0, scale=0.5)
    assert problem == AttentionProblem(
        batch=2, heads=6, kv_heads=3, seq_q=5, seq_k=7, head_dim=8, head_dim_v=4, causal=True, window=3, softcap=20.0,
        scale=0.5, key_mask=arrays["key_mask"],
    )  # fmt: skip
    inputs = as_inputs(tensors, problem)
    np.testing.assert_array_equal(inputs.q, arrays["q"])
    np.testing.assert_array_equal(inputs.recorded_output, arrays["output"])


def test_half_storage_rounds_and_says_what_overflowed(tmp_path: Path, arrays: Arrays) -> None:
    arrays["k"][0, 0, 0, 0] = 1e5
    tensors = load(save_npz(tmp_path, arrays))
    inputs = as_inputs(tensors, problem_for(tensors, dtype="f16"))
    assert inputs.q.dtype == np.float16
    np.testing.assert_array_equal(inputs.q, arrays["q"].astype(np.float16))
    assert inputs.k[0, 0, 0, 0] == np.inf
    assert inputs.note == "k holds numbers beyond float16, which became infinite"


def test_inputs_for_another_problem_are_refused(tmp_path: Path, arrays: Arrays) -> None:
    tensors = load(save_npz(tmp_path, arrays))
    with pytest.raises(ValueError, match=r"t\.npz: q has shape \[2, 6, 5, 8\], the problem asks \[1, 8, 1024, 64\]"):
        as_inputs(tensors, AttentionProblem())


def test_options_that_are_not_valid_get_the_problems_sentence(sample_file: Path) -> None:
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        problem_for(load(str(sample_file)), window=0)


def test_the_shipped_sample(sample_file: Path) -> None:
    problem = problem_for(load(str(sample_file)))
    assert problem == AttentionProblem(heads=12, seq_q=128, head_dim=32)


def test_seeded_numbers_are_normal_and_the_same_every_time() -> None:
    problem = AttentionProblem(heads=4, seq_q=64, seq_k=32, head_dim=16, head_dim_v=8)
    one, two, other = seeded(problem, 7), seeded(problem, 7), seeded(problem, 8)
    assert (one.q.shape, one.k.shape, one.v.shape) == (problem.q_shape, problem.k_shape, problem.v_shape)
    np.testing.assert_array_equal(one.q, two.q)
    assert not np.array_equal(one.q, other.q)
    assert abs(one.q.mean()) < 0.1
    assert 0.9 < one.q.std() < 1.1
    assert seeded(AttentionProblem(seq_q=2, dtype="f16"), 0).q.dtype == np.float16


# What is wrong with a file, and the words its sentence must hold.


class Exploding:
    """Creates a file when unpickled: proof that nothing ever is."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


WRONG_ARRAYS: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "head_dim clashes": (
        lambda a: a | {"k": np.ones((2, 3, 7, 4), np.float32)},
        r"q has shape \[2, 6, 5, 8\] and k \[2, 3, 7, 4\], whose head_dim must be equal: 8 and 4",
    ),
    "seq_k clashes": (lambda a: a | {"v": a["v"][:, :, :6]}, "whose seq_k must be equal: 7 and 6"),
    "batch clashes": (lambda a: a | {"v": a["v"][:1]}, "whose batch must be equal: 2 and 1"),
    "kv_heads clash": (lambda a: a | {"v": a["v"][:, :1]}, "whose kv_heads must be equal: 3 and 1"),
    "kv_heads do not divide heads": (
        lambda a: a | {"k": a["k"][:, [0, 1, 2, 0]], "v": a["v"][:, [0, 1, 2, 0]]},
        "heads must be a multiple of kv_heads, got 6 and 4",
    ),
    "rank": (
        lambda a: a | {"q": a["q"][0]},
        r"q must have shape \[batch, heads, seq_q, head_dim\], and has \[6, 5, 8\]",
    ),
    "a number": (lambda a: a | {"q": np.float32(1)}, "q must have shape"),
    "empty": (
        lambda a: a | {"q": a["q"][:, :, :0], "output": a["output"][:, :, :0]},
        "seq_q must be at least 1, got 0",
    ),
    "integers": (lambda a: a | {"q": np.ones((2, 6, 5, 8), np.int32)}, "q must hold float32, .* and holds int32"),
    "bools": (lambda a: a | {"v": a["v"] > 0}, "v must hold float32, .* and holds bool"),
    "output shape": (lambda a: a | {"output": a["output"][..., :3]}, "whose head_dim_v must be equal: 4 and 3"),
    "output rank": (lambda a: a | {"output": a["output"][0]}, "output must have shape"),
    "mask shape": (lambda a: a | {"key_mask": a["key_mask"][:, :6]}, "whose seq_k must be equal: 7 and 6"),
    "mask rank": (lambda a: a | {"key_mask": a["key_mask"][0]}, r"key_mask must have shape \[batch, seq_k\]"),
    "mask of floats": (lambda a: a | {"key_mask": np.ones((2, 7), np.float32)}, "key_mask must hold bool, .* float32"),
    "mask of other numbers": (
        lambda a: a | {"key_mask": np.arange(14).reshape(2, 7)},
        "key_mask must hold bool, or 0 and 1, and holds 0 to 13",
    ),
    "no k": (lambda a: {n: a[n] for n in ("q", "v")}, "lacks k: it must hold q, k and v, and holds 'q', 'v'"),
    "head_dim too large": (
        lambda a: a | {"q": np.ones((2, 6, 5, 300), np.float32), "k": np.ones((2, 3, 7, 300), np.float32)},
        "head_dim must be at most 256, got 300",
    ),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
@pytest.mark.parametrize("save", [save_npz, save_safetensors])
def test_arrays_that_cannot_be_raced(tmp_path: Path, arrays: Arrays, save: Save, case: str) -> None:
    change, sentence = WRONG_ARRAYS[case]
    path = save(tmp_path, change(arrays))
    refused(path, sentence)


@pytest.mark.parametrize("dtype", [np.complex64, "U4", [("x", "f4")], "M8[s]"])
def test_npz_with_types_that_are_no_numbers(tmp_path: Path, arrays: Arrays, dtype: Any) -> None:
    refused(save_npz(tmp_path, arrays | {"q": np.zeros((2, 6, 5, 8), dtype)}), "q must hold float32, .* and holds")


def refused(path: str, sentence: str, named: str | None = None) -> None:
    """Loading raises one sentence that holds ``sentence`` and names the file."""
    with pytest.raises(ValueError, match=sentence) as raised:
        load(path)
    message = str(raised.value)
    assert (named or path) in message
    assert "\n" not in message


@pytest.mark.parametrize("where", ["q", "extra"])
def test_pickled_objects_are_refused_and_never_run(tmp_path: Path, arrays: Arrays, where: str) -> None:
    bomb = np.array([Exploding(str(tmp_path / "ran"))], dtype=object)
    refused(save_npz(tmp_path, arrays | {where: bomb}), f"'{where}' holds pickled objects, which are never loaded")
    np.save(tmp_path / "q.npy", bomb, allow_pickle=True)
    refused(",".join([str(tmp_path / "q.npy")] * 3), "holds pickled objects", named=str(tmp_path / "q.npy"))
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Exploding(str(tmp_path / "ran"))))
    refused(str(tmp_path / "raw.npz"), "damaged or not a .npz file")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "txt"])
def test_a_file_that_is_not_there_and_a_folder(tmp_path: Path, suffix: str) -> None:
    refused(str(tmp_path / f"none.{suffix}"), "does not exist")
    (tmp_path / f"folder.{suffix}").mkdir()
    refused(str(tmp_path / f"folder.{suffix}"), "is a folder")


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")])
def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    path = tmp_path / "t.npz"
    path.write_bytes(b"")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Path, "open", fail)
    refused(str(path), "may not be read by you" if isinstance(error, PermissionError) else "Input/output error")


def test_a_device_is_refused_before_it_blocks(tmp_path: Path) -> None:
    refused(os.devnull, "not a regular file")


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("content", [b"", b"PK", b"hello, world", bytes(100), b"\xff" * 100])
def test_files_that_are_something_else(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"t.{suffix}"
    path.write_bytes(content)
    refused(str(path), f"damaged or not a .{suffix} file")


def test_unknown_formats(tmp_path: Path, arrays: Arrays) -> None:
    path = tmp_path / "t.pt"
    path.write_bytes(b"x")
    refused(str(path), "give an .npz file")
    save_npy(tmp_path, arrays)
    refused(str(tmp_path / "q.npy"), "three .npy files")
    refused(f"{tmp_path / 'q.npy'},{tmp_path / 'k.npy'}", "is not three .npy files")
    refused(f"{tmp_path / 'q.npy'},{tmp_path / 'k.npy'},{path}", "is not three .npy files")


def test_one_missing_npy_of_three_is_named(tmp_path: Path, arrays: Arrays) -> None:
    paths = save_npy(tmp_path, arrays)
    (tmp_path / "k.npy").unlink()
    refused(paths, "does not exist", named=str(tmp_path / "k.npy"))


def test_a_comma_in_a_name_is_no_list(tmp_path: Path, arrays: Arrays) -> None:
    Path(save_npz(tmp_path, arrays)).rename(tmp_path / "a,b.npz")
    np.testing.assert_array_equal(load(str(tmp_path / "a,b.npz")).q, arrays["q"])


@FORMATS
@pytest.mark.parametrize("kept", [0.05, 0.3, 0.6, 0.95])
def test_files_that_are_cut_short(tmp_path: Path, arrays: Arrays, save: Save, kept: float) -> None:
    path = save(tmp_path, arrays)
    victim = path.split(",")[-1]
    data = Path(victim).read_bytes()
    Path(victim).write_bytes(data[: int(kept * len(data))])
    refused(path, "damaged|promises|no NumPy header", named=victim)


@pytest.mark.parametrize("save", [save_npz, save_compressed])
def test_a_flipped_byte_in_the_data_is_found(tmp_path: Path, arrays: Arrays, save: Save) -> None:
    path = Path(save(tmp_path, arrays))
    data = bytearray(path.read_bytes())
    data[600] ^= 0x55  # inside q
    path.write_bytes(data)
    refused(str(path), "damaged or not a .npz file")


def npy(shape: str, descr: str = "'<f4'", data: bytes = b"\0" * 16) -> bytes:
    """An .npy file whose header says what it likes."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (npy("(1, 1, 1099511627776, 64)"), r"promises shape \[1, 1, 1099511627776, 64\] of float32, .* and holds 16"),
        (npy("(1, 1, 2, 3)"), "24 bytes, and holds 16"),
        (npy("(-1, -1, 2, 2)"), "promises shape"),
        (npy("(1, 1, 2, 2)", descr="'|O'"), "pickled objects"),
        (npy("(1, 1, 2, 2)", descr="'<q9'"), "no NumPy header"),
        (npy("(1, 1, 2, " + "(" * 500), "no NumPy header"),
        (npy("(True, 1, 2, __import__('os'))"), "no NumPy header"),
        (b"\x93NUMPY\x09\x00", "no NumPy header"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "no NumPy header"),
    ],
)
def test_hostile_npy_headers(tmp_path: Path, arrays: Arrays, content: bytes, sentence: str) -> None:
    path = save_npy(tmp_path, arrays)
    (tmp_path / "q.npy").write_bytes(content)
    refused(path, sentence, named=str(tmp_path / "q.npy"))
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("q.npy", content)
    refused(str(tmp_path / "t.npz"), sentence)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays |= {"q": np.zeros((2, 6, 50_000, 8), np.float32)}  # 19 MB that pack to 20 kB
    del arrays["output"]
    path = save_compressed(tmp_path, arrays)
    assert Path(path).stat().st_size < 100_000
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000_000))
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("data were read"))
    refused(path, r"needs .* MiB of memory, and 9\.54 MiB are free")


def test_a_zip_directory_that_promises_more_than_the_file_is_refused(tmp_path: Path, arrays: Arrays) -> None:
    path = Path(save_npz(tmp_path, arrays))
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.index(b"PK\x01\x02") + 20, 2**31)  # compressed size of the first member
    path.write_bytes(data)
    refused(str(path), r"promises 2147483648 for 'q' alone")


def test_an_npz_of_countless_arrays_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        for index in range(1001):
            archive.writestr(f"{index}.npy", b"")
    refused(str(tmp_path / "t.npz"), "holds 1001 arrays, at most 1000 are read")


def safetensors(header: object, data: bytes = b"\0" * 16, length: int | None = None) -> bytes:
    """A .safetensors file whose header says what it likes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.mark.parametrize(
    "content",
    [
        safetensors({}, length=2**63),
        safetensors({}, length=1000),
        safetensors(b"not json"),
        safetensors(b"[" * 5000),
        safetensors([1, 2]),
        safetensors({"q": {"dtype": "F32", "shape": [1, 1, 2, 2], "data_offsets": [0, 10**12]}}),
        safetensors({"q": {"dtype": "F32", "shape": [1, 1, 2**40, 2], "data_offsets": [0, 16]}}),
        safetensors({"q": {"dtype": "F32", "shape": [1, 1, -2, -2], "data_offsets": [0, 16]}}),
        safetensors({"q": {"dtype": "F32", "shape": [1, 1, 2, 2], "data_offsets": [16, 0]}}),
        safetensors({"q": {"dtype": "F99", "shape": [1, 1, 2, 2], "data_offsets": [0, 16]}}),
        safetensors({"q": {"shape": [1, 1, 2, 2]}}),
        safetensors({"q": 5}),
    ],
)
def test_hostile_safetensors_headers(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.safetensors").write_bytes(content)
    refused(str(tmp_path / "t.safetensors"), "damaged or not a .safetensors file")


def test_safetensors_types_that_numpy_lacks_are_named(tmp_path: Path, arrays: Arrays) -> None:
    entry = {"dtype": "F8_E4M3", "shape": [1, 1, 4, 4], "data_offsets": [0, 16]}
    tail = {n: {"dtype": "F32", "shape": [0], "data_offsets": [16, 16]} for n in "kv"}
    (tmp_path / "t.safetensors").write_bytes(safetensors({"q": entry, **tail}))
    refused(str(tmp_path / "t.safetensors"), "q must hold float32, .* and holds F8_E4M3")


def test_what_a_file_promises_is_judged_before_anything_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file can unpack to a thousand times its size: the problem is made of headers alone."""
    path = tmp_path / "large.npz"
    large = np.zeros((1, 1, 4096, 300), np.float32)
    np.savez_compressed(path, q=large, k=large, v=large)
    assert path.stat().st_size < large.nbytes / 100

    def unpacked(*_: object, **__: object) -> None:
        raise AssertionError("unpacked")

    monkeypatch.setattr(np.lib.format, "read_array", unpacked)
    with pytest.raises(ValueError, match="head_dim must be at most 256, got 300"):
        preview(str(path)).problem()


def test_an_error_repeats_little_of_a_file_and_none_of_its_control_characters() -> None:
    assert shown("a\x1b[31mb\n") == "a\\x1b[31mb\\n"
    assert shown("x" * 100_000) == "x" * 199 + "…"
