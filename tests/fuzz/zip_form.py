"""Writes zip archives field by field, so any field can be made wrong, and npy files for NumPy's npz archives."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.fuzz import byte_form
from tests.fuzz.draw import Draw


@dataclass(frozen=True)
class Entry:
    """One entry: its bytes, and header fields to falsify."""

    name: str
    data: bytes
    deflated: bool = False
    # name of a field -> its value in both headers, or only in the entry's own header if the name begins with "local."
    fields: Mapping[str, int] = field(default_factory=dict)
    extra: bytes = b""


FIELDS = ("flags", "method", "crc", "packed", "size", "name", "extra", "offset", "version", "local.size", "local.name")
ENDINGS = ("disk", "start_disk", "count", "total", "length", "start", "comment")


def build(entries: Sequence[Entry], ending: Mapping[str, int] | None = None, comment: bytes = b"") -> bytes:
    body, directory = b"", b""
    for each in entries:
        name = each.name.encode("utf-8", "surrogatepass")
        packed = each.data
        if each.deflated:
            packer = zlib.compressobj(6, zlib.DEFLATED, -15)
            packed = packer.compress(each.data) + packer.flush()
        truth = {
            "version": 20, "flags": 0x800, "method": 8 if each.deflated else 0, "crc": zlib.crc32(each.data),
            "packed": len(packed), "size": len(each.data), "name": len(name), "extra": len(each.extra),
            "offset": len(body),
        }  # fmt: skip
        told = truth | {key: value for key, value in each.fields.items() if key in truth}
        local = told | {key[6:]: value for key, value in each.fields.items() if key.startswith("local.")}
        offset, body = told["offset"], body + _header("<4s5H3I2H", b"PK\x03\x04", local) + name + each.extra + packed
        directory += struct.pack(
            "<4s6H3I5H2I", b"PK\x01\x02", 20, *_short(told, "version", "flags", "method"), 0, 33,
            *_long(told, "crc", "packed", "size"), *_short(told, "name", "extra"), 0, 0, 0, 0, offset % 2**32,
        ) + name + each.extra  # fmt: skip
    last = {
        "disk": 0, "start_disk": 0, "count": len(entries), "total": len(entries), "length": len(directory),
        "start": len(body), "comment": len(comment), **(ending or {}),
    }  # fmt: skip
    end = struct.pack(
        "<4s4H2IH", b"PK\x05\x06", *_short(last, "disk", "start_disk", "count", "total"),
        *_long(last, "length", "start"), *_short(last, "comment"),
    )  # fmt: skip
    return body + directory + end + comment


def _header(form: str, signature: bytes, told: Mapping[str, int]) -> bytes:
    return struct.pack(
        form, signature, *_short(told, "version", "flags", "method"), 0, 33, *_long(told, "crc", "packed", "size"),
        *_short(told, "name", "extra"),
    )  # fmt: skip


def _short(told: Mapping[str, int], *names: str) -> list[int]:
    return [told[name] % 2**16 for name in names]


def _long(told: Mapping[str, int], *names: str) -> list[int]:
    return [told[name] % 2**32 for name in names]


def mutate(draw: Draw, entries: Sequence[Entry]) -> bytes:
    """Returns an archive of these entries with one or two changes to its structure."""
    entries, ending, comment = list(entries), dict[str, int](), b""
    for _ in range(draw.pick((1, 1, 2))):
        i = draw.below(len(entries)) if entries else 0
        match draw.below(9):
            case 0 | 1 if entries:
                key = draw.pick(FIELDS)
                number = draw.pick((*byte_form.EDGES, len(entries[i].data), 8, 9, 12, 14, 99))
                entries[i] = replace(entries[i], fields={**entries[i].fields, key: number})
            case 2:
                ending[draw.pick(ENDINGS)] = draw.pick(byte_form.EDGES)
            case 3 if entries:
                del entries[i]
            case 4 if entries:
                entries.append(entries[i])
            case 5 if entries:
                entries[i] = replace(
                    entries[i], name=draw.pick((byte_form.string(draw), byte_form.alter(draw, entries[i].name)))
                )
            case 6 if entries:
                extra = draw.pick((b"\x01\x00\x10\x00" + b"\xff" * 16, b"\x01\x00\x08\x00", draw.bytes(draw.below(30))))
                entries[i] = replace(entries[i], extra=extra)
            case 7:
                comment = draw.pick((b"PK\x05\x06" + bytes(18), draw.bytes(40), b"a" * 65535))
            case _ if entries:
                deflated = replace(entries[i], deflated=True)
                bomb = replace(deflated, data=bytes(3_000_000))
                entries[i] = draw.pick((deflated, bomb, replace(entries[i], data=draw.bytes(draw.below(100)))))
    return build(entries, ending, comment)


# --- npz -------------------------------------------------------------------------------------------------------------

DESCRIPTIONS = (
    "'<f4'", "'<f8'", "'>f4'", "'<f2'", "'<i8'", "'|O'", "'|V8'", "'<U9'", "'<U999999999'", "'|S0'", "'<c8'", "'<M8[s]'",
    "[('a', '<f4')]", "[('a', '|O')]", "[('a', '<f4', (2, 2))]", "'f4,f4'", "''", "None", "'<f4' * 999", "('<f4', (2,))",
    "[" * 60 + "]" * 60, "(" * 300, "'\\0'", "{'names': ['a'], 'formats': ['O']}", "'|b1'", "'<f16'", "'object'",
)  # fmt: skip
SHAPES = (
    "()", "(0,)", "(1,)", "(-1,)", "(2, 2)", "(2147483648,)", "(9223372036854775808,)", "(1e3,)", "(True,)", "(None,)",
    "3", "(4294967296, 4294967296)", "(" + "1," * 70 + ")", "[2]", "'2'", "(0, 9223372036854775807)", "(1,)" * 2,
)  # fmt: skip


def npy(
    data: bytes,
    shape: str,
    descr: str = "'<f4'",
    order: str = "False",
    version: tuple[int, int] = (1, 0),
    more: str = "",
) -> bytes:
    """Returns an npy file with this header, in Python's notation."""
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, {more}}}".encode("latin-1", "replace")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    length = struct.pack("<H", len(text) % 2**16) if version[0] == 1 else struct.pack("<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text + data


