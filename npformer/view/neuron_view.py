"""The neuron view: how a head computes an output, number by number, from a query, the keys and the values.

Queries, keys and values are stored as the model's own floats, so that a product on the page equals the product in
NumPy. From these, the page computes scores, weights and outputs, which keeps files small. Stages that a mask or an edit
has changed are stored too. Script: `assets/neurons.js`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from npformer.common.errors import NpformerError
from npformer.engine.attention import repeat_heads
from npformer.engine.functions import softmax
from npformer.interpret.stacks import Side, is_stages, pick, sides, stack_title, stage_arrays, traced
from npformer.text.words import printable
from npformer.view.document import View
from npformer.view.pack import Packed, pack_floats, size
from npformer.view.stack_view import elsewhere, most_telling, subtitle
from npformer.view.svg import MUTED, Sheet, signed_cells, text_width
from npformer.view.terminal import TIMES, bar, fit, row_ends

STAGES = {
    "query": "query_heads", "key": "key_heads", "value": "value_heads",
    "scores": "scores", "weights": "weights", "context": "context",
}  # fmt: skip
GIVEN = ("query", "key", "value")  # stages that are stored; the page computes the others
BUDGET = 18_000_000  # maximum characters of data; if there is more, only the selected layer or head is stored
ROUNDING = 1e-5  # tolerance for the page's computed stages, relative to the largest value


@dataclass(frozen=True, eq=False)
class NeuronArrays:
    """One kind of attention, with the six arrays of `STAGES` for each layer, (H, L, K) or (H, L, L)."""

    title: str
    numbers: tuple[int, ...]
    heads: tuple[int, ...]
    queries: Side
    keys: Side
    arrays: tuple[dict[str, np.ndarray], ...]

    def only(self, layers: Sequence[int], heads: Sequence[int]) -> NeuronArrays:
        """Returns a copy with only these layers and heads, given by index."""
        arrays = tuple({name: a[list(heads)] for name, a in self.arrays[layer].items()} for layer in layers)
        numbers = tuple(self.numbers[layer] for layer in layers)
        return NeuronArrays(
            self.title, numbers, tuple(self.heads[head] for head in heads), self.queries, self.keys, arrays
        )


def neurons(
    source: Any,
    text: Any = None,
    *,
    layer: int = 0,
    head: int = 0,
    token: int = 0,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
) -> NeuronView:
    """Draws every step from a query and the keys to the output of a head, as coloured cells with numbers.

    Parameters
    ----------
    source : Model, Trace, or mapping with the stages of `layers.N.attention`
        The stages `query_heads`, `key_heads`, `value_heads`, `scores`, `weights` and `context`.
    text : str or Pair, for a model
    layer, head, token : the selection that is printed, and shown initially; `token` is the query
    tokens, key_tokens : list of str, for a mapping
        The tokens of the queries, and of the keys if they differ, as in cross-attention.

    Returns
    -------
    NeuronView
        Displays itself in a notebook, and has the methods of `View`.

    Raises
    ------
    NpformerError
        If a stage is missing or does not fit the tokens, or there is no such layer, head or token.

    Examples
    --------
    >>> view = neurons(npformer.load("distilbert-sst2"), "time flies like an arrow", layer=0, head=8, token=2)
    >>> print(view)
    Self-attention, layer 0, head 8, from 2 flies
    score = query · key / √32, weight = softmax of the scores
    ...
    """
    parts = _parts(traced(source, text), tokens, key_tokens)
    shown = most_telling(parts)
    first = parts[shown]
    return NeuronView(
        tuple(parts),
        pick("layer", layer, first.numbers),
        pick("head", head, first.heads),
        pick("token", token, range(len(first.queries.tokens))),
        shown,
    )


def _parts(source: Any, tokens: Sequence[str] | None, key_tokens: Sequence[str] | None) -> list[NeuronArrays]:
    if not is_stages(source):
        raise NpformerError("neurons: expected a model and a text, a trace, or a mapping of stages, got plain arrays")
    both = sides(source, tokens, key_tokens, None)
    found = {name: stage_arrays(source, stage) for name, stage in STAGES.items()}
    for name, stage in STAGES.items():
        if not found[name]:
            raise NpformerError(f"neurons: stage layers.N.attention.{stage} is missing; trace the whole model")
    return [
        _part(prefix, block, {name: arrays[prefix, block] for name, arrays in found.items()}, both)
        for prefix, block in found["query"]
    ]


def _part(prefix: str, block: str, found: dict[str, dict[int, np.ndarray]], both: Any) -> NeuronArrays:
    title, queries, keys = stack_title(prefix, block, both)
    numbers = tuple(sorted(found["query"]))
    arrays = tuple({name: found[name][number] for name in STAGES} for number in numbers)
    for number, each in zip(numbers, arrays, strict=True):
        for name in ("key", "value"):  # in grouped-query attention, several query heads share each key and value
            if each[name].ndim == 3 and len(each[name]) and len(each["query"]) % len(each[name]) == 0:
                each[name] = repeat_heads(each[name], len(each["query"]))
        _check(f"{prefix}layers.{number}.{block}", each, len(queries.tokens), len(keys.tokens))
    return NeuronArrays(title, numbers, tuple(range(arrays[0]["query"].shape[0])), queries, keys, arrays)


def _check(where: str, arrays: dict[str, np.ndarray], queries: int, keys: int) -> None:
    heads, width = arrays["query"].shape[0], arrays["query"].shape[-1]
    values = arrays["value"].shape[-1]
    expected = {
        "query": (heads, queries, width), "key": (heads, keys, width), "value": (heads, keys, values),
        "scores": (heads, queries, keys), "weights": (heads, queries, keys), "context": (heads, queries, values),
    }  # fmt: skip
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise NpformerError(f"{where}.{STAGES[name]}: expected {shape} for these tokens, got {arrays[name].shape}")


@dataclass(frozen=True, repr=False, eq=False)
class NeuronView(View):
    """The view that `neurons` returns. It opens on `parts[part]`, in which `layer` and `head` are indices."""

    parts: tuple[NeuronArrays, ...]
    layer: int
    head: int
    token: int
    part: int = 0

    @property
    def _first(self) -> NeuronArrays:
        return self.parts[self.part]

    kind: ClassVar[str] = "neurons"
    scripts: ClassVar[tuple[str, ...]] = ("neuron_rows", "neurons")

    heading: ClassVar[str] = "Attention, neuron by neuron"

    @property
    def subject(self) -> str:
        return subtitle(self.parts)

    @cached_property
    def _kept(self) -> tuple[tuple[NeuronArrays, ...], list[Packed]]:
        """Returns all layers and heads if these fit into the budget, else the selected layer, or one head of it."""
        first = self._first
        layers, heads = range(len(first.numbers)), range(len(first.heads))
        for some in (self.parts, (first.only([self.layer], heads),), (first.only([self.layer], [self.head]),)):
            # Packing takes seconds. Packing reduces float32 to half the size at best, or 2/3 in base64. If even 2/3
            # exceeds the budget, packing is not tried.
            raw = sum(layer[name].nbytes for part in some for layer in part.arrays for name in GIVEN)
            if raw * 2 / 3 <= BUDGET or some[0].heads != first.heads or len(layers) == 1:
                blocks = _pack(some)
                if size(blocks) <= BUDGET:
                    break
        return some, blocks

    def _blocks(self) -> Sequence[Packed]:
        return self._kept[1]

    def _meta(self) -> dict[str, Any]:
        parts, _ = self._kept
        shown = self.part if len(parts) == len(self.parts) else 0
        first = self._first
        return {
            "parts": [
                {
                    "title": part.title, "numbers": part.numbers, "heads": part.heads,
                    "queries": {"tokens": part.queries.names}, "keys": {"tokens": part.keys.names},
                    "self": part.queries == part.keys,
                }
                for part in parts
            ],
            "shown": {
                "part": shown, "head": self.head, "token": self.token,
                "layer": parts[shown].numbers.index(first.numbers[self.layer]),
            },
            "notes": self._notes(parts[shown]),
        }  # fmt: skip

    def _notes(self, kept: NeuronArrays) -> list[str]:
        whole = self._first
        lines = [
            f"Queries, keys and values are the model's own ({whole.arrays[0]['query'].dtype}), shown to 4 decimals;",
            "scores, weights and outputs are computed from them here.",
            "Blue is negative, orange positive; colours scale with the square root of the magnitude.",
        ]
        if len(kept.numbers) < len(whole.numbers):
            head = "" if len(kept.heads) > 1 else f", head {kept.heads[0]} of {len(whole.heads)}"
            here = f"layer {kept.numbers[0]} of {len(whole.numbers)}{head}"
            lines.append(f"This text is long: the file has only {here}; select another with layer= and head=.")
        return lines

    def _height(self) -> int:
        return min(800, 360 + 26 * len(self._first.keys.tokens))

    def _chosen(self) -> tuple[NeuronArrays, dict[str, np.ndarray]]:
        """Returns the initial part, and the six arrays of the selected layer and head."""
        part = self._first
        return part, {name: array[self.head] for name, array in part.arrays[self.layer].items()}

    def _where(self) -> str:
        part = self._first
        return (
            f"{part.title}, layer {part.numbers[self.layer]}, head {self.head}, "
            f"from {self.token} {printable(part.queries.names[self.token])}"
        )

    def text(self, width: int = 80) -> str:
        """Returns a line for each key with its dot product, score and weight, followed by the output of the head."""
        part, arrays = self._chosen()
        query, scores, weights = (arrays[name][self.token] for name in ("query", "scores", "weights"))
        label, sums = min(24, max(10, width - 50)), arrays["key"] @ query
        lines = [self._where(), f"score = query · key / √{len(query)}, weight = softmax of the scores", ""]
        lines.append(f"{'attends to':{label}} {'query·key':>10} {'score':>9} {'weight':>8}")
        for i, name in enumerate(part.keys.names):
            numbers = f"{sums[i]:>z10.4f} {scores[i]:>z9.4f} {weights[i]:>z8.4f}"
            lines.append(f"{fit(f'{i} {name}', label)} {numbers} {bar(float(weights[i]), width - label - 31)}".rstrip())
        output = arrays["context"][self.token]
        lines += [
            "",
            f"output = sum of weight {TIMES} value, {len(output)} numbers",
            "  " + row_ends(output),
            *elsewhere(self.parts, self.part),
        ]
        return "\n".join(fit(line, width).rstrip() for line in lines)

    def svg(self) -> str:
        """Draws the strips of the selected token: query and keys, products, scores and weights, values and output."""
        part, arrays = self._chosen()
        query, strip = arrays["query"][self.token], 190.0
        products = arrays["key"] * query
        shown = (np.concatenate([arrays["query"], arrays["key"]]), products, arrays["value"])
        limits = [float(np.abs(numbers).max()) for numbers in shown]
        sheet, left = Sheet(self.title), 14 + max(text_width(printable(name)) for name in part.keys.names)
        starts = [left, left + strip + 12, left + 2 * strip + 130]
        sheet.text(0, 12, self._where(), bold=True)
        for x, name in zip(starts, ("query, keys", f"query {TIMES} key", "output, values"), strict=True):
            sheet.text(x, 38, name, size=11, fill=MUTED)
        sheet.text(starts[2] - 66, 38, "score", "end", 11, MUTED)
        sheet.text(starts[2] - 12, 38, "weight", "end", 11, MUTED)
        sheet.text(left - 8, 58, part.queries.names[self.token], "end", bold=True)
        top = [(starts[0], query, limits[0]), (starts[2], arrays["context"][self.token], limits[2])]
        for x, numbers, limit in top:
            sheet.image(x, 46, strip, 16, signed_cells(numbers[None], limit))
        for i, name in enumerate(part.keys.names):
            y = 72 + 20.0 * i
            sheet.text(left - 8, y + 12, name, "end")
            for x, row, limit in zip(starts, (arrays["key"][i], products[i], arrays["value"][i]), limits, strict=True):
                sheet.image(x, y, strip, 15, signed_cells(row[None], limit))
            sheet.text(starts[2] - 66, y + 12, f"{arrays['scores'][self.token, i]:z.4f}", "end", 11)
            sheet.text(starts[2] - 12, y + 12, f"{arrays['weights'][self.token, i]:z.4f}", "end", 11)
        return sheet.render()


def _pack(parts: Sequence[NeuronArrays]) -> list[Packed]:
    return [
        pack_floats(f"{number}.{layer}.{name}", arrays[name])
        for number, part in enumerate(parts)
        for layer, arrays in enumerate(part.arrays)
        for name in (*GIVEN, *_unexpected(arrays))
    ]


def _unexpected(arrays: dict[str, np.ndarray]) -> list[str]:
    """Names the stages that differ from the page's formulas S = Q K^T / sqrt(K), W = softmax(S), context = W V."""
    query, key, value, scores, weights = (arrays[name] for name in ("query", "key", "value", "scores", "weights"))
    followed = {
        "scores": query @ key.mT / query.shape[-1] ** 0.5,
        "weights": softmax(scores),
        "context": weights @ value,
    }
    return [name for name, array in followed.items() if not _same(array, arrays[name])]


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    largest = float(np.abs(other).max(initial=0.0))  # infinite for masked scores, which the page does not compute
    return bool(np.isfinite(largest) and np.abs(one - other).max(initial=0.0) <= ROUNDING * max(1.0, largest))
