"""Records the stages of a learner's model while it runs, by wrapping the functions of its module.

A linear layer or norm is recognized by its weight, which is an array of the model. Attention is assigned to the layer
of the most recently used weight. A step that the learner computes inside another function is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from npformer.checkpoint.tree import flatten

#: End of the name of a norm's weights -> end of the name of the stage that the norm reads.
BEFORE = {"embeddings.norm": "embeddings.sum", "attention_norm": "attention_residual", "ffn_norm": "ffn_residual"}
RENAMED = {"head.output": "logits"}
HEADS = ("query_heads", "key_heads", "value_heads")


class Listener:
    """Collects the stages of a forward pass of the learner's model.

    Parameters
    ----------
    weights : the weights that are passed to the learner's functions
    """

    def __init__(self, weights: Mapping[str, Any]) -> None:
        arrays = flatten(dict(weights)).items()
        self.groups = {id(array): name.removesuffix(".weight") for name, array in arrays if name.endswith(".weight")}
        self.stages: dict[str, np.ndarray] = {}
        self.layer = ""
        self.attending = False

    @contextmanager
    def listening(self, module: ModuleType) -> Iterator[None]:
        """Wraps the functions of a module while the body of the `with` statement runs."""
        wrapped = {
            "linear": self._of_weights,
            "layer_norm": self._of_weights,
            "softmax": self._softmax,
            "scaled_dot_product_attention": self._attention,
            "combine_heads": self._named("{layer}attention.combined"),
            "gelu": self._named("{layer}ffn.activation"),
            "relu": self._named("pooled"),
        }
        own = {name: getattr(module, name) for name in wrapped}
        try:
            for name, around in wrapped.items():
                setattr(module, name, _wrapper(around, own[name]))
            yield
        finally:
            for name, function in own.items():
                setattr(module, name, function)

    def _keep(self, name: str, array: Any) -> None:
        self.stages[name] = np.array(array)

    def _of_weights(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        group = next((self.groups[id(each)] for each in (*args, *kwargs.values()) if id(each) in self.groups), "")
        if group.startswith("layers."):
            self.layer = ".".join(group.split(".")[:2]) + "."
        for end, before in BEFORE.items():
            if group.endswith(end):
                self._keep(group.removesuffix(end) + before, args[0] if args else kwargs["x"])
        answer = function(*args, **kwargs)
        if group:
            self._keep(RENAMED.get(group, group), answer)
        return answer

    def _softmax(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.attending:
            self._keep(f"{self.layer}attention.scores", args[0] if args else kwargs["x"])
        answer = function(*args, **kwargs)
        if self.attending:
            self._keep(f"{self.layer}attention.weights", answer)
        return answer

    def _attention(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = (*args, *(kwargs[name] for name in ("q", "k", "v") if name in kwargs))
        for name, array in zip(HEADS, given, strict=False):
            self._keep(f"{self.layer}attention.{name}", array)
        self.attending = True
        try:
            answer = function(*args, **kwargs)
        finally:
            self.attending = False
        self._keep(f"{self.layer}attention.context", answer)
        return answer

    def _named(self, stage: str) -> Callable[..., Any]:
        def around(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            answer = function(*args, **kwargs)
            self._keep(stage.format(layer=self.layer), answer)
            return answer

        return around


def _wrapper(around: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: around(function, args, kwargs)
