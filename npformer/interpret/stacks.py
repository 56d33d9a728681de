"""Converts every input that a view accepts (a model and a text, a trace, or plain arrays) to one form.

`Side` has the tokens on one side, `WeightStack` the attention of several layers between two sides. `view/head_view.py`
draws a stack.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.text.words import merge_pieces, piece_names, word_spans, word_text

_STAGE = re.compile(r"((?:\w+\.)*?)layers\.(\d+)\.(\w*attention)\.(\w+)")


@dataclass(frozen=True)
class Side:
    """The tokens on one side of an attention map. token_type_ids: for a pair; empty for a single text."""

    tokens: tuple[str, ...]
    token_type_ids: tuple[int, ...] = ()

    @property
    def is_pair(self) -> bool:
        return len(set(self.token_type_ids)) > 1

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The tokens for display, without the tokenizer's marks."""
        return piece_names(self.tokens)

    def words(self) -> Side:
        """Returns the side with each word's tokens merged."""
        spans = word_spans(self.tokens)
        token_type_ids = tuple(self.token_type_ids[first] for first, _ in spans) if self.token_type_ids else ()
        return Side(tuple(word_text(self.tokens[first:end]) for first, end in spans), token_type_ids)


@dataclass(frozen=True, eq=False)
class WeightStack:
    """The attention weights (H, queries, keys) of several layers, with the layers' numbers."""

    title: str
    numbers: tuple[int, ...]
    layers: tuple[np.ndarray, ...]
    queries: Side
    keys: Side

    @property
    def heads(self) -> int:
        return self.layers[0].shape[0]

    @property
    def has_pieces(self) -> bool:
        return any(len(word_spans(side.tokens)) < len(side.tokens) for side in (self.queries, self.keys))

    def words(self) -> WeightStack:
        """Returns the stack with attention between whole words."""
        spans = word_spans(self.queries.tokens), word_spans(self.keys.tokens)
        layers = tuple(merge_pieces(layer, *spans) for layer in self.layers)
        return WeightStack(self.title, self.numbers, layers, self.queries.words(), self.keys.words())


@dataclass(frozen=True)
class Sides:
    """The two sides of attention: `queries` and `keys`, which are the same in self-attention."""

    queries: Side
    keys: Side

    @property
    def distinct(self) -> list[Side]:
        """The distinct sides: one for self-attention, otherwise source and target."""
        return [self.queries] if self.keys == self.queries else [self.keys, self.queries]


def traced(source: Any, text: Any) -> Any:
    """Returns a trace of `text` if `source` is a model, or `source` itself if it has arrays."""
    if is_arrays(source):
        if text is not None:
            raise NpformerError("view: a text needs a model; arrays and traces have their own tokens")
        return source
    if text is None:
        raise NpformerError(
            "view: expected a model and a text, a trace, or arrays with tokens=; "
            f"got {type(source).__name__} alone. Call heads(model, 'some text') or heads(weights, tokens=[...])"
        )
    from npformer.interpret.traces import trace  # needed only with a model

    return trace(source, text)


def is_arrays(source: Any) -> bool:
    """Returns whether `source` is a trace, a mapping of stages or plain arrays rather than a model."""
    return is_stages(source) or isinstance(source, (np.ndarray, list, tuple))


def is_stages(source: Any) -> bool:
    """Returns whether `source` maps stage names to arrays."""
    return isinstance(source, Mapping) or (hasattr(source, "keys") and hasattr(source, "__getitem__"))


def sides(
    source: Any, tokens: Sequence[str] | None, key_tokens: Sequence[str] | None, token_type_ids: Sequence[int] | None
) -> Sides:
    """Returns the tokens of both sides: the given tokens, or else the tokens of the trace."""
    if tokens is None and key_tokens is None:
        key_tokens = getattr(source, "key_tokens", None)
    tokens = getattr(source, "tokens", None) if tokens is None else tokens
    if tokens is None:
        raise NpformerError("view: the arrays have no tokens; pass tokens=['[CLS]', ...]")
    if token_type_ids is None and key_tokens is None:
        token_type_ids = getattr(source, "token_type_ids", None)
    queries = _side("tokens", tokens, token_type_ids)
    return Sides(queries, queries if key_tokens is None else _side("key_tokens", key_tokens, None))


def _side(name: str, tokens: Sequence[str], token_type_ids: Sequence[int] | None) -> Side:
    if isinstance(tokens, str) or not all(isinstance(token, str) for token in tokens):
        raise NpformerError(
            f"view: {name}: expected the tokens of one text, a list of strings (trace each text on its own), "
            f"got {tokens!r:.80}"
        )
    ids = () if token_type_ids is None else tuple(int(segment) for segment in token_type_ids)
    if ids and len(ids) != len(tokens):
        raise NpformerError(f"view: token_type_ids: expected one for each of {len(tokens)} tokens, got {len(ids)}")
    return Side(tuple(tokens), ids)


