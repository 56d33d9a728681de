"""The page: all views of a text, or of several, in one file and linked. Its frame is `assets/shell.js`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from npformer.common.errors import NpformerError
from npformer.interpret.stacks import is_arrays, traced
from npformer.view.attribution_view import attribution
from npformer.view.document import View
from npformer.view.head_view import heads
from npformer.view.logit_view import logit
from npformer.view.model_view import model
from npformer.view.neuron_view import neurons
from npformer.view.pack import Packed
from npformer.view.stage_view import NUMBERS, StageView, stages, texts_of


def page(
    source: Any,
    text: Any = None,
    *,
    layer: int = 0,
    head: int | None = None,
    methods: str | Sequence[str] | None = None,
    numbers: int = NUMBERS,
    progress: bool = False,
) -> PageView:
    """Draws all views of a text in one page: heads, model, neurons, stages, attribution, logit attribution.

    The views are linked, and what is chosen in them stands in the page's address. A view that the model has no numbers
    for is left out: logit attribution of a model without a head, or of a head on tokens that has no masked word to
    answer for.

    Parameters
    ----------
    source : Model or Trace
    text : str, Pair or token ids, for a model; or a list of texts
        A page of several texts has a list to choose from.
    layer, head : int
        The layer and the head that show first.
    methods, progress : as in `attribution`
    numbers : int
        Most numbers in the stage view of each text; fewer make a smaller file.

    Returns
    -------
    PageView
        Shows itself in a notebook; `.save("page.html")`, `.svg()`, `print()`.

    Raises
    ------
    NpformerError
        If there is no such layer or head, or a text is one that the model cannot read.

    Examples
    --------
    >>> view = page(npformer.load("distilbert-sst2"), "I love ice cream")
    >>> [each.kind for each in view.texts[0]]
    ['heads', 'model', 'neurons', 'stages', 'attribution', 'logit']
    """
    several = isinstance(text, list) and not all(isinstance(each, (int, np.integer)) for each in text)  # not ids
    asked: dict[str, Any] = {"layer": layer, "head": head, "methods": methods, "numbers": numbers, "progress": progress}
    return PageView(tuple(_views(source, each, **asked) for each in (text if several else [text])))


def _views(
    source: Any, text: Any, layer: int, head: int | None, methods: Any, numbers: int, progress: bool
) -> tuple[View, ...]:
    recorded = traced(source, text)
    walk = stages(recorded)
    found: list[View] = [
        heads(recorded, layer=layer, heads=None if head is None else [head]),
        model(recorded),
        neurons(recorded, layer=layer, head=head or 0),
        replace(walk, texts=texts_of(text, walk.sides), numbers=numbers),
        attribution(source, text, methods=methods, progress=progress),
    ]
    if not is_arrays(source):
        with suppress(NpformerError):  # a model without a logit to take apart
            found.append(logit(source, text))
    return tuple(found)


@dataclass(frozen=True, repr=False, eq=False)
class PageView(View):
    """See `page`. `texts` has the views of each text; a terminal and a picture show the first."""

    texts: tuple[tuple[View, ...], ...]

    kind: ClassVar[str] = "page"
    scripts: ClassVar[tuple[str, ...]] = ()

    heading: ClassVar[str] = "Inside the model"

    @property
    def subject(self) -> str:
        return " / ".join(text for text, _ in self._texts())[:160]

    def _texts(self) -> Sequence[tuple[str, Sequence[View]]]:
        return [(_as_written(views), views) for views in self.texts]

    def _blocks(self) -> Sequence[Packed]:
        return [block for views in self.texts for view in views for block in view._blocks()]

    def _meta(self) -> dict[str, Any]:
        return {}

    def _height(self) -> int:
        return 900

    def text(self, width: int = 80) -> str:
        """The first view: the heads of the layer that shows first."""
        return self.texts[0][0].text(width)

    def svg(self) -> str:
        """The first view."""
        return self.texts[0][0].svg()


def _as_written(views: Sequence[View]) -> str:
    """The text as it was given, which the stage view has; other views have its tokens."""
    return next((view.subject for view in views if isinstance(view, StageView)), views[0].subject)
