"""The names of the reference, and the blocks of code in their docstrings."""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

from npformer.tasks.catalogue import TASKS
from npformer.tasks.conversation import Conversation
from npformer.tasks.pipelines import class_of

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"::\n\n((?: {4,}.*(?:\n\n?|\Z))+)")


def documented() -> dict[str, Any]:
    """Returns the objects of the reference by name: each class, function and method that has its own docstring.

    The objects of `npformer.dataset` are included if its extra is installed, as in CI's lane `extras`.
    """
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        rooms = import_module("rooms")
    finally:
        sys.path.pop(0)
    found = {}
    for name in (
        each for names in rooms.rooms(without="" if find_spec("pyarrow") else "dataset").values() for each in names
    ):
        module, _, last = name.rpartition(".")
        found[name] = getattr(import_module(module), last)
        if last in rooms.WITH_METHODS:
            methods = {key: each for key, each in vars(found[name]).items() if key[0] != "_" and callable(each)}
            found |= {f"{name}.{key}": each for key, each in methods.items()}
    found |= {f"pipeline({name!r})": class_of(name) for name in TASKS} | {"Conversation": Conversation}
    return {name: each for name, each in found.items() if callable(each) and inspect.getdoc(each)}


def blocks(doc: str) -> list[str]:
    """Returns the indented code blocks after `::` in a docstring, which need a hub model, a file or a server."""
    return [dedent(found) for found in BLOCK.findall(doc)]
