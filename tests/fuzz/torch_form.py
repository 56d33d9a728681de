"""Mutates torch's files: the tensors, their descriptions in the pickle, the pickle's instructions, and the container.

Some instructions would write the file `canary` if anything executed them.
"""

from __future__ import annotations

import itertools
import pickletools
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from tests.fuzz import byte_form, tensor_form, zip_form
from tests.fuzz.draw import Draw
from tests.fuzz.tensor_form import Tensor
from tests.support.torch_writer import LEGACY_HEAD, Call, Global, Persistent, Raw, dump

STORAGES = {
    "F64": "DoubleStorage", "F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage", "I64": "LongStorage",
    "I32": "IntStorage", "I16": "ShortStorage", "I8": "CharStorage", "U8": "ByteStorage", "BOOL": "BoolStorage",
}  # fmt: skip
DOUBLE = b"G" + struct.pack(">d", 2.0)
HOOKS = Call(Global("collections", "OrderedDict"), ())

TOUCH = b"X" + struct.pack("<I", 14) + b"touch ./canary"
WRITE = b"X" + struct.pack("<I", 19) + b"open('canary', 'w')"
#: Instructions that call functions, or request a lot of memory.
HOSTILE = (
    b"cos\nsystem\n(" + TOUCH + b"tR", b"cposix\nsystem\n" + TOUCH + b"\x85R", b"cbuiltins\nexec\n(" + WRITE + b"tR",
    b"cbuiltins\neval\n" + WRITE + b"\x85R", b"csubprocess\ngetoutput\n(" + TOUCH + b"tR", b"(cos\nsystem\n" + TOUCH + b"o",
    b"(" + TOUCH + b"ios\nsystem\n", b"\x8c\x02os\x8c\x06system\x93" + TOUCH + b"\x85R", b"cos\nsystem\n" + TOUCH + b"\x85\x81",
    b"cos\nsystem\n" + TOUCH + b"\x85}\x92", b"ctorch\nload\n(" + TOUCH + b"tR", b"ctorch._utils\n_rebuild_tensor_v3\n)R",
    b"c__builtin__\ngetattr\n(cbuiltins\n__import__\n(X\x02\x00\x00\x00ostRX\x06\x00\x00\x00systemtR", b"\x82\x01", b"\x83\x01\x00",
    b"\x84\xff\xff\xff\x7f", b"P1\n", b"Q", b"}(" + TOUCH + b"Nub", b"I01\n", b"I" + b"9" * 5000 + b"\n", b"F1e999\n", b"S'a'\n",
    b"V\\ud800\n", b"2", b"0", b"1", b"(l", b"(d", b"\x8f", b"\x90", b"\x91", b"\x97", b"\x98", b"C\x03abc", b"B\x01\x00\x00\x00a",
    b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x96\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"X\xff\xff\xff\xffa", b"\x8b\xff\xff\xff\x7fa", b"\x8b\xff\xff\xff\xffa", b"\x8a\xff" + b"\x7f" * 255,
    b"\x95\xff\xff\xff\xff\xff\xff\xff\xff", b"\x80\xff", b"\x80\x05", b"r\xff\xff\xff\xff", b"q\xff", b"j\xff\xff\xff\xff",
    b"h\xff", b"\x94", b".", b"N", b"\x88", b")", b"]", b"}", b"(", b"t", b"a", b"s", b"u", b"e", b"b", b"R", b"\x85", b"\x86",
    b"K\x01", b"M\xff\xff", b"J\xff\xff\xff\xff", b"G" + struct.pack(">d", float("nan")), b"N" * 50_000, b"(" * 50_000,
    b")\x85" + b"\x85" * 5000, b"]" + b"q\x01h\x01\x86" * 60, b")" + b"q\x01h\x01\x86" * 60, b"}q\x01h\x01s", b"]q\x01h\x01a",
    b"}(" + b"".join(b"\x8a\x0a" + (i * (2**61 - 1)).to_bytes(10, "little") + b"N" for i in range(600)) + b"u",
    b"\xff", b"",
)  # fmt: skip


