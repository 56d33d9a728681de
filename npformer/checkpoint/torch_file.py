"""Reads files written by torch.save, in the zip format and in the format of torch < 1.6, without torch.

Both formats contain a pickle that describes tensors (`pickled.py` reads it), and the bytes of storages. Each tensor is
returned as a view, because tensors may share a storage, use only part of a storage, or be transposed.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from npformer.checkpoint.pickled import Storage, Tensor, read_pickle
from npformer.checkpoint.storage import Array, Buffer, open_buffer, view
from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.common.limits import LIMITS, Limits
from npformer.engine.runtime.narrow import BFLOAT16

DTYPES: dict[str, np.dtype[Any]] = {
    "torch.DoubleStorage": np.dtype("<f8"),
    "torch.FloatStorage": np.dtype("<f4"),
    "torch.HalfStorage": np.dtype("<f2"),
    "torch.BFloat16Storage": BFLOAT16,
    "torch.LongStorage": np.dtype("<i8"),
    "torch.IntStorage": np.dtype("<i4"),
    "torch.ShortStorage": np.dtype("<i2"),
    "torch.CharStorage": np.dtype("i1"),
    "torch.ByteStorage": np.dtype("u1"),
    "torch.BoolStorage": np.dtype("?"),
}

Spans = dict[str, tuple[int, int]]  # by key of a storage: its first byte in the file, and its end

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
_ZIP_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, ..., lengths of the name and of the extra field


def read_torch(path: Path, limits: Limits = LIMITS, mapped: bool = True) -> dict[str, Array]:
    """Returns a dict of read-only views of a .bin file by name, in the stored dtypes. mapped: as in `load`.

    All offsets are checked against the size of the file. Checksums are ignored, because torch may omit them.
    """
    buffer = open_buffer(path, mapped)
    try:
        tensors, spans = (_read_zip if buffer[:4] == b"PK\x03\x04" else _read_legacy)(buffer, limits)
        return {name: _array(name, tensor, buffer, spans) for name, tensor in tensors.items()}
    except NpformerError as error:
        raise NpformerError(f"{path}: not a readable torch checkpoint: {error}") from None


def _tensors(content: object) -> dict[str, Tensor]:
    if not isinstance(content, dict):
        raise NpformerError(f"expected a dict of tensors, got {shown(content)}")
    for name, value in content.items():
        if not isinstance(value, Tensor):
            raise NpformerError(
                f"{name!r:.200}: expected a tensor, got {shown(value)}; save only the model's state_dict()"
            )
    return content


def _array(name: str, tensor: Tensor, buffer: Buffer, spans: Spans) -> Array:
    storage = tensor.storage
    dtype = DTYPES[storage.dtype]
    if storage.key not in spans:
        raise NpformerError(f"{name!r:.200}: storage {storage.key!r:.40} is missing")
    try:
        start, stop = _view_span(storage, dtype.itemsize, spans[storage.key])
        return view(buffer, (start, stop), dtype, tensor.shape, tensor.strides, tensor.offset)
    except NpformerError as error:
        raise NpformerError(f"{name!r:.200}: {error}") from None


def _view_span(storage: Storage, itemsize: int, span: tuple[int, int]) -> tuple[int, int]:
    start, stop = span
    if storage.size * itemsize != stop - start:
        raise NpformerError(f"expected {storage.size * itemsize} bytes in the storage, got {stop - start}")
    if storage.view is None:
        return span
    first, count = storage.view
    if not 0 <= first <= first + count <= storage.size:
        raise NpformerError(f"elements {first} to {first + count} are outside the storage of {storage.size}")
    return start + first * itemsize, start + (first + count) * itemsize


def _read_zip(buffer: Buffer, limits: Limits) -> tuple[dict[str, Tensor], Spans]:
    """Reads the zip format, with `<root>/data.pkl` and an uncompressed entry `<root>/data/<key>` for each storage."""
    entries = _zip_entries(buffer, limits)
    pickles = [name for name in entries if re.fullmatch(r"[^/]+/data\.pkl", name)]
    if len(pickles) != 1:
        raise NpformerError("expected a zip archive with one data.pkl, as written by torch.save")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in entries:
        _expect_little_endian(buffer[slice(*entries[f"{root}byteorder"])] == b"little")
    tensors = _tensors(read_pickle(io.BytesIO(buffer[slice(*entries[pickles[0]])]), limits))
    storages = {name: span for name, span in entries.items() if name.startswith(f"{root}data/")}
    return tensors, {name.removeprefix(f"{root}data/"): span for name, span in storages.items()}


def _expect_little_endian(fact: bool) -> None:
    if not fact:
        raise NpformerError("the numbers are not little-endian; save the file on a little-endian machine")


def _file(buffer: Buffer) -> Any:
    """A file object that reads from the buffer without a copy."""
    return io.BytesIO(buffer) if isinstance(buffer, bytes) else buffer


class _Archive:
    """A file object for zipfile that limits the size of reads, because zipfile reads the list of entries at once."""

    def __init__(self, buffer: Buffer, limits: Limits) -> None:
        self.file, self.limits = _file(buffer), limits
        self.seek, self.tell = self.file.seek, self.file.tell

    def read(self, size: int = -1) -> bytes:
        self.limits.check("directory", size, "bytes of the list of entries")
        data: bytes = self.file.read(size)
        return data


def _zip_entries(buffer: Buffer, limits: Limits) -> Spans:
    """The range of bytes in the file for each entry."""
    archive: Any = _Archive(buffer, limits)
    try:
        infos = zipfile.ZipFile(archive).infolist()
    except NpformerError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OSError) as error:
        raise NpformerError(f"the zip archive is truncated or corrupt ({error!s:.100})") from None
    spans: Spans = {}
    for info in infos:
        if info.filename in spans:
            raise NpformerError(f"duplicate entry {info.filename!r:.200}")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise NpformerError(
                f"entry {info.filename!r:.200} is compressed or encrypted; torch stores entries uncompressed"
            )
        offset = info.header_offset
        header = buffer[offset : offset + _ZIP_LOCAL_HEADER.size] if offset >= 0 else b""
        if len(header) < _ZIP_LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
            raise NpformerError(f"entry {info.filename!r:.200} is not at the offset given in the archive")
        _, name_length, extra_length = _ZIP_LOCAL_HEADER.unpack(header)
        start = offset + _ZIP_LOCAL_HEADER.size + name_length + extra_length
        if info.file_size != info.compress_size or start + info.file_size > len(buffer):
            raise NpformerError(f"entry {info.filename!r:.200} extends beyond the end of the file")
        spans[info.filename] = (start, start + info.file_size)
    return spans


def _read_legacy(buffer: Buffer, limits: Limits) -> tuple[dict[str, Tensor], Spans]:
    """Reads the older format: five pickles (magic number, protocol, system, object, storage keys) and the storages.

    A storage consists of its number of elements (8 bytes) and its elements. Storages are in the order of the keys.
    """
    if buffer[:1] != b"\x80":  # the first instruction of a pickle
        raise NpformerError(f"not in a format of torch.save; it begins with {bytes(buffer[:16])!r}")
    file = _file(buffer)
    if read_pickle(file, limits) != _LEGACY_MAGIC or read_pickle(file, limits) != _LEGACY_PROTOCOL:
        raise NpformerError("not in a format of torch.save")
    system = read_pickle(file, limits)
    _expect_little_endian(isinstance(system, dict) and system.get("little_endian") is True)
    tensors, keys = _tensors(read_pickle(file, limits)), read_pickle(file, limits)
    storages = {tensor.storage.key: tensor.storage for tensor in tensors.values()}
    if not isinstance(keys, list):
        raise NpformerError("the list of storages is missing")
    spans: Spans = {}
    start = file.tell()
    for key in keys:
        if not isinstance(key, str) or key not in storages or key in spans:
            raise NpformerError("the list of storages does not match the tensors")
        size = int.from_bytes(buffer[start : start + 8], "little")
        start += 8
        stop = start + size * DTYPES[storages[key].dtype].itemsize
        if stop > len(buffer):
            raise NpformerError(f"truncated: storage {key!r:.40} ends at byte {stop} of {len(buffer)}")
        spans[key] = (start, stop)
        start = stop
    return tensors, spans
