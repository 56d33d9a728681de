"""Chapter 3: the encoder."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.learn.contents import right
from npformer.learn.exercise import Exercise, array, drawn, layer_weights, linear_weights

gelu, relu = right("gelu"), right("relu")


def _multi_head_cases() -> list[tuple[Any, ...]]:
    small = [linear_weights(seed, 2, 2) for seed in range(4)]
    wide = [linear_weights(seed, 6, 6) for seed in range(10, 14)]
    x, padding = array([[1, 0], [0, 2]]), np.array([[[[True, True, True, False]]], [[[True, True, False, False]]]])
    return [
        (x, x, True, 1, *small),
        (drawn(1, 4, 6), drawn(1, 4, 6), True, 2, *wide),
        (drawn(2, 4, 6), drawn(2, 4, 6), np.tri(4, dtype=bool), 3, *wide),
        (drawn(3, 4, 6), drawn(4, 5, 6), True, 3, *wide),
        (drawn(5, 2, 4, 6), drawn(6, 2, 4, 6), padding, 2, *wide),
    ]


MULTI_HEAD = Exercise(
    "multi_head_attention",
    _multi_head_cases,
    (
        "linear(x, **query) applies the query layer. Keys and values are computed from source. The results of query, "
        "key and value are split into heads.",
        "Your scaled_dot_product_attention takes the mask, and all heads at once.",
        "Apply query to x, and key and value to source, split the results into heads, attend, combine the heads, and "
        "apply output.",
    ),
    """
    W_O left out: The combined heads are returned. They should pass through the output layer first.
        linear(combined, **output) -> combined
    mask not passed on: The mask is not passed to scaled_dot_product_attention.
        value_heads, mask) -> value_heads)
    query and key exchanged: The query and key layers are exchanged.
        **query) -> **key)
        **key) -> **query)
    key and value exchanged: The key and value layers are exchanged.
        **key) -> **value)
        **value) -> **key)
    query and value exchanged: The query and value layers are exchanged.
        **query) -> **value)
        **value) -> **query)
    keys from the query layer: The keys are computed by the query layer. They should be computed by the key layer.
        **key) -> **query)
    values from the key layer: The values are computed by the key layer. They should be computed by the value layer.
        **value) -> **key)
    values from the query layer: The values are computed by the query layer. They should be computed by the value layer.
        **value) -> **query)
    value layer left out: The values are source itself. They should be computed by the value layer.
        linear(source, **value) -> source
    one layer for queries, keys and values: Queries, keys and values are all computed by the query layer. Use a separate
        layer for each.
        **key) -> **query)
        **value) -> **query)
    keys and values from x: Keys and values are computed from x. They should be computed from source.
        linear(source, **key) -> linear(x, **key)
        linear(source, **value) -> linear(x, **value)
    queries from source: The queries are computed from source. They should be computed from x.
        linear(x, **query) -> linear(source, **query)
    value layer instead of output: The combined heads pass through the value layer. They should pass through the output
        layer.
        **output) -> **value)
    bias of the output layer left out: The bias of the output layer is not added.
        linear(combined, **output) -> combined @ output["weight"]
    biases left out: The biases of the four layers are not added.
        linear(x, **query) -> x @ query["weight"]
        linear(source, **key) -> source @ key["weight"]
        linear(source, **value) -> source @ value["weight"]
        linear(combined, **output) -> combined @ output["weight"]
    biases of query, key and value left out: The biases of query, key and value are not added.
        linear(x, **query) -> x @ query["weight"]
        linear(source, **key) -> source @ key["weight"]
        linear(source, **value) -> source @ value["weight"]
    not split into heads: Queries, keys and values are not split, so there is one head with the whole width.
        split_heads(each, n_heads) -> split_heads(each, 1)
    number and width of heads exchanged: There are K heads of width H. There should be n_heads heads of width
        D / n_heads.
        split_heads(each, n_heads) -> split_heads(each, each.shape[-1] // n_heads)
    heads not combined: The heads, (H, L, K), are not combined. combine_heads turns them into (L, D).
        combine_heads(context) -> context
    heads reshaped without the transpose: (L, D) is reshaped to (H, L, K), which mixes tokens. split_heads splits each
        token's columns into heads.
        split_heads(each, n_heads) -> each.reshape(*each.shape[:-2], n_heads, each.shape[-2], -1)
    heads combined without the transpose: (H, L, K) is reshaped to (L, D), which mixes tokens. combine_heads puts the
        heads of a token side by side.
        combine_heads(context) -> context.reshape(x.shape)
    heads split and combined without the transpose: (L, D) is reshaped to (H, L, K) and back, which mixes tokens. Use
        split_heads and combine_heads.
        split_heads(each, n_heads) -> each.reshape(*each.shape[:-2], n_heads, each.shape[-2], -1)
        combine_heads(context) -> context.reshape(x.shape)
    heads interleaved: Head h has the columns h, h + H, h + 2 H, ... Its columns should be contiguous.
        split_heads(each, n_heads) -> np.moveaxis(each.reshape(*each.shape[:-1], -1, n_heads), -1, -3)
        combine_heads(context) -> np.moveaxis(context, -3, -1).reshape(x.shape)
    scores divided twice: The scores are divided by sqrt(K) twice. scaled_dot_product_attention already divides them
        once.
        attention(query_heads, -> attention(query_heads / math.sqrt(query_heads.shape[-1]),
    input added: x is added to the result. The residual sum belongs in the encoder layer, not here.
        linear(combined, **output) -> x + linear(combined, **output)
    """,
    optional="mask",
)


# --- feed-forward network ---------------------------------------------------------------------------------------------


def _feed_forward_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 2], [0, -1]]), np.tanh, linear_weights(1, 2, 2), linear_weights(2, 2, 2)),
        (drawn(1, 3, 2), relu, linear_weights(3, 2, 5), linear_weights(4, 5, 2)),
        (drawn(2, 2, 3, 4), gelu, linear_weights(5, 4, 6), linear_weights(6, 6, 4)),
    ]


FEED_FORWARD = Exercise(
    "feed_forward",
    _feed_forward_cases,
    (
        "linear(x, **hidden) applies the first layer.",
        "activation is a function. Call it between the two layers: activation(h).",
        "Apply hidden, then activation, then output.",
    ),
    """
    activation left out: The activation is not applied. Without it the two layers are one linear map.
        activation(linear(x, **hidden)) -> linear(x, **hidden)
    hidden bias after the activation: The bias of hidden is added after the activation. It should be added before the
        activation.
        activation(linear(x, **hidden)) -> activation(x @ hidden["weight"]) + hidden["bias"]
    activation after the output: The activation is applied after the second layer. It should be applied between the two
        layers.
        activation(linear(x, **hidden)) -> linear(x, **hidden)
        linear(activated, **output) -> activation(linear(activated, **output))
    activation before the first layer: The activation is applied to x. It should be applied between the two layers.
        activation(linear(x, **hidden)) -> linear(activation(x), **hidden)
    activation after both layers: The activation is applied after each of the two layers. It should be applied between
        them only.
        linear(activated, **output) -> activation(linear(activated, **output))
    activation applied twice: The activation is applied twice between the layers. It should be applied once.
        activation(linear(x, **hidden)) -> activation(activation(linear(x, **hidden)))
    activation is always gelu: The activation is always gelu. It should be the argument activation.
        activation(linear -> gelu(linear
    activation is always relu: The activation is always relu. It should be the argument activation.
        activation(linear -> relu(linear
    input added: x is added to the result. The residual sum belongs in the encoder layer, not here.
        linear(activated, **output) -> x + linear(activated, **output)
    second layer left out: The output layer is not applied.
        linear(activated, **output) -> activated
    layers exchanged: The output layer is applied before the hidden layer.
        **hidden) -> **output)
        **output) -> **hidden)
    first bias left out: The bias of hidden is not added.
        linear(x, **hidden) -> x @ hidden["weight"]
    second bias left out: The bias of output is not added.
        linear(activated, **output) -> activated @ output["weight"]
    biases left out: The biases of the two layers are not added.
        linear(x, **hidden) -> x @ hidden["weight"]
        linear(activated, **output) -> activated @ output["weight"]
    """,
)


# --- layer ------------------------------------------------------------------------------------------------------------


def narrow(weights: Any) -> Any:
    """Returns weights so small that the rows of a layer are small too, and eps matters."""
    if isinstance(weights, dict):
        return {name: narrow(each) for name, each in weights.items()}
    return (weights / 300).astype(np.float32)


def _layer_cases() -> list[tuple[Any, ...]]:
    padding = np.array([[[[True, True, True]]], [[[True, True, False]]]])
    return [
        (array([[1, 0], [0, 2]]), True, 1, np.tanh, 0.25, *layer_weights(1, 2, 3).values()),
        # 4 rows, width 6, 7 hidden units: no size is the square root or the double of another size
        (drawn(1, 4, 6), np.tri(4, dtype=bool), 2, gelu, 1e-12, *layer_weights(10, 6, 7).values()),
        (drawn(2, 3, 4) / 300, True, 2, gelu, 1e-12, *(narrow(each) for each in layer_weights(20, 4, 6).values())),
        (drawn(3, 2, 3, 6), padding, 2, relu, 1e-12, *layer_weights(10, 6, 7).values()),
    ]


ENCODER_LAYER = Exercise(
    "encoder_layer",
    _layer_cases,
    (
        "The two steps have the same form: x + block(x), then a norm. multi_head_attention(x, x, mask, n_heads, **attention) is "
        "the first block.",
        "The second step reads Y, the output of the first: layer_norm(y + feed_forward(y, activation, **ffn), "
        "**ffn_norm, eps=eps).",
        "y = layer_norm(x + multi_head_attention(x, x, mask, n_heads, **attention), **attention_norm, eps=eps). Then apply the "
        "second step to y.",
    ),
    """
    first residual left out: X is not added to the output of attention.
        x + multi_head_attention -> multi_head_attention
    second residual left out: Y is not added to the output of the feed-forward network.
        y + feed_forward -> feed_forward
    second residual is X: X is added to the output of the feed-forward network. Y, the output of the first step, should
        be added.
        y + feed_forward -> x + feed_forward
    X added again: X is added to the second sum, too. It is already part of Y.
        y + feed_forward -> x + y + feed_forward
    second residual without the norm: The sum before the first norm is added to the output of the feed-forward network.
        Y, the sum after the norm, should be added.
        y + feed_forward -> attention_residual + feed_forward
    pre-norm: The norms are applied before attention and the feed-forward network. They should be applied after the
        sums.
        multi_head_attention(x, x, -> multi_head_attention(layer_norm(x, **attention_norm, eps=eps), layer_norm(x, **attention_norm, eps=eps),
        y = layer_norm(attention_residual, **attention_norm, eps=eps) -> y = attention_residual
        feed_forward(y, -> feed_forward(layer_norm(y, **ffn_norm, eps=eps),
        layer_norm(ffn_residual, **ffn_norm, eps=eps) -> ffn_residual
    norm before the sum: The outputs of the blocks are normalized and then added. Add first, then normalize the sum.
        multi_head_attention(x, x, mask, n_heads, **attention) -> layer_norm(multi_head_attention(x, x, mask, n_heads, **attention), **attention_norm, eps=eps)
        y = layer_norm(attention_residual, **attention_norm, eps=eps) -> y = attention_residual
        feed_forward(y, activation, **ffn) -> layer_norm(feed_forward(y, activation, **ffn), **ffn_norm, eps=eps)
        layer_norm(ffn_residual, **ffn_norm, eps=eps) -> ffn_residual
    norms exchanged: attention_norm and ffn_norm are exchanged.
        **attention_norm -> **ffn_norm
        **ffn_norm -> **attention_norm
    attention_norm used twice: attention_norm is used after both steps. ffn_norm should be used after the second step.
        **ffn_norm -> **attention_norm
    ffn_norm used twice: ffn_norm is used after both steps. attention_norm should be used after the first step.
        **attention_norm -> **ffn_norm
    first norm left out: The first sum is not normalized.
        layer_norm(attention_residual, **attention_norm, eps=eps) -> attention_residual
    second norm left out: The second sum is not normalized.
        layer_norm(ffn_residual, **ffn_norm, eps=eps) -> ffn_residual
    feed-forward network reads X: The feed-forward network reads X. It should read Y, the output of the first step.
        feed_forward(y, -> feed_forward(x,
    feed-forward network first: The feed-forward network comes before attention. Attention should come first.
        attention_residual = x + multi_head_attention(x, x, mask, n_heads, **attention) -> attention_residual = x + feed_forward(x, activation, **ffn)
        **attention_norm -> **ffn_norm
        feed_forward(y, activation, **ffn) -> multi_head_attention(y, y, mask, n_heads, **attention)
        **ffn_norm -> **attention_norm
    feed-forward network left out: The layer ends after attention and its norm. The feed-forward network and its norm
        should follow.
        layer_norm(ffn_residual, **ffn_norm, eps=eps) -> y
    attention left out: The layer has no attention.
        y = layer_norm(attention_residual, **attention_norm, eps=eps) -> y = x
    mask not passed on: The mask is not passed to multi_head_attention.
        multi_head_attention(x, x, mask, -> multi_head_attention(x, x, True,
    eps not passed on: eps is not passed to layer_norm, whose default is 1e-5. Write eps=eps.
        **attention_norm, eps=eps -> **attention_norm
        **ffn_norm, eps=eps -> **ffn_norm
    eps is 1e-12: eps of the norms is 1e-12, regardless of the argument. Write eps=eps.
        **attention_norm, eps=eps -> **attention_norm, eps=1e-12
        **ffn_norm, eps=eps -> **ffn_norm, eps=1e-12
    relu instead of the activation: The activation is always relu. It should be the argument activation.
        feed_forward(y, activation, -> feed_forward(y, relu,
    gelu instead of the activation: The activation is always gelu. It should be the argument activation.
        feed_forward(y, activation, -> feed_forward(y, gelu,
    tanh form of gelu: The activation is always the tanh approximation of GELU. It should be the argument activation.
        feed_forward(y, activation, -> feed_forward(y, gelu_tanh,
    norms without weight and bias: The sums are normalized without the weight and bias of the norms.
        attention_residual, **attention_norm, -> attention_residual,
        ffn_residual, **ffn_norm, -> ffn_residual,
    wrong eps [1e-6 1e-2]: eps of the norms is {number}, regardless of the argument. Write eps=eps.
        **attention_norm, eps=eps -> **attention_norm, eps=number
        **ffn_norm, eps=eps -> **ffn_norm, eps=number
    """,
    optional="mask",
)


# --- stack ------------------------------------------------------------------------------------------------------------


def _encoder_cases() -> list[tuple[Any, ...]]:
    layers, wide = ([layer_weights(seed, *sizes) for seed in (1, 20, 40)] for sizes in ((4, 6), (6, 7)))
    return [
        (array([[1, 0, 0, 2], [0, 1, 3, 0]]), True, 2, gelu, 1e-12, layers[:2]),
        (drawn(1, 4, 6), np.tri(4, dtype=bool), 2, gelu, 1e-12, wide),
        (drawn(2, 2, 4), True, 1, relu, 0.25, layers[:1]),
        (drawn(2, 2, 3, 4) / 300, True, 2, gelu, 1e-12, [narrow(layer) for layer in layers[:2]]),  # eps matters
    ]


ENCODER = Exercise(
    "encoder",
    _encoder_cases,
    (
        "Loop over layers. Each element is a dict, so encoder_layer(x, mask, n_heads, activation, eps, **layer) applies "
        "one.",
        "Assign the output of each layer to x, so that the next layer reads it.",
        "for layer in layers: x = encoder_layer(...), then return x.",
    ),
    r"""
    layers reversed: The layers are applied from the last to the first.
        in layers: -> in layers[::-1]:
    one layer's weights for all layers: Every layer uses the weights of the first layer.
        **layer) -> **layers[0])
    last layer left out: The last layer is not applied.
        in layers: -> in layers[:-1]:
    first layer left out: The first layer is not applied.
        in layers: -> in layers[1:]:
    only the first layer: Only the first layer is applied. Perhaps return is inside the loop.
        in layers: -> in layers[:1]:
    every layer reads x: All layers read x, so only the last has an effect. Each layer should read the previous layer's
        output.
        in layers: -> in layers[-1:]:
    layers applied twice: The stack is applied twice.
        in layers: -> in [*layers, *layers]:
    no layer applied: x is returned unchanged.
        in layers: -> in layers[:0]:
    input added to every layer: The input of each layer is added to its output. encoder_layer already contains the
        residual sums.
        x = encoder_layer -> x = x + encoder_layer
    input added at the end: x is added to the output of the last layer.
        for layer -> first = x\n    for layer
        return x -> return first + x
    outputs added: The outputs of the layers are added up. Return only the last output.
        for layer -> total = 0\n    for layer
        **layer) -> **layer); total = total + x
        return x -> return total
    mask not passed on: The mask is not passed to the layers.
        encoder_layer(x, mask, -> encoder_layer(x, True,
    wrong eps [1e-6 1e-2]: eps is {number}, regardless of the argument. Pass the argument to the layers.
        activation, eps, **layer -> activation, number, **layer
    """,
    optional="mask",
)
