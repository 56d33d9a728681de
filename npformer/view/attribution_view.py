"""The attribution view: words marked by what they weigh, one measure at a time. The page is `assets/attribution.js`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npformer.errors import NpformerError
from npformer.interpret.attribution import Method, given_scores, leave_one_out, roll_out
from npformer.interpret.stacks import is_arrays, is_stages, pick, sides, stacks, stage_arrays, traced
from npformer.text.words import printable
from npformer.view.colour import DIVERGING, SEQUENTIAL
from npformer.view.pack import Packed
from npformer.view.page import View
from npformer.view.svg import INK, MUTED, Sheet, text_width
from npformer.view.terminal import bar, columns, fit


def attribution(
    source: Any,
    text: Any = None,
    *,
    label: str | int | None = None,
    token: int = 0,
    steps: int = 50,
    scores: Mapping[str, Any] | None = None,
    tokens: Sequence[str] | None = None,
) -> AttributionView:
    """Which words a label rests on, marked on the text, by measures named for what they are.

    `source` is a model that classifies texts (with `text`, or a pair): leaving out one word at a time, gradient times
    input, integrated gradients (at `steps` places), and attention roll-out; of token ids, from which no word can be
    left out, all but the first, and inside an edit by a function whose derivative is not known, no gradients. From any
    other model, a trace, or weights with `tokens`: roll-out, to the output at `token`. `scores` adds measures of your
    own, name to one number a token. `label` is the label to explain, by default the answer.

    `attribution(model, "I love ice cream").save("words.html")`
    """
    if not is_arrays(source) and _classifies(source) and text is not None:
        text = _shortened(source, text)
    arrays = traced(source, text)
    methods = [] if is_arrays(source) or not _classifies(source) else _asked(source, text, label, steps)
    if not methods and label is not None:
        raise NpformerError("attribution: label= needs a model that classifies texts, to ask it again without a word")
    side = sides(arrays, tokens, None, None).queries
    methods += [given_scores(name, side.tokens, each) for name, each in (scores or {}).items()]
    if not is_stages(arrays) or stage_arrays(arrays, "weights"):
        stack = stacks(arrays, tokens)[0]
        methods.append(roll_out(stack, pick("token", token, range(len(stack.queries.tokens)))))
    if not methods:
        raise NpformerError("attribution: expected a model, a trace with weights, or scores=, got none of these")
    return AttributionView(tuple(methods))


def _shortened(model: Any, text: Any) -> Any:
    """The words that the model reads, so that every measure is of the same ones; token ids as they are."""
    from npformer.text.encoding import IDS, Encoder  # only a model needs texts
    from npformer.text.inputs import as_text_or_pair

    return text if isinstance(text, IDS) else Encoder(model).shortened(as_text_or_pair(text))


def _classifies(model: Any) -> bool:
    """Whether a model gives one row of logits a text, and reads a text as strings."""
    return model.config.head in ("sequence-classification", "next-sentence")


def _asked(model: Any, given: Any, label: str | int | None, steps: int) -> list[Method]:
    """The measures that run a model: by words left out of a text, and by gradients."""
    from npformer.interpret.gradients import by_gradients  # only a model has any, and its backward is not light
    from npformer.interpret.trace import texts_of
    from npformer.tape import UnknownDerivative
    from npformer.text.encoding import IDS

    methods = [] if isinstance(given, IDS) else [leave_one_out(model, given, label)]
    (text,), (tokens,), _ = texts_of(model, given)
    with suppress(UnknownDerivative):
        methods += by_gradients(model, text, tokens, label, steps)
    return methods


@dataclass(frozen=True, repr=False, eq=False)
class AttributionView(View):
    """See `attribution`."""

    methods: tuple[Method, ...]

    kind: ClassVar[str] = "attribution"
    scripts: ClassVar[tuple[str, ...]] = ("core", "attribution")
    styles: ClassVar[tuple[str, ...]] = ("base", "attribution")

    heading: ClassVar[str] = "Words that count"

    @property
    def subject(self) -> str:
        texts = (printable("".join(piece for piece, _ in text)) for text in self.methods[0].texts)
        return " / ".join(texts)[:160]

    def _blocks(self) -> Sequence[Packed]:
        return []

    def _meta(self) -> dict[str, Any]:
        return {
            "methods": [_method_meta(each) for each in self.methods],
            "notes": self._notes(),
        }

    def _notes(self) -> list[str]:
        lines = ["Numbers are shown to 4 decimals."]
        if any(method.signed for method in self.methods):
            lines.append("Orange and a solid line: the word speaks for it; blue and a dotted line: against.")
        return lines

    def _height(self) -> int:
        return min(760, 360 + 28 * max(len(method.scores) for method in self.methods))

    def text(self, width: int = 80) -> str:
        """Each measure as a list of words with bars; against grows to the left, for to the right."""
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
        """A bar a word, the first measure."""
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
        "numbers": [f"{score:z.4f}" for score in method.scores],
        "shares": [float(score) for score in method.scores / _largest(method.scores)],
        "signed": method.signed,
        "beside": beside,
    }


def _largest(scores: np.ndarray) -> float:
    """The largest magnitude, what a full bar stands for; 1 where all are 0."""
    return float(np.abs(scores).max(initial=0.0)) or 1.0


def _signed_bar(share: float, width: int) -> str:
    """A bar on either side of a middle: `▒` to the left for a negative share, `█` to the right for a positive."""
    half = (width - 1) // 2
    length = round(abs(share) * half)
    return " " * (half - length) + "▒" * length + "│" if share < 0 else " " * half + "│" + "█" * length


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in printable(text).split(" "):
        fits = columns(lines[-1]) + 1 + columns(word) <= width
        lines[-1:] = [f"{lines[-1]} {word}".lstrip()] if fits else [lines[-1], word]
    return lines
