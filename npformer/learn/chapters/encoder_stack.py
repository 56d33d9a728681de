"""Chapter 3, the encoder layer and the stack of layers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from npformer.activations import relu
from npformer.functions import layer_norm as normed
from npformer.learn import right
from npformer.learn.exercise import Constant, Exercise, Slip, array, drawn, layer_weights
from npformer.learn.right import feed_forward, gelu, gelu_tanh, layer_norm

Array = np.ndarray
Linear = Mapping[str, Array]


# --- layer ------------------------------------------------------------------------------------------------------------


def _layer_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 0], [0, 2]]), 1, *layer_weights(1, 2, 3).values()),
        # 4 rows, width 6, 7 hidden units: no size is the square root or the double of another size
        (drawn(1, 4, 6), 2, *layer_weights(10, 6, 7).values()),
        (drawn(2, 3, 4) / 300, 2, *(_narrow(each) for each in layer_weights(20, 4, 6).values())),
    ]


def _narrow(weights: Any) -> Any:
    """Weights so small that the rows of a layer are small too, and eps matters."""
    if isinstance(weights, dict):
        return {name: _narrow(each) for name, each in weights.items()}
    return (weights / 300).astype(np.float32)


def _plain(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    return x


def _layer(
    x: Array,
    h: int,
    attention: Any,
    attention_norm: Any,
    ffn: Any,
    ffn_norm: Any,
    *,
    eps: float = 1e-12,
    act: Any = gelu,
    first: Any = layer_norm,
    second: Any = layer_norm,
    which: Any = lambda attention_norm, ffn_norm: (attention_norm, ffn_norm),
    add_x: float = 1.0,
    added: Any = lambda x, total, y: y,
    reads: Any = lambda x, y: y,
) -> Array:
    """`right.encoder_layer` with one of its steps replaced."""
    norms = which(attention_norm, ffn_norm)
    total = add_x * x + right.multi_head_attention(x, h, **attention)
    y = first(total, **norms[0], eps=eps)
    return second(added(x, total, y) + feed_forward(reads(x, y), act, **ffn), **norms[1], eps=eps)


def _first(x: Array, h: int, attention: Any, norm: Any) -> Array:
    """Y = Normalize(X + MultiHead(X))."""
    return layer_norm(x + right.multi_head_attention(x, h, **attention), **norm)


def _second(y: Array, ffn: Any, norm: Any) -> Array:
    """Z = Normalize(Y + FFN(Y))."""
    return layer_norm(y + feed_forward(y, gelu, **ffn), **norm)


def _pre_norm(x: Array, h: int, a: Any, an: Any, f: Any, fn: Any) -> Array:
    y = x + right.multi_head_attention(layer_norm(x, **an), h, **a)
    return y + feed_forward(layer_norm(y, **fn), gelu, **f)


def _norm_inside(x: Array, h: int, a: Any, an: Any, f: Any, fn: Any) -> Array:
    y = x + layer_norm(right.multi_head_attention(x, h, **a), **an)
    return y + layer_norm(feed_forward(y, gelu, **f), **fn)


def _unscaled(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    return normed(x, eps=eps)


ENCODER_LAYER = Exercise(
    "encoder_layer",
    right.encoder_layer,
    _layer_cases,
    (
        "The two steps have the same form: x + block(x), then a norm. multi_head_attention(x, n_heads, **attention) is "
        "the first block.",
        "The second step reads Y, the output of the first: layer_norm(y + feed_forward(y, gelu, **ffn), **ffn_norm).",
        "y = layer_norm(x + multi_head_attention(x, n_heads, **attention), **attention_norm). Then apply the second "
        "step to y.",
    ),
    ("npformer.learn.right:encoder_layer", "npformer.plain.formulas:encoder_layer"),
    (
        Slip("first residual left out", "X is not added to the output of attention.", partial(_layer, add_x=0.0)),
        Slip(
            "second residual left out",
            "Y is not added to the output of the feed-forward network.",
            partial(_layer, added=lambda x, total, y: 0),
        ),
        Slip(
            "second residual is X",
            "X is added to the output of the feed-forward network. Y, the output of the first step, should be added.",
            partial(_layer, added=lambda x, total, y: x),
        ),
        Slip(
            "X added again",
            "X is added to the second sum, too. It is already part of Y.",
            partial(_layer, added=lambda x, total, y: x + y),
        ),
        Slip(
            "second residual without the norm",
            "The sum before the first norm is added to the output of the feed-forward network. Y, the sum after "
            "the norm, should be added.",
            partial(_layer, added=lambda x, total, y: total),
        ),
        Slip(
            "pre-norm",
            "The norms are applied before attention and the feed-forward network. They should be applied after "
            "the sums.",
            _pre_norm,
        ),
        Slip(
            "norm before the sum",
            "The outputs of the blocks are normalized and then added. Add first, then normalize the sum.",
            _norm_inside,
        ),
        Slip(
            "norms exchanged",
            "attention_norm and ffn_norm are exchanged.",
            partial(_layer, which=lambda an, fn: (fn, an)),
        ),
        Slip(
            "attention_norm used twice",
            "attention_norm is used after both steps. ffn_norm should be used after the second step.",
            partial(_layer, which=lambda an, fn: (an, an)),
        ),
        Slip(
            "ffn_norm used twice",
            "ffn_norm is used after both steps. attention_norm should be used after the first step.",
            partial(_layer, which=lambda an, fn: (fn, fn)),
        ),
        Slip("first norm left out", "The first sum is not normalized.", partial(_layer, first=_plain)),
        Slip("second norm left out", "The second sum is not normalized.", partial(_layer, second=_plain)),
        Slip(
            "feed-forward network reads X",
            "The feed-forward network reads X. It should read Y, the output of the first step.",
            partial(_layer, reads=lambda x, y: x),
        ),
        Slip(
            "feed-forward network first",
            "The feed-forward network comes before attention. Attention should come first.",
            lambda x, h, a, an, f, fn: _first(_second(x, f, fn), h, a, an),
        ),
        Slip(
            "feed-forward network left out",
            "The layer ends after attention and its norm. The feed-forward network and its norm should follow.",
            lambda x, h, a, an, f, fn: _first(x, h, a, an),
        ),
        Slip(
            "attention left out",
            "The layer has no attention.",
            lambda x, h, a, an, f, fn: _second(x, f, fn),
        ),
        Slip("eps is 1e-5", "eps of the norms is 1e-5. It should be 1e-12 in this model.", partial(_layer, eps=1e-5)),
        Slip("relu instead of gelu", "The activation is relu. It should be gelu.", partial(_layer, act=relu)),
        Slip(
            "tanh form of gelu",
            "The activation is the tanh approximation of GELU. It should be the exact form.",
            partial(_layer, act=gelu_tanh),
        ),
        Slip(
            "norms without weight and bias",
            "The sums are normalized without the weight and bias of the norms.",
            partial(_layer, first=_unscaled, second=_unscaled),
        ),
    ),
    constants=(
        Constant(
            "wrong eps",
            "eps of the norms is {number}. It should be 1e-12 in this model.",
            lambda number: partial(_layer, eps=number),
            (1e-6,),
        ),
    ),
)


# --- stack ------------------------------------------------------------------------------------------------------------


def _encoder_cases() -> list[tuple[Any, ...]]:
    layers, wide = ([layer_weights(seed, *sizes) for seed in (1, 20, 40)] for sizes in ((4, 6), (6, 7)))
    return [
        (array([[1, 0, 0, 2], [0, 1, 3, 0]]), 2, layers[:2]),
        (drawn(1, 4, 6), 2, wide),
        (drawn(2, 2, 4), 1, layers[:1]),
        (drawn(2, 3, 4) / 300, 2, [_narrow(layer) for layer in layers[:2]]),  # eps matters
    ]


def _stacked(x: Array, h: int, layers: Any) -> Array:
    return right.encoder(x, h, list(layers))


def _outputs(x: Array, h: int, layers: Any) -> list[Array]:
    """The input of the first layer and the output of every layer."""
    found = [x]
    for layer in layers:
        found.append(right.encoder_layer(found[-1], h, **layer))
    return found


ENCODER = Exercise(
    "encoder",
    right.encoder,
    _encoder_cases,
    (
        "Loop over layers. Each element is a dict, so encoder_layer(x, n_heads, **layer) applies one.",
        "Assign the output of each layer to x, so that the next layer reads it.",
        "for layer in layers: x = encoder_layer(...), then return x.",
    ),
    ("npformer.learn.right:encoder", "npformer.plain.formulas:encoder"),
    (
        Slip(
            "layers reversed",
            "The layers are applied from the last to the first.",
            lambda x, h, layers: _stacked(x, h, layers[::-1]),
        ),
        Slip(
            "one layer's weights for all layers",
            "Every layer uses the weights of the first layer.",
            lambda x, h, layers: _stacked(x, h, layers[:1] * len(layers)),
        ),
        Slip("last layer left out", "The last layer is not applied.", lambda x, h, layers: _stacked(x, h, layers[:-1])),
        Slip(
            "first layer left out", "The first layer is not applied.", lambda x, h, layers: _stacked(x, h, layers[1:])
        ),
        Slip(
            "only the first layer",
            "Only the first layer is applied. Perhaps return is inside the loop.",
            lambda x, h, layers: _stacked(x, h, layers[:1]),
        ),
        Slip(
            "every layer reads x",
            "All layers read x, so only the last has an effect. Each layer should read the previous layer's output.",
            lambda x, h, layers: _stacked(x, h, layers[-1:]),
        ),
        Slip("layers applied twice", "The stack is applied twice.", lambda x, h, layers: _stacked(x, h, layers * 2)),
        Slip("no layer applied", "x is returned unchanged.", lambda x, h, layers: x),
        Slip(
            "input added to every layer",
            "The input of each layer is added to its output. encoder_layer already contains the residual sums.",
            lambda x, h, layers: _with_residuals(x, h, layers),
        ),
        Slip(
            "input added at the end",
            "x is added to the output of the last layer.",
            lambda x, h, layers: x + _stacked(x, h, layers),
        ),
        Slip(
            "outputs added",
            "The outputs of the layers are added up. Return only the last output.",
            lambda x, h, layers: sum(_outputs(x, h, layers)[1:]),
        ),
    ),
)


def _with_residuals(x: Array, h: int, layers: Any) -> Array:
    for layer in layers:
        x = x + right.encoder_layer(x, h, **layer)
    return x
