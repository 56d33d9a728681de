"""Mistakes in the head: pooling, its activation, labels and probabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import numpy as np

from npformer.config import POOLED_HEADS
from npformer.engine.activations import ACTIVATIONS
from npformer.engine.functions import softmax
from npformer.golden.at import At
from npformer.golden.graph import parents, span
from npformer.golden.mistake import Mistake, Rules, Steps, Ways, exchanged
from npformer.golden.mistakes.kinds import parents_of
from npformer.golden.mistakes.parts.ffn import from_source, other_activations, sigmoid
from npformer.golden.mistakes.parts.norm import standard
from npformer.golden.port import Port

MOST_LABELS = 5  # every order of labels is tried for at most this many labels


def other_pooling(port: Port) -> Ways:
    """Pools a row other than the correct one, or several rows."""
    pooler = "pooler.weight" in port.weights
    if not pooler and port.config.head not in POOLED_HEADS:
        return
    stage, group = ("pooler", "pooler") if pooler else ("logits", "head.output")
    rows: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
        "the first token's row": lambda x, n: x[0],
        "the last token's row": lambda x, n: x[n - 1],
        "the second-to-last token's row": lambda x, n: x[max(n - 2, 0)],
        "the second token's row": lambda x, n: x[min(1, n - 1)],
        "the mean of all rows": lambda x, n: x.mean(0),
        "the mean without the first and last rows": lambda x, n: x[1:-1].mean(0) if n > 2 else x.mean(0),
        "the mean without the first row": lambda x, n: x[1:].mean(0) if n > 1 else x[0],
        "the mean without the last row": lambda x, n: x[:-1].mean(0) if n > 1 else x[0],
        "the maximum of each column": lambda x, n: x.max(0),
        "the sum of all rows": lambda x, n: x.sum(0),
        "the sum divided by the length of the padded batch": lambda x, n: x.sum(0) / port.width,
        "the root mean square": lambda x, n: np.sqrt(np.square(x).mean(0)),
        "the sum divided by the square root of the length": lambda x, n: x.sum(0) / n**0.5,
    }
    if port.config.pooling == "first" and not port.config.decoder:
        del rows["the first token's row"]
    for way, pool in rows.items():
        yield way, {stage: lambda y, at, pool=pool: at.linear(pool(at.last, at.n_real), group)}
    read = "end token's" if port.config.decoder else port.config.pooling
    if not port.config.norm_first:
        sums = f"layers.{port.depth - 1}.ffn_residual"
        yield f"the {read} row before the last norm", {stage: lambda y, at: at.linear(at(sums)[at.row], group)}
    for i in range(port.depth - 1):
        above = f"layers.{i + 1}.input"
        yield f"the {read} row of layer {i}", {stage: lambda y, at, x=above: at.linear(at(x)[at.row], group)}
    if port.config.decoder:
        yield "the first end token's row", {stage: lambda y, at: at.linear(at.last[_first_end(port, at)], group)}
        yield "the encoder's row", {stage: lambda y, at: at.linear(at.encoded[at.row], group)}
    if (port.config.pooling == "last" or port.config.decoder) and port.has_padding:
        last: Rules = {stage: lambda y, at: at.linear(at.last[-1], group)}
        for way, batch in (("", port.padded()), (", which the mask hides", port.in_a_batch())):
            if batch is not None:
                yield f"the last row of the padded batch{way}", batch.ruling(last)


def _first_end(port: Port, at: At) -> int:
    """The index of the text's first end token. The correct head reads the last end token."""
    return int(np.flatnonzero(port.texts[at.text].ids == port.config.decoder.end_ids[0])[0])


def pooler_activation(port: Port) -> Ways:
    if "pooler.weight" in port.weights:
        yield "left out", {"pooled": lambda y, at: at.source}
        yield from other_activations(port.config.pooler, "pooled")


def not_normalized(port: Port) -> Ways:
    """The head reads the last layer's rows before their norm. A port may export only the rows after the norm."""
    norm = f"{port.stack}norm"
    if norm in port.given and norm in port.known and parents_of(port) == [norm]:
        graph = parents(port.config, port.weights)
        before = span(graph, norm, {name: None for name in port.given if name not in (norm, port.stage)})
        yield "", replace(port, span=port.span | before).rereading({norm: lambda y, at: at.source}, port.stage)


def transform_order(port: Port) -> Ways:
    """act(Normalize(x W + b)) instead of Normalize(act(x W + b))."""
    act = ACTIVATIONS[port.config.activation]
    if {"head.hidden", "head.norm"} <= set(port.known):
        steps = Steps(
            "head.activation",
            "head.norm",
            lambda at: at("head.hidden"),
            lambda y, at: act(y.copy()),
            lambda y, at: at.affine(standard(y, at.config.eps), "head.norm"),
        )
        yield from exchanged(port, ("logits",), steps, said="the norm before the activation")


NO_POOLER: dict[str, Rules] = {
    "": {"pooled": lambda y, at: at.last[at.row]},
    "only its linear layer": {"pooler": lambda y, at: at.last[at.row]},
    "computed twice": {"pooler": lambda y, at: at.linear(np.tanh(y), "pooler")},
}


def other_labels(port: Port) -> Ways:
    """Exchanges columns of the last linear layer."""
    weight = port.weights.get("head.output.weight")
    if weight is None or port.config.head in ("masked-lm", "multiple-choice"):
        return
    count = weight.shape[-1]
    orders = list(permutations(range(count)))[1:] if count <= MOST_LABELS else [tuple(range(count))[::-1]]
    if count > MOST_LABELS:
        orders += [tuple((np.arange(count) + step) % count) for step in (1, -1)]
    if port.stage.startswith(("logits", "start", "end", "prob")):
        for order in orders:
            said = ", ".join(map(str, order)) if count <= 12 else f"{order[0]}, {order[1]}, ..."
            own = {
                name: port.weights[name][..., list(order)]
                for name in ("head.output.weight", "head.output.bias")
                if name in port.weights
            }
            yield said, port.weighing(own)


PROBABILITIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": sigmoid,
    "softmax": softmax,
    "the logarithm of softmax": lambda x: np.log(softmax(x)),
    "the logits themselves": lambda x: x,
    "softmax twice": lambda x: softmax(softmax(x)),
    "softmax with 2^x": lambda x: softmax(x * np.log(2)),
    "e^x, not divided by its sum": np.exp,
}
MISTAKES = (
    Mistake(
        "wrong pooling",
        "a head reads the row of the first token (causal models: the last; encoder-decoders: the last end token)",
        other_pooling,
    ),
    Mistake(
        "wrong pooler activation",
        "a pooler is act(x W + b) with the activation of this model's config",
        pooler_activation,
    ),
    Mistake("head without the last norm", "the head reads the normalized rows of the last layer", not_normalized),
    Mistake(
        "head in the wrong order",
        "the head applies a linear layer, an activation and a norm, in this order",
        transform_order,
    ),
    Mistake("pooler left out", "the pooler comes between the first token's row and the classifier", NO_POOLER),
    Mistake(
        "labels in the wrong order",
        "the columns of the head follow the order of the labels in config.json",
        other_labels,
    ),
    Mistake(
        "wrong probabilities",
        "use softmax if a text has one label, and sigmoid if it can have several",
        {way: {"*probabilities": from_source(formula)} for way, formula in PROBABILITIES.items()},
    ),
)
