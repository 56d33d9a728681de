"""The fields of config.json that a family reads, and what each changes, found by trying other values.

The fields are named in the family's code, in the files that it writes, or in its published checkpoints. The effect of
a field is the difference that another value makes to the `Config`. The module is independent of Sphinx, for tests.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from npformer.common.errors import NpformerError
from npformer.config import Config, Local
from npformer.families import FAMILIES, Family, read_config
from npformer.families.base import ACTIVATIONS

CHECKPOINTS = Path(__file__).parents[2] / "examples" / "checkpoints.json"
#: Fields that name the model, its head or its labels, and not its mathematics.
ABOUT = {"architectures", "model_type", "label2id", "id2label", "num_labels", "problem_type", "auto_map"}
#: Fields that have an effect only together.
WINDOWED = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}


class Field(NamedTuple):
    """A field of config.json: an example of its value, and the fields of `Config` that it sets, with their classes."""

    name: str
    value: Any
    sets: tuple[tuple[str, str], ...]


@cache
def checkpoints() -> list[dict[str, Any]]:
    """Returns the well-known checkpoints with the relevant fields of their config.json."""
    found: list[dict[str, Any]] = json.loads(CHECKPOINTS.read_text(encoding="utf-8"))
    return found


@cache
def published(model_type: str) -> list[tuple[dict[str, Any], Config]]:
    """Returns the checkpoints of a family that run, each with its config. Checkpoints with a head come first."""
    found = []
    for each in checkpoints():
        try:
            config = read_config(each["config"])
        except NpformerError:
            continue
        if config.model_type == model_type:
            found.append((each, config))
    return sorted(found, key=lambda each: each[1].head == "base")


def config_fields(model_type: str, config: Config) -> list[Field]:
    """Returns the fields that change a model of a family. config: the config of such a model."""
    if config.torch_class:
        return []  # torch's own modules have no config.json
    family = FAMILIES[model_type]
    base, given = family.write_config(config), [each["config"] for each, _ in published(model_type)]
    known = {key: value for each in reversed(given) for key, value in each.items()}
    names = [each for each in dict.fromkeys([*known, *base, *named(family)]) if each not in ABOUT]
    found = {name: effects(base, given, name, known.get(name)) for name in names}
    alone = {next(iter(sets)) for sets in found.values() if len(sets) == 1} | {("Config", "head_width")}
    for name, sets in found.items():
        if type(base.get(name)) is int and not sets <= alone:
            sets -= alone  # a size also changes what depends on it, such as the width of a head
    return [Field(name, known.get(name), tuple(sorted(sets))) for name, sets in found.items() if sets]


def named(family: Family) -> list[str]:
    """Returns the names of fields in the code of a family's class and of the classes above it."""
    code = "".join(inspect.getsource(each) for each in type(family).__mro__[:-1])
    return re.findall(r'data(?:\.get\(|\[)"(\w+)"', code)


def effects(base: Mapping[str, Any], given: list[dict[str, Any]], name: str, known: Any) -> set[tuple[str, str]]:
    """Returns the fields of `Config` that other values of a field change.

    base: the content of a config.json that npformer writes. given: the contents of checkpoints' files, which may have
    other field names.
    """
    plain = {key: each for key, each in base.items() if not isinstance(each, list | dict) or key == name}
    found = set[tuple[str, str]]()
    for data in (base, plain, {**plain, **WINDOWED}, *given[:1]):  # lists and objects must fit the sizes
        before = _read(data)
        for value in others(data.get(name), known) if before else ():
            if after := _read({**data, name: value}):
                found |= set(changed(before, after))
            if found and type(value) in (int, float):
                return found  # other numbers may also make a token id invalid
        if found:
            return found
    return set()


def _read(data: Mapping[str, Any]) -> Config | None:
    try:
        return read_config(data)
    except NpformerError:
        return None


def others(value: Any, known: Any) -> list[Any]:
    """Returns other values for a field. known: its value in a checkpoint."""
    if isinstance(value, bool) or isinstance(known, bool):
        return [not value]
    if isinstance(value, str):
        return [*ACTIVATIONS, "bfloat16", "mean", "c2p", known]
    if isinstance(value, list):
        return [value[::-1], [value[0]] * len(value) if value else [], known]
    if isinstance(value, dict):
        return [{**value, key: each} for key in value for each in others(value[key], None)] + [known]
    if isinstance(value, int | float):
        return [2 * value, value + 1, value / 2, 1, 2, 3, known]
    return [known, 1, 2, 4, 0.5, 100.0, True, False, "mean", "bfloat16"]


def changed(before: Any, after: Any, of: str = "") -> Iterator[tuple[str, str]]:
    """Yields the class and the name of each field that differs between two dataclasses."""
    for field in fields(before):
        a, b = getattr(before, field.name), getattr(after, field.name)
        if field.compare and a != b and field.name != "head":
            inner = list(_inside(a, b)) or [(type(before).__name__, field.name)]
            inside = "local " if isinstance(before, Local) and field.name == "mechanisms" else ""
            yield from ((inside + kind, name) for kind, name in inner)


def _inside(a: Any, b: Any) -> Iterator[tuple[str, str]]:
    """Yields the differences inside a field, or the classes that only one of two tuples has, such as ("Window", "")."""
    if is_dataclass(a) and type(a) is type(b):
        yield from changed(a, b)
    elif isinstance(a, tuple) and isinstance(b, tuple):
        kinds, others = ([type(each) for each in of if is_dataclass(each)] for of in (a, b))
        yield from ((kind.__name__, "") for kind in {*kinds} ^ {*others})
        if kinds == others and len(a) == len(b):
            for each, other in zip(a, b, strict=True):
                yield from _inside(each, other)
