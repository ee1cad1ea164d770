"""Reads arrays out of .npz, .npy and .safetensors files that may be damaged or hostile; nothing is ever unpickled.

Opening a file reads headers alone and checks them against the size of the file, so a header that promises more than
the file holds costs no memory.
"""

from __future__ import annotations

import json
import lzma
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

FORMATS = "an .npz file, a .safetensors file, or three .npy files as q.npy,k.npy,v.npy"
_MAX_MEMBERS = 1000  # of an .npz; each one's header is read
_SAFETENSORS_DTYPES = {
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "BOOL": "?",
    "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8",
}  # fmt: skip


class TensorFileError(ValueError):
    """A tensor file cannot be used; the message is one sentence that names it."""


@dataclass(frozen=True)
class StoredArray:
    """An array that is still in its file.

    ``dtype`` is NumPy's name for its type, ``bfloat16``, or the file's own name where NumPy has none. ``read()``
    returns the array with that dtype, bfloat16 widened to float32; it raises TensorFileError when data are damaged.
    """

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]


def open_arrays(path_text: str) -> dict[str, StoredArray]:
    """Return the arrays of a file by name; three comma-separated ``.npy`` paths become q, k and v.

    Raises TensorFileError for a file that cannot be read, is damaged, is of no known format or holds pickled objects.
    """
    parts = path_text.split(",")
    if len(parts) == 1 or Path(path_text).exists():
        return _open_one(path_text)
    if len(parts) != 3 or any(Path(part).suffix.lower() != ".npy" for part in parts):
        raise TensorFileError(f"{path_text} is not three .npy files; give {FORMATS}")
    return {name: _open_npy(part) for name, part in zip("qkv", parts, strict=True)}


def _open_one(path: str) -> dict[str, StoredArray]:
    match Path(path).suffix.lower():
        case ".npz":
            return _open_npz(path)
        case ".safetensors":
            return _open_safetensors(path)
    with _opened(path):
        raise TensorFileError(f"{path} is not a file that can be raced; give {FORMATS}")


@contextmanager
def _opened(path: str) -> Iterator[tuple[IO[bytes], int]]:
    """Open a regular file and yield its stream and size; whatever reading raises becomes a TensorFileError."""
    try:
        file = Path(path)
        size = file.stat().st_size
        if file.is_dir():
            raise TensorFileError(f"{path} is a folder; give {FORMATS}")
        if not file.is_file():  # a pipe or a device would block or never end
            raise TensorFileError(f"{path} is not a regular file; give {FORMATS}")
        with file.open("rb") as stream:
            yield stream, size
    except TensorFileError:
        raise
    except FileNotFoundError as error:
        raise TensorFileError(f"{path} does not exist; give {FORMATS}") from error
    except PermissionError as error:
        raise TensorFileError(f"{path} may not be read by you; change its permissions") from error
    except MemoryError as error:
        raise TensorFileError(f"{path} needs more memory than this process may have") from error
    except OSError as error:
        raise TensorFileError(f"{path} cannot be read: {error.strerror or error}") from error
    except (
        ValueError, RuntimeError, EOFError, SafetensorError, zipfile.BadZipFile, zlib.error, lzma.LZMAError
    ) as error:  # fmt: skip
        raise TensorFileError(f"{path} is damaged or not a {Path(path).suffix} file: {error}") from error


def _open_npz(path: str) -> dict[str, StoredArray]:
    arrays = {}
    with _opened(path) as (stream, size), zipfile.ZipFile(stream) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        if len(members) > _MAX_MEMBERS:
            raise TensorFileError(f"{path} holds {len(members)} arrays, at most {_MAX_MEMBERS} are read")
        for member in members:
            name = member.filename.removesuffix(".npy")
            if member.compress_size > size:
                raise TensorFileError(f"{path} has {size} bytes and promises {member.compress_size} for {name!r} alone")
            with archive.open(member) as data:
                dtype, shape = _npy_header(f"{path}: {name!r}", data, member.file_size)
            arrays[name] = StoredArray(dtype.name, shape, _member_reader(path, member))
    return arrays


def _member_reader(path: str, member: zipfile.ZipInfo) -> Callable[[], NDArray[Any]]:
    def read() -> NDArray[Any]:
        with _opened(path) as (stream, _), zipfile.ZipFile(stream) as archive, archive.open(member) as data:
            array: NDArray[Any] = np.lib.format.read_array(data, allow_pickle=False)
            data.read(1)  # its checksum is compared where a member ends
            return array

    return read


def _open_npy(path: str) -> StoredArray:
    def read() -> NDArray[Any]:
        with _opened(path) as (stream, _):
            array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
            return array

    with _opened(path) as (stream, size):
        dtype, shape = _npy_header(path, stream, size)
    return StoredArray(dtype.name, shape, read)


def _npy_header(where: str, stream: IO[bytes], size: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Read the header of an array that takes ``size`` bytes with its header, and check one against the other."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers written by Python 2
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(stream)
    except (OSError, zipfile.BadZipFile, zlib.error, lzma.LZMAError):
        raise
    except Exception as error:  # a header is a Python literal, which can be wrong in any way
        raise TensorFileError(f"{where} has no NumPy header; the file is damaged or not NumPy's") from error
    if dtype.hasobject:
        raise TensorFileError(f"{where} holds pickled objects, which are never loaded; save it as plain numbers")
    promised, held = prod(shape) * dtype.itemsize, size - stream.tell()
    if min(shape, default=0) < 0 or promised != held:
        raise TensorFileError(f"{where} promises shape {list(shape)} of {dtype}, {promised} bytes, and holds {held}")
    return dtype, shape


def _open_safetensors(path: str) -> dict[str, StoredArray]:
    with _opened(path) as (stream, _):
        with safe_open(path, framework="numpy"):  # holds the whole header against the file, and loads no data
            pass
        (header_bytes,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(header_bytes))
    header.pop("__metadata__", None)
    return {name: _safetensors_array(path, entry, 8 + header_bytes) for name, entry in header.items()}


def _safetensors_array(path: str, entry: dict[str, Any], data_start: int) -> StoredArray:
    shape = tuple(entry["shape"])
    start = data_start + entry["data_offsets"][0]
    if entry["dtype"] == "BF16":
        return StoredArray("bfloat16", shape, lambda: _widened(_raw(path, "<u2", shape, start)))
    dtype = _SAFETENSORS_DTYPES.get(entry["dtype"])
    if dtype is None:  # a type NumPy lacks: its bytes
        return StoredArray(entry["dtype"], shape, lambda: _raw(path, "u1", shape, start))
    return StoredArray(np.dtype(dtype).name, shape, lambda: _raw(path, dtype, shape, start))


def _raw(path: str, dtype: str, shape: tuple[int, ...], start: int) -> NDArray[Any]:
    with _opened(path) as (stream, _):
        return np.fromfile(stream, np.dtype(dtype), prod(shape), offset=start).reshape(shape)


def _widened(bfloat16_bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return bfloat16, the upper half of a float32, as float32."""
    return (bfloat16_bits.astype(np.uint32) << 16).view(np.float32)
