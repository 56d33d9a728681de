"""Mutates JSON in a parsed form that, unlike Python's objects, preserves repeated keys and exact numbers.

`hints` are meaningful values for a file of this kind: key -> values to set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.fuzz import byte_form
from tests.fuzz.draw import Draw


class Raw(str):
    """JSON text with numbers as they were spelled, and with forms that no parser produces."""


class Object(list[list[Any]]):
    """A JSON object as a list of [key, value]."""

    def get(self, name: str) -> Any:
        return next((value for key, value in self if key == name), None)

    def put(self, name: str, value: Any) -> None:
        for pair in self:
            if pair[0] == name:
                pair[1] = value
                return
        self.append([name, value])


Hints = Mapping[str, Sequence[Any]]

NUMBERS = tuple(
    map(
        Raw,
        (
            "0", "-0", "1", "-1", "2", "3", "7", "64", "65", "1000", "2147483647", "2147483648", "-2147483648",
            "4294967296", "9007199254740993", "9223372036854775807", "9223372036854775808", "18446744073709551616",
            "-9223372036854775809", "1" + "0" * 400, "-1" + "0" * 400, "1" + "0" * 5000, "1e400", "-1e400", "1e308",
            "-1e308", "1e-320", "1e-12", "0.5", "-0.0", "1.0", "2.5", "NaN", "Infinity", "-Infinity", "true", "false",
            "null", "1E+2", "00", "1e", "0x10",
        ),
    )
)  # fmt: skip
DEPTHS = (20, 200, 900, 1100, 30_000)


def parse(text: str | bytes) -> Any:
    return json.loads(text, object_pairs_hook=_object, parse_int=Raw, parse_float=Raw, parse_constant=Raw)


def _object(pairs: list[tuple[str, Any]]) -> Object:
    return Object([list(pair) for pair in pairs])


def form(value: Any) -> Any:
    """Converts Python's dicts, lists and numbers to the form that `parse` returns."""
    return parse(json.dumps(value))


def text(node: Any) -> str:
    if isinstance(node, Raw):
        return str(node)
    if isinstance(node, Object):
        return "{" + ",".join(f"{_key(key)}:{text(value)}" for key, value in node) + "}"
    if isinstance(node, list):
        return "[" + ",".join(map(text, node)) + "]"
    return json.dumps(node)


def _key(key: Any) -> str:
    return str(key) if isinstance(key, Raw) else json.dumps(key)


def copy(node: Any) -> Any:
    if isinstance(node, Object):
        return Object([[key, copy(value)] for key, value in node])
    return [copy(each) for each in node] if isinstance(node, list) else node


def mutate(draw: Draw, data: bytes, others: Sequence[bytes] = (), hints: Hints | None = None) -> bytes:
    """Returns a JSON file with one to four changes."""
    tree = parse(data)
    for _ in range(draw.pick((1, 1, 1, 2, 4))):
        tree = mutate_tree(draw, tree, hints or {})
    return text(tree).encode("utf-8", "surrogatepass")


def mutate_tree(draw: Draw, tree: Any, hints: Hints) -> Any:
    """Returns a tree with one change; the given tree may be changed too."""
    if hints and draw.below(3) == 0:
        key = draw.pick(sorted(hints))
        objects = [node for node in _objects(tree) if node.get(key) is not None] or _objects(tree)[:1]
        if objects:
            draw.pick(objects).put(key, form(draw.pick(hints[key])))
            return tree
    root = [tree]
    container, index = _place(draw, root)
    _change(draw, container, index, root, hints)
    return root[0] if root else Raw("")


def _objects(node: Any) -> list[Object]:
    children = [value for _, value in node] if isinstance(node, Object) else node if isinstance(node, list) else []
    found = [each for child in children[:50] if isinstance(child, list) for each in _objects(child)]
    return [node, *found] if isinstance(node, Object) else found


def _place(draw: Draw, root: list[Any]) -> tuple[list[Any], int]:
    """Returns a container and the index of one of its values, found by a random walk from the root."""
    container, index = root, 0
    while True:
        node = container[index][1] if isinstance(container, Object) else container[index]
        if not isinstance(node, list) or not node or (container is not root and draw.chance(5)):
            return container, index
        container, index = node, draw.below(len(node))


def value(draw: Draw) -> Any:
    """Returns an extreme value of any type."""
    match draw.below(9):
        case 0 | 1 | 2:
            return draw.pick(NUMBERS)
        case 3 | 4:
            return byte_form.string(draw)
        case 5:
            return draw.pick(([], Object(), [[]], [Raw("null")], Object([["", Raw("0")]])))
        case 6:
            opening, closing = draw.pick((("[", "]"), ('{"a":', "}")))
            depth = draw.pick(DEPTHS)
            return Raw(opening * depth + "0" + closing * depth)
        case 7:
            return [draw.pick(NUMBERS) for _ in range(draw.pick((1, 2, 33, 5000)))]
        case _:
            return draw.pick((True, False, None))


def _change(draw: Draw, container: list[Any], index: int, root: list[Any], hints: Hints) -> None:
    pairs = isinstance(container, Object)
    node = container[index][1] if pairs else container[index]

    def put(new: Any) -> None:
        if pairs:
            container[index] = [container[index][0], new]
        else:
            container[index] = new

    match draw.below(13):
        case 0 | 1:
            put(value(draw))
        case 2 if isinstance(node, Raw):
            put(_near(draw, node))
        case 3 if isinstance(node, str):
            put(byte_form.alter(draw, node))
        case 4:
            del container[index]
        case 5:
            container.insert(draw.below(len(container) + 1), copy(container[index]))
        case 6 if pairs:
            keys = [key for key, _ in container] + sorted(hints)
            name = draw.pick((byte_form.string(draw), byte_form.alter(draw, container[index][0]), draw.pick(keys)))
            container[index] = [name, node]
        case 7:
            other, place = _place(draw, root)
            put(copy(other[place][1] if isinstance(other, Object) else other[place]))
        case 8:
            put(draw.pick(([copy(node)], Object([["a", copy(node)]]), [node, node], Raw(json.dumps(text(node))))))
        case 9 if isinstance(node, list):
            times = draw.pick((2, 10, 1000)) if len(text(node)) < 300 else 2
            put(type(node)([copy(each) for _ in range(times) for each in node]))
        case 10 if isinstance(node, list):
            put(type(node)())
        case 11:
            other, place = _place(draw, root)
            theirs = other[place][1] if isinstance(other, Object) else other[place]
            if other is not root and other is not node and container is not root:
                mine = copy(node)
                put(copy(theirs))
                if place < len(other):
                    other[place] = [other[place][0], mine] if isinstance(other, Object) else mine
        case _:
            put(draw.pick(NUMBERS) if isinstance(node, Raw) else value(draw))


def _near(draw: Draw, number: Raw) -> Raw:
    """Returns a number derived from this number, or this number spelled differently."""
    try:
        whole = int(number)
    except ValueError:
        return Raw(draw.pick(("-", "1", "0", "0.")) + number.lstrip("-"))
    return Raw(draw.pick((str(whole + 1), str(whole - 1), str(-whole), str(2 * whole), f"{whole}.0", f'"{whole}"')))
