"""The attribution view: words marked by their scores, one measure at a time. Script: `assets/attribution.js`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npformer.common.checks import one_of
from npformer.common.errors import NpformerError
from npformer.interpret.attribution import Method, NothingLeft, given_scores, leave_one_out, on_logit, roll_out
from npformer.interpret.stacks import is_arrays, is_stages, pick, sides, stacks, stage_arrays, traced
from npformer.interpret.study_inputs import read_inputs
from npformer.text.words import piece_names, printable, shortened
from npformer.view.colour import DIVERGING, SEQUENTIAL
from npformer.view.document import View
from npformer.view.stack_view import FRAME
from npformer.view.svg import INK, MUTED, Sheet, text_width
from npformer.view.terminal import bar, columns, fit

#: Names of the measures in `methods` and on the command line, in display order.
METHODS = ("leave-one-out", "gradient", "integrated", "logit", "roll-out")
WORDS = 40  # maximum words of a translation to explain word by word; a longer translation is explained as a whole
BY_DEFAULT = ("leave-one-out", "gradient", "integrated", "roll-out")


def attribution(
    source: Any,
    text: Any = None,
    *,
    label: str | int | None = None,
    token: int | None = None,
    steps: int | None = None,
    group: int | None = None,
    scores: Mapping[str, Any] | None = None,
    tokens: Sequence[str] | None = None,
    methods: str | Sequence[str] | None = None,
    progress: bool | None = None,
) -> AttributionView:
    """Marks the words of a text by how much the label depends on them, according to several measures.

    A text classifier or next-word model has four measures: leaving out one word at a time (not for token ids), gradient
    times input, integrated gradients, and attention roll-out. Gradients are not available inside an edit with an
    unknown derivative. Other models, traces and plain weights have only attention roll-out. A fifth measure, logit
    attribution, is available on request for any model with a head.

    For a translation model, the words of the source are marked, for the whole translation and for each word of the
    translation. The measures are leaving out one word, gradient times input and, for the whole translation only,
    integrated gradients.

    Parameters
    ----------
    source : Model, Trace, or weights (N, H, L, L) or a list of layers (H, L, L)
    text : str, Pair or token ids, for a model
        A text that is too long for the model is truncated with a warning; every measure reads the same words.
    label : str or int, optional
        The label or next word to explain; by default the prediction.
    token : int, optional
        The token whose output is explained by the roll-out and, for a head on tokens, by logit attribution. By default
        the first token, or the last token for causal models such as GPT-2.
    steps : int, optional
        Number of points at which integrated gradients take the gradient: by default 50, or fewer for a long text.
    group : int, optional
        Number of adjacent words that are left out together: by default 1, or more for a long text.
    scores : mapping, optional
        Your own measures: name -> one number per token.
    tokens : list of str, for weights
    methods : str or list of str, optional
        The measures to compute: "leave-one-out", "gradient", "integrated", "logit", "roll-out". Leave-one-out runs the
        model once per word, integrated gradients once per step, and the other measures once.
    progress : bool, optional
        Show a progress bar on stderr; by default only if stderr is a terminal and the work takes over two seconds.

    Returns
    -------
    AttributionView
        Displays itself in a notebook, and has the methods of `View`.

    Raises
    ------
    NpformerError
        If the label or a method is unknown, or `source` supports no measure.

    References
    ----------
    Abnar and Zuidema, 2020, section 3 (roll-out); Sundararajan, Taly and Yan, 2017, section 3 (integrated gradients).

    Examples
    --------
    >>> view = attribution(npformer.load("distilbert-sst2"), "I love ice cream")
    >>> [method.name for method in view.methods]
    ['Leave one word out', 'Gradient × input', 'Integrated gradients', 'Attention roll-out']
    """
    asked = [methods] if isinstance(methods, str) else list(BY_DEFAULT if methods is None else methods)
    for name in asked:
        one_of("attribution: methods", name, METHODS)
    translates = not is_arrays(source) and source.config.head == "translation"
    if translates and text is not None:
        text = read_inputs(source, text).inputs[0]  # translated once for all measures
    elif not is_arrays(source) and text is not None:
        text = _shortened(source, text)
    arrays = traced(source, text)
    found: list[Method] = []
    each_word: list[tuple[str, tuple[Method, ...]]] = []
    if translates and label is None:
        found, each_word = _translated(source, text, steps, group, asked, progress)
    if not is_arrays(source):
        if _classifies(source):
            found += _asked(source, text, label, steps, group, asked, progress)
        if "logit" in asked:
            from npformer.interpret.direct_attribution import logit_attribution  # needed only with a model

            found.append(on_logit(logit_attribution(source, text, label, position=token)))
    if not found and label is not None:
        raise NpformerError(
            "attribution: label= needs a text classifier or a causal model, and a method that takes a label: "
            "leave-one-out, gradient, integrated or logit; omit label="
        )
    side = sides(arrays, tokens, None, None).queries
    found += [given_scores(name, side.tokens, each) for name, each in (scores or {}).items()]
    wants_roll_out = "roll-out" in asked and not (translates and found and methods is None)
    if wants_roll_out and (not is_stages(arrays) or stage_arrays(arrays, "weights")):
        stack = stacks(arrays, tokens)[0]
        count = len(stack.queries.tokens)
        reads_all = count - 1 if not is_arrays(source) and source.config.causal else 0
        found.append(roll_out(stack, pick("token", reads_all if token is None else token, range(count))))
    if not found and methods is not None:
        raise NpformerError(
            f"attribution: {', '.join(asked)}: not available for this input; a text classifier supports all measures"
        )
    if not found:
        raise NpformerError("attribution: expected a model, a trace with weights, or scores=")
    return AttributionView(tuple(found), tuple(each_word))


def _translated(
    model: Any, pair: Any, steps: int | None, group: int | None, asked: Sequence[str], progress: bool | None
) -> tuple[list[Method], list[tuple[str, tuple[Method, ...]]]]:
    """Computes how a translation, and each of its words, depends on the words of the source."""
    from npformer.interpret.source_attribution import by_source, each_word_by_source  # loads the backward passes

    names = piece_names(read_inputs(model, pair).tokens[0])[1:]
    methods = [name for name in METHODS[:3] if name in asked]
    if not names or not methods:
        return [], []
    each: list[list[Method]] = []
    try:
        found = by_source(model, pair, None, methods, steps, group, progress)
    except NpformerError:  # raised if the source has a single word
        methods = [name for name in methods if name != "leave-one-out"]
        found = by_source(model, pair, None, methods, steps, group, progress)
    if len(names) <= WORDS:
        each = each_word_by_source(model, pair, [name for name in methods if name != "integrated"], group, progress)
    numbered = (f"{i}  {name}" for i, name in enumerate(names, 1))
    return found, [(name, tuple(methods)) for name, methods in zip(numbered, each, strict=False) if methods]


def _shortened(model: Any, text: Any) -> Any:
    """Truncates a text, but not ids, to the words that the model reads, so that all measures read the same words."""
    from npformer.text.encoding import IDS, Encoder  # needed only with a model
    from npformer.text.inputs import as_text_or_pair

    return text if isinstance(text, IDS) else Encoder(model).shortened(as_text_or_pair(text))


def _classifies(model: Any) -> bool:
    """Returns whether a model computes one row of logits per text, for labels or the next word."""
    return model.config.head in ("sequence-classification", "next-sentence", "causal-lm")


def _asked(
    model: Any, given: Any, label: str | int | None, steps: int | None, group: int | None, asked: Sequence[str],
    progress: bool | None,
) -> list[Method]:  # fmt: skip
    """Computes the measures that run a model: leaving out words, and gradients."""
    from npformer.engine.tape import UnknownDerivative
    from npformer.interpret.integrated_gradients import by_gradients  # loads the backward passes
    from npformer.interpret.study_inputs import texts_of
    from npformer.text.encoding import IDS

    found = []
    if "leave-one-out" in asked and not isinstance(given, IDS):
        try:
            found.append(leave_one_out(model, given, label, progress, group))
        except NothingLeft:
            if set(asked) == {"leave-one-out"}:
                raise
    if {"gradient", "integrated"} & set(asked):
        (text,), (tokens,), _ = texts_of(model, given)
        with suppress(UnknownDerivative):
            found += by_gradients(model, text, tokens, label, steps, asked, progress)
    return found


@dataclass(frozen=True, repr=False, eq=False)
class AttributionView(View):
    """See `attribution`."""

    methods: tuple[Method, ...]
    each_word: tuple[tuple[str, tuple[Method, ...]], ...] = ()  # for a translation: each word and its measures

    kind: ClassVar[str] = "attribution"
    scripts: ClassVar[tuple[str, ...]] = ("attribution",)

    heading: ClassVar[str] = "Words that count"

    @property
    def subject(self) -> str:
        texts = ("".join(piece for piece, _ in text if piece not in FRAME) for text in self.methods[0].texts)
        return shortened(" / ".join(printable(text).strip() for text in texts))

    def _meta(self) -> dict[str, Any]:
        return {
            "explained": [
                {"name": name, "methods": [_method_meta(each) for each in methods]}
                for name, methods in (("all words", self.methods), *self.each_word)
            ],
            "notes": self._notes(),
        }

    def _notes(self) -> list[str]:
        lines = ["Numbers are shown to 4 decimals."]
        if any(method.signed for method in self.methods):
            lines.append(
                "Orange with a solid line: the word supports the explained label or token; "
                "blue with a dotted line: the word opposes it."
            )
        return lines

    def _height(self) -> int:
        return min(760, 360 + 28 * max(len(method.scores) for method in self.methods))

    def text(self, width: int = 80) -> str:
        """Lists the words of each measure with bars, to the left for words that oppose the label, else to the right."""
        lines: list[str] = []
        for method in self.methods:
            largest, words = _largest(method.scores), method.words
            label = min(max(columns(printable(word)) for word in words), max(8, width // 4))
            room = width - label - 12
            lines += [method.name, *_wrapped(method.about, width), ""]
            for word, score in zip(words, method.scores, strict=True):
                drawn = _signed_bar(score / largest, room) if method.signed else bar(score / largest, room)
                lines.append(f"{fit(word, label)} {score:>z9.4f}  {drawn}".rstrip())
            lines.append("")
        return "\n".join(lines).rstrip()

    def svg(self) -> str:
        """Draws the first measure, with a bar for each word."""
        method = self.methods[0]
        largest, words = _largest(method.scores), method.words
        sheet, row, half = Sheet(self.title), 22.0, 150.0
        left = max(text_width(printable(word)) for word in words) + 10
        zero = left + (half if method.signed else 0)
        sheet.text(0, 12, method.name, bold=True)
        for number, line in enumerate(_wrapped(method.about, 90)):
            sheet.text(0, 32 + 16.0 * number, line, size=11, fill=MUTED)
        top = 44 + 16.0 * len(_wrapped(method.about, 90))
        sheet.rect(zero - 0.5, top, 1, row * len(words), MUTED)
        for i, (word, score) in enumerate(zip(words, method.scores, strict=True)):
            y, share = top + row * i, float(score / largest)
            length = abs(share) * half * (1 if method.signed else 2)
            fill = SEQUENTIAL["light"][3] if not method.signed else DIVERGING["light"][1 if share < 0 else 5]
            sheet.text(left - 8, y + 14, word, "end")
            sheet.rect(zero - length if share < 0 else zero, y + 3, length, row - 7, fill)
            sheet.text(left + 2 * half + 62, y + 14, f"{score:z.4f}", "end", 12, INK)
        return sheet.render()


def _method_meta(method: Method) -> dict[str, Any]:
    beside = method.beside and {"heading": method.beside[0], "numbers": [f"{value:z.4f}" for value in method.beside[1]]}
    return {
        "name": method.name,
        "about": method.about,
        "texts": method.texts,
        "words": method.words,
        "places": method.places,
        "numbers": [f"{score:z.4f}" for score in method.scores],
        "shares": [float(score) for score in method.scores / _largest(method.scores)],
        "signed": method.signed,
        "beside": beside,
    }


def _largest(scores: np.ndarray) -> float:
    """Returns the largest magnitude, shown as a full bar; 1 if all scores are 0."""
    return float(np.abs(scores).max(initial=0.0)) or 1.0


def _signed_bar(share: float, width: int) -> str:
    """Draws a bar from the middle: `▒` to the left for a negative share, `█` to the right for a positive share."""
    half = (width - 1) // 2
    length = round(abs(share) * half)
    return " " * (half - length) + "▒" * length + "│" if share < 0 else " " * half + "│" + "█" * length


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in printable(text).split(" "):
        fits = columns(lines[-1]) + 1 + columns(word) <= width
        lines[-1:] = [f"{lines[-1]} {word}".lstrip()] if fits else [lines[-1], word]
    return lines
