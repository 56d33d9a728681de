"""The text of a page: as it is, or with everything that it uses in one file that needs NumPy alone."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from npformer.plain.pages import functions_of, page
from npformer.plain.sizes import OPTIONAL, OPTIONS, SIZES, chosen, of_layer

PACKAGE = "npformer.plain."
Place = tuple[str, str]  # a page and a name that it defines


class Contents(NamedTuple):
    """The docstring of a page, the text of each definition, and where the names that it imports are defined."""

    docstring: str
    definitions: Mapping[str, str]
    imported: Mapping[str, Place]


class Ids(NamedTuple):
    """A text of which only the token ids are given."""

    ids: np.ndarray
    positions: None = None
    token_type_ids: None = None
    places: None = None

    def __len__(self) -> int:
        return len(self.ids)


def source(model: Any, standalone: bool = False) -> str:
    """The text of a page.

    Parameters
    ----------
    model : the name of a family, such as "llama", or a loaded model
    standalone : bool, one file with everything that the page uses, which needs NumPy alone. For a loaded model, it ends
        with a `main` that prints answers, and reads the arrays that `standalone_model` returns beside the text.

    Returns
    -------
    str

    Examples
    --------
    >>> "def bert(" in npformer.plain.source("bert")
    True
    """
    if standalone and not isinstance(model, str):
        return standalone_model(model)[0]
    name = _name(page(model if isinstance(model, str) else model.config.model_type))
    if not standalone:
        return _text(name)
    return _file(_contents(name).docstring, [(name, each) for each in _contents(name).definitions])


def standalone_model(
    model: Any, ids: Iterable[int] = (), arrays: str = "model.npz"
) -> tuple[str, dict[str, np.ndarray]]:
    """One file that computes a loaded model's answers with NumPy alone, and the arrays that it reads.

    Parameters
    ----------
    model : a loaded model
    ids : token ids of the text whose answers the file prints if it is called without ids
    arrays : name of the file with the arrays, in the folder of the text

    Returns
    -------
    str, and dict of arrays by name, for np.savez
    """
    on, config = page(model.config.model_type), model.config
    flat, tied = _flat(model.weights)
    example = Ids(np.array([*ids] or [0], np.int64))
    start = Ids(np.array([config.decoder.start_id]))
    text = (example, start) if config.head == "translation" else example
    functions = functions_of(on, config, model.weights)
    rows, answers = (_call(each, config, model.weights, text, flat) for each in functions)
    main = _filled(
        MAIN, arrays=ascii(arrays), ids=example.ids.tolist(), start=start.ids.tolist(), rows=rows, answers=answers
    )
    main = main.replace("    # ties\n", "".join(f"    {each}\n" for each in tied))
    if config.head != "translation":
        main = re.sub(r"(def answers\(weights, ids), target_ids=.*\):", r"\1):", main)
    wanted = [(_name(inspect.getmodule(each)), each.__name__) for each in functions]
    used = _names(main)
    shared = ("formulas", "roberta", "rotary")
    wanted += [(each, name) for each in shared for name in _contents(each).definitions if name in used]
    wanted += [_place(each, chosen(name, each, config)) for each in functions for name in _options(each)]
    docstring = (
        f"{_contents(_name(on)).docstring}\n\nRun it with the ids of a text's tokens: python model.py 101 2054 102\n"
    )
    return f"{_file(docstring, wanted, 'import sys', 'from pathlib import Path')}\n\n{main}", flat


#: The end of a file for a model. The names in capitals are replaced.
MAIN = '''def read(path):
    """The nested weights in an .npz file, whose names join their keys with dots."""
    tree = {}
    with np.load(path) as file:
        for name in file.files:
            *above, last = name.split(".")
            node = tree
            for key in above:
                node = node.setdefault(key, {})
            node[last] = file[name]
    return tree


def listed(node):
    """The tree with a list for each dict whose keys are numbers."""
    if not isinstance(node, dict):
        return node
    node = {key: listed(each) for key, each in node.items()}
    return [node[str(i)] for i in range(len(node))] if "0" in node else node


def load():
    """The weights in the file of arrays beside this file."""
    weights = read(Path(__file__).with_name(ARRAYS))
    # ties
    return listed(weights)


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
    return re.sub(names, lambda found: str(values[found[0].lower()]), template)  # a value may contain such a name


#: Name of a parameter that depends on the text -> its expression in `main`, given a config.
OF_TEXT = {
    "ids": lambda config: "ids",
    "target_ids": lambda config: "target_ids" if config.head == "translation" else _shifted(config),
    "positions": lambda config: _positions(config, "ids"),
    "target_positions": lambda config: _positions(config, "ids" if config.head != "translation" else "target_ids"),
    "token_type_ids": lambda config: "np.zeros_like(ids)",
    "places": lambda config: "np.arange(len(ids))",
    "target_places": lambda config: f"np.arange(len({'target_ids' if config.head == 'translation' else 'ids'}))",
    "mask": lambda config: "causal_mask(len(ids))" if config.causal else "True",
    "past": lambda config: (
        f'[(np.zeros(({config.kv_heads}, 0, {config.d_head}), weights["embeddings"]["token"]["weight"].dtype),) * 2]'
        f" * {config.n_layers}"
    ),
}


def _of_length(config: Any, layer: int = 0) -> str:
    """The expression of a layer's rotary frequencies in `main` if they depend on the length of the text, else ""."""
    rotation = of_layer(config, layer, "theta")
    scaling: Any = getattr(rotation, "scaling", None)
    at = f"{getattr(rotation, 'columns', config.d_head)}, {getattr(rotation, 'theta', 0.0)}"
    if type(scaling).__name__ == "LongRope":
        return f"longrope_frequencies({at}, {scaling.short} if len(ids) <= {scaling.original} else {scaling.long})"
    if type(scaling).__name__ == "Dynamic":
        return f"dynamic_frequencies({at}, {scaling.factor}, {scaling.original}, len(ids))"
    return ""