def stage_arrays(source: Any, stage: str) -> dict[tuple[str, str], dict[int, np.ndarray]]:
    """Collects every `...layers.N.<block>.<stage>` of `source`, as {(prefix, block): {N: array}}."""
    found: dict[tuple[str, str], dict[int, np.ndarray]] = {}
    for name in source.keys():  # noqa: SIM118 (a trace need not be a Mapping)
        match = _STAGE.fullmatch(name)
        if match and match[4] == stage:
            found.setdefault((match[1], match[3]), {})[int(match[2])] = one_text(name, source[name])
    return found


def one_text(name: str, array: Any) -> np.ndarray:
    """Converts a stage to an array. Raises NpformerError for a list, as in a trace of several texts."""
    if isinstance(array, (list, tuple)):
        raise NpformerError(f"{name}: expected the trace of one text, got {len(array)}; trace each text on its own")
    return np.asarray(array)


def stacks(
    source: Any,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    token_type_ids: Sequence[int] | None = None,
) -> list[WeightStack]:
    """Returns the attention stacks of `source`: three for an encoder-decoder, else one."""
    both = sides(source, tokens, key_tokens, token_type_ids)
    if not is_stages(source):
        title = "Self-attention" if key_tokens is None else "Cross-attention"
        return [_stack(title, both.queries, both.keys, dict(enumerate(_layer_list(source))))]
    found = stage_arrays(source, "weights")
    if not found:
        raise NpformerError("view: expected a stage layers.N.attention.weights; trace the whole model, or pass arrays")
    return [_stack(*stack_title(prefix, block, both), layers) for (prefix, block), layers in found.items()]


def stack_title(prefix: str, block: str, both: Sides) -> tuple[str, Side, Side]:
    """Returns a title for the attention at `<prefix>layers.N.<block>`, and the sides of queries and keys."""
    if "cross" in block:
        return "Cross-attention", both.queries, both.keys
    if "encoder" in prefix.split("."):
        return "Encoder self-attention", both.keys, both.keys
    title = "Decoder self-attention" if "decoder" in prefix.split(".") else "Self-attention"
    return title, both.queries, both.queries


def _layer_list(weights: Any) -> list[np.ndarray]:
    """Splits weights into layers: (L, L), (H, L, L), (N, H, L, L), or a list of (H, L, L) or (1, H, L, L)."""
    if isinstance(weights, (list, tuple)):
        layers = [np.asarray(layer) for layer in weights]
        return [layer[0] if layer.ndim == 4 and layer.shape[0] == 1 else layer for layer in layers]
    if weights.ndim == 4:
        return list(weights)
    return [weights[None] if weights.ndim == 2 else weights]


def _stack(title: str, queries: Side, keys: Side, layers: Mapping[int, np.ndarray]) -> WeightStack:
    if not layers:
        raise NpformerError(f"view: {title}: expected the weights of at least one layer")
    for number, layer in layers.items():
        _check(f"{title}, layer {number}", layer, len(queries.tokens), len(keys.tokens))
    numbers = tuple(sorted(layers))
    return WeightStack(title, numbers, tuple(layers[number] for number in numbers), queries, keys)


def _check(name: str, weights: np.ndarray, queries: int, keys: int) -> None:
    if weights.ndim != 3 or weights.shape[1:] != (queries, keys) or not weights.size:
        raise NpformerError(
            f"{name}: expected weights (heads, {queries}, {keys}) for these tokens, got {weights.shape}"
        )
    if not np.issubdtype(weights.dtype, np.floating):
        raise NpformerError(f"{name}: expected floating-point weights, got {weights.dtype}")
    low, high = float(weights.min()), float(weights.max())
    if not (low >= -1e-5 and high <= 1 + 1e-5):  # also catches NaN
        raise NpformerError(f"{name}: expected weights between 0 and 1, got {low:g} to {high:g}; are these scores?")


def pick(name: str, wanted: int, choices: Sequence[int]) -> int:
    """Returns the index of `wanted` in `choices`; a negative number counts from the end, as in Python."""
    if isinstance(wanted, int | np.integer) and -len(choices) <= wanted < 0:
        return len(choices) + int(wanted)
    if wanted not in choices:
        raise NpformerError(f"{name}={wanted}: expected one of {', '.join(map(str, choices))}")
    return list(choices).index(wanted)