def mutate_npz(draw: Draw, arrays: Mapping[str, tuple[str, str, bytes]], deflated: bool) -> bytes:
    """Returns an npz archive of arrays, name -> (descr, shape, data), with changed headers, numbers or structure."""
    entries = []
    changed = draw.pick(sorted(arrays))
    kind = draw.below(3)
    for name, (descr, shape, data) in arrays.items():
        made = npy(data, shape, descr)
        if name == changed and kind == 0:
            match draw.below(7):
                case 0 | 1:
                    made = npy(data, shape, draw.pick(DESCRIPTIONS))
                case 2 | 3:
                    made = npy(data, draw.pick(SHAPES), descr)
                case 4:
                    version = draw.pick(((1, 0), (2, 0), (3, 0), (0, 0), (9, 9)))
                    more = draw.pick(("", "'a': 1,", "'descr': '<f4',", " " * 70_000, "__import__('os').system('id'),"))
                    made = npy(data, shape, descr, draw.pick(("False", "True", "None", "1", "(" * 200)), version, more)
                case 5:
                    made = byte_form.mutate(draw, made)
                case _:
                    made = draw.pick(
                        (made[: draw.below(len(made))], b"", b"\x80\x02cposix\nsystem\n(X\x02\x00\x00\x00idtR.")
                    )
        elif name == changed and kind == 1:
            from tests.fuzz.tensor_form import numbers

            made = npy(numbers(draw, data, 4), shape, descr)
        entries.append(Entry(f"{name}.npy", made, deflated))
    return mutate(draw, entries) if kind == 2 else build(entries)
