"""Chapter 6, a step of the decoder."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from npformer.functions import softmax
from npformer.learn import right
from npformer.learn.chapters.decoder_with_cache import drawn_cache
from npformer.learn.exercise import Constant, Exercise, Slip, drawn, layer_weights, norm_weights
from npformer.learn.right import layer_norm

Array = np.ndarray


def tiny_decoder(narrow: float = 1.0) -> dict[str, Any]:
    """A model with 2 layers and width 6, weights structured like those of GPT-2, and embeddings divided by narrow."""
    return {
        "embeddings": {
            "token": {"weight": (drawn(1, 6, 6) / narrow).astype(np.float32)},
            "position": {"weight": (drawn(2, 9, 6) / narrow).astype(np.float32)},
        },
        "layers": [layer_weights(10, 6, 7), layer_weights(30, 6, 7)],
        "norm": norm_weights(50, 6),
        "head": {"output": {"weight": drawn(60, 6, 6)}},
    }


def _step_cases() -> list[tuple[Any, ...]]:
    caches = [drawn_cache(seed, 3, 5, 2) for seed in (70, 80)]  # 5 tokens, 3 heads, 2 layers: all sizes differ
    return [
        (np.array([5, 1, 0]), 3, tiny_decoder()),
        (np.array([2]), 3, tiny_decoder(), caches),
        (np.array([4, 4, 3]), 3, tiny_decoder(), caches),
        (np.array([0, 1]), 3, _faint(tiny_decoder())),
    ]


def _faint(weights: Any) -> Any:
    """The model with rows so small that eps of the last norm matters."""
    layers = []
    for layer in weights["layers"]:
        faint = {name: {key: array * 0 for key, array in each.items()} for name, each in layer["attention"].items()}
        ffn = {name: {key: array * 0 for key, array in each.items()} for name, each in layer["ffn"].items()}
        layers.append({**layer, "attention": faint, "ffn": ffn})
    return {**weights, "embeddings": tiny_decoder(300.0)["embeddings"], "layers": layers}


def _step(
    ids: Array,
    h: int,
    w: Any,
    caches: Any = None,
    *,
    start: Any = lambda earlier, n: earlier,
    earlier: Any = lambda caches: caches[0][0].shape[1],
    row: Any = -1,
    norm: bool = True,
    eps: float = 1e-5,
    of_layer: Any = lambda caches, i: caches[i],
    order: int = 1,
    after: Any = lambda logits: logits,
    keep: Any = lambda new, caches: new,
) -> tuple[Any, Any]:
    """`right.decoder_step` with one of its steps replaced."""
    cached = 0 if caches is None else earlier(caches)
    tables, new = w["embeddings"], []
    x = right.embeddings(ids, tables["token"]["weight"], tables["position"]["weight"], start(cached, len(ids)))
    for i, layer in enumerate(w["layers"][::order]):
        x, cache = right.decoder_layer(x, h, None if caches is None else of_layer(caches, i), **layer)
        new.append(cache)
    x = layer_norm(x, **w["norm"], eps=eps) if norm else x
    return after(x[row] @ w["head"]["output"]["weight"]), keep(new, caches)


DECODER_STEP = Exercise(
    "decoder_step",
    right.decoder_step,
    _step_cases,
    (
        "The number of earlier tokens is shape[1] of the cached keys of a layer, or 0 without caches. "
        "Pass it to embeddings as start.",
        "zip(weights['layers'], caches) pairs layers and caches. Collect the new cache of each layer in a list.",
        "Apply embeddings, each decoder_layer with its cache, and layer_norm with weights['norm'] and eps 1e-5. "
        "Multiply the last row by the head's weight.",
    ),
    ("npformer.learn.right:decoder_step", "npformer.plain.gpt2:gpt2"),
    (
        Slip(
            "positions start at 0",
            "The positions of the new tokens begin at 0. They should continue after the cached tokens.",
            partial(_step, start=lambda earlier, n: 0),
        ),
        Slip(
            "number of heads instead of cached tokens",
            "The first position is H, from the shape (H, S, K) of the cached keys. It should be S.",
            partial(_step, earlier=lambda caches: caches[0][0].shape[0]),
        ),
        Slip(
            "number of layers instead of cached tokens",
            "The first position is the number of caches, one for each layer. It should be S, from the shape (H, S, K) "
            "of the cached keys.",
            partial(_step, earlier=len),
        ),
        Slip(
            "positions from 1",
            "The first token of a text has position 1 here. It should have position 0.",
            partial(_step, start=lambda earlier, n: earlier + 1),
        ),
        Slip(
            "positions one too high after a cache",
            "After a cache of S tokens, the next position here is S + 1. It should be S, because positions are "
            "counted from 0.",
            partial(_step, start=lambda earlier, n: earlier + (earlier > 0)),
        ),
        Slip(
            "positions one too low after a cache",
            "After a cache of S tokens, the next position here is S - 1. It should be S.",
            partial(_step, start=lambda earlier, n: max(0, earlier - 1)),
        ),
        Slip(
            "first row",
            "The logits are those of the first row. They should be those of the last row.",
            partial(_step, row=0),
        ),
        Slip(
            "every row",
            "The logits of every row are returned. Return those of the last row.",
            partial(_step, row=slice(None)),
        ),
        Slip(
            "token table instead of the head",
            'The logits are computed with the token table. Use weights["head"]["output"]["weight"].',
            lambda ids, h, w, caches=None: _step(
                ids, h, {**w, "head": {"output": {"weight": w["embeddings"]["token"]["weight"].T}}}, caches
            ),
        ),
        Slip("last norm left out", "The last norm is not applied.", partial(_step, norm=False)),
        Slip("eps is 1e-12", "eps of the last norm is 1e-12. It should be 1e-5.", partial(_step, eps=1e-12)),
        Slip(
            "caches not passed on",
            "The caches are not passed to the layers.",
            lambda *a: _step(*a, of_layer=lambda caches, i: None),
        ),
        Slip(
            "first layer's cache for all layers",
            "Every layer is given the cache of the first layer. Pass each layer its own cache.",
            lambda *a: _step(*a, of_layer=lambda caches, i: caches[0]),
        ),
        Slip(
            "caches in reverse order",
            "The caches are passed to the layers in reverse order.",
            lambda *a: _step(*a, of_layer=lambda caches, i: caches[-1 - i]),
        ),
        Slip(
            "old caches returned",
            "The old caches are returned. Return the caches with the new tokens.",
            partial(_step, keep=lambda new, caches: caches),
        ),
        Slip("layers reversed", "The layers are applied from the last to the first.", partial(_step, order=-1)),
        Slip(
            "probabilities instead of logits",
            "softmax is applied to the result. Return the logits.",
            partial(_step, after=softmax),
        ),
        Slip(
            "word instead of logits",
            "The most likely word is returned. Return the logits.",
            partial(_step, after=np.argmax),
        ),
    ),
    values=("logits", "caches"),
    optional="caches",
    constants=(
        Constant(
            "wrong eps",
            "eps of the last norm is {number}. It should be 1e-5.",
            lambda number: partial(_step, eps=number),
            (1e-6, 1e-3),
        ),
    ),
)
