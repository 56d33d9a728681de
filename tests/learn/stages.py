"""The stages of a tiny model that the functions of the course compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npformer.checkpoint.tree import flatten, unflatten
from npformer.families import FAMILIES
from npformer.learn import right
from npformer.learn.exercise import Function, drawn, layer_weights, linear_weights, norm_weights
from npformer.model import Model
from npformer.runtime.packing import Text

if TYPE_CHECKING:
    from npformer.golden.format import Golden

WIDTH, HEADS, HIDDEN, WORDS, PLACES, LAYERS = 12, 3, 20, 24, 16, 2
SIZES = {
    "vocab_size": WORDS,
    "d_model": WIDTH,
    "n_heads": HEADS,
    "n_layers": LAYERS,
    "d_ffn": HIDDEN,
    "max_length": PLACES,
}
TEXTS = ([5, 17, 0, 9, 17, 2, 11], [23, 3, 8, 1])


class Question(NamedTuple):
    """A stage of the model that a function of the course computes, and the stages that the function reads.

    Parameters
    ----------
    stage : name of the stage
    given : names of the stages that the function reads
    asked : calls the function with (function, model's weights, ids, arrays of `given`); returns the stage's array
    causal : bool, whether the model is the decoder
    """

    stage: str
    given: tuple[str, ...]
    asked: Callable[..., Any]
    causal: bool = False


A = "layers.0.attention."
HEADS_OF = tuple(f"{A}{name}_heads" for name in ("query", "key", "value"))
TABLES = ("token", "position")


def _rows_of(weights: Mapping[str, Any], function: Function, ids: np.ndarray) -> Any:
    """Returns the logits after each token, from one run for each prefix."""
    return np.stack([function(ids[:end], HEADS, weights)[0] for end in range(1, len(ids) + 1)])


QUESTIONS = {
    "embeddings": Question(
        "embeddings.sum", (), lambda f, w, ids: f(ids, *(w["embeddings"][name]["weight"] for name in TABLES))
    ),
    "layer_norm": Question(
        "embeddings.norm", ("embeddings.sum",), lambda f, w, ids, x: f(x, **w["embeddings"]["norm"])
    ),
    "gelu": Question("layers.0.ffn.activation", ("layers.0.ffn.hidden",), lambda f, w, ids, x: f(x)),
    "linear": Question(
        f"{A}query", ("embeddings.norm",), lambda f, w, ids, x: f(x, **w["layers"][0]["attention"]["query"])
    ),
    "softmax": Question(f"{A}weights", (f"{A}scores",), lambda f, w, ids, x: f(x)),
    "split_heads": Question(f"{A}query_heads", (f"{A}query",), lambda f, w, ids, x: f(x, HEADS)),
    "combine_heads": Question(f"{A}combined", (f"{A}context",), lambda f, w, ids, x: f(x)),
    "scaled_dot_product_attention": Question(f"{A}context", HEADS_OF, lambda f, w, ids, q, k, v: f(q, k, v)),
    "multi_head_attention": Question(
        f"{A}output", ("embeddings.norm",), lambda f, w, ids, x: f(x, HEADS, **w["layers"][0]["attention"])
    ),
    "feed_forward": Question(
        "layers.0.ffn.output",
        ("layers.0.attention_norm",),
        lambda f, w, ids, x: f(x, right.gelu, **w["layers"][0]["ffn"]),
    ),
    "encoder_layer": Question(
        "layers.0.ffn_norm", ("embeddings.norm",), lambda f, w, ids, x: f(x, HEADS, **w["layers"][0])
    ),
    "encoder": Question(
        f"layers.{LAYERS - 1}.ffn_norm", ("embeddings.norm",), lambda f, w, ids, x: f(x, HEADS, w["layers"])
    ),
    "pool": Question("pooled", (f"layers.{LAYERS - 1}.ffn_norm",), lambda f, w, ids, x: f(x, **w["pooler"])),
    "classify": Question("logits", (), lambda f, w, ids: f(ids, HEADS, w)),
    "gelu_tanh": Question("layers.0.ffn.activation", ("layers.0.ffn.hidden",), lambda f, w, ids, x: f(x), True),
    "decoder_layer": Question(
        "layers.0.ffn_residual",
        ("embeddings.sum",),
        lambda f, w, ids, x: f(x, HEADS, None, **w["layers"][0])[0],
        True,
    ),
    "decoder_step": Question("logits", (), lambda f, w, ids: _rows_of(w, f, ids), True),
}


class Patient:
    """Models with golden values, created when they are first needed."""

    def answers(self, name: str, function: Function) -> list[np.ndarray]:
        """Returns the function's array for each text."""
        asked = QUESTIONS[name]
        model, golden = self.of(asked.causal)
        return [
            asked.asked(function, model.weights, text.ids, *(golden.stages[stage][i].copy() for stage in asked.given))
            for i, text in enumerate(golden.texts)
        ]

    def of(self, causal: bool) -> tuple[Model, Golden]:
        """Returns the decoder or the encoder, with its golden values."""
        return self._decoder if causal else self._encoder

    @cached_property
    def _encoder(self) -> tuple[Model, Golden]:
        config = FAMILIES["distilbert"].config("sequence-classification", **SIZES, labels=("A", "B"))
        tree = _layers(1) | {
            "pooler": linear_weights(90, WIDTH, WIDTH),
            "head": {"output": linear_weights(91, WIDTH, 2)},
        }
        tree["embeddings"] = _tables(95) | {"norm": norm_weights(92, WIDTH)}
        return _recorded(Model(config, _scaled(tree)))

    @cached_property
    def _decoder(self) -> tuple[Model, Golden]:
        config = FAMILIES["gpt2"].config("causal-lm", **SIZES)
        tree = _layers(200) | {
            "norm": norm_weights(290, WIDTH),
            "head": {"output": {"weight": drawn(291, WIDTH, WORDS)}},
        }
        return _recorded(Model(config, _scaled({**tree, "embeddings": _tables(295)})))


def _tables(seed: int) -> dict[str, Any]:
    return {"token": {"weight": drawn(seed, WORDS, WIDTH)}, "position": {"weight": drawn(seed + 1, PLACES, WIDTH)}}


def _layers(seed: int) -> dict[str, Any]:
    return {"layers": [layer_weights(seed + 20 * i, WIDTH, HIDDEN) for i in range(LAYERS)]}


def _scaled(tree: dict[str, Any]) -> Any:
    """Scales the matrices down, because otherwise softmax would saturate and hide mistakes."""
    flat = flatten(tree)
    matrices = [name for name, array in flat.items() if array.ndim == 2 and "embeddings" not in name]
    return unflatten(flat | {name: (flat[name] / math.sqrt(len(flat[name]))).astype(np.float32) for name in matrices})


def _recorded(model: Model) -> tuple[Model, Golden]:
    from npformer.golden.record import record

    return model, record(model, [Text(np.array(ids)) for ids in TEXTS])
