"""The known mistakes of ports, each as a change to npformer's own forward pass.

A mistake takes a `Port`, the correct model, and yields ports with the mistake, one for each way to make it.
`diagnose.py` runs them; a new mistake is a function and a line in `MISTAKES`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from npformer.attention import combine_heads, split_heads
from npformer.checkpoint.tree import parameters
from npformer.config import Config
from npformer.functions import softmax
from npformer.interpret.edit import Change
from npformer.runtime.packing import Text

SCORES = "layers.*.attention.scores"
MOST = 40  # weights that are tried one by one


@dataclass(frozen=True)
class Port:
    """A forward pass to change: its config, weights, texts and edits, and the stage to explain."""

    config: Config
    weights: Mapping[str, np.ndarray]  # flat
    texts: list[Text]
    groups: tuple[str, ...]  # groups of weights that the stage depends on directly
    stage: str  # the stage to explain
    theirs: list[np.ndarray]  # the other program's values of it
    width: int  # tokens of a text in the other program's batch, padding included
    edits: tuple[Callable[[], Mapping[str, Change]], ...] = ()  # functions, as an edit with state is made for each run
    from_ids: bool = False  # whether the stage is computed from the token ids, not from their stages

    def editing(self, make: Callable[[], Mapping[str, Change]]) -> Port:
        return replace(self, edits=(*self.edits, make))

    def weighing(self, changes: Mapping[str, np.ndarray]) -> Port:
        return replace(self, weights={**self.weights, **changes})


Ways = Iterator[tuple[str, Port]]  # the ways to make a mistake: a description of each, and the port


class Mistake(NamedTuple):
    name: str
    explanation: str
    ways: Callable[[Port], Ways]


# --- activation and layer norm -----------------------------------------------------------------------------------


def tanh_gelu(port: Port) -> Ways:
    yield from _other_gelu(port, "gelu", "gelu_tanh")


def erf_gelu(port: Port) -> Ways:
    yield from _other_gelu(port, "gelu_tanh", "gelu")


def _other_gelu(port: Port, right: str, wrong: str) -> Ways:
    """Replaces the activation wherever the model uses it: in the layers, and in the pooler of some families."""
    found: dict[str, Any] = {name: wrong for name in ("activation", "pooler") if getattr(port.config, name) == right}
    if found:
        yield "", replace(port, config=replace(port.config, **found))


def other_activation(port: Port) -> Ways:
    for name in {"relu", "silu", "gelu"} - {port.config.activation, port.config.activation.removesuffix("_tanh")}:
        yield f"{name} for {port.config.activation}", replace(port, config=replace(port.config, activation=name))


def other_eps(port: Port) -> Ways:
    for eps in (1e-5, 1e-6, 1e-12, 1e-3, 1e-8):
        if eps != port.config.eps:
            yield f"{eps:g} for {port.config.eps:g}", replace(port, config=replace(port.config, eps=eps))


def unbiased_variance(port: Port) -> Ways:
    """Var D / (D - 1) in place of Var; the same as multiplying the norm's weight by sqrt((D - 1) / D)."""
    norms = {name: weight for name, weight in port.weights.items() if name.endswith("norm.weight")}
    yield "", port.weighing({name: weight * math.sqrt(1 - 1 / len(weight)) for name, weight in norms.items()})


def pre_norm(port: Port) -> Ways:
    """Y = X + Attention(Normalize(X)); Z = Y + FFN(Normalize(Y))."""
    yield "", replace(port, config=replace(port.config, norm_first=True))


# --- weights -----------------------------------------------------------------------------------------------------


def transposed_weight(port: Port) -> Ways:
    """Reads the numbers of a weight stored as (out, in) in the order of (in, out)."""
    known = parameters(port.config)
    linear = [name for name in (f"{group}.weight" for group in port.groups) if known[name].transposed]
    wrong = {name: port.weights[name].T.reshape(port.weights[name].shape) for name in linear}
    yield from _each_and_all(port, wrong)


