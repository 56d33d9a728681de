"""`{public-names} ROOM`: every public name of a room with its docstring. `{public-name} NAME`: one of them.

A room is a page of the reference. Each public name of `npformer` is on one of these pages; `npformer.golden` and the
other public modules have their own pages.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from importlib import import_module

from markdown import directive
from rooms import ELSEWHERE, FURTHER, WITH_METHODS, rooms
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

logger = logging.getLogger(__name__)


def public_names(room: str) -> Iterable[str]:
    """Returns a list of the names of a room, then each name with its docstring."""
    names = [name for name in rooms()[room] if name.rpartition(".")[2] not in ELSEWHERE]
    shorts = [name.rpartition(".")[2] if room in FURTHER else name.removeprefix("npformer.") for name in names]
    if len(names) > 1:
        yield ", ".join(f"[`{short}`](#{name})" for short, name in zip(shorts, names, strict=True))
    yield ""
    for short, name in zip(shorts, names, strict=True):
        module, _, last = name.rpartition(".")
        yield f"## {short}"
        if room in FURTHER:
            yield f"`from {module} import {last}`"
            yield ""
        yield from public_name(name)


def public_name(name: str) -> Iterable[str]:
    """Returns the docstring of a public name."""
    module, _, last = name.rpartition(".")
    found = getattr(import_module(module), last)
    yield "```{eval-rst}"
    if inspect.isclass(found):
        yield f".. autoclass:: {name}"
        if last in WITH_METHODS:
            yield "   :members:"
    elif callable(found):
        yield f".. autofunction:: {name}"
    else:
        yield f".. data:: {name}"
        yield f"   :value: {found!r}"
    yield "```"
    yield ""


def escape(app: Sphinx, what: str, name: str, found: object, options: object, lines: list[str]) -> None:
    """Escapes asterisks, bars and underscores in formulas, but not in examples and code, and sets examples apart."""
    written: list[str] = []
    example = False
    for line in lines:
        begins = line.lstrip().startswith(">>>") and not example
        example = bool(line.strip()) and (example or begins)
        if begins and written and written[-1].strip():
            written.append("")
        if not example:
            parts = re.split(r"(`[^`]*`)", line)
            line = "".join(
                part if i % 2 else re.sub(r"[*|]|(?<=\w)_(?!\w)", r"\\\g<0>", part) for i, part in enumerate(parts)
            )
        written.append(line)
    lines[:] = written


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """Warns about public names that no page describes."""
    for name in {name for names in rooms().values() for name in names} - set(env.domains["py"].objects):
        logger.warning("the reference lacks %s", name)


def setup(app: Sphinx) -> dict[str, bool]:
    rooms()
    app.connect("env-check-consistency", check)
    app.connect("autodoc-process-docstring", escape, priority=400)  # before numpydoc
    app.add_directive("public-names", directive(public_names))
    app.add_directive("public-name", directive(public_name))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
