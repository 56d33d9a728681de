"""Mistakes in what a decoder's attention to the source reads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npformer.attention import split_heads
from npformer.functions import softmax
from npformer.golden.at import At
from npformer.golden.port import Mistake, Port, Rule, Ways

KEY, VALUE, CONTEXT = (f"*.cross_attention.{name}" for name in ("key", "value", "context"))


def own_rows(port: Port) -> Ways:
    """Takes keys and values from the decoder's rows."""
    if not port.config.decoder:
        return

    def rows(at: At) -> np.ndarray:
        return at("attention_norm" if port.config.norm_first else "input")

    yield "", _reading(port, rows)
    for way, low in (("", 0.0), ("later ones hidden", -1e9)):
        yield way, port.ruling({CONTEXT: lambda y, at, low=low: _attended(at, rows(at), low)})


def _reading(port: Port, rows: Callable[[At], np.ndarray]) -> Port:
    return port.ruling(
        {KEY: lambda y, at: at.linear(rows(at), at.name), VALUE: lambda y, at: at.linear(rows(at), at.name)}
    )


def _attended(at: At, rows: np.ndarray, low: float) -> np.ndarray:
    """The context of every head (H, T, K) that attends to these rows, as many as the queries, with `low` above."""
    query = at("attention.query_heads")
    key, value = (split_heads(at.linear(rows, f"attention.{name}"), len(query)) for name in ("key", "value"))
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    context: np.ndarray = softmax(scores + low * np.triu(np.ones(scores.shape[-2:]), 1)) @ value
    return context


def other_output(port: Port) -> Ways:
    """Reads another stage of the encoder than its output."""
    if not port.config.decoder:
        return
    last = f"encoder.layers.{port.config.n_layers - 1}."
    stages = {"its embeddings": "encoder.layers.0.input"}
    stages |= {f"its layer {i}": f"encoder.layers.{i + 1}.input" for i in range(port.config.n_layers - 1)}
    if not port.config.norm_first:
        stages["its last sum, before the norm"] = f"{last}ffn_residual"
    if "encoder.norm.weight" in port.weights:
        stages["its last layer, before the last norm"] = last + (
            "ffn_residual" if port.config.norm_first else "ffn_norm"
        )
    for way, stage in stages.items():
        yield way, _reading(port, lambda at, stage=stage: at(stage))


def causal(port: Port) -> Ways:
    """Hides later rows of the source."""
    if port.config.decoder:
        rules: dict[str, Rule] = {
            "*.cross_attention.weights": lambda y, at: softmax(np.where(np.tri(*y.shape[-2:]) > 0, at.scores, -1e9))
        }
        yield "", port.ruling(rules)


MISTAKES = (
    Mistake(
        "cross-attention reads its own side",
        "keys and values of attention to the source are made from the encoder's output, queries from the decoder",
        own_rows,
    ),
    Mistake(
        "another stage of the encoder is read",
        "every layer of the decoder reads the encoder's output, after its last layer and norm",
        other_output,
    ),
    Mistake("causal mask in cross-attention", "every row of the decoder attends to the whole source", causal),
)