def missing_bias(port: Port) -> Ways:
    names = [f"{group}.bias" for group in port.groups if f"{group}.bias" in port.weights]
    yield from _each_and_all(port, {name: np.zeros_like(port.weights[name]) for name in names})


def _each_and_all(port: Port, wrong: Mapping[str, np.ndarray]) -> Ways:
    for name in list(wrong)[-MOST:]:
        yield name, port.weighing({name: wrong[name]})
    if len(wrong) > 1:
        yield "all of them", port.weighing(wrong)


def swapped_query_key(port: Port) -> Ways:
    exchanged: dict[str, np.ndarray] = {}
    for name, array in port.weights.items():
        if ".query." in name:
            exchanged |= {name: port.weights[name.replace(".query.", ".key.")], name.replace(".query.", ".key."): array}
    yield "their weights", port.weighing(exchanged)
    yield "K Q^T for Q K^T", port.editing(lambda: {SCORES: lambda scores: scores.swapaxes(-1, -2)})


# --- attention ---------------------------------------------------------------------------------------------------


def unscaled(port: Port) -> Ways:
    yield from _scaled(port, math.sqrt(port.config.d_head))


def doubly_scaled(port: Port) -> Ways:
    yield from _scaled(port, 1 / math.sqrt(port.config.d_head))


def scaled_by_model(port: Port) -> Ways:
    if port.config.n_heads > 1:
        yield from _scaled(port, 1 / math.sqrt(port.config.n_heads))


def _scaled(port: Port, factor: float) -> Ways:
    yield "", port.editing(lambda: {SCORES: lambda scores: scores * scores.dtype.type(factor)})


def softmax_axis(port: Port) -> Ways:
    for axis, over in ((-2, "over the queries"), (-3, "over the heads")):
        yield over, port.editing(partial(_weighing_along, axis))


def _weighing_along(axis: int) -> dict[str, Change]:
    waiting = deque[np.ndarray]()  # the scores of each text, until its weights are computed

    def keep(scores: np.ndarray) -> np.ndarray:
        waiting.append(scores.copy())
        return scores

    return {SCORES: keep, "layers.*.attention.weights": lambda _: softmax(waiting.popleft(), axis=axis)}


def heads_not_transposed(port: Port) -> Ways:
    """Reshapes (L, D) to (H, L, K), and back, without the transpose from (L, H, K)."""
    heads = port.config.n_heads

    def splitting() -> dict[str, Change]:
        return {"layers.*.attention.*_heads": lambda x: combine_heads(x).reshape(x.shape)}

    def combining() -> dict[str, Change]:
        return {"layers.*.attention.combined": lambda x: split_heads(x, heads).copy().reshape(x.shape)}

    yield "when splitting", port.editing(splitting)
    yield "when combining", port.editing(combining)
    yield "when splitting and combining", port.editing(splitting).editing(combining)


def mask_ignored(port: Port) -> Ways:
    """Attends to padding: makes every text as long as the batch, with id 0 after its end."""
    if any(len(text) < port.width <= port.config.max_length for text in port.texts):
        yield "", replace(port, texts=[_longer(text, port.width) for text in port.texts], from_ids=True)


def _longer(text: Text, width: int) -> Text:
    ids, segments = (np.zeros(width, np.int64) for _ in range(2))
    ids[: len(text)] = text.ids
    if text.segments is not None:
        segments[: len(text)] = text.segments
    return Text(ids, segments)


# --- inputs ------------------------------------------------------------------------------------------------------


def positions_off(port: Port) -> Ways:
    for step in (1, 2):
        texts = [replace(text, positions=_positions(text) + step) for text in port.texts]
        if all(_positions(text).max() < port.config.max_length for text in texts):
            yield f"from {step}", replace(port, texts=texts)


def _positions(text: Text) -> np.ndarray:
    return np.arange(len(text)) if text.positions is None else text.positions


def segments_ignored(port: Port) -> Ways:
    if port.config.reads_token_types:
        yield "all are 0", replace(port, texts=[replace(text, segments=None) for text in port.texts])
        table = "embeddings.segment.weight"
        yield "none is added", port.weighing({table: np.zeros_like(port.weights[table])})