def record(tensor: Tensor, key: str) -> dict[str, Any]:
    """Returns a pickle's description of a tensor with its own storage."""
    count = len(tensor.data) // tensor_form.SIZES[tensor.dtype]
    strides = [1] * len(tensor.shape)
    for axis in range(len(tensor.shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * tensor.shape[axis]
    return {
        "name": tensor.name, "kind": STORAGES.get(tensor.dtype, tensor.dtype), "key": key, "device": "cpu", "size": count,
        "view": (), "offset": 0, "shape": tensor.shape, "strides": tuple(strides), "rebuild": "_rebuild_tensor_v2",
        "hooks": HOOKS,
    }  # fmt: skip


def content(records: Sequence[Mapping[str, Any]]) -> Any:
    """Returns the dict of tensors for `torch_writer.dump`."""
    made = {}
    for each in records:
        where = Persistent(
            ("storage", Global("torch", each["kind"]), each["key"], each["device"], each["size"], *each["view"])
        )
        arguments = (where, each["offset"], each["shape"], each["strides"], False, each["hooks"])
        rebuild = Global("torch._utils", each["rebuild"])
        made[each["name"]] = Call(rebuild, arguments[:4] if each["rebuild"] == "_rebuild_tensor" else arguments)
    return made


def build(tensors: Sequence[Tensor], legacy: bool) -> bytes:
    records = [record(each, str(i)) for i, each in enumerate(tensors)]
    return frame(dump(content(records)), records, [each.data for each in tensors], legacy)


def frame(pickle: bytes, records: Sequence[Mapping[str, Any]], storages: Sequence[bytes], legacy: bool) -> bytes:
    """Returns a file of this pickle and these storages, with the keys 0, 1, ..."""
    if not legacy:
        return zip_form.build(entries(pickle, storages))
    keys = [str(i) for i in range(len(storages))]
    counts = [len(data) // _itemsize(each) for data, each in zip(storages, records, strict=False)]
    body = b"".join(n.to_bytes(8, "little") + data for n, data in zip(counts, storages, strict=False))
    return b"".join(map(dump, LEGACY_HEAD)) + pickle + dump(keys) + body


def entries(pickle: bytes, storages: Sequence[bytes]) -> list[zip_form.Entry]:
    files = {"data.pkl": pickle, "byteorder": b"little", "version": b"3\n"}
    files |= {f"data/{i}": data for i, data in enumerate(storages)}
    return [zip_form.Entry(f"archive/{name}", data) for name, data in files.items()]


def _itemsize(record: Mapping[str, Any]) -> int:
    return next((tensor_form.SIZES[name] for name, kind in STORAGES.items() if kind == record["kind"]), 4)


def mutate(draw: Draw, tensors: Sequence[Tensor], legacy: bool) -> bytes:
    """Returns a file of these tensors with changes in one of its layers: tensors, pickle or container."""
    kind = draw.below(10)
    if kind < 3:
        changed = list(tensors)
        for _ in range(draw.pick((1, 1, 2))):
            changed = tensor_form.change(draw, changed)
        return build(changed, legacy)
    records = [record(each, str(i)) for i, each in enumerate(tensors)]
    storages = [each.data for each in tensors]
    if kind < 6:
        for _ in range(draw.pick((1, 1, 2))):
            _describe(draw, records)
        return frame(dump(content(records)), records, storages, legacy)
    pickle = dump(content(records))
    if kind < 8:
        return frame(instructions(draw, pickle), records, storages, legacy)
    if kind == 8 and not legacy:
        return zip_form.mutate(draw, entries(pickle, storages))
    if kind == 8:
        return _older(draw, pickle, storages)
    return byte_form.mutate(draw, frame(pickle, records, storages, legacy))


def _axes(numbers: Any) -> tuple[int, ...]:
    """Returns a record's shape or strides, or (2, 3) if an earlier change replaced them with another value."""
    whole = isinstance(numbers, tuple) and all(type(each) is int for each in numbers)
    return numbers if whole else (2, 3)


def _describe(draw: Draw, records: list[dict[str, Any]]) -> None:
    """Changes the pickle's description of one tensor."""
    if not records:
        return
    each, other = draw.pick(records), draw.pick(records)
    match draw.below(14):
        case 0 | 1:
            each["shape"] = draw.pick(
                (tensor_form.shape(draw, _axes(each["shape"])), (-1,), (True,), ("2",), [2], None, (Raw(DOUBLE),))
            )
        case 2 | 3:
            strides = _axes(each["strides"])
            zero, back = tuple(0 for _ in strides), tuple(strides[::-1])
            each["strides"] = draw.pick(
                (zero, back, (2**40,), (-1,) * len(strides), (1,) * 40, tuple(2 * n for n in strides), None)
            )
        case 4:
            # Reuses one storage many times: a small file that requests a lot of memory.
            n = draw.pick((100, 3000, 30_000, 10**6))
            each["shape"], each["strides"] = draw.pick(
                (((n, n), (0, 0)), ((n,), (0,)), ((n, 8), (0, 1)), ((n, n, n), (0, 0, 0)))
            )
        case 5:
            each["offset"] = draw.pick((*byte_form.EDGES, None, "0", (0,)))
        case 6:
            each["size"] = draw.pick((*byte_form.EDGES, each["size"] + 1, None, "3"))
        case 7:
            each["key"] = draw.pick(
                (other["key"], byte_form.string(draw).encode("ascii", "replace").decode(), 0, None, "999")
            )
        case 8:
            each["kind"] = draw.pick((*STORAGES.values(), "ComplexFloatStorage", "UntypedStorage", "os", "Storage"))
        case 9:
            each["view"] = draw.pick(
                ((None,), (("v", 0, 1),), (("v", 1, 2**62),), (("v", -1, 1),), ((),), (("v", 0, each["size"]),))
            )
        case 10:
            each["rebuild"] = draw.pick(
                ("_rebuild_tensor", "_rebuild_parameter", "_rebuild_sparse_tensor", "_rebuild_qtensor")
            )
        case 11:
            each["name"] = tensor_form.name(draw, each["name"]).encode("utf-8", "replace").decode()
        case 12:
            each["hooks"] = draw.pick(
                (None, {}, Call(Global("os", "system"), ("touch ./canary",)), Raw(draw.pick(HOSTILE)))
            )
        case _:
            place = draw.pick(("name", "shape", "strides", "size", "key"))
            each[place] = "bomb" if place == "name" else Raw(b")" + b"q\x01h\x01\x86" * draw.pick((3, 22, 60)))


def instructions(draw: Draw, pickle: bytes) -> bytes:
    """Returns a pickle with some instructions removed, repeated, exchanged or added."""
    places = [place for _, _, place in pickletools.genops(pickle)] + [len(pickle)]
    parts = [pickle[a:b] for a, b in itertools.pairwise(places)]
    for _ in range(draw.pick((1, 1, 2, 5))):
        i, j = draw.below(len(parts)), draw.below(len(parts))
        match draw.below(6):
            case 0 if len(parts) > 1:
                del parts[i]
            case 1:
                parts.insert(i, parts[j])
            case 2:
                parts[i], parts[j] = parts[j], parts[i]
            case 3:
                parts[i] = draw.pick(HOSTILE)
            case _:
                parts.insert(i, draw.pick(HOSTILE))
    return b"".join(parts)


def _older(draw: Draw, pickle: bytes, storages: Sequence[bytes]) -> bytes:
    """Returns a file of the older format with an error outside the pickle of the tensors."""
    keys: Any = [str(i) for i in range(len(storages))]
    parts: list[Any] = [*LEGACY_HEAD, Raw(pickle), keys]
    counts = [len(data) // 4 for data in storages]
    match draw.below(6):
        case 0:
            parts[draw.below(3)] = draw.pick(
                (None, 0, 1, 2**90, "", [], {}, {"little_endian": False}, {"little_endian": 1})
            )
        case 1:
            i = draw.below(len(parts))
            parts[i] = Raw(draw.pick(HOSTILE) + b".")
        case 2:
            parts[4] = draw.pick((keys[::-1], keys[1:], [*keys, keys[0]], None, {}, [0], ["x"], [*keys, "x"], [[]]))
        case 3:
            counts[draw.below(len(counts))] = draw.pick(byte_form.EDGES) % 2**64
        case 4:
            del parts[draw.below(len(parts))]
        case _:
            parts[draw.below(3)] = Raw(instructions(draw, dump(LEGACY_HEAD[draw.below(3)])))
    body = b"".join(n.to_bytes(8, "little") + data for n, data in zip(counts, storages, strict=True))
    return b"".join(each.code if isinstance(each, Raw) else dump(each) for each in parts) + body
