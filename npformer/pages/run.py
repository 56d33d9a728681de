"""Computes the answers of a loaded model with its page."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.pages.find import page_of
from npformer.pages.sizes import bind
from npformer.plain import heads


def run(model: Any, *args: Any, **kwargs: Any) -> Any:
    """The answers of a loaded model, computed slowly by its page, one text after another.

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
