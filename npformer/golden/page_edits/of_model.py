"""The edits of a loaded model's page that explain a port."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.golden.page_edits.causes import Cause, Causes
from npformer.golden.page_edits.fitting import SECONDS, explain
from npformer.pages.find import names, page_of, text_of
from npformer.pages.run import functions_of
from npformer.pages.sizes import bind
from npformer.pages.standalone import standalone_model

#: Starts of the functions that read the arrays, compute the answers, and print them.
READING, ANSWERS, MAIN = "\n\n\ndef nested(", "\n\n\ndef answers(", "\n\n\ndef main("
#: Source of a function that computes the rows and the head in one call, so that edits in layers also change the head.
IN_ONE_CALL = """
def in_one_call(rows, head, reads_source):
    found = rows()
    x, *others = found if isinstance(found, tuple) else (found,)
    return head(x, **({"source": others[0]} if reads_source else {}))
""".strip()
FULL = 3.0  # seconds to search if the stage before the wrong one is exported; every hidden stage adds EACH
EACH = 0.5
LARGE, LARGEST = 1 << 18, 1 << 21  # numbers in the hidden states of a text in all layers


def edits_of_model(
    model: Any, texts: Sequence[Any], theirs: Mapping[str, Sequence[np.ndarray]], budgets: Mapping[str, float],
    stage: str = "", seconds: float = SECONDS, all_of_them: bool = True,
) -> Causes:  # fmt: skip
    """Finds the edits of a model's page that give another program's values of its first wrong stage.

    Of a large model, only the shortest text is computed.

    Parameters
    ----------
    model : a loaded model
    texts : the texts that both programs read; for an encoder-decoder, pairs of source and target
    theirs : stage -> the other program's arrays, one for each text, without padding
    budgets : stage -> the largest difference that rounding explains
    stage : str, the first wrong stage, if it is known
    seconds : float, the maximum processor time of the search
    all_of_them : bool, False to end the search at the first edit that fits

    Returns
    -------
    Causes, with the file and line of each page; empty for a model whose pass takes seconds
    """
    sizes = [model.config.d_model * model.config.n_layers * _length(each) for each in texts]
    some = range(len(texts)) if max(sizes) <= LARGE else [int(np.argmin(sizes))]
    if sizes[some[0]] > LARGEST:
        return Causes("", [], 0, False)
    flat = {name: np.asarray(each, np.float64) for name, each in layout.flat_arrays(model.weights).items()}
    source, arrays = standalone_model(model)
    numbers = {name: array for name, array in arrays.items() if name.startswith("sizes.")}
    tree = layout.unflatten(flat | numbers)
    before, _, after = source.partition(READING)
    source = f"{before}\n\n\ndef answers({after.partition(ANSWERS)[2].partition(MAIN)[0]}\n\n\n{IN_ONE_CALL}"
    runs = [partial(_run, model.config, tree, texts[i]) for i in some]
    theirs = {name: [arrays[i] for i in some] for name, arrays in theirs.items()}
    name = f"npformer page {model.config.model_type} --standalone"
    seconds = min(seconds, FULL + EACH * _hidden(stage, theirs, budgets)) if stage else seconds
    found = explain(source, runs, theirs, budgets, seconds, name, all_of_them, stage)
    lines = source.splitlines()
    own = page_of(model.config).__name__.rpartition(".")[2]
    return replace(found, causes=[_on_page(each, lines, own) for each in found.causes])


def _hidden(stage: str, theirs: Mapping[str, Any], budgets: Mapping[str, float]) -> int:
    """The number of missing stages between the last stage that the port exported and the wrong stage.

    budgets: of all stages of a golden file, in order
    """
    order = list(budgets)
    earlier = order[: order.index(stage)]
    return next((i for i, name in enumerate(reversed(earlier)) if name in theirs), len(earlier))


def _length(text: Any) -> int:
    return sum(map(len, text)) if isinstance(text, tuple) else len(text)


def _run(config: Any, tree: Any, text: Any, module: ModuleType) -> None:
    """Runs a text on the functions of an edited page, with the text's own positions and token types if it has any."""
    source, target = text if isinstance(text, tuple) else (text, None)
    if all(each is None for each in (source.positions, source.token_type_ids)):
        module.answers(tree, source.ids, **({} if target is None else {"target_ids": target.ids}))
        return
    functions = functions_of(page_of(config), config, tree)
    rows, head = (_own(bind(each, config, tree, text), module) for each in functions)
    module.in_one_call(rows, head, "source" in inspect.signature(head.func).parameters)


def _own(bound: Any, module: ModuleType) -> partial[Any]:
    """The same call with the module's functions in place of those of `npformer.plain`, also among the arguments."""
    given = {
        name: vars(module).get(value.__name__, value) if isinstance(value, FunctionType) else value
        for name, value in bound.keywords.items()
    }
    function: Callable[..., Any] = vars(module)[bound.func.__name__]
    return partial(function, *bound.args, **given)


def _on_page(cause: Cause, lines: Sequence[str], own: str) -> Cause:
    """The cause with the page's file and line, found by the function's text. own: the model's page."""
    text = lines[cause.line - 1]
    cause = replace(cause, second=tuple(_on_page(each, lines, own) for each in cause.second))
    for page, line in _places(cause.function, own):
        on_page = text_of(page).splitlines()
        end = next((i for i in range(line, len(on_page)) if on_page[i][:1] not in ("", " ", ")", "#")), len(on_page))
        for i in range(line - 1, end):
            if on_page[i] == text:
                return replace(cause, page=f"npformer/plain/{page}.py", line=i + 1)
    return cause


@lru_cache(maxsize=256)
def _places(function: str, own: str) -> tuple[tuple[str, int], ...]:
    """The page and the line of each definition of a function. The pages that the model's page imports come first."""
    found = [each for each in names() if f"def {function}(" in text_of(each)]
    read = _pages_read(own)
    found.sort(key=lambda page: (page not in read, page))
    return tuple(
        (page, each.lineno)
        for page in found
        for each in ast.parse(text_of(page)).body
        if isinstance(each, ast.FunctionDef) and each.name == function
    )


@lru_cache(maxsize=64)
def _pages_read(own: str) -> frozenset[str]:
    """A page and all pages that it imports, directly or indirectly."""
    found, waiting = set[str](), [own]
    while waiting:
        page = waiting.pop()
        if page not in found:
            found.add(page)
            imports = [each for each in ast.walk(ast.parse(text_of(page))) if isinstance(each, ast.ImportFrom)]
            waiting += [
                str(each.module).rpartition(".")[2] for each in imports if "npformer.plain." in str(each.module)
            ]
    return frozenset(found)
