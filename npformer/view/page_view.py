"""The page, which links all views of one or more texts in one file. `assets/shell.js` draws the frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, ClassVar

import numpy as np

from npformer.common.errors import NpformerError
from npformer.interpret.answer import ModelAnswer, answer_of
from npformer.interpret.cost import affordable
from npformer.interpret.next_words import NextWords, next_words
from npformer.interpret.patching import contexts
from npformer.interpret.stacks import is_arrays, traced
from npformer.interpret.study_inputs import read_inputs
from npformer.text.words import shortened
from npformer.view.ablation_view import ablation
from npformer.view.answer_data import answer_meta, place_of, with_measured
from npformer.view.attribution_view import attribution
from npformer.view.document import View
from npformer.view.head_view import HeadView, heads
from npformer.view.lens_view import lens
from npformer.view.logit_view import logit
from npformer.view.model_view import model
from npformer.view.neuron_view import neurons
from npformer.view.pack import Packed
from npformer.view.stage_view import NUMBERS, StageView, shown_texts, stages

NEXT = "next token"
READ = 8_192  # maximum number of tokens to run for ablations; takes 10 s on two cores for a model like BERT-base


def page(
    source: Any,
    text: Any = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    methods: str | Sequence[str] | None = None,
    numbers: int = NUMBERS,
    progress: bool | None = None,
) -> PageView:
    """Draws all views of a text on a page: heads, model, neurons, stages, words, logit attribution, lens and ablation.

    The page begins with the model's answer and its probability, and initially shows the head that affects the answer
    most. For a causal model, a slider sets the sampling temperature for the next token. The views are linked, and the
    address of the page records the selections. Views without data are omitted. Logit attribution, lens and ablation
    need a model with a head and, for a masked language model, a masked word in the text; ablation also needs a single
    answer per text. In a long text, only the heads with the largest estimated effects are ablated.

    Parameters
    ----------
    source : Model or Trace
    text : str, Pair or token ids, for a model; or a list of texts
        With several texts, the page has a list from which to choose one.
    layer, head : int
        The layer and the head shown initially; by default the head whose removal changes the answer most.
    methods, progress : as in `attribution`
    numbers : int
        Maximum count of numbers in the stage view of each text. A smaller maximum makes the file smaller.

    Returns
    -------
    PageView
        Displays itself in a notebook, and has the methods of `View`.

    Raises
    ------
    NpformerError
        If the layer or head does not exist, or the model cannot read a text.

    Examples
    --------
    >>> view = page(npformer.load("distilbert-sst2"), "I love ice cream")
    >>> [each.kind for each in view.texts[0]]
    ['heads', 'model', 'neurons', 'stages', 'attribution', 'logit', 'lens', 'ablation']
    >>> view.answers[0].outcomes[0][0]
    'POSITIVE'
    """
    # a list of token ids is a single text
    several = isinstance(text, list) and not all(isinstance(each, (int, np.integer)) for each in text)
    asked: dict[str, Any] = {"layer": layer, "head": head, "methods": methods, "numbers": numbers, "progress": progress}
    answered = list(_each(partial(_answered, source), text if several else [text], several))
    made = _each(lambda pair: _page_of(source, pair[0], pair[1], asked), answered, several)
    return PageView(*zip(*made, strict=True))


def _each(function: Callable[[Any], Any], items: Sequence[Any], several: bool) -> Iterator[Any]:
    """Yields function(item) for each item. `several`: whether an error message begins with the item's index."""
    for i, item in enumerate(items):
        try:
            found = function(item)
        except NpformerError as error:
            raise NpformerError(f"text[{i}]: {error}") if several else error from None
        yield found


def _answered(source: Any, text: Any) -> tuple[Any, ModelAnswer | None]:
    """Returns the result of `_read`, and the model's answer to the text, or None if `source` has arrays."""
    text = _read(source, text)
    return text, None if is_arrays(source) else answer_of(source, text)


def _page_of(
    source: Any, text: Any, answer: ModelAnswer | None, asked: dict[str, Any]
) -> tuple[tuple[View, ...], ModelAnswer | None, NextWords | None]:
    """Returns the views of a text, the answer with measured effects, and the words that may come next."""
    views, measured = _views(source, text, answer, **asked)
    return views, measured, next_words(source, text) if answer and answer.about == NEXT else None


