"""Programs with mistakes: the functions of the course, with edits to the text of some functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from npformer.learn.contents import PAGES, Function, definition, split

BODY = "body"


class Edit(NamedTuple):
    """A change of a page's function.

    Parameters
    ----------
    old : text that occurs once in the function's code, or "body" for all of the code
    new : the text that replaces it
    """

    old: str
    new: str


def edited(name: str, edits: Sequence[Edit]) -> str:
    """Returns the text of a function with edits applied, or "" if two edits overlap."""
    signature, _, body = split(name)
    text = f"{signature}\n{body}"
    whole = (len(signature) + 1, len(text))
    spans = sorted(
        (*whole, f"    {new}") if old == BODY else (text.index(old), text.index(old) + len(old), new)
        for old, new in edits
    )
    if any(before[1] > after[0] for before, after in pairwise(spans)):
        return ""
    for first, last, new in reversed(spans):
        text = text[:first] + new + text[last:]
    return text


def program(name: str, texts: Mapping[str, str], **values: Any) -> Function:
    """Returns a function from a copy of the course in which the text of some functions is replaced.

    values: other names that the texts use
    """
    names = {"np": np, "math": math, **values}
    exec(_course(), names)  # this is safe, because the code is part of this package
    for text in texts.values():
        exec(_compiled(text), names)
    function: Function = names[name]
    return function


def parts(name: str) -> tuple[str, ...]:
    """Returns the names of the course's functions that a function calls, directly or indirectly."""
    found = dict.fromkeys(each for each in _read(_compiled(definition(name))) if each in PAGES and each != name)
    return tuple(dict.fromkeys([*found, *(part for each in found for part in parts(each))]))


def _read(code: CodeType) -> list[str]:
    """Returns the names that the code of a function reads, including functions defined inside it."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return [*code.co_names, *(name for each in inner for name in _read(each))]


@lru_cache(maxsize=1)
def _course() -> CodeType:
    return _compiled("\n\n\n".join(map(definition, PAGES)))


@lru_cache(maxsize=4096)
def _compiled(text: str) -> CodeType:
    return compile(text, "<course>", "exec")