def other_ids(port: Port) -> Ways:
    """Finds the ids whose rows of the token table are nearest to theirs."""
    if port.stage == "embeddings.token":
        rows = port.weights["embeddings.token.weight"]
        sizes = np.vecdot(rows, rows)  # |e - row|^2 is smallest where |row|^2 / 2 - e row is
        ids = [np.argmin(sizes / 2 - array @ rows.T, axis=-1) for array in port.theirs]
        texts = [replace(text, ids=each) for text, each in zip(port.texts, ids, strict=True)]
        yield f"{ids[0].tolist()!s:.60}", replace(port, texts=texts)


# --- precision ---------------------------------------------------------------------------------------------------


def half(kind: str, array: np.ndarray) -> np.ndarray:
    """Rounds to float16 or bfloat16, to nearest with ties to even, and converts back to the array's dtype."""
    if kind == "float16":
        with np.errstate(over="ignore"):
            return array.astype(np.float16).astype(array.dtype)
    bits = array.astype(np.float32).view(np.uint32)
    kept = (bits + (0x7FFF + (bits >> 16 & 1))) & np.uint32(0xFFFF0000)
    return kept.view(np.float32).astype(array.dtype)


def half_precision(port: Port) -> Ways:
    """Rounds weights and stages to 16 bits: one sample of such an error, whose size alone is compared."""
    for kind in ("float16", "bfloat16"):
        weights = {name: half(kind, array) for name, array in port.weights.items()}
        yield kind, port.weighing(weights).editing(partial(dict[str, Change], {"*": partial(half, kind)}))


MISTAKES = (
    Mistake(
        "tanh GELU for erf", "the activation is GELU's tanh approximation; this model's is the exact one", tanh_gelu
    ),
    Mistake(
        "erf GELU for tanh", "the activation is the exact GELU; this model was trained with the tanh one", erf_gelu
    ),
    Mistake("another activation", "the activation function is not this model's", other_activation),
    Mistake(
        "another layer norm eps", "libraries' default is 1e-5; BERT's models have 1e-12 in their config", other_eps
    ),
    Mistake("unbiased variance", "layer norm divides by D - 1 where it should by D", unbiased_variance),
    Mistake("transposed weight", "numbers stored (out, in) are read as (in, out), or the reverse", transposed_weight),
    Mistake("missing bias", "a bias is not added", missing_bias),
    Mistake("unscaled scores", "q k^T is not divided by sqrt(d_head)", unscaled),
    Mistake("doubly scaled scores", "q k^T is divided by sqrt(d_head) twice, perhaps once in q", doubly_scaled),
    Mistake(
        "scores scaled by sqrt(d_model)", "the width of one head, d_model / n_heads, is what counts", scaled_by_model
    ),
    Mistake(
        "softmax over the wrong axis", "each query's weights over the keys, the last axis, add up to 1", softmax_axis
    ),
    Mistake("mask ignored", "padding is attended to; its scores must be -inf before the softmax", mask_ignored),
    Mistake(
        "heads reshaped without the transpose",
        "(L, D) becomes (L, H, K) and then, transposed, (H, L, K); the same shape without it mixes tokens",
        heads_not_transposed,
    ),
    Mistake("query and key swapped", "the scores are those of keys looking for queries", swapped_query_key),
    Mistake("pre-norm for post-norm", "this model normalizes after each residual sum, not before each block", pre_norm),
    Mistake("positions off by one", "positions count from 0 here; RoBERTa's begin at 2", positions_off),
    Mistake(
        "token types ignored", "the second of two texts has token type 1, and its embedding is added", segments_ignored
    ),
    Mistake("other token ids", "these are embeddings of other tokens: another tokenizer, or another text", other_ids),
)
#: Tried when none of the above fits: the error differs between two programs, only its size is the same.
HALF_PRECISION = Mistake("half precision", "computed or accumulated in 16 bits; use float32", half_precision)
