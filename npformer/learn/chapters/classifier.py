"""Chapter 4: pooling and the classifier, which compute the logits of a text."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from npformer.activations import gelu, relu
from npformer.functions import log_softmax, softmax
from npformer.learn import right
from npformer.learn.exercise import Exercise, Slip, array, drawn, layer_weights, linear_weights, norm_weights
from npformer.learn.right import layer_norm, linear, pool

Array = np.ndarray


# --- pool -------------------------------------------------------------------------------------------------------------


def _pool_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 2], [3, -1], [-2, 2]]), array([[2, -1], [-3, 1]]), array([3, 0])),
        (drawn(1, 5, 4), drawn(2, 4, 4), drawn(3, 4)),
        (drawn(4, 2, 4), drawn(5, 4, 4), drawn(6, 4)),
    ]


POOL = Exercise(
    "pool",
    right.pool,
    _pool_cases,
    (
        "x[0] is the row of the first token.",
        "relu(y) is np.maximum(y, 0).",
        "Apply linear to the first row, then relu.",
    ),
    ("npformer.plain.distilbert:classify",),
    (
        Slip("last row", "The last row is read. Read the first row.", lambda x, w, b: pool(x[::-1], w, b)),
        Slip("second row", "The second row is read. Read the first row, x[0].", lambda x, w, b: pool(x[1:], w, b)),
        Slip(
            "mean of the rows",
            "The mean of all rows is read. Read the first row.",
            lambda x, w, b: pool(x.mean(0, keepdims=True), w, b),
        ),
        Slip(
            "maximum of the rows",
            "The largest number of each column is read. Read the first row.",
            lambda x, w, b: pool(x.max(0, keepdims=True), w, b),
        ),
        Slip("relu left out", "relu is not applied.", lambda x, w, b: linear(x[0], w, b)),
        Slip(
            "tanh instead of relu",
            "The activation is tanh, as in BERT. In this model, it should be relu.",
            lambda x, w, b: np.tanh(linear(x[0], w, b)),
        ),
        Slip(
            "gelu instead of relu",
            "The activation is gelu. It should be relu.",
            lambda x, w, b: gelu(linear(x[0], w, b)),
        ),
        Slip(
            "relu before the linear layer",
            "relu is applied before the linear layer. It should be applied to the output of the layer.",
            lambda x, w, b: linear(relu(x[0]), w, b),
        ),
        Slip("linear layer left out", "The linear layer is not applied.", lambda x, w, b: relu(x[0])),
        Slip("first row alone", "The first row is returned as it is.", lambda x, w, b: x[0]),
        Slip("bias left out", "The bias is not added.", lambda x, w, b: relu(x[0] @ w)),
        Slip(
            "every row",
            "Every row is returned. Read only the first row.",
            lambda x, w, b: relu(linear(x, w, b)),
        ),
        Slip(
            "weight transposed",
            "The row is multiplied by the transpose of weight.",
            lambda x, w, b: relu(x[0] @ w.T + b),
        ),
    ),
)


# --- classify ---------------------------------------------------------------------------------------------------------


def tiny_classifier() -> dict[str, Any]:
    """A model with 3 layers and width 6, and weights structured like those of DistilBERT."""
    return {
        "embeddings": {
            "token": {"weight": drawn(1, 6, 6)},
            "position": {"weight": drawn(2, 8, 6)},
            "norm": norm_weights(3, 6),
        },
        "layers": [layer_weights(seed, 6, 7) for seed in (10, 30, 70)],
        "pooler": linear_weights(50, 6, 6),
        "head": {"output": linear_weights(61, 6, 3)},
    }


def _classify(
    ids: Array,
    h: int,
    w: Any,
    *,
    start: int = 0,
    normalize: bool = True,
    eps: float = 1e-12,
    encode: Any = right.encoder,
    read: Any = right.pool,
    head: Any = linear,
    after: Any = lambda z, norm: z,
) -> Array:
    """The classifier with one of its steps replaced."""
    tables = w["embeddings"]
    x = right.embeddings(ids, tables["token"]["weight"], tables["position"]["weight"], start)
    x = layer_norm(x, **tables["norm"], eps=eps) if normalize else x
    return head(read(after(encode(x, h, w["layers"]), tables["norm"]), **w["pooler"]), **w["head"]["output"])


def _norm_per_table(ids: Array, h: int, w: Any) -> Array:
    tables = w["embeddings"]
    x = sum(
        layer_norm(right.embeddings(ids, a, b), **tables["norm"])
        for a, b in (
            (tables["token"]["weight"], 0 * tables["position"]["weight"]),
            (0 * tables["token"]["weight"], tables["position"]["weight"]),
        )
    )
    return linear(pool(right.encoder(np.asarray(x), h, w["layers"]), **w["pooler"]), **w["head"]["output"])


def _norm_of_tokens(ids: Array, h: int, w: Any) -> Array:
    tables = w["embeddings"]
    x = layer_norm(tables["token"]["weight"][ids], **tables["norm"]) + tables["position"]["weight"][: len(ids)]
    return linear(pool(right.encoder(x, h, w["layers"]), **w["pooler"]), **w["head"]["output"])


def _flat_embeddings(w: Any) -> Any:
    """The model with embeddings so small that eps matters."""
    tables = dict(w["embeddings"])
    for name in ("token", "position"):
        tables[name] = {"weight": (tables[name]["weight"] / 300).astype(np.float32)}
    return {**w, "embeddings": tables}


CLASSIFY = Exercise(
    "classify",
    right.classify,
    lambda: [
        (np.array([5, 1, 0]), 2, tiny_classifier()),
        (np.array([2, 4, 4, 3, 0]), 1, tiny_classifier()),
        (np.array([1, 3]), 2, _flat_embeddings(tiny_classifier())),
    ],
    (
        'The weights are nested dicts and lists: pass weights["layers"] to encoder as layers.',
        'embeddings takes the two arrays weights["embeddings"]["token"]["weight"] and ["position"]["weight"]. '
        'Its output goes through layer_norm with **weights["embeddings"]["norm"].',
        "Call embeddings, layer_norm, encoder, pool and linear one after another, each with its weights.",
    ),
    ("npformer.learn.right:classify", "npformer.plain.distilbert:distilbert", "npformer.plain.distilbert:classify"),
    (
        Slip(
            "norm of the embeddings left out",
            'The embeddings are not normalized. Apply weights["embeddings"]["norm"] before the first layer.',
            partial(_classify, normalize=False),
        ),
        Slip(
            "embeddings normalized twice",
            "The embeddings are normalized twice.",
            lambda ids, h, w: _classify(
                ids,
                h,
                w,
                encode=lambda x, h, layers: right.encoder(layer_norm(x, **w["embeddings"]["norm"]), h, layers),
            ),
        ),
        Slip(
            "norm of the embeddings after the layers",
            'weights["embeddings"]["norm"] is applied after the encoder. It should be applied before the first layer.',
            lambda *a: _classify(*a, normalize=False, after=lambda z, norm: layer_norm(z, **norm)),
        ),
        Slip(
            "tables normalized separately",
            "The rows of tokens and positions are normalized separately. Their sum should be normalized.",
            _norm_per_table,
        ),
        Slip(
            "positions added after the norm",
            "The positions are added after the norm. The sum of tokens and positions should be normalized.",
            _norm_of_tokens,
        ),
        Slip(
            "eps is 1e-5",
            "eps of the embeddings' norm is 1e-5. It should be 1e-12.",
            partial(_classify, eps=1e-5),
        ),
        Slip(
            "positions from 1",
            "The first token has position 1 here. It should have position 0.",
            partial(_classify, start=1),
        ),
        Slip(
            "pooler left out",
            "The last linear layer reads the first row itself. It should read the output of the pooler.",
            partial(_classify, read=lambda x, weight, bias: x[0]),
        ),
        Slip(
            "pooler without relu",
            "The pooler has no relu. Use your function pool.",
            partial(_classify, read=lambda x, weight, bias: linear(x[0], weight, bias)),
        ),
        Slip(
            "last row pooled",
            "The last row is pooled. Pool the first row.",
            partial(_classify, read=lambda x, weight, bias: pool(x[::-1], weight, bias)),
        ),
        Slip(
            "mean pooled",
            "The mean of all rows is pooled. Pool the first row.",
            lambda ids, h, w: _classify(
                ids, h, w, read=lambda x, weight, bias: pool(x.mean(0, keepdims=True), weight, bias)
            ),
        ),
        Slip(
            "encoder left out",
            "The pooler reads the embeddings. It should read the output of the encoder.",
            partial(_classify, encode=lambda x, n_heads, layers: x),
        ),
        Slip(
            "layers reversed",
            "The layers are applied from the last to the first.",
            partial(_classify, encode=lambda x, n, layers: right.encoder(x, n, layers[::-1])),
        ),
        Slip(
            "only one layer",
            "Only the first layer is applied.",
            partial(_classify, encode=lambda x, n, layers: right.encoder(x, n, layers[:1])),
        ),
        Slip(
            "one head",
            "Attention has one head. It should have n_heads.",
            lambda ids, h, w: _classify(ids, 1, w),
        ),
        Slip(
            "probabilities instead of logits",
            "softmax is applied to the result. Return the logits.",
            lambda ids, h, w: softmax(_classify(ids, h, w)),
        ),
        Slip(
            "logarithms of probabilities instead of logits",
            "log softmax is applied to the result. Return the logits.",
            lambda ids, h, w: log_softmax(_classify(ids, h, w)),
        ),
        Slip(
            "label instead of logits",
            "The index of the best label is returned. Return the logits of all labels.",
            lambda ids, h, w: _classify(ids, h, w).argmax(),
        ),
        Slip(
            "last bias left out",
            "The bias of the last linear layer is not added.",
            partial(_classify, head=lambda x, weight, bias: x @ weight),
        ),
        Slip(
            "relu of the logits",
            "relu is applied to the logits.",
            lambda ids, h, w: relu(_classify(ids, h, w)),
        ),
    ),
)
