"""The logit view: contributions of heads, feed-forward networks and words to a logit. Script: `assets/logit.js`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from npformer.interpret.direct_attribution import LogitAttribution, logit_attribution
from npformer.interpret.effects import Effects
from npformer.interpret.stacks import Side
from npformer.interpret.study_inputs import read_inputs
from npformer.text.words import piece_names, printable
from npformer.view.document import View
from npformer.view.pack import Packed, pack_floats
from npformer.view.stack_view import sentence
from npformer.view.svg import Sheet, draw_effects
from npformer.view.terminal import fit

WORDS = 40  # for a translation with more words, only the logit of the least probable word is shown


def logit(
    source: Any,
    text: Any = None,
    *,
    label: str | int | None = None,
    position: int | None = None,
    against: str | int | None = None,
) -> LogitView:
    """Draws a logit as the sum of the contributions of the embeddings, each head, each FFN and each word.

    For a translation of at most 40 words, the page lists all words with their logits, unless `label`, `position` or
    `against` is given.

    Parameters
    ----------
    source : Model with a head, or LogitAttribution
    text : str, Pair or token ids, for a model
    label, position, against : as in `npformer.logit_attribution`

    Returns
    -------
    LogitView
        Displays itself in a notebook, and has the methods of `View`.

    Raises
    ------
    NpformerError
        If the model has no logits, the label is unknown, or the position is missing or outside the text.

    Examples
    --------
    >>> view = logit(npformer.load("distilbert-sst2"), "I love ice cream")
    >>> view.title
    'What adds up to the logit of POSITIVE: i love ice cream'
    """
    if isinstance(source, LogitAttribution):
        return LogitView(source)
    asked = (label, position, against) != (None, None, None)
    if asked or source.config.head != "translation" or text is None:
        return LogitView(logit_attribution(source, text, label, position=position, against=against))
    (pair,) = read_inputs(source, text).inputs  # translated only once
    found, words = logit_attribution(source, pair), pair[1].ids[1:].tolist()
    if not 1 < len(words) <= WORDS:
        return LogitView(found)
    every = (logit_attribution(source, pair, word, position=at) for at, word in enumerate(words))
    return LogitView(found, tuple(every))


@dataclass(frozen=True, repr=False, eq=False)
class LogitView(View):
    """See `logit`."""

    found: LogitAttribution
    words: tuple[LogitAttribution, ...] = ()  # the attributions of all words of a translation, including `found`

    kind: ClassVar[str] = "logit"
    scripts: ClassVar[tuple[str, ...]] = ("logit",)

    @property
    def heading(self) -> str:
        return "What adds up to the logit of a word" if self.words else self._of_found

    @property
    def subject(self) -> str:
        return sentence(Side(self.found.tokens))

    @property
    def _of_found(self) -> str:
        return f"What adds up to {printable(self.found.what)}"

    @property
    def _every(self) -> tuple[LogitAttribution, ...]:
        return self.words or (self.found,)

    def _blocks(self) -> Sequence[Packed]:
        flat = (each.heads.reshape(-1, each.heads.shape[-1]).astype(np.float32) for each in self._every)
        return [pack_floats(f"heads.{i}", array) for i, array in enumerate(flat)]

    def _meta(self) -> dict[str, Any]:
        found = self.found
        return {
            "logits": [_logit_meta(each) for each in self._every],
            "shown": next(i for i, each in enumerate(self._every) if each.position == found.position),
            "heads": found.heads.shape[1],
            "attention": {"head": 1, "source": 2} if found.source_heads else {},  # the encoder is 0
            "tokens": piece_names(found.tokens),
            "notes": [
                "Orange adds to the logit, blue subtracts; colours scale with the square root of the magnitude.",
                "0: less than 0.0005. Layer norms are frozen at their values on this text.",
                "Lens: the logit if the model ended at that layer.",
            ],
        }

    def _height(self) -> int:
        return min(900, 420 + 30 * len(self.found.ffn))

    def text(self, width: int = 80) -> str:
        """Returns the table of layers and heads, the table of words, and the sum."""
        found = replace(self.found, tokens=tuple(fit(name, 16).rstrip() for name in piece_names(self.found.tokens)))
        lines = f"{self._of_found}\n\n{found}".splitlines()
        return "\n".join(fit(line, width).rstrip() for line in lines)

    def svg(self) -> str:
        """Draws the table of layers and heads with coloured cells, and the contributions of words."""
        sheet = Sheet(self.title)
        sheet.text(0, 12, self._of_found, bold=True)
        top = draw_effects(sheet, self.found.by_layer(), 40, decimals=3)
        by_word = replace(self.found, tokens=piece_names(self.found.tokens)).by_word()
        draw_effects(sheet, by_word, top + 24, decimals=3)
        return sheet.render()


def _logit_meta(found: LogitAttribution) -> dict[str, Any]:
    where = f"token {found.position}"
    read = "" if found.what.endswith(f" {where}") else f", read at {where}"
    about = f"The parts sum to {found.total:z.4f}; {found.what} is {found.logit:z.4f}{read}."
    return {
        "layers": _table(found.by_layer()),
        "words": _table(replace(found, tokens=piece_names(found.tokens)).by_word()),
        "what": found.what,
        "position": found.position,
        "labels": found.lens_labels,
        "about": about,
    }


def _table(effects: Effects) -> dict[str, Any]:
    values = [[None if np.isnan(value) else float(value) for value in row] for row in effects.values]
    return {"rows": effects.rows, "columns": effects.columns, "values": values, "plain": effects.plain}
