"""Finds the page of a model, and computes the answers of a loaded model with its page."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from importlib.resources import files as files_of
from types import ModuleType
from typing import Any

import numpy as np

from npformer.common.checks import nearest, shown
from npformer.common.errors import NpformerError
from npformer.plain import heads
from npformer.plain.sizes import bind

#: Modules that are not pages.
NO_PAGES = frozenset({"__init__", "pages", "sizes", "source"})
#: model_type -> page, if the page has a different name.
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
NOTE = "\n\nEdited for a model that attends to later tokens, too (`is_causal` false): its mask hides none."


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
    return sorted(each[:-3] for each in files if each.endswith(".py") and each[:-3] not in NO_PAGES)


def run(model: Any, *args: Any, **kwargs: Any) -> Any:
    """The answers of a loaded model, computed by its page, which is slow: one text after another.

    Parameters
    ----------
    model : a loaded model
    args, kwargs : arguments of a call of the model

    Returns
    -------
    Output, as from a call of the model

    Raises
    ------
    NpformerError
        model is not a loaded model, or the arguments are invalid for the model.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> npformer.plain.run(model, [101, 1045, 2293, 102]).logits.shape
    (1, 2)
    """
    if not hasattr(model, "config"):
        raise NpformerError(f"run: expected a loaded model, such as npformer.load(name), got {shown(model)}")

    class Page(type(model)):  # type: ignore[misc]
        """The model, computed by its page instead of the engine."""

        def run(self, texts: Any) -> list[dict[str, np.ndarray]]:
            self.check_inputs(texts)
            return [answers(page_of(self.config), self.config, self.weights, text) for text in texts]

    reader = copy.copy(model)
    reader.__class__ = Page
    return reader(*args, **kwargs)


def answers(on: ModuleType, config: Any, weights: Mapping[str, Any], text: Any) -> dict[str, np.ndarray]:
    """The answers of a model for one text, or one pair of source and target, computed by a page."""
    function, head = functions_of(on, config, weights)
    rows = bind(function, config, weights, text)()
    x, *others = rows if isinstance(rows, tuple) else (rows,)
    source = {"source": others[0]} if "source" in inspect.signature(head).parameters else {}
    found: dict[str, np.ndarray] = bind(head, config, weights, text)(x, **source)
    return found


def functions_of(
    on: ModuleType, config: Any, weights: Mapping[str, Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns a page's functions for the rows of the last layer, and for the answers of a head from these rows."""
    head = on.HEADS[config.head]
    if "pooler" in inspect.signature(head).parameters and "pooler" not in weights:
        head = heads.hidden_states  # a base model without a pooler in its file
    if config.head == "causal-lm":
        head = getattr(on, "WITH_CAP" if config.logit_cap else "WITHOUT_CAP", head)
    return _model(on, config), head


def _model(on: ModuleType, config: Any) -> Callable[..., Any]:
    """Returns the function of a model on a page. A page may have a second function for a single stack."""
    if config.convolution:
        return on.WITH_CONVOLUTION
    return on.ALONE if hasattr(on, "ALONE") and not config.decoder else on.MODEL  # a single stack of an encoder-decoder
