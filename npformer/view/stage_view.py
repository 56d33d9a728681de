"""The stage view: a whole trace from the text to the label, with shapes, formulas and numbers.

Formulas, functions and names in other libraries come from `interpret/summary.py`. Script: `assets/stages.js`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from npformer.common.errors import NpformerError
from npformer.interpret.stacks import Side, Sides, is_stages, one_text, sides, traced
from npformer.interpret.text_parts import has_source_rows
from npformer.text.words import printable, shortened
from npformer.view.document import View
from npformer.view.pack import Packed, pack_floats
from npformer.view.stack_view import sentence
from npformer.view.svg import MUTED, Sheet, signed_cells, weight_cells
from npformer.view.terminal import fit, row_ends

NUMBERS = 1_500_000  # maximum count of numbers on a page; larger stages are reduced to evenly spaced rows and columns
KEPT = 64  # number of tokens, and of columns of a head, that are shown while other axes can be shortened instead
EDGE = 3  # number of indices at each end that are never left out, because the page prints them
SIZES = (4096, 3072, 2048, 1536, 1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 8)


@dataclass(frozen=True, eq=False)
class ShownStage:
    """A stage: array, formula, function, and names in other libraries."""

    name: str
    array: np.ndarray
    formula: str = ""
    function: str = ""
    elsewhere: str = ""
    of_tokens: bool = False  # whether the array has one number per token

    @property
    def section(self) -> str:
        """The section of the stage, such as `Embeddings`, `Layer 3`, `Decoder layer 3` or `Head`."""
        path = self.name.split(".")
        if "layers" in path[:-1]:
            at = path.index("layers")
            return " ".join([*path[:at], "layer", path[at + 1]]).capitalize()
        if "embeddings" in path:
            return " ".join(path[: path.index("embeddings") + 1]).capitalize()
        return "Head"

    @property
    def short(self) -> str:
        """The name within the section."""
        return self.name.split("layers.")[-1].partition(".")[2] if "layers." in self.name else self.name

    @property
    def is_weights(self) -> bool:
        """Whether the numbers are weights or probabilities, which have their own colour scale."""
        return self.name.split(".")[-1] in ("weights", "probabilities", "start_probabilities", "end_probabilities")

    @property
    def rows(self) -> str:
        """The side whose tokens name the rows: `keys` if these are tokens of the source, else `queries`."""
        return "keys" if has_source_rows(self.name) else "queries"

    @property
    def columns(self) -> str:
        """The meaning of the columns: `queries` or `keys` (tokens), `labels`, or "" for plain numbers."""
        path = self.name.split(".")
        if path[-1] in ("scores", "weights"):
            return "keys" if "cross_attention" in path else self.rows
        if self.of_tokens:
            return "queries"
        return "labels" if self.name in ("logits", "probabilities") else ""

    def decimals(self) -> int:
        """Returns the number of decimals to show: four, or more if all numbers are small."""
        largest = float(np.abs(self.array[np.isfinite(self.array)]).max(initial=0.0))
        return 4 if largest == 0.0 else min(8, max(4, 3 - int(np.floor(np.log10(largest)))))

    @property
    def shape(self) -> str:
        return str(self.array.shape).replace(",)", ")")


@dataclass(frozen=True, eq=False)
class LabelScores:
    """The labels, each with its logit and probability."""

    labels: tuple[str, ...]
    logits: np.ndarray
    probabilities: np.ndarray


def stages(
    source: Any,
    text: Any = None,
    *,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    token_type_ids: Sequence[int] | None = None,
    formulas: Mapping[str, str] | None = None,
    labels: Sequence[str] | None = None,
) -> StageView:
    """Draws every stage of a forward pass in order: text, tokens, embeddings, each layer, logits and label.

    Parameters
    ----------
    source : Model, Trace, or mapping from stage names to arrays
    text : str or Pair, for a model
    tokens, key_tokens : list of str, for a mapping
        For an encoder-decoder, `tokens` are from the target and `key_tokens` from the source.
    token_type_ids : list of 0 and 1, optional
        For a pair, the index of the text that each token belongs to.
    formulas : mapping, optional
        Formulas by stage name, which extend or replace the built-in formulas.
    labels : list of str, optional
        Names of the logits; by default the labels of the trace's model.

    Returns
    -------
    StageView
        Displays itself in a notebook, and has the methods of `View`.

    Raises
    ------
    NpformerError
        If there are no stages, or if tokens or labels do not match the arrays.

    Examples
    --------
    >>> view = stages(npformer.load("distilbert-sst2"), "I love ice cream")
    >>> print(view.text().splitlines()[1])
    [CLS] i love ice cream [SEP]
    """
    arrays = traced(source, text)
    if not is_stages(arrays):
        raise NpformerError("stages: expected a model and a text, a trace, or a mapping of stages; got plain arrays")
    names = list(arrays.keys())
    if not names:
        raise NpformerError("stages: expected at least one stage, got none; trace the model first")
    both = sides(arrays, tokens, key_tokens, token_type_ids)
    steps = tuple(_step(name, one_text(name, arrays[name]), arrays, formulas or {}) for name in names)
    own, of_source = getattr(arrays, "ids", None), getattr(arrays, "key_ids", None)
    ids = {} if key_tokens is not None else {
        "queries": _numbers(own, both.queries), "keys": _numbers(own if of_source is None else of_source, both.keys),
    }  # fmt: skip
    config = getattr(arrays, "config", None)
    named = tuple(labels if labels is not None else getattr(config, "labels", ()))
    if labels is not None and "logits" in names and np.shape(arrays["logits"])[-1] != len(named):
        raise NpformerError(
            f"stages: labels: expected {np.shape(arrays['logits'])[-1]}, one per logit, got {len(named)}"
        )
    return StageView(shown_texts(text, both), both, steps, ids, named, _outcome(arrays, named))


def _numbers(ids: Any, side: Side) -> tuple[int, ...]:
    """Returns the token ids of a side, or () if unknown."""
    return tuple(map(int, ids)) if np.shape(ids) == (len(side.tokens),) else ()


def _step(name: str, array: np.ndarray, source: Any, formulas: Mapping[str, str]) -> ShownStage:
    from npformer.interpret.summary import summary  # imported here, because it loads all families

    # a trace has the model's config, which determines the activation and the other libraries' names
    known = source.row(name) if hasattr(source, "row") else summary(name, [array], None)
    names = {"Hugging Face": known.huggingface, "TransformerLens": known.transformerlens}
    elsewhere = ", ".join(f"{library}: {path}" for library, path in names.items() if path)
    head = getattr(getattr(source, "config", None), "head", "")
    of_tokens = array.ndim == 1 and (name.split(".")[-1].startswith(("start_", "end_")) or head == "replaced-token")
    return ShownStage(name, array, formulas.get(name, known.formula), known.function, elsewhere, of_tokens)


def shown_texts(text: Any, both: Sides) -> tuple[str, ...]:
    """Returns the original text or pair, or else the words of its tokens."""
    from npformer.text.inputs import as_text_or_pair

    if text is None or isinstance(text, (list, np.ndarray)) or len(both.distinct) > 1:  # token ids, or a translation
        return tuple(sentence(side) for side in both.distinct)
    part = as_text_or_pair(text)
    return (part,) if isinstance(part, str) else part


def _outcome(arrays: Any, labels: tuple[str, ...]) -> LabelScores | None:
    """Returns the labels with their probabilities if there is a single row of logits with names."""
    names = list(arrays.keys())
    if not labels or "logits" not in names or "probabilities" not in names:
        return None
    logits, probabilities = np.asarray(arrays["logits"]), np.asarray(arrays["probabilities"])
    return LabelScores(labels, logits, probabilities) if logits.shape == probabilities.shape == (len(labels),) else None


@dataclass(frozen=True, repr=False, eq=False)
class StageView(View):
    """See `stages`."""

    texts: tuple[str, ...]
    sides: Sides
    steps: tuple[ShownStage, ...]
    ids: Mapping[str, tuple[int, ...]]
    labels: tuple[str, ...] = ()
    outcome: LabelScores | None = None
    numbers: int = NUMBERS

    kind: ClassVar[str] = "stages"
    scripts: ClassVar[tuple[str, ...]] = ("stages",)

    @property
    def heading(self) -> str:
        return "From text to label" if self.outcome else "Every stage"

    @property
    def subject(self) -> str:
        return shortened(printable(" / ".join(self.texts)))

    @cached_property
    def _merged(self) -> dict[int, int]:
        """Maps the index of a stage (T, D) to that of a stage (H, T, K) with the same numbers, split into heads."""
        merged = {}
        split = {i: step.array for i, step in enumerate(self.steps) if step.array.ndim == 3}
        for i, step in enumerate(self.steps):
            for j, heads in split.items():
                count, rows, width = heads.shape
                side_by_side = step.array.shape == (rows, count * width) and width <= KEPT
                if side_by_side and np.array_equal(step.array.reshape(rows, count, width).swapaxes(0, 1), heads):
                    merged[i] = j
                    break
        return merged

    @cached_property
    def _edges(self) -> tuple[int, int]:
        """Returns the maximum sizes of token axes and of other axes for a page of at most `numbers` numbers."""
        stored = [step.array for i, step in enumerate(self.steps) if i not in self._merged]
        choices = [*((max(KEPT, size), size) for size in SIZES), *((size, size) for size in SIZES if size < KEPT)]
        for edges in choices:
            if sum(_window(np.broadcast_to(False, array.shape), edges).size for array in stored) <= self.numbers:
                break
        return edges

    def _blocks(self) -> Sequence[Packed]:
        return [
            pack_floats(str(i), _window(np.atleast_2d(step.array), self._edges), step.decimals())
            for i, step in enumerate(self.steps)
            if i not in self._merged
        ]

    def _meta(self) -> dict[str, Any]:
        outcome = self.outcome
        return {
            "texts": self.texts,
            "tokens": {"queries": self.sides.queries.names, "keys": self.sides.keys.names},
            "sides": ["queries"] if len(self.sides.distinct) == 1 else ["keys", "queries"],
            "ids": self.ids,
            "tokenTypes": self.sides.queries.token_type_ids if self.sides.queries.is_pair else (),
            "steps": [self._step_meta(i, step) for i, step in enumerate(self.steps)],
            "outcome": outcome and {
                "labels": outcome.labels,
                "logits": [f"{value:z.4f}" for value in outcome.logits],
                "probabilities": [float(value) for value in outcome.probabilities],
            },
            "notes": self._notes(),
        }  # fmt: skip

    def _step_meta(self, number: int, step: ShownStage) -> dict[str, Any]:
        array = np.atleast_2d(step.array)
        finite = array[np.isfinite(array)].astype(np.float64)
        decimals = step.decimals()
        spread = {name: getattr(finite, name)() for name in ("min", "max", "mean", "std")} if finite.size else {}
        return {
            "name": step.name,
            "section": step.section,
            "shape": step.shape,
            "formula": step.formula,
            "function": step.function,
            "elsewhere": step.elsewhere,
            "weights": step.is_weights,
            "heads": array.shape[0] if array.ndim > 2 else 0,
            "merged": self._merged.get(number),
            "limit": float(np.abs(finite).max(initial=0.0)),
            "rows": self._axis(array.shape[-2], step.rows) if step.array.ndim > 1 else {"names": [""]},
            "columns": self._axis(array.shape[-1], step.columns),
            "spread": {name: f"{value:z.{decimals}f}" for name, value in spread.items()},
        }

    def _axis(self, size: int, what: str) -> dict[str, Any]:
        """Returns the full size of an axis, and its names: tokens of a side, labels, or plain numbers."""
        named = {"queries": self.sides.queries.names, "keys": self.sides.keys.names, "labels": self.labels}
        if size != len(named.get(what, ())):
            return {"size": size}
        return {"size": size, "names": self.labels} if what == "labels" else {"size": size, "tokens": what}

    def _notes(self) -> list[str]:
        dtype = self.steps[0].array.dtype
        lines = [f"Numbers are the model's own ({dtype}), rounded to the digits shown."]
        lines.append("Blue is negative, orange positive; colours scale with the square root of the magnitude.")
        edges = self._edges
        if any(_window(step.array, edges).size < step.array.size for step in self.steps):
            tokens, columns = edges
            places = f"{tokens} indices" if tokens == columns else f"{tokens} tokens and {columns} columns"
            lines.append(f"Longer axes show {places}, evenly spaced; min, max, mean and std are of the whole stage.")
        return lines

    def _height(self) -> int:
        return 760

    def text(self, width: int = 80) -> str:
        """Returns two lines for each stage: name, shape and formula, then the ends of the first row."""
        lines = [" / ".join(self.texts), *(" ".join(side.names) for side in self.sides.distinct)]
        section = ""
        for step in self.steps:
            if step.section != section:
                section = step.section
                lines += ["", section]
            lines.append(f"  {fit(step.short, 24)} {step.shape:<13} {step.formula}")
            first = step.array.reshape(-1, step.array.shape[-1])[0]
            lines.append(f"      {row_ends(first, step.decimals())}")
        if self.outcome:
            lines += ["", "Label"]
            found = self.outcome
            for label, logit, share in zip(found.labels, found.logits, found.probabilities, strict=True):
                lines.append(f"  {fit(label, 30)} logit {logit:z9.4f}   probability {share:.4f}")
        return "\n".join(fit(line, width).rstrip() for line in lines)

    def svg(self) -> str:
        """Draws the stages in a column: name, shape, formula, and a strip of numbers for each stage."""
        sheet, y, section = Sheet(self.title), 12.0, ""
        sheet.text(0, y, " / ".join(self.texts), bold=True)
        for step in self.steps:
            if step.section != section:
                section, y = step.section, y + 34
                sheet.text(0, y, section, bold=True)
            y += 24
            rows = _window(np.atleast_2d(step.array), (64, 64))
            rows = rows.reshape(-1, rows.shape[-1])[:64]
            limit = float(np.abs(rows[np.isfinite(rows)]).max(initial=0.0))
            sheet.text(12, y, step.name, size=12)
            sheet.text(262, y, step.shape, size=12, fill=MUTED)
            sheet.text(366, y, step.formula, size=12, fill=MUTED)
            sheet.image(590, y - 13, 200, 18, weight_cells(rows) if step.is_weights else signed_cells(rows, limit))
        if self.outcome:
            for label, share in zip(self.outcome.labels, self.outcome.probabilities, strict=True):
                y += 26
                sheet.text(12, y, f"{label}: {share:.4f}", bold=bool(share == self.outcome.probabilities.max()))
        return sheet.render()


def _window(array: np.ndarray, edges: tuple[int, int]) -> np.ndarray:
    """Shortens the last two axes to these sizes, with both ends and evenly spaced indices between the ends."""
    of_tokens, of_others = edges
    for axis, size in ((-2, of_tokens), (-1, of_tokens if array.ndim == 3 else of_others)):
        length = array.shape[axis] if array.ndim >= -axis else 0
        if length > size:
            between = EDGE + np.arange(size - 2 * EDGE) * (length - 2 * EDGE - 1) // (size - 2 * EDGE - 1)
            array = array.take([*range(EDGE), *between, *range(length - EDGE, length)], axis=axis)
    return array