def _read(source: Any, text: Any) -> Any:
    """Returns the text, and for a translation model also the translation, which is made only once for all views."""
    translates = not is_arrays(source) and source.config.head == "translation" and text is not None
    return read_inputs(source, text).inputs[0] if translates else text


def _views(
    source: Any,
    text: Any,
    answer: ModelAnswer | None,
    layer: int | None,
    head: int | None,
    methods: Any,
    numbers: int,
    progress: bool | None,
) -> tuple[tuple[View, ...], ModelAnswer | None]:
    """Returns the views of a text, and the model's answer with the measured effects of the heads."""
    recorded = traced(source, text)
    walk, first = stages(recorded), heads(recorded, layer=layer or 0, heads=None if head is None else [head])
    without = None
    if not is_arrays(source):
        with suppress(NpformerError):  # raised if the model has no single answer for the text
            without = ablation(source, text, heads=heads_to_ablate(source, answer, first), progress=progress)
    if answer and without:
        answer = with_measured(answer, without.found)
    if answer and answer.effects and layer is None and head is None:
        place, (layer, head) = place_of(first, answer.effects[0])
        first = replace(first, stack=place, layer=layer, shown=(head,))
    alone = first.shown[0] if len(first.shown) == 1 else 0
    found: list[View] = [
        first,
        model(recorded),
        replace(neurons(recorded), part=first.stack, layer=first.layer, head=alone),
        replace(walk, texts=shown_texts(text, walk.sides), numbers=numbers),
        attribution(source, text, methods=methods, progress=progress),
    ]
    if not is_arrays(source):
        with suppress(NpformerError):  # raised if the model has no logit to decompose
            found.append(logit(source, text))
        with suppress(NpformerError):  # raised if the model has no labels or words
            found.append(lens(source, text))
    return (*found, *([without] if without else [])), answer


def heads_to_ablate(source: Any, answer: ModelAnswer | None, view: HeadView) -> list[tuple[str, int]] | None:
    """Returns the heads to ablate: None for all heads or, in a long text, those with the largest estimated effects."""
    sides = {side.tokens: None for stack in view.stacks for side in (stack.queries, stack.keys)}
    most = affordable(source, READ) // sum(map(len, sides))
    if answer is None or most >= sum(count for _, count in contexts(source).values()):
        return None
    return [(effect.attention, effect.head) for effect in answer.effects[:most]]


@dataclass(frozen=True, repr=False, eq=False)
class PageView(View):
    """The view that `page` returns. `texts` has the views of each text.

    On a terminal and in a picture, only the first text is shown.

    answers: the model's answer to each text, with the measured effects of heads; None without a model or a label.
    next_words: for a causal model, the words after each text at any temperature, or None for other models.
    """

    texts: tuple[tuple[View, ...], ...]
    answers: tuple[ModelAnswer | None, ...] = ()
    next_words: tuple[NextWords | None, ...] = ()

    kind: ClassVar[str] = "page"
    scripts: ClassVar[tuple[str, ...]] = ()

    heading: ClassVar[str] = "Inside the model"

    @property
    def subject(self) -> str:
        return shortened(" / ".join(text for text, _ in self._texts()))

    def _texts(self) -> Sequence[tuple[str, Sequence[View]]]:
        return [(_as_written(views), views) for views in self.texts]

    def _blocks(self) -> Sequence[Packed]:
        return [block for views in self.texts for view in views for block in view._blocks()]

    def _meta(self) -> dict[str, Any]:
        return {}

    def _answers(self) -> Sequence[dict[str, Any] | None]:
        return [
            None if each is None else answer_meta(each, views, words)
            for each, views, words in zip(self.answers, self.texts, self.next_words or repeat(None), strict=False)
        ]

    def _height(self) -> int:
        return 1000

    def text(self, width: int = 80) -> str:
        """Returns the head view of the first text, at the initial layer."""
        return self.texts[0][0].text(width)

    def svg(self) -> str:
        """Draws the head view of the first text."""
        return self.texts[0][0].svg()


def _as_written(views: Sequence[View]) -> str:
    """Returns the original text from the stage view or, without a stage view, the subject of the first view."""
    return next((view.subject for view in views if isinstance(view, StageView)), views[0].subject)
