"""Chapter 5: the backward functions of attention and of a layer, and the gradient of the whole classifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.learn.chapters.answer import tiny_classifier
from npformer.learn.chapters.attention import MASK
from npformer.learn.contents import right
from npformer.learn.exercise import Exercise, array, drawn, layer_weights

gelu, relu = right("gelu"), right("relu")


def _attention_cases() -> list[tuple[Any, ...]]:
    small = (
        array([[[1, 0], [0, 2]]]),
        array([[[2, 0], [0, 2]]]),
        array([[[1, 0], [1, 1]]]),
        array([[[1, 0], [0, 10]]]),
    )
    return [
        (*small, True),
        (*(drawn(seed, 2, 3, 3) for seed in (1, 2, 3, 4)), True),
        (drawn(1, 2, 3, 4), drawn(2, 2, 3, 4), drawn(3, 2, 5, 4), drawn(4, 2, 5, 4), True),
        (*(drawn(seed, 2, 3, 4) for seed in (5, 6, 7, 8)), MASK),
    ]


ATTENTION_BACKWARD = Exercise(
    "scaled_dot_product_attention_backward",
    _attention_cases,
    (
        "Compute the scores and the weights W again, as in scaled_dot_product_attention.",
        "Every product has two gradients: for C = A B they are dA = dC B^T and dB = A^T dC. Start with context = W v.",
        "dv = W^T grad and dW = grad v^T, then dS = softmax_backward(dW, W), then dq = dS k and dk = dS^T q, "
        "both divided by sqrt(K).",
    ),
    """
    not divided by sqrt(K): dq and dk are not divided by sqrt(K). Divide them by it, because the scores are divided by
        it.
        weights) / math.sqrt(q.shape[-1]) -> weights)
    divided by K: dq and dk are divided by K. They should be divided by its square root.
        weights) / math.sqrt(q.shape[-1]) -> weights) / q.shape[-1]
    scores not divided: The scores are not divided by sqrt(K) before the softmax.
        k.mT / math.sqrt(q.shape[-1]) -> k.mT
    sqrt(K) left out everywhere: Neither the scores nor dq and dk are divided by sqrt(K).
        k.mT / math.sqrt(q.shape[-1]) -> k.mT
        weights) / math.sqrt(q.shape[-1]) -> weights)
    dq not divided by sqrt(K): dq is not divided by sqrt(K).
        d_products @ k -> d_products @ k * math.sqrt(q.shape[-1])
    dk not divided by sqrt(K): dk is not divided by sqrt(K).
        d_products.mT @ q -> d_products.mT @ q * math.sqrt(q.shape[-1])
    mask ignored: The mask is not used. Pass it to masked_softmax.
        masked_softmax(q @ k.mT / math.sqrt(q.shape[-1]), mask) -> softmax(q @ k.mT / math.sqrt(q.shape[-1]))
    softmax's sum left out: dS is W * dW. Subtract the sum of dW * W over each row from dW first: use softmax_backward.
        softmax_backward(grad @ v.mT, weights) -> weights * (grad @ v.mT)
    softmax's backward left out: dW is used as dS. Pass it through softmax_backward first.
        softmax_backward(grad @ v.mT, weights) -> grad @ v.mT
    softmax's diagonal only: dS is W (1 - W) dW, the diagonal of the Jacobian. Use softmax_backward.
        softmax_backward(grad @ v.mT, weights) -> weights * (1 - weights) * (grad @ v.mT)
    softmax_backward's arguments exchanged: The arguments of softmax_backward are exchanged. They should be dW and W.
        softmax_backward(grad @ v.mT, weights) -> softmax_backward(weights, grad @ v.mT)
    softmax_backward of the scores: softmax_backward is applied to the scores. It should be applied to the weights,
        W = softmax(S).
        softmax_backward(grad @ v.mT, weights) -> softmax_backward(grad @ v.mT, q @ k.mT / math.sqrt(q.shape[-1]))
    dv from the scores: dv is S^T grad, from the scores. It should be W^T grad, with W = softmax(S).
        weights.mT @ grad -> (q @ k.mT / math.sqrt(q.shape[-1])).mT @ grad
    softmax left out: The scores are used as the weights everywhere. The weights should be W = softmax(S).
        masked_softmax(q @ k.mT / math.sqrt(q.shape[-1]), mask) -> q @ k.mT / math.sqrt(q.shape[-1])
    scores divided by K: The scores are divided by K before the softmax. They should be divided by its square root.
        k.mT / math.sqrt(q.shape[-1]) -> k.mT / q.shape[-1]
    divided by K everywhere: The scores, dq and dk are divided by K. They should be divided by its square root.
        k.mT / math.sqrt(q.shape[-1]) -> k.mT / q.shape[-1]
        weights) / math.sqrt(q.shape[-1]) -> weights) / q.shape[-1]
    dq and dk exchanged: dk is returned before dq. The order should be dq, dk and dv.
        d_products @ k, d_products.mT @ q, -> d_products.mT @ q, d_products @ k,
    dv first: dv is returned first. The order should be dq, dk and dv.
        d_products @ k, d_products.mT @ q, weights.mT @ grad -> weights.mT @ grad, d_products @ k, d_products.mT @ q
    dS not transposed: dk is dS q. It should be dS^T q.
        d_products.mT @ q -> d_products @ q
    dS transposed in dq: dq is dS^T k. It should be dS k.
        d_products @ k -> d_products.mT @ k
    dk from k: dk is dS^T k. It should be dS^T q.
        d_products.mT @ q -> d_products.mT @ k
    dq from q: dq is dS q. It should be dS k.
        d_products @ k -> d_products @ q
    q and k exchanged: dq is dS q and dk is dS^T k. They should be dS k and dS^T q.
        d_products @ k -> d_products @ q
        d_products.mT @ q -> d_products.mT @ k
    weights not transposed: dv is W grad. It should be W^T grad.
        weights.mT @ grad -> weights @ grad
    dv is grad: dv is grad. It should be W^T grad.
        weights.mT @ grad -> grad
    v not transposed: dW is grad v. It should be grad v^T.
        grad @ v.mT -> grad @ v
    dW transposed: dW is v grad^T. It should be grad v^T.
        grad @ v.mT -> v @ grad.mT
    """,
    values=("dq", "dk", "dv"),
    optional="mask",
)


# --- multi-head attention ---------------------------------------------------------------------------------------------------


def _small(layer: dict[str, Any], factor: int = 4) -> dict[str, Any]:
    """Returns a layer in which softmax does not saturate, so that query and key have gradients."""
    attention = {
        name: {"weight": each["weight"] / factor, "bias": each["bias"]} for name, each in layer["attention"].items()
    }
    return {**layer, "attention": attention}


def _multi_head_cases() -> list[tuple[Any, ...]]:
    small, wide = (_small(layer_weights(seed, *sizes))["attention"] for seed, sizes in ((1, (2, 3)), (10, (6, 7))))
    return [
        (array([[1, 0], [0, 2]]), array([[1, 2], [2, 0]]), array([[1, 2], [2, 0]]), True, 1, *small.values()),
        (drawn(1, 4, 6), drawn(2, 4, 6), drawn(2, 4, 6), np.tri(4, dtype=bool), 2, *wide.values()),
        (drawn(3, 2, 3, 6), drawn(4, 2, 3, 6), drawn(5, 2, 4, 6), True, 3, *wide.values()),
    ]


MULTI_HEAD_BACKWARD = Exercise(
    "multi_head_attention_backward",
    _multi_head_cases,
    (
        "Compute q, k and v, split into heads, and the combined heads again. Then go backward through the same steps.",
        "Each of split_heads and combine_heads is the backward of the other. linear_backward(d_combined, x, **layer) "
        "gives the gradients of a linear layer and of its input.",
        "d_combined comes from the output layer, and dq, dk, dv from scaled_dot_product_attention_backward of its "
        "heads. dx comes through query, and dsource is the sum of the parts through key and value. Return dx, dsource and "
        'a dict of "query", "key", "value" and "output".',
    ),
    """
    query's part left out: dx is 0. It should be the part that comes through query.
        return dx, -> return 0 * dx,
    key's part left out: dsource lacks the part that comes through key.
        from_key + from_value -> from_value
    value's part left out: dsource lacks the part that comes through value.
        from_key + from_value -> from_key
    value's part alone: dsource has the part that comes through value only, and dx is 0. The parts through query and key
        are missing.
        return dx, from_key + from_value, -> return 0 * dx, from_value,
    query and key exchanged: The gradients of query and key are exchanged.
        linear_backward(combine_heads(dq) -> linear_backward(combine_heads(dk)
        linear_backward(combine_heads(dk) -> linear_backward(combine_heads(dq)
    query and value exchanged: The gradients of query and value are exchanged. The backward of attention returns dq, dk,
        dv.
        linear_backward(combine_heads(dq) -> linear_backward(combine_heads(dv)
        linear_backward(combine_heads(dv) -> linear_backward(combine_heads(dq)
    key and value exchanged: The gradients of key and value are exchanged. The backward of attention returns dq, dk and
        dv.
        linear_backward(combine_heads(dk) -> linear_backward(combine_heads(dv)
        linear_backward(combine_heads(dv) -> linear_backward(combine_heads(dk)
    output layer skipped: The gradient does not go through the output layer on its way to the heads.
        split_heads(d_combined, n_heads), -> split_heads(grad, n_heads),
    gradient of output from x: linear_backward of output gets x. It should get the input of that layer, the combined
        heads.
        linear_backward(grad, combined, -> linear_backward(grad, x,
    mask left out: The mask is not passed to the backward of attention.
        n_heads), q, k, v, mask) -> n_heads), q, k, v, True)
    mask left out: The mask is passed neither to attention nor to its backward.
        attention(q, k, v, mask) -> attention(q, k, v)
        n_heads), q, k, v, mask) -> n_heads), q, k, v, True)
    not split into heads: Queries, keys and values are not split, so there is one head with the whole width.
        split_heads(each, n_heads) -> split_heads(each, 1)
        split_heads(d_combined, n_heads), -> split_heads(d_combined, 1),
    """,
    values=("dx", "dsource", "gradients"),
    optional="mask",
)


# --- layer ------------------------------------------------------------------------------------------------------------


def _layer_cases() -> list[tuple[Any, ...]]:
    small, wide = (_small(layer_weights(seed, *sizes)) for seed, sizes in ((1, (2, 3)), (10, (6, 7))))
    return [
        (array([[1, 0], [0, 2]]), array([[1, 3], [2, 0]]), True, 1, relu, 0.25, *small.values()),
        (drawn(1, 4, 6), drawn(2, 4, 6), np.tri(4, dtype=bool), 2, gelu, 1e-12, *wide.values()),
        (drawn(3, 2, 3, 6), drawn(4, 2, 3, 6), True, 3, gelu, 0.01, *wide.values()),
    ]


ENCODER_LAYER_BACKWARD = Exercise(
    "encoder_layer_backward",
    _layer_cases,
    (
        "Compute the input of each norm and of each block again: x + attention, y, and y + FFN(y). Then go backward.",
        "Both addends of a sum get its gradient: the gradient of y is the sum's gradient plus the gradient from "
        "feed_forward_backward.",
        "layer_norm_backward of the last norm gives d_sum. d_sum, plus the gradient from feed_forward_backward(d_sum, "
        "y, ...), goes through the first norm, and the result, d_total, through multi_head_attention_backward. dx is "
        "d_total plus the two gradients that it returns, because x is also its source.",
    ),
    """
    first residual left out: dx lacks the part that comes directly through the sum x + attention.
        return d_total + as_query + as_source, -> return as_query + as_source,
    first residual counted twice: The part of dx that comes directly through the sum x + attention is added twice.
        return d_total + as_query + as_source, -> return 2 * d_total + as_query + as_source,
    attention's part left out: dx lacks the part that comes through attention.
        return d_total + as_query + as_source, -> return d_total,
    second residual left out: The gradient of y lacks the part that comes directly through the sum y + FFN(y).
        d_sum + through_ffn, -> through_ffn,
    second residual counted twice: The part of the gradient of y that comes directly through the sum y + FFN(y) is added
        twice.
        d_sum + through_ffn, -> 2 * d_sum + through_ffn,
    feed-forward network's part left out: The gradient of y lacks the part that comes through the feed-forward network.
        d_sum + through_ffn, -> d_sum,
    keys' and values' part left out: dx lacks the part that comes through keys and values, the gradient of source.
        return d_total + as_query + as_source, -> return d_total + as_query,
    sum x + attention left out: The input of the first norm is attention, without x. It should be x + attention.
        total = x + multi_head_attention -> total = multi_head_attention
    sum x + attention left out: The input of the first norm is attention, without x, and dx lacks the part that comes
        through that sum.
        total = x + multi_head_attention -> total = multi_head_attention
        return d_total + as_query + as_source, -> return as_query + as_source,
    first norm's backward of y: The first layer_norm_backward gets y, the output of the norm. It should get the norm's
        input, x + attention.
        d_sum + through_ffn, total, -> d_sum + through_ffn, y,
    second norm's backward of the output: The last layer_norm_backward gets the output of the norm. It should get the
        norm's input, y + FFN(y).
        y + feed_forward(y, activation, **ffn), -> layer_norm(y + feed_forward(y, activation, **ffn), **ffn_norm, eps=eps),
    second norm's backward of y: The last layer_norm_backward gets y. It should get the norm's input, y + FFN(y).
        y + feed_forward(y, activation, **ffn), -> y,
    gradients of attention from y: multi_head_attention_backward gets y. It should get its input, x.
        multi_head_attention_backward(d_total, x, x, -> multi_head_attention_backward(d_total, y, y,
    gradients of the feed-forward network from x: feed_forward_backward gets x. It should get its input, y.
        feed_forward_backward(d_sum, y, -> feed_forward_backward(d_sum, x,
    gradients of the feed-forward network from x + attention: feed_forward_backward gets x + attention, before the norm.
        It should get y.
        feed_forward_backward(d_sum, y, -> feed_forward_backward(d_sum, total,
    second norm's backward left out: The gradient does not go through the layer_norm_backward of the last norm.
        feed_forward_backward(d_sum, y, -> feed_forward_backward(grad, y,
        d_sum + through_ffn, -> grad + through_ffn,
    first norm's backward left out: The gradient does not go through the layer_norm_backward of the first norm on its
        way to x and attention.
        multi_head_attention_backward(d_total, -> multi_head_attention_backward(d_sum + through_ffn,
        return d_total + as_query + as_source, -> return d_sum + through_ffn + as_query + as_source,
    first norm's backward left out before attention: The gradient does not go through the layer_norm_backward of the
        first norm on its way to attention. It does on its way to x.
        multi_head_attention_backward(d_total, -> multi_head_attention_backward(d_sum + through_ffn,
    first norm's backward left out before x: The gradient does not go through the layer_norm_backward of the first norm
        on its way to x. It does on its way to attention.
        return d_total + as_query + as_source, -> return d_sum + through_ffn + as_query + as_source,
    norms exchanged: attention_norm and ffn_norm are exchanged in the backward of the norms.
        **ffn), **ffn_norm, -> **ffn), **attention_norm,
        d_sum + through_ffn, total, **attention_norm, -> d_sum + through_ffn, total, **ffn_norm,
    gradients of the norms exchanged: The gradients of attention_norm and ffn_norm are exchanged.
        "attention_norm": d_attention_norm -> "attention_norm": d_ffn_norm
        "ffn_norm": d_ffn_norm -> "ffn_norm": d_attention_norm
    mask left out: The mask is not passed to multi_head_attention_backward.
        multi_head_attention_backward(d_total, x, x, mask, -> multi_head_attention_backward(d_total, x, x, True,
    eps not passed on: eps is not passed to the backward of the norms, whose default is 1e-5. Write eps=eps.
        **ffn), **ffn_norm, eps=eps -> **ffn), **ffn_norm
        d_sum + through_ffn, total, **attention_norm, eps=eps -> d_sum + through_ffn, total, **attention_norm
    """,
    values=("dx", "gradients"),
    optional="mask",
)


# --- the whole classifier ---------------------------------------------------------------------------------------------


def _whole_cases() -> list[tuple[Any, ...]]:
    return [
        (array([1, -1, 0]), np.array([1, 3]), np.arange(2), True, 1, relu, 1e-12, *_classifier(1, 1).values()),
        (drawn(1, 3), np.array([2, 0, 2, 4]), np.arange(1, 5), True, 2, gelu, 1e-12, *_classifier(20, 2).values()),
        (
            drawn(2, 2, 3),
            np.array([[3, 3, 1], [0, 5, 2]]),
            np.arange(3),
            True,
            2,
            gelu,
            0.01,
            *_classifier(40, 2).values(),
        ),
    ]


def _classifier(seed: int, n_layers: int) -> dict[str, Any]:
    weights = tiny_classifier(seed, n_layers=n_layers)
    return {**weights, "layers": [_small(layer) for layer in weights["layers"]]}


DISTILBERT_BACKWARD = Exercise(
    "distilbert_backward",
    _whole_cases,
    (
        "Keep the input of every layer in the forward pass. Then go backward through the same steps in reverse order.",
        "Only the first row of each text has a gradient, so start with zeros like the last rows and set [..., 0, :]. "
        "stack_backward goes through the layers, and embed_backward through the embeddings.",
        "Call linear_backward for the head, relu_backward, linear_backward for the pooler, stack_backward(dx, xs, "
        "layers, encoder_layer_backward, mask, n_heads, activation, eps) and embed_backward, in this order. Return a "
        "dict with the keys of the weights.",
    ),
    """
    gradient in every row: Every row of the last layer gets the gradient. Only the first row of a text should have one,
        because the pooler reads no other.
        dx[..., 0, :] = d_first -> dx[...] = d_first[..., None, :]
    gradient in the last row: The last row of a text gets the gradient. The first row should get it.
        dx[..., 0, :] = d_first -> dx[..., -1, :] = d_first
    gradient in the first text: dx[0] is the first text of a batch. The first row of every text is dx[..., 0, :].
        dx[..., 0, :] = d_first -> dx[0] = d_first
    relu's backward left out: The gradient does not go through relu_backward.
        relu_backward(d_pooled, dense) -> d_pooled
    relu's backward of the pooled row: The head reads the row before relu. It should read relu(dense).
        relu(dense), **head -> dense, **head
    gradient of the pooler from all rows: linear_backward of the pooler gets the mean of the rows. It should get the
        first row, which the pooler reads.
        dense), xs[-1][..., 0, :], **pooler -> dense), xs[-1].mean(axis=-2), **pooler
    layers left out: The gradient does not go through the layers on its way to the embeddings.
        embed_backward(dx, total, -> embed_backward(np.zeros_like(dx) + d_first[..., None, :] * (np.arange(dx.shape[-2]) == 0)[:, None], total,
    positions by token id: The gradient of the position table is in the rows of the token ids. It should be in the rows
        of positions.
        total, ids, positions, eps, -> total, ids, ids, eps,
    positions ignored: The gradient of the position table is in the rows 0, 1, ... It should be in the rows of
        positions.
        total, ids, positions, eps, -> total, ids, np.arange(ids.shape[-1]), eps,
    position table left out: The gradient of the position table is 0.
        return {"embeddings": d_embeddings, -> d_embeddings["position"]["weight"] *= 0; return {"embeddings": d_embeddings,
    token table left out: The gradient of the token table is 0.
        return {"embeddings": d_embeddings, -> d_embeddings["token"]["weight"] *= 0; return {"embeddings": d_embeddings,
    embed_backward of the normalized rows: embed_backward gets the normalized rows. It should get total, the sum of the
        two tables' rows.
        embed_backward(dx, total, -> embed_backward(dx, xs[0],
    layers in reverse order: The gradients of the layers are in reverse order.
        "layers": d_layers, -> "layers": d_layers[::-1],
    sign: The gradients have the opposite sign.
        linear_backward(grad, relu -> linear_backward(-grad, relu
    """,
)
