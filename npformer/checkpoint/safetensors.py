"""Safetensors files, which consist of eight bytes with the length of the header, a JSON header, and the tensors.

The format is described at https://huggingface.co/docs/safetensors. The safetensors library writes the files, but this
module reads them, because the library's NumPy reader does not support bfloat16 and copies every tensor. The library's
reader takes 409 ms for 264 MB, whereas mapping the file takes 0.16 ms.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np

from npformer.checkpoint.storage import Array, Buffer, converted, dtype_name, open_buffer, view
from npformer.common.errors import NpformerError
from npformer.common.limits import LIMITS, Limits
from npformer.engine.runtime.narrow import BFLOAT16

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}

CHECKSUM = "sha256"  # metadata key
_LENGTH = 8  # bytes that store the length of the header


def read_tensors(path: Path, limits: Limits = LIMITS, mapped: bool = True) -> tuple[dict[str, Array], dict[str, str]]:
    """Returns a dict of read-only views of a safetensors file by name, and its metadata. mapped: as in `load`.

    Tensors keep their dtypes, with bfloat16 as `BFLOAT16`. The header and all shapes are checked. The tensors must fill
    the file without gaps or overlaps. Sizes in the header never determine how much memory is allocated.
    """
    buffer = open_buffer(path, mapped)
    try:
        header, start = _header(buffer, limits)
        metadata = _metadata(header.pop("__metadata__", {}))
        spans = {name: _span(name, entry) for name, entry in header.items()}
        described = start + max((last for _, last in spans.values()), default=0)
        if described != len(buffer):
            raise NpformerError(f"expected {described} bytes according to the header, got {len(buffer)}")
        arrays = {}
        end = 0
        for name, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
            dtype, shape = _dtype(name, header[name]), _shape(name, header[name])
            stop = end + math.prod(shape) * dtype.itemsize
            if (first, last) != (end, stop):
                raise NpformerError(f"{name!r:.200}: expected bytes {end} to {stop}, got {first} to {last}")
            arrays[name] = view(buffer, (start + first, start + last), dtype, shape)
            end = last
    except NpformerError as error:
        raise NpformerError(f"{path}: not a valid safetensors file: {error}") from None
    return arrays, metadata


def _header(buffer: Buffer, limits: Limits) -> tuple[dict[str, Any], int]:
    """Returns the header, and the index of the first byte of the tensors."""
    length = int.from_bytes(buffer[:_LENGTH], "little")
    if len(buffer) < _LENGTH or length > len(buffer) - _LENGTH:
        start = bytes(buffer[:_LENGTH])
        raise NpformerError(
            f"expected a header of {length} bytes, but the file has only {len(buffer)} bytes; it begins with {start!r}"
        )
    limits.check("header", length, "bytes of the header")
    try:
        header = json.loads(buffer[_LENGTH : _LENGTH + length].decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise NpformerError(f"the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise NpformerError("the header is not a JSON object")
    return header, _LENGTH + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise NpformerError(f"duplicate key {name!r:.200}")
        result[name] = value
    return result


def _metadata(entry: object) -> dict[str, str]:
    """The metadata of a file. Some writers store null instead of {}, which the safetensors library accepts."""
    if entry is None:
        return {}
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise NpformerError("__metadata__: expected an object of strings")
    return entry


def _span(name: str, entry: object) -> tuple[int, int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not _whole_numbers(offsets) or len(offsets) != 2:
        raise NpformerError(f"{name!r:.200}: expected data_offsets of two whole numbers")
    return offsets[0], offsets[1]


def _dtype(name: str, entry: dict[str, Any]) -> np.dtype[Any]:
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        supported = ", ".join(DTYPES)
        raise NpformerError(f"{name!r:.200}: dtype {dtype!r:.40} is not supported; supported: {supported}")
    return DTYPES[dtype]


def _shape(name: str, entry: dict[str, Any]) -> list[int]:
    shape = entry.get("shape")
    if not _whole_numbers(shape):
        raise NpformerError(f"{name!r:.200}: expected a shape of whole numbers")
    return shape


def _whole_numbers(value: object) -> TypeGuard[list[int]]:
    """Whether a value is a list of whole numbers that could be a shape or the offsets of a tensor."""
    if not isinstance(value, list) or len(value) > 32:
        return False
    return all(type(each) is int and 0 <= each < 2**63 for each in value)


# --- checksums -------------------------------------------------------------------------------------------------------


def checksum(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> str:
    """The SHA-256 of the content of a file, in hexadecimal. `write_tensors` stores it in the metadata as "sha256".

    The digest covers a line `KEY=VALUE` for every other entry of the metadata. Then, for every tensor, it covers a line
    `NAME DTYPE SHAPE`, as in the header (`head.weight F16 [2, 384]`), and the bytes of the tensor in the file. Lines
    are in UTF-8 and end with a line feed. Entries and tensors are sorted by the code points of their names.
    """
    import hashlib

    names = {dtype: name for name, dtype in DTYPES.items()}
    digest = hashlib.sha256()
    for key in sorted(metadata.keys() - {CHECKSUM}):
        digest.update(f"{key}={metadata[key]}\n".encode(errors="surrogatepass"))
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        dtype = array.dtype if array.dtype == BFLOAT16 else array.dtype.newbyteorder("<")
        if dtype not in names:
            raise NpformerError(f"{name}: {dtype} is not supported; supported: {', '.join(map(dtype_name, names))}")
        digest.update(f"{name} {names[dtype]} {list(arrays[name].shape)}\n".encode(errors="surrogatepass"))
        digest.update(array.astype(dtype, copy=False).data)
    return digest.hexdigest()


def check_sums(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> bool:
    """Whether the metadata has a checksum. Raises an NpformerError with the path if the checksum is wrong."""
    stored = metadata.get(CHECKSUM)
    if stored is None:
        return False
    if checksum(arrays, metadata) != stored:
        raise NpformerError(
            f"{path}: damaged: its content does not match the sha256 in its metadata, {stored!r:.80}; get a new copy"
        )
    return True


# --- writing ---------------------------------------------------------------------------------------------------------


def write_tensors(
    path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str], dtype: str | None = None
) -> None:
    """Writes a safetensors file with the safetensors library. Inverse of `read_tensors`.

    With `dtype` None, each array keeps its dtype. Only transposed or converted arrays are copied. A checksum of the
    content is added to the metadata. Raises OSError if the file cannot be written.
    """
    from safetensors import SafetensorError, TensorSpec, serialize_file

    stored = {name: _stored(name, array, dtype) for name, array in arrays.items()}
    entries = {**metadata, CHECKSUM: checksum(stored, metadata)}
    specs = {  # safetensors.numpy.save_file does not support bfloat16
        name: TensorSpec(dtype=dtype_name(a.dtype), shape=a.shape, data_ptr=a.ctypes.data, data_len=a.nbytes)
        for name, a in stored.items()
    }
    path.touch()
    mode = path.stat().st_mode
    try:
        serialize_file(specs, path, entries)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(mode)  # the library makes the file readable only by its owner
    with open(path, "r+b") as file:
        _sort_metadata(file)


def _sort_metadata(file: BinaryIO) -> None:
    """Sorts the metadata in the header, so that equal content has equal bytes. The library orders metadata randomly."""
    length = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(length))
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    file.seek(8)
    file.write(text.ljust(length))


def _stored(name: str, array: Array, dtype: str | None) -> Array:
    """The array in the stored form: little-endian, in row-major order."""
    try:
        with np.errstate(over="raise", invalid="ignore"):
            return converted(array, np.dtype(dtype or array.dtype).newbyteorder("<"))
    except FloatingPointError:
        raise NpformerError(f"{name}: contains a number that is too large for {dtype}") from None
