"""The learner's file before it is filled in: its text, and the signatures of its functions."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from npformer.common.files import read_text

FILE = "my_transformer.py"
TEMPLATE = Path(__file__).with_name("my_transformer.txt")


def template() -> str:
    """Returns the file that `learn start` writes: every function has a docstring but no body."""
    return read_text(TEMPLATE)


def signatures() -> dict[str, inspect.Signature]:
    """Returns the signature of every function in the file."""
    names: dict[str, Any] = {}
    exec(compile(template(), FILE, "exec"), names)  # the executed code is part of this package
    return {name: inspect.signature(each) for name, each in names.items() if inspect.isfunction(each)}
