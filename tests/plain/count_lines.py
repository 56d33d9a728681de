"""Counts the lines of code, functions and files that a reader must read to understand a call.

    python -m tests.plain.count_lines
    python -m tests.plain.count_lines FILE "SET UP" "CALL"

The first form counts three calls of the pages, and the lines that their gradients add to the forward pass. The second
form counts a call in any file. It runs two pieces of Python code in the file's namespace: SET UP creates the arguments,
and CALL is counted. The count includes the functions that CALL enters, in the file and in its folder. For example:
python -m tests.plain.count_lines gpt2.py "x = np.ones((3, 4))" "softmax(x)"

A function's signature and decorators are code lines; docstrings, comments and empty lines are not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from npformer import plain
from npformer.plain.formulas import gelu, linear, silu
from tests.plain.test_structure import code_lines

TEXT = "{title}: {lines} lines, {functions} functions, {files} files"


class Count(NamedTuple):
    """The files, functions and lines that a reader must read."""

    lines: int
    functions: int
    files: int


def count(call: Callable[[], Any], folder: Path, known: Callable[[], Any] = lambda: None) -> Count:
    """Counts the functions in a folder's files that a call enters, except those that a known call also enters."""
    read = _entered(known, folder)
    bodies = {path: [each for each in nodes if each.name not in {old.name for old in read.get(path, [])}]
              for path, nodes in _entered(call, folder).items()}  # fmt: skip
    bodies = {path: nodes for path, nodes in bodies.items() if nodes}
    lines = sum(len(_lines(path, nodes)) for path, nodes in bodies.items())
    return Count(lines, sum(map(len, bodies.values())), len(bodies))


def _entered(call: Callable[[], Any], folder: Path) -> dict[Path, list[ast.FunctionDef]]:
    """Returns the functions that a call enters, by file."""
    entered: dict[Path, set[int]] = {}

    def enter(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.parent == folder:
            entered.setdefault(path, set()).add(frame.f_lineno)

    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return {path: _functions(path, lines) for path, lines in entered.items()}


def _functions(path: Path, entered: set[int]) -> list[ast.FunctionDef]:
    """Returns a file's outermost functions and methods that contain these lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    bodies = [*tree.body, *(node for each in classes for node in each.body)]
    found = [node for node in bodies if isinstance(node, ast.FunctionDef)]
    return [node for node in found if entered & set(range(_first(node), (node.end_lineno or 0) + 1))]


def _lines(path: Path, nodes: list[ast.FunctionDef]) -> set[int]:
    return {line for node in nodes for line in code_lines(path) if _first(node) <= line <= (node.end_lineno or 0)}


def _first(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


# --- the calls ------------------------------------------------------------------------------------------------------

IDS, POSITIONS = np.array([1, 2, 3]), np.arange(3)
LINEAR = {"weight": np.eye(4), "bias": np.zeros(4)}
NARROW = {"weight": np.eye(4)[:, :2]}  # from four columns to one head of two columns
NORM = {"weight": np.ones(4)}
ATTENTION = dict.fromkeys(("query", "key", "value", "output"), LINEAR)
ENCODER_LAYER = {
    "attention": ATTENTION, "attention_norm": NORM, "ffn": {"hidden": LINEAR, "output": LINEAR}, "ffn_norm": NORM,
}  # fmt: skip
TABLE = {"weight": np.eye(4)}
TABLES = {"token": TABLE, "position": TABLE, "norm": NORM}
LLAMA_LAYER = {**ENCODER_LAYER, "ffn": {"gate": LINEAR, "up": LINEAR, "output": LINEAR}}


def distilbert_forward() -> None:
    page = import_module("npformer.plain.distilbert")
    x = page.distilbert(IDS, POSITIONS, True, 2, gelu, 1e-12, TABLES, [ENCODER_LAYER])
    page.classify(x, LINEAR, {"output": LINEAR})


def distilbert_gradients() -> None:
    page = import_module("npformer.plain.gradients")
    head = {"output": LINEAR}
    page.distilbert_backward(np.ones(4), IDS, POSITIONS, True, 2, gelu, 1e-12, TABLES, [ENCODER_LAYER], LINEAR, head)


def llama_step() -> None:
    page = import_module("npformer.plain.llama")
    past = [(np.zeros((1, 5, 2)),) * 2]
    layer = {**LLAMA_LAYER, "attention": ATTENTION | {"key": NARROW, "value": NARROW}}
    rows, _ = page.llama(IDS[:1], np.array([5]), past, (2, 1), np.ones(1), 1.0, silu, 1e-6, TABLES, [layer], NORM)
    linear(rows[-1], **LINEAR)  # the logits of the next token


CALLS = {
    "DistilBERT, from ids to the logits of a label": distilbert_forward,
    "The gradients of DistilBERT's classifier": distilbert_gradients,
    "A step of Llama with a cache": llama_step,
}


def of_file(path: Path, set_up: str, call: str) -> Count:
    """Counts a call in the namespace of any file."""
    folder = path.resolve().parent
    sys.path.insert(0, str(folder.parent))  # so that the file can import its neighbours
    spec = spec_from_file_location(f"{folder.name}.{path.stem}", path.resolve())
    assert spec is not None, path
    assert spec.loader is not None, path
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    names = vars(module) | {"np": np}
    exec(set_up, names)
    return count(lambda: exec(call, names), folder)


def main() -> None:
    """Prints the counts."""
    if len(sys.argv) == 4:
        found = of_file(Path(sys.argv[1]), *sys.argv[2:])
        print(TEXT.format(title=sys.argv[3], **found._asdict()))
    elif len(sys.argv) == 1:
        folder = Path(plain.__file__).parent
        for title, call in CALLS.items():
            print(TEXT.format(title=title, **count(call, folder)._asdict()))
        beyond = count(distilbert_gradients, folder, distilbert_forward)
        print(TEXT.format(title="The gradients, for a reader who has read the forward", **beyond._asdict()))
    else:
        print(__doc__)


if __name__ == "__main__":
    main()