def _rotations(config: Any, rotations: list[tuple[np.ndarray, float]], flat: dict[str, np.ndarray]) -> str:
    """The expression of the frequencies and magnitude of each layer in `main`."""
    written = [
        f"({_of_length(config, i) or _written(f'frequencies_{i}', frequencies, flat)}, {magnitude})"
        for i, (frequencies, magnitude) in enumerate(rotations)
    ]
    return f"[{', '.join(written)}]"


def _shifted(config: Any) -> str:
    return f"np.concatenate([[{config.decoder.start_id}], ids[:-1]])"


def _positions(config: Any, ids: str) -> str:
    if config.uncounted is not None:
        return f"padded_positions({ids}, {config.uncounted})"
    return f"{config.positions.first} + np.arange(len({ids}))"


def _call(function: Any, config: Any, weights: Mapping[str, Any], text: Any, flat: dict[str, np.ndarray]) -> str:
    """The call of a page's function in `main`. Adds the arrays among its sizes to `flat`, as weights."""
    given = []
    for name in inspect.signature(function).parameters:
        if name in OF_TEXT:
            given.append(f"{name}={OF_TEXT[name](config)}")
        elif name == "frequencies" and _of_length(config):
            given.append(f"{name}={_of_length(config)}")
        elif name == "rotations":
            given.append(f"{name}={_rotations(config, SIZES[name](config, weights, text), flat)}")
        elif name in SIZES:
            given.append(f"{name}={_written(name, SIZES[name](config, weights, text), flat)}")
        elif name in OPTIONS:
            given.append(f"{name}={chosen(name, function, config).__name__}")
        elif name in weights:
            given.append(f'{name}=weights["{name}"]')
        elif name in OPTIONAL:
            given.append(f"{name}={{}}")
        else:
            given.append({"x": "x", "source": "source=others[0]"}[name])
    call = f"{function.__name__}({', '.join(given)})"
    if len(call) < 100:
        return call
    arguments = "".join(f"        {each},\n" for each in given)
    return f"{function.__name__}(\n{arguments}    )"


def _written(name: str, value: Any, flat: dict[str, np.ndarray]) -> str:
    """An expression with this value. Arrays are stored as weights."""
    if isinstance(value, np.ndarray):
        flat[f"sizes.{name}"] = value
        return f'weights["sizes"]["{name}"]'
    if isinstance(value, list | tuple):
        return f"[{', '.join(_written(f'{name}_{i}', each, flat) for i, each in enumerate(value))}]"
    if callable(value):
        return f"np.{value.__name__}" if isinstance(value, np.ufunc) else str(value.__name__)
    return repr(value).replace("inf", "np.inf")


