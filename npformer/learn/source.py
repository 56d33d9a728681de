"""Reads and executes a learner's file, so that a mistake in one place does not hide functions in other places.

A function with a syntax error is omitted. A statement that raises is reported, and execution continues with the next
statement.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from npformer.common.errors import NpformerError
from npformer.common.files import as_given, named, read_bytes
from npformer.learn.chapters import EXERCISES
from npformer.learn.judge import raised_at, said_of, short

LARGEST = 2**22  # maximum bytes of a file
FAILED = "__npformer_failed__"
#: The first line of a top-level function, class, import or assignment.
BEGINS = re.compile(r"(async\s+def|def|class|import|from)\b|@|[A-Za-z_]\w*\s*=(?!=)")
DEFINES = re.compile(r"(?:async\s+)?def\s+(\w+)|^([A-Za-z_]\w*)\s*=", re.MULTILINE)


@dataclass(frozen=True)
class Loaded:
    """A learner's file.

    Parameters
    ----------
    module : the executed file; None if it has no function of the course, for the reason in `problem`
    problem : str, a sentence about a statement that raised, or about a function outside the course with a syntax error
    broken : a sentence for each function of the course with a syntax error
    imports : names of the imported modules
    foreign : name of a function that the file imports -> the module that defines the function
    """

    module: ModuleType | None
    problem: str = ""
    broken: Mapping[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    foreign: Mapping[str, str] = field(default_factory=dict)


class Block(NamedTuple):
    """The lines of a top-level statement of a file.

    Parameters
    ----------
    name : name of the function or variable, or ""
    first, last : numbers of the first and the last line
    text : str
    """

    name: str
    first: int
    last: int
    text: str


def loaded(file: str) -> Loaded:
    """Loads a learner's file."""
    path = Path(file)
    try:
        tree, problem, broken = parsed(source_of(path), path)
    except NpformerError as error:
        return Loaded(None, f"The file cannot be read: {error}.")
    if tree is None:
        return Loaded(None, problem)
    before = dict(vars(np))
    module, raised = _executed(tree, path)
    if changed := [name for name, value in before.items() if vars(np).get(name) is not value]:
        own = "Give your own function a different name."
        return Loaded(None, f"The file changes np.{changed[0]} for the whole program. {own}")
    problem = problem or raised
    if not any(hasattr(module, name) for name in EXERCISES) and (problem or broken):
        return Loaded(None, problem or next(iter(broken.values())))
    return Loaded(module, problem, broken, tuple(_imports(tree)), dict(_foreign(module, file)))


def source_of(path: Path) -> bytes:
    """Reads a Python file. Raises NpformerError if it is unreadable, or too large for a handwritten program."""
    path = as_given(path)
    with named(path):
        size = path.stat().st_size
    if size > LARGEST:
        raise NpformerError(f"{path}: expected at most {LARGEST} bytes, got {size}")
    return read_bytes(path, "json")


# --- syntax -----------------------------------------------------------------------------------------------------------


def parsed(data: bytes, path: Path) -> tuple[ast.Module | None, str, dict[str, str]]:
    """Returns the syntax tree without invalid functions, a problem, and a sentence for each invalid function.

    The tree is None if the problem is outside any function.
    """
    try:
        return ast.parse(data, str(path)), "", {}
    except (SyntaxError, ValueError) as error:  # Python 3.11 raises ValueError for null bytes
        whole = not_python(error, path)
    try:
        text = decoded(data)
    except (SyntaxError, UnicodeDecodeError):
        return None, whole, {}
    lines, broken, problem = text.splitlines(), dict[str, str](), ""
    for block in blocks(text):
        said = _problem(block, path)
        if said and not block.name:
            return None, whole, {}
        if said:
            lines[block.first - 1 : block.last] = [""] * (block.last - block.first + 1)
            known = block.name in EXERCISES
            broken |= {block.name: said} if known else {}
            problem = problem or ("" if known else said)
    try:
        return ast.parse("\n".join(lines), str(path)), problem, broken
    except (SyntaxError, ValueError):
        return None, whole, {}


def _problem(block: Block, path: Path) -> str:
    """Returns a sentence if a block has a syntax error, else ""."""
    try:
        compile("\n" * (block.first - 1) + block.text + "\n", str(path), "exec", ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError) as error:
        return not_python(error, path)
    return ""


