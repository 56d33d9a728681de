"""Chapter 4: an answer, from token ids to the logits of a text."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.learn.chapters.words import tables
from npformer.learn.contents import right
from npformer.learn.exercise import Exercise, array, drawn, layer_weights, linear_weights, norm_weights

gelu = right("gelu")


def tiny_classifier(seed: int = 1, labels: int = 3, n_layers: int = 3) -> dict[str, Any]:
    """Returns a model of width 6, with weights structured like those of DistilBERT."""
    return {
        "embeddings": tables(seed, 6, 8, 6) | {"norm": norm_weights(seed + 2, 6)},
        "layers": [layer_weights(seed + 20 * i, 6, 7) for i in range(1, n_layers + 1)],
        "pooler": linear_weights(seed + 90, 6, 6),
        "head": {"output": linear_weights(seed + 92, 6, labels)},
    }


def _faint(embeddings: Any) -> Any:
    """Returns the embeddings with numbers so small that the eps of their norm matters."""
    found = {name: {"weight": (embeddings[name]["weight"] / 300).astype(np.float32)} for name in ("token", "position")}
    return {**embeddings, **found}


def _distilbert_cases() -> list[tuple[Any, ...]]:
    embeddings, layers = tiny_classifier()["embeddings"], tiny_classifier()["layers"]
    padding = np.array([[[[True, True, True]]], [[[True, True, False]]]])
    return [
        (np.array([5, 1, 0]), np.arange(3), True, 2, gelu, 1e-12, embeddings, layers),
        (np.array([2, 4, 4, 3, 0]), np.arange(2, 7), np.tri(5, dtype=bool), 1, np.tanh, 0.25, embeddings, layers),
        (np.array([1, 3]), np.arange(2), True, 2, gelu, 1e-12, _faint(embeddings), layers[:1]),
        (np.array([[1, 3, 2], [4, 0, 0]]), np.arange(3), padding, 2, gelu, 1e-12, embeddings, layers[:2]),
    ]


DISTILBERT = Exercise(
    "distilbert",
    _distilbert_cases,
    (
        "embeddings is a dict with the arguments of embed after eps: embed(ids, positions, eps, **embeddings).",
        "The rows of embed are the input of the first layer.",
        "x = embed(...). Then return encoder(x, mask, n_heads, activation, eps, layers).",
    ),
    r"""
    norm of the embeddings left out: The embeddings are not normalized before the first layer. Use embed.
        embed(ids, positions, eps, **embeddings) -> embedding(ids, **embeddings["token"]) + embedding(positions, **embeddings["position"])
    embeddings normalized twice: The embeddings are normalized twice. embed normalizes them.
        embed(ids, positions, eps, **embeddings) -> layer_norm(embed(ids, positions, eps, **embeddings), **embeddings["norm"], eps=eps)
    norm of the embeddings after the layers: The norm of the embeddings is applied after the encoder. It should be
        applied before the first layer.
        embed(ids, positions, eps, **embeddings) -> embedding(ids, **embeddings["token"]) + embedding(positions, **embeddings["position"])
        return x -> return layer_norm(x, **embeddings["norm"], eps=eps)
    eps is 1e-5: eps of the embeddings' norm is 1e-5. It should be the argument eps.
        positions, eps, **embeddings -> positions, 1e-5, **embeddings
    positions from 1: The positions are one too high. Pass the argument to embed.
        embed(ids, positions, -> embed(ids, positions + 1,
    positions ignored: The positions are 0, 1, ..., although the argument positions may begin later.
        embed(ids, positions, -> embed(ids, np.arange(ids.shape[-1]),
    encoder left out: The embeddings are returned. They should pass through the layers.
        in layers: -> in layers[:0]:
    layers reversed: The layers are applied from the last to the first.
        in layers: -> in layers[::-1]:
    only one layer: Only the first layer is applied.
        in layers: -> in layers[:1]:
    every layer reads the embeddings: All layers read the embeddings, so only the last has an effect. Each layer should
        read the previous layer's output.
        in layers: -> in layers[-1:]:
    one head: Attention has one head. It should have n_heads.
        mask, n_heads, activation, eps, **layer -> mask, 1, activation, eps, **layer
    mask not passed on: The mask is not passed to the layers.
        encoder_layer(x, mask, -> encoder_layer(x, True,
    relu instead of the activation: The activation is always relu. It should be the argument activation.
        activation, eps, **layer -> relu, eps, **layer
    gelu instead of the activation: The activation is always gelu. It should be the argument activation.
        activation, eps, **layer -> gelu, eps, **layer
    wrong eps [1e-6 1e-2]: eps is {number} everywhere, regardless of the argument. Pass the argument.
        positions, eps, **embeddings -> positions, number, **embeddings
        activation, eps, **layer -> activation, number, **layer
    """,
    optional="mask",
)


# --- classify ---------------------------------------------------------------------------------------------------------


def _classify_cases() -> list[tuple[Any, ...]]:
    small = {"weight": array([[2, -1], [-3, 1]]), "bias": array([3, 0])}
    head = {"output": {"weight": array([[1, 0, 2], [0, -1, 1]]), "bias": array([0, 1, 2])}}
    wide = [(linear_weights(seed, 4, 4), {"output": linear_weights(seed + 1, 4, 4)}) for seed in (2, 5)]
    return [
        (array([[1, 2], [3, -1], [-2, 2]]), small, head),
        (drawn(1, 5, 4), *wide[0]),
        (drawn(4, 2, 4), *wide[1]),
        (drawn(5, 3, 2, 4), *wide[1]),
    ]


CLASSIFY = Exercise(
    "classify",
    _classify_cases,
    (
        "x[..., 0, :] is the row of the first token of each text. linear(row, **pooler) applies the pooler.",
        'head["output"] is a linear layer.',
        'Apply the pooler to the first row, then relu, then linear with **head["output"]. Return a dict with "logits".',
    ),
    """
    last row: The last row is read. Read the first row.
        x[..., 0, :] -> x[..., -1, :]
    second row: The second row is read. Read the first row, x[..., 0, :].
        x[..., 0, :] -> x[..., 1, :]
    mean of the rows: The mean of all rows is read. Read the first row.
        x[..., 0, :] -> x.mean(axis=-2)
    maximum of the rows: The largest number of each column is read. Read the first row.
        x[..., 0, :] -> x.max(axis=-2)
    first text: x[0] is the first text of a batch. The first row of every text is x[..., 0, :].
        x[..., 0, :] -> x[0]
    every row: Every row is read. Read only the first row.
        x[..., 0, :] -> x
    relu left out: relu is not applied.
        relu(linear(x[..., 0, :], **pooler)) -> linear(x[..., 0, :], **pooler)
    tanh instead of relu: The activation is tanh, as in BERT. In this model, it should be relu.
        relu(linear( -> np.tanh(linear(
    gelu instead of relu: The activation is gelu. It should be relu.
        relu(linear( -> gelu(linear(
    relu before the linear layer: relu is applied before the pooler's linear layer. It should be applied to the output
        of the layer.
        relu(linear(x[..., 0, :], **pooler)) -> linear(relu(x[..., 0, :]), **pooler)
    linear layer left out: The linear layer of the pooler is not applied.
        linear(x[..., 0, :], **pooler) -> x[..., 0, :]
    pooler left out: The last linear layer reads the first row itself. It should read the output of the pooler.
        relu(linear(x[..., 0, :], **pooler)) -> x[..., 0, :]
    first row alone: The first row is returned as it is.
        linear(pooled, **head["output"]) -> x[..., 0, :]
    pooled row returned: The output of the pooler is returned. It should pass through the head's output layer.
        linear(pooled, **head["output"]) -> pooled
    bias of the pooler left out: The bias of the pooler is not added.
        linear(x[..., 0, :], **pooler) -> x[..., 0, :] @ pooler["weight"]
    weight transposed: The row is multiplied by the transpose of the pooler's weight.
        linear(x[..., 0, :], **pooler) -> x[..., 0, :] @ pooler["weight"].T + pooler["bias"]
    probabilities instead of logits: softmax is applied to the result. Return the logits.
        {"logits": logits} -> {"logits": softmax(logits)}
    logarithms of probabilities instead of logits: log softmax is applied to the result. Return the logits.
        {"logits": logits} -> {"logits": np.log(softmax(logits))}
    label instead of logits: The index of the best label is returned. Return the logits of all labels.
        {"logits": logits} -> {"logits": logits.argmax(axis=-1)}
    last bias left out: The bias of the last linear layer is not added.
        linear(pooled, **head["output"]) -> pooled @ head["output"]["weight"]
    relu of the logits: relu is applied to the logits.
        {"logits": logits} -> {"logits": relu(logits)}
    """,
)
