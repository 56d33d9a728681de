"""Mistakes in weights: a wrong layout, missing weights, or weights under a wrong name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npformer.checkpoint.parameters import parameters
from npformer.engine.blocks.output_norm import NAME as OUTPUT_NORM
from npformer.golden.at import At
from npformer.golden.graph import QKV, parted, stacks
from npformer.golden.mistake import Mistake, Ways
from npformer.golden.port import FORMS, Port

MOST = 40  # maximum number of weights to try one by one


def each_and_all(port: Port, wrong: Mapping[str, np.ndarray]) -> Ways:
    for name in list(wrong)[-MOST:]:
        yield name, port.weighing({name: wrong[name]})
    if len(wrong) > 1:
        yield "all of them", port.weighing(wrong)


def transposed_weight(port: Port) -> Ways:
    """Reads the numbers of a weight stored as (out, in) in the order of (in, out), or the reverse."""
    known = parameters(port.config)
    linear = [name for name in (f"{group}.weight" for group in port.groups) if known[name].transposed]
    own = {name: port.weights[name] for name in linear}
    yield from each_and_all(port, {name: array.T.reshape(array.shape) for name, array in own.items()})
    for name, array in own.items():
        bias = name.replace(".weight", ".bias")
        if bias in port.weights and array.shape[0] == array.shape[1]:
            yield f"{name}, without the bias", port.weighing({name: array.T, bias: np.zeros_like(port.weights[bias])})
    oblong = {name: array for name, array in own.items() if array.shape[0] != array.shape[1]}
    yield from each_and_all(port, {name: array.reshape(array.shape[::-1]).T for name, array in oblong.items()})


def missing_bias(port: Port) -> Ways:
    yield from each_and_all(port, {name: np.zeros_like(port.weights[name]) for name in _biases(port)})


def _biases(port: Port) -> list[str]:
    return [f"{group}.bias" for group in port.groups if f"{group}.bias" in port.weights]


def wrong_bias(port: Port) -> Ways:
    times = {2: "added twice", **{n: f"added {n} times" for n in (3, 4, port.n_heads, port.depth) if n > 2}}
    for factor, way in {**times, -1: "subtracted"}.items():
        for name, changed in each_and_all(port, {name: factor * port.weights[name] for name in _biases(port)}):
            yield f"{way}, {name}", changed
    for form in ("sqrt({})", "1 / sqrt({})", "{}") if port.d_head > 1 else ():
        for name in QKV:  # such as a query that is scaled before its bias is added

            def rule(y: np.ndarray, at: At, c: float = FORMS[form](port.d_head)) -> np.ndarray:
                return y + (c - 1) * at.own("bias")

            yield f"{form.format('K')} times, {name}.bias", port.ruling({f"*.attention.{name}": rule})


def layer_weights(port: Port) -> Ways:
    """Takes a layer's weights from another layer."""
    for stack, count in stacks(port.config).items():
        if count < 2:
            continue
        orders = {
            "in reverse order": range(count)[::-1],
            "each layer has the next layer's weights": [min(i + 1, count - 1) for i in range(count)],
            "each layer has the previous layer's weights": [max(i - 1, 0) for i in range(count)],
            "all layers have the first layer's weights": [0] * count,
            "all layers have the last layer's weights": [count - 1] * count,
            "sorted as strings, 10 before 2": sorted(range(count), key=str),
        }
        for way, order in orders.items():
            if list(order) != list(range(count)):
                yield (
                    f"{way}{f' in the {stack[:-1]}' if stack else ''}",
                    port.weighing(_moved(port, stack, dict(enumerate(order)))),
                )
        layers = sorted({layer for its, layer, _ in map(parted, port.span) if its == stack and layer >= 0})
        pairs = [(i, j) for i in layers for j in range(count) if i != j]
        for i, j in sorted(pairs, key=lambda pair: abs(pair[0] - pair[1]))[:MOST]:
            own, other = f"{stack}layers.{i}", f"{stack}layers.{j}"
            yield f"{own} has {other}'s", port.weighing(_moved(port, stack, {i: j}))
            if i < j:
                yield f"{own} and {other} are exchanged", port.weighing(_moved(port, stack, {i: j, j: i}))


def _moved(port: Port, stack: str, order: Mapping[int, int]) -> dict[str, np.ndarray]:
    own = port.stored or port.weights  # an earlier cause may have moved the other layer's weights
    return {
        name: own[moved]
        for i, j in order.items()
        for name in port.weights
        if i != j and name.startswith(f"{stack}layers.{i}.")
        if (moved := name.replace(f"layers.{i}.", f"layers.{j}.")) in own
    }


def exchanged_norms(port: Port) -> Ways:
    norms = list(dict.fromkeys(name.rpartition(".")[0] for name in port.weights if name.endswith("norm.weight")))
    for place, one, other in (
        ("of", "attention_norm", "ffn_norm"),
        ("after", f"attention.{OUTPUT_NORM}", f"ffn.{OUTPUT_NORM}"),
    ):
        pairs = [(layer + one, layer + other) for layer in port.layers]
        ways = [("in every layer", pairs)]
        ways += [("in one layer", [pair]) for pair in pairs if len(pairs) > 1 and port.span.intersection(pair)]
        for said, these in ways:
            yield f"those {place} attention and the FFN, {said}", port.exchanging(*these)
    if port.config.decoder:
        across = [layer for layer in port.layers if f"{layer}cross_attention_norm.weight" in port.weights]
        for said, own in (("attention", "attention_norm"), ("the FFN", "ffn_norm")):
            pairs = [(f"{layer}cross_attention_norm", layer + own) for layer in across]
            yield f"those of cross-attention and {said}, in every layer", port.exchanging(*pairs)
    for one in norms:
        for other in norms:
            shapes = {port.weights[f"{norm}.weight"].shape for norm in (one, other)}
            if one in port.span and one != other and len(shapes) == 1 and len(norms) <= MOST:
                yield f"{one} has {other}'s", port.regrouping({one: other})


MISTAKES = (
    Mistake("transposed weight", "numbers stored (out, in) are read as (in, out), or the reverse", transposed_weight),
    Mistake("missing bias", "a bias is not added", missing_bias),
    Mistake("wrong bias", "a bias is added once", wrong_bias),
    Mistake("norms exchanged", "a norm has the weight and bias of another norm", exchanged_norms),
    Mistake("weights of another layer", "a layer has the weights of another layer", layer_weights),
)
