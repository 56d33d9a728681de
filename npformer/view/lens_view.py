"""The lens view: the head's answers for the hidden states of each layer. Script: `assets/lens.js`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from npformer.interpret.logit_lens import LogitLens, logit_lens
from npformer.interpret.stacks import Side
from npformer.interpret.study_inputs import read_inputs
from npformer.text.words import piece_names, printable
from npformer.view.document import View
from npformer.view.stack_view import sentence
from npformer.view.svg import MUTED, Sheet, draw_cell, text_width, weight_cells
from npformer.view.terminal import fit

LAST = 16  # default number of tokens, at the end of the text, for which predictions are shown


def lens(
    source: Any, text: Any = None, *, positions: Sequence[int] | None = None, label: str | int | None = None
) -> LensView:
    """Draws the labels or words with the largest logits after the embeddings and after each layer.

    Parameters
    ----------
    source : Model with labels or words, or LogitLens
    text : str, Pair or token ids, for a model
    positions : tokens whose rows are read, optional
        As in `npformer.interpret.logit_lens.logit_lens`; by default the last sixteen for causal-lm and translation
        models.
    label : str or int, optional
        The label or word to follow through the layers. By default the last layer's answer.

    Returns
    -------
    LensView
        Displays itself in a notebook, and has the methods of `View`.

    Raises
    ------
    NpformerError
        If the model has no labels or words or lacks the label, or a position is outside the text.

    Examples
    --------
    >>> view = lens(npformer.load("distilbert-sst2"), "I love ice cream")
    >>> view.found.words[-1][0]
    ('POSITIVE', 'NEGATIVE')
    """
    if isinstance(source, LogitLens):
        return LensView(source, source.tokens)
    read = read_inputs(source, text)
    tokens, head = read.tokens[0], source.config.head
    if positions is None and head in ("causal-lm", "translation"):
        positions = range(max(0, len(tokens) - LAST), len(tokens))
    found = logit_lens(source, read.inputs[0] if read.sources else text, positions, label=label)
    return LensView(found, tuple(tokens))


@dataclass(frozen=True, repr=False, eq=False)
class LensView(View):
    """See `lens`."""

    found: LogitLens
    tokens: tuple[str, ...]

    kind: ClassVar[str] = "lens"
    scripts: ClassVar[tuple[str, ...]] = ("lens",)

    heading: ClassVar[str] = "The answer at each layer"

    @property
    def subject(self) -> str:
        return sentence(Side(self.tokens))

    @property
    def names(self) -> tuple[str, ...]:
        """Returns display names for the tokens of the rows, as parts of the whole text if it is known."""
        names = piece_names(self.tokens)
        return names if self.tokens == self.found.tokens else tuple(names[i] for i in self.found.positions)

    def _meta(self) -> dict[str, Any]:
        found = self.found
        return {
            "rows": found.rows,
            "tokens": self.names,
            "positions": found.positions,
            "words": found.words,
            "logits": found.logits.tolist(),
            "shares": found.probabilities.tolist(),
            "followed": found.followed,
            "followedShares": found.followed_probabilities.tolist(),
            "followedPlaces": found.followed_places.tolist(),
            "notes": [
                "Logit lens: the last norm and the head, applied to each layer's hidden states.",
                "Probabilities are the softmax of these logits; only the last row is the model's own answer.",
            ],
        }

    def _height(self) -> int:
        return min(900, 420 + 28 * len(self.found.rows))

    def text(self, width: int = 80) -> str:
        """Returns the largest outputs of each layer at the last position."""
        found = self.found
        lines = [f"{self.heading}: {self.subject}", f"read at {found.positions[-1]} {printable(self.names[-1])}", ""]
        name = max(map(len, found.rows))
        for row, words, shares in zip(found.rows, found.words, found.probabilities, strict=True):
            cells = (f"{fit(word, 12)} {share:>6.1%}" for word, share in zip(words[-1], shares[-1], strict=True))
            lines.append(f"{row:<{name}}  " + "  ".join(cells))
        return "\n".join(fit(line, width).rstrip() for line in lines)

    def svg(self) -> str:
        """Draws the largest output of each layer at each token, coloured by probability."""
        sheet, found, high = Sheet(self.title), self.found, 22.0
        sheet.text(0, 12, self.heading, bold=True)
        left = max(text_width(row, 11) for row in found.rows) + 10
        for column, token in enumerate(self.names):
            wide = max(text_width(each, 11) for each in (token, *(row[column][0] for row in found.words))) + 12
            sheet.text(left + 6, 36, token, size=11, fill=MUTED)
            cells = weight_cells(found.probabilities[:, column, :1])[:, 0]
            for number, words in enumerate(found.words):
                y = 42 + high * number
                ink = draw_cell(sheet, left, y, wide, high, cells[number])
                sheet.text(left + 6, y + 15, words[column][0], size=11, fill=ink)
            left += wide
        for number, row in enumerate(found.rows):
            sheet.text(0, 42 + high * number + 15, row, size=11, fill=MUTED)
        return sheet.render()
