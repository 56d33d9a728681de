"""Finds the page of a model, and lists all pages."""

from __future__ import annotations

import inspect
import re
from functools import lru_cache
from importlib import import_module
from importlib.resources import files as files_of
from types import ModuleType
from typing import Any

from npformer.common.checks import nearest, shown
from npformer.common.errors import NpformerError

#: Maps each model_type whose page has a different name to the name of the page.
PAGES = {
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "deberta-v2": "deberta",
    "gemma3_text": "gemma3",
    "mt5": "t5",
    "transformer": "torch_nn",  # torch's modules; the page of the 2017 model is also called transformer
}

PACKAGE = "npformer.plain."
#: Suffix of an edited page's name. Edited pages are for decoders used as encoders (`is_causal` false in config.json).
AS_ENCODER = "_as_encoder"
#: Maps the mask function of a decoder to the mask function of its edited page.
UNORDERED = {"causal_mask": "full_mask", "causal_window_mask": "window_mask"}
NOTE = "\n\nEdited for a model whose tokens also attend to later tokens (`is_causal` false): the mask hides no token."


def page(model_type: str) -> ModuleType:
    """The page of a family.

    Parameters
    ----------
    model_type : the name of a family, such as "llama", or of another page, such as "gradients"

    Returns
    -------
    module. Its MODEL is the function that computes the hidden states of the last layer, and its HEADS are the functions
    of heads.

    Raises
    ------
    NpformerError
        No page has this name.

    Examples
    --------
    >>> npformer.plain.page("bert").embed.__doc__.splitlines()[0]
    'LayerNorm(token + position + segment): (..., L) three times -> (..., L, D). Figure 2.'
    """
    name = model_type if model_type in names() else PAGES.get(model_type, model_type)
    if name not in names():
        known = ", ".join(names())
        raise NpformerError(
            f"page: expected the name of a family or of a page ({known}), got {shown(model_type)}{_page_with(name)}"
        )
    return import_module(PACKAGE + name)


def page_of(config: Any) -> ModuleType:
    """Returns the page of a model, given its config. A decoder that attends to later tokens has an edited page."""
    name = PAGES.get(config.model_type, config.model_type)
    module = page(name)
    is_encoder = not config.causal and not config.decoder and not hasattr(module, "ALONE")
    has_order = vars(module).keys() & UNORDERED.keys() and "visible" not in inspect.signature(module.MODEL).parameters
    return _edited(f"{name}{AS_ENCODER}") if is_encoder and has_order else module


@lru_cache(maxsize=16)
def _edited(name: str) -> ModuleType:
    """The module of an edited page."""
    module = ModuleType(PACKAGE + name)
    exec(compile(text_of(name), f"<{module.__name__}>", "exec"), vars(module))
    return module


def text_of(name: str) -> str:
    """The text of a page, or of an edited page."""
    page_name = name.removesuffix(AS_ENCODER)
    text = inspect.getsource(import_module(PACKAGE + page_name))
    if page_name == name:
        return text
    masks = re.compile(rf"\b({'|'.join(UNORDERED)})\b")
    return masks.sub(lambda found: UNORDERED[found[0]], text).replace('\n"""\n', f'{NOTE}\n"""\n', 1)


def _page_with(name: str) -> str:
    """Returns a suggestion for an error message: a page that defines the function or that has a similar name."""
    if not isinstance(name, str):
        return ""
    if name.lower() in names():
        return f"; write {name.lower()!r}"
    modules = [import_module(PACKAGE + each) for each in names()]
    found = [each.__name__ for each in modules if getattr(vars(each).get(name), "__module__", "") == each.__name__]
    found = [each.rpartition(".")[2] for each in found]
    if found:
        return f"; {name} is a function of the page {' and of the page '.join(found)}"
    near = nearest(name.lower(), names())
    return f"; did you mean {near[0]!r}?" if near else ""


@lru_cache(maxsize=1)
def names() -> list[str]:
    """The names of all pages."""
    files = (each.name for each in files_of("npformer.plain").iterdir())
    return sorted(each[:-3] for each in files if each.endswith(".py") and each != "__init__.py")


def name_of(module: ModuleType) -> str:
    """The name of a page, without its package."""
    return module.__name__.removeprefix(PACKAGE)
