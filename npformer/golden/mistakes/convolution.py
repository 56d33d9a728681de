"""Mistakes in the convolution of the embeddings that DeBERTa's largest models add to their first layer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npformer.activations import ACTIVATIONS
from npformer.golden.mistakes.activation import OTHERS, standard
from npformer.golden.mistakes.inputs import convolved, has_padding, in_a_batch
from npformer.golden.port import Mistake, Port, Rule, Ways

HIDDEN, ACTIVATION, SUM = "convolution.hidden", "convolution.activation", "convolution_residual"
KERNEL = "convolution.weight"


def of_convolution(ways: Callable[[Port], Ways]) -> Callable[[Port], Ways]:
    return lambda port: ways(port) if port.config.convolution else iter(())


@of_convolution
def kernel(port: Port) -> Ways:
    """Takes the weights W_1, ..., W_K of the neighbours in another order."""
    count, width = port.config.convolution, port.config.d_model
    rows = port.weights[KERNEL].reshape(count, width, width)
    orders = {
        "reversed, as a convolution and not a correlation has it": rows[::-1],
        "each transposed": rows.swapaxes(1, 2),
        "reversed and each transposed": rows[::-1].swapaxes(1, 2),
        "column by column": rows.reshape(width, count, width).swapaxes(0, 1),
    }
    for way, changed in orders.items():
        yield way, port.weighing({KERNEL: changed.reshape(count * width, width)})
    for step, way in ((1, "a place earlier"), (-1, "a place later")):
        yield (
            f"each row reads {way}",
            port.ruling({HIDDEN: lambda y, at, step=step: convolved(at, _moved(at.source, step))}),
        )


def _moved(x: np.ndarray, step: int) -> np.ndarray:
    """The rows a step later, zeros where there are none."""
    moved = np.roll(x, step, axis=0)
    moved[slice(step) if step > 0 else slice(step, None)] = 0
    return moved


@of_convolution
def padding_counted(port: Port) -> Ways:
    """Reads the embeddings of padding after a text."""
    if has_padding(port) and (batch := in_a_batch(port)) is not None:
        yield "", batch.ruling({HIDDEN: lambda y, at: convolved(at, at.source)})
    ends: dict[str, Rule] = {
        HIDDEN: lambda y, at: convolved(at, np.pad(at.source, ((1, 1), (0, 0)), mode="edge"))[1:-1]
    }
    yield "the first and last rows repeated beyond the text", port.ruling(ends)


@of_convolution
def activation(port: Port) -> Ways:
    own = port.config.convolution_activation
    for name in OTHERS.keys() - {own}:
        yield f"{name} for {own}", port.ruling({ACTIVATION: lambda y, at, name=name: OTHERS[name](at.source)})
    yield "left out", port.ruling({ACTIVATION: lambda y, at: at.source})


@of_convolution
def place(port: Port) -> Ways:
    """Reads, or is added to, another stage than it should."""
    act, eps = ACTIVATIONS[port.config.convolution_activation], port.config.eps
    embedded, layer = "layers.0.input", "layers.0.ffn_norm"
    rules: dict[str, dict[str, Rule]] = {
        "it reads the first layer's output": {HIDDEN: lambda y, at: convolved(at, at(layer))},
        "it reads the embeddings before their norm": {HIDDEN: lambda y, at: convolved(at, at("embeddings.sum"))},
        "added to the embeddings, not to the first layer": {SUM: lambda y, at: at(embedded) + at(ACTIVATION)},
        "added to both": {SUM: lambda y, at: y + at(embedded)},
        "not added": {SUM: lambda y, at: at(layer)},
        "put in the layer's place": {SUM: lambda y, at: at(ACTIVATION)},
        "added before the activation": {SUM: lambda y, at: act(at(layer) + at(HIDDEN))},
        "added before the first layer's norm": {SUM: lambda y, at: at("layers.0.ffn_residual") + at(ACTIVATION)},
        "normalized before it is added": {
            "convolution_norm": lambda y, at: at(layer) + at.affine(standard(at(ACTIVATION), eps))
        },
        "left out with its norm": {"convolution_norm": lambda y, at: at(layer)},
        "added after its norm": {
            "convolution_norm": lambda y, at: at.affine(standard(at(layer), eps)) + at(ACTIVATION)
        },
    }
    for way, rule in rules.items():
        yield way, port.ruling(rule)


MISTAKES = (
    Mistake(
        "convolution's kernel misread", "row i reads rows i - 1, i and i + 1 by W_1, W_2 and W_3, in this order", kernel
    ),
    Mistake("padding convolved", "what stands before and after a text counts as zeros", padding_counted),
    Mistake("another activation of the convolution", "it is conv_act of config.json, tanh unless given", activation),
    Mistake(
        "convolution in the wrong place",
        "Z = Normalize(Z + act(Conv(X))), X the embeddings and Z the first layer's output",
        place,
    ),
)
