"""Mutates the numbers, tensors and header of safetensors files, and may adapt the rest of the file to the change.

If the file stays valid, the reader accepts the change, and it reaches the code that uses the tensors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.fuzz import byte_form, json_form
from tests.fuzz.draw import Draw
from tests.fuzz.json_form import Hints, Object, Raw

SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "C64": 8,
}  # fmt: skip
SHAPES = ((), (0,), (0, 0), (1,) * 33, (2**31,), (2**31, 0), (2**63,), (0, 2**62, 4), (2**32, 2**32), (1, 1, 1), (3, 3))

#: Bit patterns of extreme numbers: NaN, infinities, the largest, the smallest, ones and zeros.
NUMBERS = {
    8: ("000000000000f87f", "000000000000f07f", "000000000000f0ff", "ffffffffffffef7f", "0100000000000000", "00" * 8, "ff" * 8),
    4: ("0000c07f", "0000807f", "000080ff", "ffff7f7f", "01000000", "00" * 4, "0100807f", "ff" * 4, "00004c7e"),
    2: ("007e", "007c", "00fc", "ff7b", "0100", "0000", "ffff", "807f", "c07f"),
    1: ("00", "01", "7f", "80", "ff"),
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def parse(data: bytes) -> tuple[list[Tensor], Object]:
    """Returns the tensors of a valid file in the order of their bytes, and the file's metadata."""
    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    metadata = json_form.form(header.pop("__metadata__", {}))
    tensors = []
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        body = data[8 + length + first : 8 + length + last]
        tensors.append(Tensor(name, entry["dtype"], tuple(entry["shape"]), body))
    return tensors, metadata


def header(tensors: Sequence[Tensor], metadata: Object) -> Object:
    made, end = Object([["__metadata__", metadata]] if metadata else []), 0
    for each in tensors:
        shape, offsets = ([Raw(n) for n in numbers] for numbers in (each.shape, (end, end + len(each.data))))
        made.append([each.name, Object([["dtype", each.dtype], ["shape", shape], ["data_offsets", offsets]])])
        end += len(each.data)
    return made


def build(tensors: Sequence[Tensor], metadata: Object, head: Object | None = None) -> bytes:
    """Returns a file of these tensors, with the header `head` if it is given."""
    text = json_form.text(header(tensors, metadata) if head is None else head).encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(each.data for each in tensors)


def mutate(draw: Draw, data: bytes, others: Sequence[bytes] = (), hints: Hints | None = None) -> bytes:
    """Returns a safetensors file with one to four changes; `hints` are for JSON in its metadata."""
    tensors, metadata = parse(data)
    kind = draw.below(10)
    if kind == 0:
        head = json_form.mutate_tree(draw, header(tensors, metadata), {})
        return build(tensors, metadata, head)
    if kind == 1:
        data = build(tensors, metadata)
        length = draw.pick((*byte_form.EDGES, len(data), len(data) - 8, len(data) - 7)) % 2**64
        return draw.pick(
            (struct.pack("<Q", length) + data[8:], data + draw.bytes(draw.below(9)), data[: draw.below(len(data))])
        )
    if kind == 2 or (hints and kind < 5):
        return build(tensors, _metadata(draw, metadata, hints or {}))
    for _ in range(draw.pick((1, 1, 1, 2, 4))):
        tensors = change(draw, tensors)
    return build(tensors, metadata)


def _metadata(draw: Draw, metadata: Object, hints: Hints) -> Object:
    """Returns changed metadata; most changes are inside a JSON string."""
    described = [pair for pair in metadata if str(pair[1]).startswith("{")]
    if not described or draw.chance(4):
        changed = json_form.mutate_tree(draw, metadata, {})
        return changed if isinstance(changed, Object) else Object([["a", changed]])
    pair = draw.pick(described)
    tree = json_form.parse(pair[1])
    for _ in range(draw.pick((1, 1, 2))):
        tree = json_form.mutate_tree(draw, tree, hints)
    pair[1] = json_form.text(tree)
    return metadata


def change(draw: Draw, tensors: list[Tensor]) -> list[Tensor]:
    """Returns the tensors with one change, after which the file is still valid."""
    if not tensors:
        return [Tensor("a", "F32", (1,), bytes(4))]
    i, other = draw.below(len(tensors)), draw.pick(tensors)
    each = tensors[i]
    before, after = tensors[:i], tensors[i + 1 :]
    match draw.below(13):
        case 0 | 1 | 2:
            return [*before, replace(each, data=numbers(draw, each.data, SIZES[each.dtype])), *after]
        case 3:
            dtype = draw.pick([name for name in SIZES if SIZES[name] == SIZES[each.dtype]])
            return [*before, replace(each, dtype=dtype), *after]
        case 4:
            dtype = draw.pick(list(SIZES))
            return [*before, _fitted(replace(each, dtype=dtype)), *after]
        case 5 | 6:
            return [*before, _fitted(replace(each, shape=shape(draw, each.shape))), *after]
        case 7:
            return [*before, *after]
        case 8:
            return [*tensors, replace(each, name=name(draw, each.name))]
        case 9:
            return [*before, replace(each, name=draw.pick((name(draw, each.name), other.name + ".0"))), *after]
        case 10:
            return [*before, replace(other, name=each.name), *after]
        case 11:
            count = draw.pick((1, 3, 2000))
            return [*tensors, *(Tensor(f"extra.{n}", "F32", (0,), b"") for n in range(count))]
        case _:
            return [*before, replace(each, data=draw.bytes(len(each.data))), *after]


def numbers(draw: Draw, data: bytes, size: int) -> bytes:
    """Returns an array's bytes with one, some or all numbers replaced."""
    special = bytes.fromhex(draw.pick(NUMBERS[size]))
    count = len(data) // size
    if not count:
        return data
    start = draw.below(count)
    stop = draw.pick((start + 1, count, start + 1 + draw.below(count - start)))
    return data[: start * size] + special * (stop - start) + data[stop * size :]


def shape(draw: Draw, known: Sequence[int]) -> tuple[int, ...]:
    """Returns a changed shape: sometimes with the same number of elements, sometimes impossible."""
    axes = list(known)
    match draw.below(6):
        case 0:
            return tuple(axes[::-1])
        case 1:
            axes.insert(draw.below(len(axes) + 1), 1)
            return tuple(axes)
        case 2 if axes:
            i = draw.below(len(axes))
            axes[i] = draw.pick((0, 1, axes[i] + 1, max(0, axes[i] - 1), 2 * axes[i]))
            return tuple(axes)
        case 3:
            product = 1
            for each in axes:
                product *= each
            return (product,)
        case _:
            return draw.pick(SHAPES)


def name(draw: Draw, known: str) -> str:
    """Returns a replacement for a name: an extreme string, or a variant, such as the same name in another layer."""
    digits = "".join(str(draw.below(3)) if each.isdigit() else each for each in known)
    cut = known.partition(".")[2] or known
    return draw.pick((byte_form.string(draw), byte_form.alter(draw, known), digits, cut, f"module.{known}", known))


def _fitted(tensor: Tensor) -> Tensor:
    """Returns the tensor with as many bytes as its shape needs, or unchanged if it needs more than 100,000."""
    size = SIZES[tensor.dtype]
    for each in tensor.shape:
        size *= each
    if size > 100_000:
        return tensor
    return replace(tensor, data=(tensor.data + bytes(size))[:size])
