"""Mistakes that ports make in the convolution over the rows of a text."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.engine.activations import ACTIVATIONS
from npformer.golden.mistake import Mistake, Rules, Ways
from npformer.golden.mistakes.parts.ffn import other_activations
from npformer.golden.mistakes.parts.norm import standard
from npformer.golden.recomputed import convolved

HIDDEN, ACTIVATION, SUM, NORM = (f"convolution{end}" for end in (".hidden", ".activation", "_residual", "_norm"))
KERNEL, EMBEDDINGS, LAYER = "convolution.weight", "layers.0.input", "layers.0.ffn_norm"


def _kernel(port: Any) -> Ways:
    """Ways to read the weights W_1, ..., W_K in the wrong order, or to apply them to the wrong neighbours."""
    count, width = port.config.convolution.width, port.config.d_model
    rows = port.weights[KERNEL].reshape(count, width, width)
    orders = {
        "reversed: a convolution, not a correlation": rows[::-1],
        "each transposed": rows.swapaxes(1, 2),
        "reversed and each transposed": rows[::-1].swapaxes(1, 2),
        "column by column": rows.reshape(width, count, width).swapaxes(0, 1),
    }
    for way, changed in orders.items():
        yield way, port.weighing({KERNEL: changed.reshape(count * width, width)})
    for step, way in ((1, "a place earlier"), (-1, "a place later")):
        yield f"each row reads {way}", {HIDDEN: lambda y, at, step=step: convolved(at, _moved(at.source, step))}


def _moved(x: np.ndarray, step: int) -> np.ndarray:
    """The rows shifted by `step`, with zeros in the vacated rows."""
    moved = np.roll(x, step, axis=0)
    moved[slice(step) if step > 0 else slice(step, None)] = 0
    return moved


def _padding_counted(port: Any) -> Ways:
    """Ways to read nonzero rows outside a text."""
    if (batch := port.in_a_batch()) is not None:
        yield "", batch.ruling({HIDDEN: lambda y, at: convolved(at, at.source)})
    yield (
        "the first and last rows repeated beyond the text",
        {HIDDEN: lambda y, at: convolved(at, np.pad(at.source, ((1, 1), (0, 0)), mode="edge"))[1:-1]},
    )


def _other_activation(port: Any) -> Ways:
    yield from other_activations(port.config.convolution.activation, ACTIVATION)
    yield "left out", {ACTIVATION: lambda y, at: at.source}


#: Ways to read the wrong stage in the convolution, or to add its output to the wrong stage.
PLACES: dict[str, Rules] = {
    "it reads the first layer's output": {HIDDEN: lambda y, at: convolved(at, at(LAYER))},
    "it reads the embeddings before their norm": {HIDDEN: lambda y, at: convolved(at, at("embeddings.sum"))},
    "added to the embeddings, not to the first layer": {SUM: lambda y, at: at(EMBEDDINGS) + at(ACTIVATION)},
    "added to both": {SUM: lambda y, at: y + at(EMBEDDINGS)},
    "not added": {SUM: lambda y, at: at(LAYER)},
    "replaces the first layer's output": {SUM: lambda y, at: at(ACTIVATION)},
    "added before the activation": {
        SUM: lambda y, at: ACTIVATIONS[at.config.convolution.activation](at(LAYER) + at(HIDDEN))
    },
    "added before the first layer's norm": {SUM: lambda y, at: at("layers.0.ffn_residual") + at(ACTIVATION)},
    "normalized before it is added": {
        NORM: lambda y, at: at(LAYER) + at.affine(standard(at(ACTIVATION), at.config.eps))
    },
    "left out, and its norm too": {NORM: lambda y, at: at(LAYER)},
    "added after its norm": {NORM: lambda y, at: at.affine(standard(at(LAYER), at.config.eps)) + at(ACTIVATION)},
}
MISTAKES = (
    Mistake(
        "convolution's kernel misread", "W_1, W_2 and W_3 multiply rows i - 1, i and i + 1, in this order", _kernel
    ),
    Mistake("padding convolved", "rows before and after a text are zeros", _padding_counted),
    Mistake(
        "wrong activation of the convolution",
        "the activation is conv_act in config.json, tanh by default",
        _other_activation,
    ),
    Mistake(
        "convolution in the wrong place",
        "Z = Normalize(Z + act(Conv(X))), where X is the embeddings and Z the first layer's output",
        PLACES,
    ),
)