def _flat(weights: Any) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays by name, and for each array that is another one transposed, an assignment to it."""
    found: dict[str, np.ndarray] = {}
    _walk(weights, "", found)
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    ties = []
    for name in list(found):
        at, shape = found[name].__array_interface__["data"][0], found[name].shape
        if (other := first.setdefault((at, tuple(sorted(shape))), name)) != name and found[name].size:
            value = f"{_item(other)}.T" if shape != found[other].shape else _item(other)
            ties.append(f"{_item(name, missing=True)} = {value}")
            del found[name]
    return found, ties


def _walk(node: Any, name: str, found: dict[str, np.ndarray]) -> None:
    if isinstance(node, np.ndarray):
        found[name] = node
    elif node is not None:
        items = node.items() if isinstance(node, Mapping) else enumerate(node)
        for key, each in items:
            _walk(each, f"{name}.{key}".lstrip("."), found)


def _item(name: str, missing: bool = False) -> str:
    """The expression of an array in the tree. missing: the dicts above it may not exist yet."""
    keys = [f'["{key}"]' for key in name.split(".")]
    above = "".join(f".setdefault({key[1:-1]}, {{}})" for key in keys[:-1]) if missing else "".join(keys[:-1])
    return f"weights{above}{keys[-1]}"


# --- one file -------------------------------------------------------------------------------------------------------


def _file(docstring: str, wanted: Sequence[Place], *imports: str) -> str:
    """The docstring, the imports, and the definitions with all that they use, each after the definitions it uses."""
    order: list[Place] = []
    for place in wanted:
        _add(place, order)
    names = [name for _, name in order]
    texts = []
    for place in order:
        here = _contents(place[0])
        renamed = {
            name: f"{other[0]}_{other[1]}"
            for name, other in {**{each: (place[0], each) for each in here.definitions}, **here.imported}.items()
            if names.count(other[1]) > 1
        }
        texts.append(_renamed(here.definitions[place[1]], renamed))
    body = "\n\n\n".join(text.rstrip() for text in texts)
    math = ["import math"] if re.search(r"\bmath\.", body) else []
    top = "\n".join(sorted([*math, *(each for each in imports if each.startswith("import "))]))
    top += "".join(f"\n{each}" for each in imports if each.startswith("from "))
    return f'"""{docstring.strip()}\n"""\n\n{top}\n\nimport numpy as np\n\n{body}\n'.replace('"""\n\n\n\n', '"""\n\n')


def _options(function: Any) -> list[str]:
    """The parameters of a page's function for which a config chooses a function."""
    return [name for name in inspect.signature(function).parameters if name in OPTIONS]


def _place(user: Any, used: Any) -> Place:
    """Where a function is defined that the page of another function defines or imports."""
    here = _name(inspect.getmodule(user))
    return _contents(here).imported.get(used.__name__, (here, used.__name__))


def _add(place: Place, order: list[Place]) -> None:
    """Appends a definition to the order, after all that it uses."""
    if place in order:
        return
    name, defined = place
    here = _contents(name)
    for used in sorted(_names(here.definitions[defined]) - {defined}):
        if used in here.definitions:
            _add((name, used), order)
        elif used in here.imported:
            _add(here.imported[used], order)
    if place not in order:
        order.append(place)


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with names replaced, except attributes and keyword arguments."""
    if not names:
        return text
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    lines = text.splitlines(keepends=True)
    for i in reversed(range(len(tokens))):
        token = tokens[i]
        is_argument = tokens[i + 1].string == "=" and tokens[i + 1].start == token.end if i + 1 < len(tokens) else False
        if token.type == tokenize.NAME and token.string in names and tokens[i - 1].string != "." and not is_argument:
            (row, start), (_, end) = token.start, token.end
            lines[row - 1] = lines[row - 1][:start] + names[token.string] + lines[row - 1][end:]
    return "".join(lines)


def _name(module: Any) -> str:
    return str(module.__name__).removeprefix(PACKAGE)


def _text(name: str) -> str:
    return inspect.getsource(import_module(PACKAGE + name))


@lru_cache(maxsize=64)
def _contents(name: str) -> Contents:
    text = _text(name)
    lines, tree = text.splitlines(keepends=True), ast.parse(text)
    definitions: dict[str, str] = {}
    imported: dict[str, Place] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(PACKAGE):
            of = str(node.module).removeprefix(PACKAGE)
            imported |= {each.asname or each.name: (of, each.name) for each in node.names}
        elif isinstance(node, ast.FunctionDef | ast.Assign):
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))]) - 1
            while lines[first - 1].startswith("#"):
                first -= 1
            own = "".join(lines[first : node.end_lineno])
            target = node.name if isinstance(node, ast.FunctionDef) else ast.unparse(node.targets[0])
            definitions[target] = own
    return Contents(ast.get_docstring(tree) or "", definitions, imported)
