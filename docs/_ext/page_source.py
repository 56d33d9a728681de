"""The text of a page of `npformer.plain` as HTML, with links to definitions, and the line of each stage.

The stages come from `tests/support/page_stages.py`, which runs a page and names each assignment and each call with
weights. Tests check that a page has every stage of the engine; this module finds the line that computes a stage.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from family_tree import PARENTS
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from npformer import Text
from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.tree import own_to_tree
from npformer.config import Config
from npformer.pages.find import PACKAGE, names
from npformer.plain import source
from tests.support.page_stages import Page

#: The repository on GitHub, and the checkout.
GITHUB, ROOT = "https://github.com/npformer/npformer/blob/main/", Path(__file__).parents[2]
Line = tuple[str, int]  # a page and the number of a line


def listing(name: str) -> Iterable[str]:
    """Returns the text of a page as a block of HTML. Each line is an anchor, and imported names are links."""
    known = _definitions(name)
    lines = highlight(source(name), PythonLexer(), HtmlFormatter(nowrap=True)).rstrip("\n").split("\n")

    def linked(found: re.Match[str]) -> str:
        place = known.get(found[1])
        return f'<a href="{address(*place)}">{found[0]}</a>' if place else found[0]

    body = "\n".join(
        f'<span id="{name}-L{number}">{re.sub(NAME, linked, line)}</span>' for number, line in enumerate(lines, 1)
    )
    yield f'<div class="highlight-python notranslate plain-page"><div class="highlight"><pre>{body}\n</pre></div></div>'
    yield ""


NAME = re.compile(r'<span class="n">(\w+)</span>')


def address(name: str, line: int) -> str:
    """Returns the link to a line, from any page of the guide or of the reference."""
    return f"{'../models/' + name if name in PARENTS else '../reference/plain'}.html#{name}-L{line}"


@cache
def _definitions(name: str) -> dict[str, Line]:
    """Returns where each function that a page imports from another page is defined."""
    found = {}
    for key, each in vars(import_module(PACKAGE + name)).items():
        of = str(getattr(each, "__module__", "")).removeprefix(PACKAGE)
        if callable(each) and of != name and str(getattr(each, "__module__", "")).startswith(PACKAGE):
            found[key] = of, inspect.getsourcelines(inspect.unwrap(each))[1]
    return found


def source_of(domain: str, info: Mapping[str, str]) -> str | None:
    """Returns the link to the source of a documented object: to its line on a page, or to its file on GitHub."""
    if not info["module"]:
        return None  # an entry without a docstring, such as a table of fields
    found: Any = import_module(info["module"])
    for part in info["fullname"].split("."):
        found = getattr(found, part, None)
    try:
        found = inspect.unwrap(found)
        module, line = found.__module__, inspect.getsourcelines(found)[1]
    except (AttributeError, OSError, TypeError):
        return None  # constants and properties have no source lines
    if module.startswith(PACKAGE) and module.removeprefix(PACKAGE) in names():
        return address(module.removeprefix(PACKAGE), line)
    path = Path(inspect.getsourcefile(found) or "").relative_to(ROOT)
    return f"{GITHUB}{path.as_posix()}#L{line}"


class _Lines(Page):
    """A page that notes the line of each stage when the stage is first computed."""

    def __init__(self, model_type: str) -> None:
        super().__init__(model_type)
        self.lines: dict[str, Line] = {}

    def note(self, function: str, name: str, value: Any) -> Any:
        before = dict(self.stages)
        value = super().note(function, name, value)
        page = Path(sys._getframe(1).f_code.co_filename).stem
        for stage, array in self.stages.items():
            if before.get(stage) is not array:
                self.lines.setdefault(stage, (page, _assignments(page)[function, name]))
        return value

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        frame, stage = sys._getframe(1), ".".join([*self.scope, name])
        value = super().call(name, function, *args, **kwargs)
        if stage in self.stages:
            self.lines.setdefault(stage, (Path(frame.f_code.co_filename).stem, frame.f_lineno))
        return value


@cache
def _assignments(name: str) -> dict[tuple[str, str], int]:
    """Returns the line of the first assignment to each name in each function of a page."""
    found: dict[tuple[str, str], int] = {}
    for function in (each for each in ast.walk(ast.parse(source(name))) if isinstance(each, ast.FunctionDef)):
        for node in (each for each in ast.walk(function) if isinstance(each, ast.Name)):
            if isinstance(node.ctx, ast.Store):
                found.setdefault((function.name, node.id), node.lineno)
    return found


def lines_of_stages(config: Config) -> dict[str, Line]:
    """Returns the page and line that computes each stage of a model."""
    weights = own_to_tree({name: np.full(each.shape, 0.1) for name, each in parameters(config).items()}, config)
    text: Any = Text(np.array([5, 6, 7]))
    page = _Lines(config.model_type)
    page.stages_of(config, weights, (text, Text(np.array([2, 4]))) if config.head == "translation" else text)
    return page.lines
