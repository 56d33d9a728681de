"""Finds the page of a model, and computes a loaded model's answers by its page."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from npformer.plain import heads
from npformer.plain.sizes import bind

#: model_type -> its page, where the page has another name.
PAGES = {
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "deberta-v2": "deberta",
    "gemma3_text": "gemma3",
    "mt5": "t5",
}


def page(model_type: str) -> ModuleType:
    """The page of a family: a module with the formulas of its model, and HEADS, the function of each head."""
    return import_module(f"npformer.plain.{PAGES.get(model_type, model_type)}")


def run(model: Any, *args: Any, **kwargs: Any) -> Any:
    """What `model(*args, **kwargs)` returns, computed by the model's page: one text after another, and slowly."""

    class Page(type(model)):  # type: ignore[misc]
        """The model, with its page in place of the engine."""

        def run(self, texts: Any) -> list[dict[str, np.ndarray]]:
            return [answers(page(self.config.model_type), self.config, self.weights, text) for text in texts]

    reader = copy.copy(model)
    reader.__class__ = Page
    return reader(*args, **kwargs)


def answers(on: ModuleType, config: Any, weights: Mapping[str, Any], text: Any) -> dict[str, np.ndarray]:
    """The answers of a model for one text, or one pair of source and target, computed on a page."""
    rows = bind(model_on(on, config), config, weights, text)()
    head = on.HEADS[config.head]
    if "pooler" in inspect.signature(head).parameters and "pooler" not in weights:
        head = heads.hidden_states  # a base model whose file has no pooler
    x, *others = rows if isinstance(rows, tuple) else (rows,)
    source = {"source": others[0]} if "source" in inspect.signature(head).parameters else {}
    found: dict[str, np.ndarray] = bind(head, config, weights, text)(x, **source)
    return found


def model_on(on: ModuleType, config: Any) -> Callable[..., Any]:
    """The function of a model on a page, which may have a second one for another config."""
    if config.convolution:
        return on.WITH_CONVOLUTION
    return on.ALONE if hasattr(on, "ALONE") and not config.decoder else on.MODEL  # one stack of an encoder-decoder