def decoded(data: bytes) -> str:
    """Returns the text of a Python file, with line ends as "\\n"."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def blocks(text: str) -> Iterator[Block]:
    """Splits a file, even with syntax errors, into a block with the lines before any statement, and top-level
    statements.

    A decorator belongs to the function after it. Empty lines and comments after a statement belong to no block.
    """
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if BEGINS.match(line)]
    starts = [i for i, before in zip(starts, [None, *starts], strict=False)
              if before is None or not lines[before].startswith("@")]  # fmt: skip
    for first, end in zip([0, *starts], [*starts, len(lines)], strict=True):
        last = end
        while last > first and (not lines[last - 1].strip() or lines[last - 1].startswith("#")):
            last -= 1
        if last > first:
            part = "\n".join(lines[first:last])
            found = DEFINES.search(part) if first or first in starts else None
            yield Block((found[1] or found[2]) if found else "", first + 1, last, part)


def not_python(error: SyntaxError | ValueError, path: Path) -> str:
    """Returns a sentence about a syntax error in the learner's file or in an imported file."""
    line, name = getattr(error, "lineno", None), getattr(error, "filename", None)
    other = f" of {Path(name).name}" if name and Path(name) != path else ""
    said = getattr(error, "msg", None) or str(error)
    if line is None:  # the file has null bytes, for example because it is in UTF-16
        return f"The file{other} is not Python: {said}. Save it as UTF-8 text."
    return f"Line {line}{other}, `{short((getattr(error, 'text', '') or '').strip())}`, is not Python: {said}."


# --- execution --------------------------------------------------------------------------------------------------------


def _executed(tree: ast.Module, path: Path) -> tuple[ModuleType, str]:
    """Executes a file. Returns its module, and a sentence about the first statement that raised."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    module, problems = importlib.util.module_from_spec(spec), list[str]()
    sys.modules[path.stem] = module

    def failed(error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        if isinstance(error, SyntaxError):
            problems.append(not_python(error, path))
        else:
            _, place = raised_at(error, str(path))
            problems.append(f"{place or 'The file raises'} {said_of(error)}")

    vars(module)[FAILED] = failed
    guarded = ast.Module([each if _before_all(each) else _guarded(each) for each in tree.body], [])
    try:
        exec(compile(guarded, str(path), "exec", dont_inherit=True), vars(module))
    except (SyntaxError, RecursionError) as error:  # such as `return` outside a function, or deep nesting
        problems.append(not_python(error, path) if isinstance(error, SyntaxError) else said_of(error))
    vars(module).pop(FAILED, None)
    return module, next(iter(problems), "")


def _before_all(statement: ast.stmt) -> bool:
    """Returns whether a statement must stay at the top of a file: a docstring, or an import from __future__."""
    future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
    return future or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))


def _guarded(statement: ast.stmt) -> ast.stmt:
    """Returns `try: statement` with a handler that records the exception."""
    handler = ast.parse(f"try:\n pass\nexcept BaseException as {FAILED}error:\n {FAILED}({FAILED}error)").body[0]
    assert isinstance(handler, ast.Try)
    for each in ast.walk(handler):
        if isinstance(each, ast.expr | ast.stmt | ast.excepthandler):
            ast.copy_location(each, statement)
    handler.body = [statement]
    return handler


def _imports(tree: ast.Module) -> list[str]:
    """Returns the names of the modules that a file imports, including imports inside functions."""
    names = set[str]()
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            names |= {alias.name for alias in each.names}
        elif isinstance(each, ast.ImportFrom):
            names.add("." * each.level + (each.module or ""))
    return sorted(short(name) for name in names - {"__future__"})


def _foreign(module: ModuleType, file: str) -> Iterator[tuple[str, str]]:
    """Yields the functions that the learner's file imports, with the modules that define these functions."""
    for name in EXERCISES:
        given: Any = getattr(module, name, None)
        with suppress(Exception):  # objects that the file defines may raise any exception
            function = inspect.unwrap(given)
            code = getattr(function, "__code__", None)
            place = code.co_filename if code else ""
            home = getattr(function, "__module__", None) or type(function).__module__ or place
            if callable(given) and place != file and (place or home != module.__name__):
                yield name, short(str(home))
