"""Diagnoses a learner's function with `golden.diagnose`, which recognizes more mistakes than the exercises list.

The function is called with stages of a tiny model, as if it were one stage of a port. The diagnosis gets the function's
answers for two texts, and names a mistake that gives the same numbers within the error budget of the stage.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npformer.checkpoint.tree import flatten, unflatten
from npformer.common.errors import NpformerError
from npformer.families import FAMILIES
from npformer.learn import right
from npformer.learn.exercise import Function, drawn, layer_weights, linear_weights, norm_weights
from npformer.model import Model
from npformer.runtime.packing import Text

if TYPE_CHECKING:
    from npformer.golden.format import Golden

WIDTH, HEADS, HIDDEN, WORDS, PLACES, LAYERS = 12, 3, 20, 24, 16, 2
SECONDS = 1.5
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


#: Sentences for learners that replace the diagnosis's own, which are about ports.
SENTENCES = {
    "scaled by a constant": "All numbers of the answer differ from the right numbers by the same factor or offset."
}


class _OutOfTime(Exception):
    """Raised when the time for diagnoses is used up."""


class Doctor:
    """Names mistakes in functions. Its models are created when they are first needed.

    Parameters
    ----------
    seconds : float, processor time for all diagnoses together; a diagnosis without a result may exceed it
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self.left = seconds

    def answers(self, name: str, function: Function) -> list[np.ndarray] | None:
        """Returns the function's array for each text, or None if it has no stage, raises, or returns no float array."""
        if name not in QUESTIONS:
            return None
        asked, found = QUESTIONS[name], []
        model, golden = self.patient(asked.causal)
        for i, text in enumerate(golden.texts):
            given = [golden.stages[stage][i].copy() for stage in asked.given]
            try:
                answer = asked.asked(function, model.weights, text.ids, *given)
            except Exception:
                return None
            if not isinstance(answer, np.ndarray) or answer.dtype.kind != "f":
                return None
            found.append(answer.astype(np.float32))
        return found

    def cause(self, name: str, arrays: list[np.ndarray]) -> tuple[str, str]:
        """Returns the name of the mistake that reproduces these arrays, with a sentence about it, or empty strings."""
        from npformer.golden.diagnose import diagnose  # most checks need no diagnosis

        asked = QUESTIONS[name]
        model, golden = self.patient(asked.causal)
        given = {stage: golden.stages[stage] for stage in asked.given}
        ends = time.process_time() + self.left

        def until_then(_: str) -> None:
            if time.process_time() > ends:
                raise _OutOfTime

        try:
            found = diagnose(golden, {**given, asked.stage: arrays}, model, progress=until_then)
        except (NpformerError, _OutOfTime):  # NpformerError: arrays of the wrong shape
            return "", ""
        finally:
            self.left = ends - time.process_time()
        certain = [fit for fit in found.fits if fit.certain]
        if found.stage != asked.stage or not certain:
            return "", ""
        name, explanation = str(certain[0]), certain[0].mistake.explanation
        known = certain[0].mistake.name
        return known, SENTENCES.get(known, f"{name[0].upper()}{name[1:]}: {explanation}.")

    def patient(self, causal: bool) -> tuple[Model, Golden]:
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
