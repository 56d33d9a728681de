"""Writes one file that computes the answers of a loaded model with only NumPy."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from textwrap import fill
from typing import Any

import numpy as np

from npformer.pages.find import PACKAGE, name_of, page_of
from npformer.pages.one_file import contents, one_file
from npformer.pages.run import functions_of
from npformer.pages.sizes import OPTIONAL, OPTIONS, SIZES, Call, Name, chosen

#: Maps the name of a value that has no variable in a file to an expression for the value.
IN_FILE = {"length": "len(ids)"}
#: Format of an argument on a separate line. Long arguments, such as lists with an entry for each layer, need several
#: lines.
LONG: Mapping[str, Any] = {
    "width": 116, "initial_indent": " " * 8, "subsequent_indent": " " * 12, "break_long_words": False,
    "break_on_hyphens": False,
}  # fmt: skip


def standalone_model(
    model: Any, ids: Iterable[int] = (), arrays: str = "model.npz"
) -> tuple[str, dict[str, np.ndarray]]:
    """A file that computes the answers of a loaded model with only NumPy, and the arrays that the file reads.

    Parameters
    ----------
    model : a loaded model
    ids : token ids of the default text, for which the file prints answers if no ids are given
    arrays : name of the file with the arrays, in the same folder

    Returns
    -------
    str, and dict of arrays by name, for np.savez
    """
    on, config = page_of(model.config), model.config
    flat, tied = _flat(model.weights)
    functions = functions_of(on, config, model.weights)
    file = _File(config, model.weights, flat)
    rows, answers = (file.call(each) for each in functions)
    start = [config.decoder.start_id]
    main = _filled(MAIN, arrays=ascii(arrays), ids=[*ids] or [0], start=start, rows=rows, answers=answers)
    main = main.replace("    # ties\n", "".join(f"    {each}\n" for each in tied))
    if config.head != "translation":
        main = re.sub(r"(def answers\(weights, ids), target_ids=.*\):", r"\1):", main)
    wanted = [(each.__module__.removeprefix(PACKAGE), each.__name__) for each in (*functions, *file.used)]
    docstring = (
        f"{contents(name_of(on)).docstring}\n\nRun it with the ids of a text's tokens: python model.py 101 2054 102\n"
    )
    return f"{one_file(docstring, wanted, 'import sys', 'from pathlib import Path')}\n\n{main}", flat


#: Template for the end of a file for a model. The names in capitals are replaced.
MAIN = '''def nested(flat):
    """Nested weights from arrays whose names join their keys with dots."""
    tree = {}
    for name, array in flat.items():
        *above, last = name.split(".")
        node = tree
        for key in above:
            node = node.setdefault(key, {})
        node[last] = array
    return tree


def listed(node):
    """The tree with a list for each dict whose keys are numbers."""
    if not isinstance(node, dict):
        return node
    node = {key: listed(each) for key, each in node.items()}
    return [node[str(i)] for i in range(len(node))] if "0" in node else node


def load():
    """The weights in the file of arrays beside this file."""
    with np.load(Path(__file__).with_name(ARRAYS)) as file:
        flat = {name: file[name] for name in file.files}
    # ties
    return listed(nested(flat))


def answers(weights, ids, target_ids=np.array(START)):
    """The answers of the model for one text, by name. ids: its tokens, (L,)."""
    rows = ROWS
    x, *others = rows if isinstance(rows, tuple) else (rows,)
    return ANSWERS


def main():
    """Prints the answers for the token ids of the command line."""
    ids = np.array([int(each) for each in sys.argv[1:]] or IDS)
    for name, array in answers(load(), ids).items():
        print(f"{name} {array.shape}\\n{array}")


if __name__ == "__main__":
    main()
'''


def _filled(template: str, **values: Any) -> str:
    names = "|".join(map(str.upper, values))
    # In a single pass, because a value may contain one of the names.
    return re.sub(names, lambda found: str(values[found[0].lower()]), template)


class _File:
    """Writes the calls in `main` as text, and collects the functions that they use and the arrays to store."""

    def __init__(self, config: Any, weights: Mapping[str, Any], flat: dict[str, np.ndarray]) -> None:
        self.config, self.weights, self.flat = config, weights, flat
        self.used: list[Callable[..., Any]] = []

    def call(self, function: Any) -> str:
        """Returns the call of a function of a page. Adds arrays among its sizes to `flat`, as weights."""
        names = inspect.signature(function).parameters
        given = [f"{name}={text}" for name in names if (text := self._argument(name, function))]
        call = f"{function.__name__}({', '.join(given)})"
        if len(call) < 100:
            return call
        arguments = "".join(f"{fill(f'{each},', **LONG)}\n" for each in given)
        return f"{function.__name__}(\n{arguments}    )"

    def _argument(self, name: str, function: Any) -> str:
        """Returns the text of an argument, or "" if the argument has a default and does not apply to the model."""
        if name in SIZES:
            return self._written(SIZES[name](self.config), name)
        if name in OPTIONS:
            return self._written(chosen(name, function, self.config), name)
        if name in self.weights:
            return f'weights["{name}"]'
        optional = "{}" if inspect.signature(function).parameters[name].default is inspect.Parameter.empty else ""
        return optional if name in OPTIONAL else {"x": "x", "source": "others[0]"}[name]

    def _written(self, value: Any, name: str) -> str:
        """Returns an expression with this value. Stores arrays as weights, without duplicates."""
        if isinstance(value, np.ndarray):
            stored = {key: each for key, each in self.flat.items() if key.startswith("sizes.")}
            key = next((key for key, each in stored.items() if np.array_equal(each, value)), f"sizes.{name}")
            self.flat[key] = value
            return f'weights["sizes"]["{key.partition(".")[2]}"]'
        if isinstance(value, Name):
            return IN_FILE.get(value.name, value.name)
        if isinstance(value, Call):
            arguments = [self._written(each, f"{name}_{i}") for i, each in enumerate(value.arguments)]
            return f"{self._written(value.function, name)}({', '.join(arguments)})"
        if isinstance(value, list):
            return f"[{', '.join(self._written(each, f'{name}_{i}') for i, each in enumerate(value))}]"
        if callable(value):
            return self._named(value)
        return repr(value).replace("inf", "np.inf")

    def _named(self, function: Callable[..., Any]) -> str:
        """Returns the name of a function. Includes its source in the file if a page defines the function."""
        name = function.__name__
        if str(function.__module__).startswith(PACKAGE):
            self.used.append(function)
        return f"np.{name}" if getattr(np, name, None) is function else name


def _flat(weights: Any) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the arrays by name, and an assignment for each array that equals another array or its transpose."""
    found: dict[str, np.ndarray] = {}
    _walk(weights, "", found)
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    ties = []
    for name in list(found):
        at, shape = found[name].__array_interface__["data"][0], found[name].shape
        if (other := first.setdefault((at, tuple(sorted(shape))), name)) != name and found[name].size:
            transposed = ".T" if shape != found[other].shape else ""
            ties.append(f'flat["{name}"] = flat["{other}"]{transposed}')
            del found[name]
    return found, ties


def _walk(node: Any, name: str, found: dict[str, np.ndarray]) -> None:
    if isinstance(node, np.ndarray):
        found[name] = node
    elif node is not None:
        items = node.items() if isinstance(node, Mapping) else enumerate(node)
        for key, each in items:
            _walk(each, f"{name}.{key}".lstrip("."), found)
