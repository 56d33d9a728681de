"""The ablation view: how the model's answer changes when one head is removed. Script: `assets/ablation.js`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npformer.common.errors import NpformerError
from npformer.interpret.effects import Effects
from npformer.interpret.head_effects import HeadEffects, head_effects
from npformer.interpret.stacks import Side
from npformer.interpret.study_inputs import read_inputs
from npformer.text.words import shortened
from npformer.view.document import View
from npformer.view.stack_view import sentence
from npformer.view.svg import Sheet, draw_effects
from npformer.view.terminal import fit

BLOCKS = {"attention": "", "cross_attention": ", source"}


def ablation(
    source: Any,
    text: Any = None,
    *,
    label: str | int | None = None,
    heads: Sequence[tuple[str, int]] | None = None,
    progress: bool | None = None,
) -> AblationView:
    """Draws how the answer and its probability change when each attention head is removed in turn.

    Parameters
    ----------
    source : Model with an answer for a text, or HeadEffects
    text : str, Pair or token ids, for a model
    label, heads, progress : as in `npformer.interpret.head_effects.head_effects`

    Returns
    -------
    AblationView
        Displays itself in a notebook, and has the methods of `View`.

    Raises
    ------
    NpformerError
        If the model has no single answer for the text, or lacks the label or one of the heads.

    Examples
    --------
    >>> view = ablation(npformer.load("distilbert-sst2"), "I love ice cream")
    >>> view.found.answer, view.found.changes.shape
    ('POSITIVE', (6, 12))
    """
    if isinstance(source, HeadEffects):
        return AblationView(source, (source.answer,))
    read = read_inputs(source, text)
    found = head_effects(source, read.inputs[0] if read.sources else text, progress, heads, label)
    if found is None:
        raise NpformerError(f"ablation: expected a model with one answer for a text, got a {source.config.head} model")
    return AblationView(found, tuple(read.tokens[0]))


@dataclass(frozen=True, repr=False, eq=False)
class AblationView(View):
    """See `ablation`."""

    found: HeadEffects
    tokens: tuple[str, ...]

    kind: ClassVar[str] = "ablation"
    scripts: ClassVar[tuple[str, ...]] = ("ablation",)

    heading: ClassVar[str] = "The answer without a head"

    @property
    def subject(self) -> str:
        return sentence(Side(self.tokens))

    def _rows(self) -> list[dict[str, Any]]:
        """Returns the title, layer and kind of each attention block. Kinds are numbered in order of computation."""
        names = [attention.partition("layers.")[::2] for attention in self.found.attentions]
        parts = [(prefix, *rest.split(".")) for prefix, rest in names]
        kinds = list(dict.fromkeys((prefix, block) for prefix, _, block in parts))
        return [
            {
                "title": f"{prefix.strip('.') or 'layer'} {layer}{BLOCKS.get(block, '')}",
                "layer": int(layer),
                "attention": kinds.index((prefix, block)),
            }
            for prefix, layer, block in parts
        ]

    def _meta(self) -> dict[str, Any]:
        found = self.found
        return {
            "answer": found.answer,
            "before": found.before,
            "whole": found.whole,
            "rows": self._rows(),
            "changes": [[None if np.isnan(each) else float(each) for each in row] for row in found.changes],
            "outcomes": found.outcomes,
            "notes": self._notes(),
        }

    def _notes(self) -> list[str]:
        counts = [len(each) for each in self.found.outcomes]
        ran = int(np.isfinite(self.found.changes).sum())
        lines = [
            "Numbers: the change in the answer's probability in percentage points if the head's output is set to zero.",
            "Orange: the head supports the answer, which is less probable without it; blue: the head is against it.",
        ]
        if ran < sum(counts):
            lines.append(
                f"The text is long: only the {ran} of {sum(counts)} heads with the largest estimated effects were "
                "ablated."
            )
        return lines

    def _height(self) -> int:
        return min(900, 420 + 26 * len(self.found.attentions))

    def _effects(self) -> Effects:
        rows = tuple(row["title"] for row in self._rows())
        columns = tuple(f"head {head}" for head in range(self.found.changes.shape[1]))
        return Effects(100 * self.found.changes, rows, columns)

    def text(self, width: int = 80) -> str:
        """Returns the table of changes, in percentage points."""
        answer = f"{fit(self.found.answer, 40).rstrip()} {self.found.before:.2%}"
        about = f"{self.heading}: {self.subject}\n{answer}, and its change in percentage points"
        lines = f"{about}\n\n{self._effects()}".splitlines()
        return "\n".join(fit(line, width).rstrip() for line in lines)

    def svg(self) -> str:
        """Draws the table of changes as coloured cells, orange for heads that support the answer."""
        sheet = Sheet(self.title)
        sheet.text(0, 12, f"{self.heading}: {shortened(self.found.answer, 60)} {self.found.before:.2%}", bold=True)
        draw_effects(sheet, self._effects(), 36, decimals=2, sign=-1)
        return sheet.render()
