"""Writes files like torch.save's without torch, including files that torch would never write.

`dump` assembles a pickle. `Global`, `Call` and `Persistent` represent parts over which Python's own pickler gives us no
control.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

STORAGES = {"f4": "FloatStorage", "f8": "DoubleStorage", "f2": "HalfStorage", "i8": "LongStorage"}
LEGACY_HEAD = (
    0x1950A86A20F9469CFC6C,
    1001,
    {"protocol_version": 1001, "little_endian": True, "type_sizes": {}},
)


@dataclass
class Global:
    """module.name, written with the GLOBAL instruction."""

    module: str
    name: str


@dataclass
class Call:
    """function(*arguments), written with REDUCE."""

    function: Any
    arguments: tuple[Any, ...]


@dataclass
class Persistent:
    """Data outside the pickle, which BINPERSID references."""

    pid: Any


@dataclass
class Raw:
    """Pickle instructions that are written unchanged."""

    code: bytes


def dump(value: Any) -> bytes:
    return b"\x80\x02" + _code(value) + b"."


def _code(value: Any) -> bytes:
    match value:
        case Raw(code):
            return code
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            size = value.bit_length() // 8 + 1
            return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)
        case str():
            data = value.encode("utf-8", "surrogatepass")  # as pickle does
            return b"X" + struct.pack("<I", len(data)) + data
        case tuple():
            return b"(" + b"".join(map(_code, value)) + b"t"
        case list():
            return b"](" + b"".join(map(_code, value)) + b"e"
        case dict():
            return b"}(" + b"".join(_code(key) + _code(each) for key, each in value.items()) + b"u"
        case Global(module, name):
            return f"c{module}\n{name}\n".encode()
        case Call(function, arguments):
            return _code(function) + _code(arguments) + b"R"
        case Persistent(pid):
            return _code(pid) + b"Q"
    raise TypeError(value)


def storage(kind: str, key: str, size: int, *view: Any) -> Persistent:
    return Persistent(("storage", Global("torch", kind), key, "cpu", size, *view))


def tensor(where: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> Call:
    hooks = Call(Global("collections", "OrderedDict"), ())
    rebuild = Global("torch._utils", "_rebuild_tensor_v2")
    return Call(rebuild, (where, offset, shape, strides, False, hooks))


def of_array(array: np.ndarray, key: str, *view: Any) -> Call:
    strides = tuple(each // array.itemsize for each in array.strides)
    return tensor(storage(STORAGES[array.dtype.str[1:]], key, array.size, *view), array.shape, strides)


def write_zip(
    path: Path,
    content: Any,
    storages: Mapping[str, bytes],
    extra: Mapping[str, bytes] | None = None,
    compression: int = zipfile.ZIP_STORED,
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", content if isinstance(content, bytes) else dump(content))
        for name, data in {"byteorder": b"little", **(extra or {}), "version": b"3\n"}.items():
            archive.writestr(f"archive/{name}", data)
        for key, data in storages.items():
            archive.writestr(f"archive/data/{key}", data)
    return path


def write_legacy(path: Path, content: Any, storages: Mapping[str, np.ndarray], head: Any = LEGACY_HEAD) -> Path:
    file = io.BytesIO()
    for value in (*head, content, list(storages)):
        file.write(value if isinstance(value, bytes) else dump(value))
    for array in storages.values():
        file.write(array.size.to_bytes(8, "little") + array.tobytes())
    path.write_bytes(file.getvalue())
    return path


def save(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """Writes a plain state dict in the zip format."""
    content = {name: of_array(np.ascontiguousarray(array), str(i)) for i, (name, array) in enumerate(arrays.items())}
    return write_zip(path, content, {str(i): array.tobytes() for i, array in enumerate(arrays.values())})
