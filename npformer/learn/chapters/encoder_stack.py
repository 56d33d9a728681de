"""Chapter 3, the encoder's layer and its stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npformer.activations import relu
from npformer.functions import layer_norm as normed
from npformer.learn import right
from npformer.learn.exercise import Exercise, Slip, array, drawn, layer_weights
from npformer.learn.right import feed_forward, gelu, gelu_tanh, layer_norm

Array = np.ndarray
Linear = Mapping[str, Array]


# --- layer ------------------------------------------------------------------------------------------------------------


def _layer_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 0], [0, 2]]), 1, *layer_weights(1, 2, 3).values()),
        (drawn(1, 3, 4), 2, *layer_weights(10, 4, 6).values()),
        (drawn(2, 3, 4) / 300, 2, *(_narrow(each) for each in layer_weights(20, 4, 6).values())),
    ]


def _narrow(weights: Any) -> Any:
    """Weights so small that the rows of a layer are, and eps shows."""
    if isinstance(weights, dict):
        return {name: _narrow(each) for name, each in weights.items()}
    return (weights / 300).astype(np.float32)


def _attend(x: Array, h: int, attention: Any) -> Array:
    return right.multi_head_attention(x, h, **attention)


def _feed(x: Array, ffn: Any, activation: Any = gelu) -> Array:
    return feed_forward(x, activation, **ffn)


def _layer(
    x: Array, h: int, attention: Any, attention_norm: Any, ffn: Any, ffn_norm: Any, eps: float = 1e-12, act: Any = gelu
) -> Array:
    y = layer_norm(x + _attend(x, h, attention), **attention_norm, eps=eps)
    return layer_norm(y + _feed(y, ffn, act), **ffn_norm, eps=eps)


def _first(x: Array, h: int, attention: Any, norm: Any) -> Array:
    """Y = Normalize(X + MultiHead(X))."""
    return layer_norm(x + _attend(x, h, attention), **norm)


def _second(y: Array, ffn: Any, norm: Any) -> Array:
    """Z = Normalize(Y + FFN(Y))."""
    return layer_norm(y + _feed(y, ffn), **norm)


def _pre_norm(x: Array, h: int, a: Any, an: Any, f: Any, fn: Any) -> Array:
    y = x + _attend(layer_norm(x, **an), h, a)
    return y + _feed(layer_norm(y, **fn), f)


def _norm_inside(x: Array, h: int, a: Any, an: Any, f: Any, fn: Any) -> Array:
    y = x + layer_norm(_attend(x, h, a), **an)
    return y + layer_norm(_feed(y, f), **fn)


def _second_residual_from_x(x: Array, h: int, a: Any, an: Any, f: Any, fn: Any) -> Array:
    return layer_norm(x + _feed(_first(x, h, a, an), f), **fn)


def _unnormalised_residual(x: Array, h: int, a: Any, an: Any, f: Any, fn: Any) -> Array:
    total = x + _attend(x, h, a)
    return layer_norm(total + _feed(layer_norm(total, **an), f), **fn)


def _parallel(x: Array, h: int, a: Any, an: Any, f: Any, fn: Any) -> Array:
    return layer_norm(_first(x, h, a, an) + _feed(x, f), **fn)


ENCODER_LAYER = Exercise(
    "encoder_layer",
    right.encoder_layer,
    _layer_cases,
    (
        "Two steps of the same form: x + block(x), then a norm. multi_head_attention(x, n_heads, **attention) is "
        "the first block.",
        "The second step reads Y, the output of the first: layer_norm(y + feed_forward(y, gelu, **ffn), **ffn_norm).",
        "Y = layer_norm(x + attention's output, with attention_norm). Return the second step of Y.",
    ),
    ("npformer.learn.right:encoder_layer", "npformer.layers:Layer.__call__"),
    (
        Slip(
            "first residual left out",
            "X is not added to the output of attention.",
            lambda x, h, a, an, f, fn: _second(layer_norm(_attend(x, h, a), **an), f, fn),
        ),
        Slip(
            "second residual left out",
            "Y is not added to the output of the feed-forward network.",
            lambda x, h, a, an, f, fn: layer_norm(_feed(_first(x, h, a, an), f), **fn),
        ),
        Slip(
            "both residuals left out",
            "The inputs of the two blocks are not added to their outputs.",
            lambda x, h, a, an, f, fn: layer_norm(_feed(layer_norm(_attend(x, h, a), **an), f), **fn),
        ),
        Slip(
            "second residual is X",
            "X is added to the output of the feed-forward network. Y, the output of the first step, should be added.",
            _second_residual_from_x,
        ),
        Slip(
            "second residual without the norm",
            "The sum before the first norm is added to the output of the feed-forward network. Y, the sum after "
            "the norm, should be added.",
            _unnormalised_residual,
        ),
        Slip(
            "pre-norm",
            "The norms are applied before attention and the feed-forward network. They should be applied after "
            "the sums.",
            _pre_norm,
        ),
        Slip(
            "norm before the sum",
            "The outputs of the blocks are normalised and then added. Add first, then normalise the sum.",
            _norm_inside,
        ),
        Slip(
            "norms exchanged",
            "attention_norm and ffn_norm are exchanged.",
            lambda x, h, a, an, f, fn: _layer(x, h, a, fn, f, an),
        ),
        Slip(
            "attention_norm used twice",
            "attention_norm is used after both steps. ffn_norm belongs to the second.",
            lambda x, h, a, an, f, fn: _layer(x, h, a, an, f, an),
        ),
        Slip(
            "ffn_norm used twice",
            "ffn_norm is used after both steps. attention_norm belongs to the first.",
            lambda x, h, a, an, f, fn: _layer(x, h, a, fn, f, fn),
        ),
        Slip(
            "first norm left out",
            "The first sum is not normalised.",
            lambda x, h, a, an, f, fn: _second(x + _attend(x, h, a), f, fn),
        ),
        Slip(
            "second norm left out",
            "The second sum is not normalised.",
            lambda x, h, a, an, f, fn: (y := _first(x, h, a, an)) + _feed(y, f),
        ),
        Slip(
            "both norms left out",
            "The sums are not normalised.",
            lambda x, h, a, an, f, fn: (y := x + _attend(x, h, a)) + _feed(y, f),
        ),
        Slip(
            "feed-forward network reads X",
            "The feed-forward network reads X. It should read Y, the output of the first step.",
            _parallel,
        ),
        Slip(
            "feed-forward network first",
            "The feed-forward network comes before attention. Attention should come first.",
            lambda x, h, a, an, f, fn: _first(_second(x, f, fn), h, a, an),
        ),
        Slip(
            "feed-forward network left out",
            "The layer ends after attention and its norm. The feed-forward network and its norm follow.",
            lambda x, h, a, an, f, fn: _first(x, h, a, an),
        ),
        Slip(
            "attention left out",
            "The layer has no attention.",
            lambda x, h, a, an, f, fn: _second(x, f, fn),
        ),
        Slip(
            "eps is 1e-5",
            "eps of the norms is 1e-5. It should be 1e-12 in this model.",
            lambda x, h, a, an, f, fn: _layer(x, h, a, an, f, fn, eps=1e-5),
        ),
        Slip(
            "relu for gelu",
            "The activation is relu. It should be gelu.",
            lambda x, h, a, an, f, fn: _layer(x, h, a, an, f, fn, act=relu),
        ),
        Slip(
            "tanh form of gelu",
            "The activation is the tanh approximation of GELU. It should be the exact form.",
            lambda x, h, a, an, f, fn: _layer(x, h, a, an, f, fn, act=gelu_tanh),
        ),
        Slip(
            "norms without weight and bias",
            "The sums are normalised without the weight and bias of the norms.",
            lambda x, h, a, an, f, fn: normed((y := normed(x + _attend(x, h, a), eps=1e-12)) + _feed(y, f), eps=1e-12),
        ),
    ),
)


# --- stack ------------------------------------------------------------------------------------------------------------


def _encoder_cases() -> list[tuple[Any, ...]]:
    layers = [layer_weights(seed, 4, 6) for seed in (1, 20, 40)]
    return [
        (array([[1, 0, 0, 2], [0, 1, 3, 0]]), 2, layers[:2]),
        (drawn(1, 3, 4), 2, layers),
        (drawn(2, 2, 4), 1, layers[:1]),
    ]


def _stacked(x: Array, h: int, layers: Any) -> Array:
    return right.encoder(x, h, list(layers))


def _outputs(x: Array, h: int, layers: Any) -> list[Array]:
    """The input and the output of every layer."""
    found = [x]
    for layer in layers:
        found.append(right.encoder_layer(found[-1], h, **layer))
    return found


ENCODER = Exercise(
    "encoder",
    right.encoder,
    _encoder_cases,
    (
        "A loop over layers. Each element is a dict, so encoder_layer(x, n_heads, **layer) applies one.",
        "Give the output of each layer the name x again, so that the next layer reads it.",
        "for layer in layers: x = encoder_layer(...), then return x.",
    ),
    ("npformer.learn.right:encoder", "npformer.layers:Stack.__call__"),
    (
        Slip(
            "layers reversed",
            "The layers are applied from the last to the first.",
            lambda x, h, layers: _stacked(x, h, layers[::-1]),
        ),
        Slip(
            "one layer's weights for all",
            "Every layer has the weights of the first.",
            lambda x, h, layers: _stacked(x, h, layers[:1] * len(layers)),
        ),
        Slip("last layer left out", "The last layer is not applied.", lambda x, h, layers: _stacked(x, h, layers[:-1])),
        Slip(
            "first layer left out", "The first layer is not applied.", lambda x, h, layers: _stacked(x, h, layers[1:])
        ),
        Slip(
            "only the first layer",
            "Only the first layer is applied. Perhaps return stands inside the loop.",
            lambda x, h, layers: _stacked(x, h, layers[:1]),
        ),
        Slip(
            "every layer reads x",
            "Every layer reads the first input, so only the last one counts. Each reads the output of the one before.",
            lambda x, h, layers: _stacked(x, h, layers[-1:]),
        ),
        Slip("layers applied twice", "The stack is applied twice.", lambda x, h, layers: _stacked(x, h, layers * 2)),
        Slip("no layer applied", "x is returned unchanged.", lambda x, h, layers: x),
        Slip(
            "input added to every layer",
            "The input of each layer is added to its output. The residual sums are inside the layer.",
            lambda x, h, layers: _with_residuals(x, h, layers),
        ),
        Slip(
            "input added at the end",
            "x is added to the output of the last layer.",
            lambda x, h, layers: x + _stacked(x, h, layers),
        ),
        Slip(
            "outputs added",
            "The outputs of the layers are added. Only the last one should be returned.",
            lambda x, h, layers: sum(_outputs(x, h, layers)[1:]),
        ),
    ),
)


def _with_residuals(x: Array, h: int, layers: Any) -> Array:
    for layer in layers:
        x = x + right.encoder_layer(x, h, **layer)
    return x
