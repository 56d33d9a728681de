"""Mistakes that ports make in cross-attention: in its inputs and its mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npformer.engine.attention import split_heads
from npformer.engine.functions import softmax
from npformer.golden.mistake import Mistake, Rules, Ways

KEY, VALUE, CONTEXT = (f"*.cross_attention.{name}" for name in ("key", "value", "context"))


def _reading(rows: Callable[[Any], np.ndarray]) -> Rules:
    """Rules that compute keys and values from the rows that `rows` returns."""
    return dict.fromkeys((KEY, VALUE), lambda y, at: at.linear(rows(at), at.name))


def _own_rows(at: Any) -> Any:
    return at("attention_norm" if at.config.norm_first else "input")


def _attended(at: Any, low: float) -> np.ndarray:
    """The context (H, T, K) of heads that attend to the decoder's own rows. low: added to the scores of later rows."""
    query, rows = at("attention.query_heads"), _own_rows(at)
    key, value = (split_heads(at.linear(rows, f"attention.{name}"), len(query)) for name in ("key", "value"))
    scores = query @ key.swapaxes(-1, -2) * at.scale
    context: np.ndarray = softmax(scores + low * np.triu(np.ones(scores.shape[-2:]), 1)) @ value
    return context


def _own_side(port: Any) -> Ways:
    yield "", _reading(_own_rows)
    yield "", {CONTEXT: lambda y, at: _attended(at, 0.0)}
    yield "later ones hidden", {CONTEXT: lambda y, at: _attended(at, -1e9)}


def _other_output(port: Any) -> Ways:
    """Ways to read a stage of the encoder other than its output."""
    count, norm_first = port.config.n_layers, port.config.norm_first
    last = f"encoder.layers.{count - 1}."
    stages = {"its embeddings": "encoder.layers.0.input"}
    stages |= {f"its layer {i}": f"encoder.layers.{i + 1}.input" for i in range(count - 1)}
    if not norm_first:
        stages["its last sum, before the norm"] = f"{last}ffn_residual"
    if "encoder.norm.weight" in port.weights:
        stages["its last layer, before the last norm"] = last + ("ffn_residual" if norm_first else "ffn_norm")
    for way, stage in stages.items():
        yield way, _reading(lambda at, stage=stage: at(stage))


def _weights_of_self(port: Any) -> Ways:
    for names in (("query", "key", "value", "output"), ("key", "value"), ("query",), ("output",)):
        groups = {f"{at}cross_attention.{name}": f"{at}attention.{name}" for at in port.layers for name in names}
        yield "all" if len(names) == 4 else " and ".join(names), port.regrouping(groups)


MISTAKES = (
    Mistake(
        "cross-attention with self-attention's weights",
        "self-attention and cross-attention in a decoder layer have separate weights",
        _weights_of_self,
    ),
    Mistake(
        "cross-attention attends to the decoder",
        "in cross-attention, keys and values come from the encoder's output, and queries from the decoder",
        _own_side,
    ),
    Mistake(
        "cross-attention reads the wrong stage of the encoder",
        "every layer of the decoder reads the output of the encoder's last layer, after the final norm if it has one",
        _other_output,
    ),
    Mistake(
        "causal mask in cross-attention",
        "every row of the decoder attends to the whole source",
        {
            "": {
                "*.cross_attention.weights": lambda y, at: softmax(np.where(np.tri(*y.shape[-2:]) > 0, at.scores, -1e9))
            }
        },
    ),
)
