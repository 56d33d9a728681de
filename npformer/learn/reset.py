"""Resets a function of the learner's file to its empty form."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from npformer.common.errors import NpformerError
from npformer.common.files import written_whole
from npformer.learn.checking import learners_file
from npformer.learn.contents import definition, given_with
from npformer.learn.source import Block, blocks, decoded, source_of
from npformer.learn.start import exercise_of
from npformer.learn.template import empty


def reset(name: str, folder: str | os.PathLike[str] = ".") -> Path:
    """Resets a function to its empty form, and saves the former code in a separate file. Adds a missing function.

    If the file lacks definitions that the course provides in the same chapter, they are added too.

    Parameters
    ----------
    name : str, the function
    folder : the learner's folder or file

    Returns
    -------
    Path
        The file with the function's former code, or the learner's file if it had no such function.

    Raises
    ------
    NpformerError
        The course has no such function, or the file cannot be read or written.

    Examples
    --------
    >>> folder = npformer.learn.start("again")
    >>> npformer.learn.reset("linear", folder).name
    'my_transformer.linear.1.py'
    """
    exercise_of(name)
    file = learners_file(folder)
    data = source_of(file)
    try:
        text = decoded(data)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise NpformerError(f"{file}: not Python: {error}") from None
    known = list(_statements(text))
    found = [each for each in known if each.name == name]
    lines, kept = text.split("\n"), "\n\n\n".join(each.text for each in found)
    for each in reversed(found):
        lines[each.first - 1 : each.last] = empty(name).split("\n") if each is found[0] else []
    there = {each.name for each in known}
    added = [*(definition(each) for each in given_with(name) if each not in there), *([] if found else [empty(name)])]
    new = "\n\n\n".join(["\n".join(lines).rstrip("\n"), *added]) + "\n"
    copy = next(path for i in range(1, 10**6) if not (path := file.with_suffix(f".{name}.{i}.py")).exists())
    if found:
        _write(copy, kept + "\n", b"\r\n" in data)
    _write(file, new if added else "\n".join(lines), b"\r\n" in data)
    return copy if found else file


def _write(path: Path, text: str, returns: bool) -> None:
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\r\n" if returns else "\n")


def _statements(text: str) -> Iterator[Block]:
    """Yields the top-level definitions in a file, even in a file with syntax errors."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        yield from blocks(text)
        return
    lines = text.split("\n")
    for each in tree.body:
        first = min([each.lineno, *(one.lineno for one in getattr(each, "decorator_list", []))])
        last = each.end_lineno or first
        targets = each.targets if isinstance(each, ast.Assign) else []
        names = [getattr(each, "name", ""), *(target.id for target in targets if isinstance(target, ast.Name))]
        yield Block(next(filter(None, names), ""), first, last, "\n".join(lines[first - 1 : last]))
