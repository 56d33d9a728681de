"""The head view: attention between tokens, head by head, with exact weights. Script: `assets/heads.js`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npformer.interpret.stacks import stacks, traced
from npformer.text.words import printable
from npformer.view.colour import head_colours
from npformer.view.stack_view import StackView, chosen, elsewhere, most_telling, strongest
from npformer.view.svg import MUTED, Sheet, text_width
from npformer.view.terminal import fit, heat_map, legend

LONG = 48  # maximum tokens of a text that the page does not fold
FAINT, FAINTER = 0.05, 0.01  # smallest weight drawn for all tokens, and for a few selected tokens
LINES = 3000  # maximum lines of a long text, because a browser takes seconds to draw a head with even weights


def heads(
    source: Any,
    text: Any = None,
    *,
    layer: int = 0,
    heads: Sequence[int] | None = None,
    words: bool = False,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    token_type_ids: Sequence[int] | None = None,
) -> HeadView:
    """Draws the attention weights of every head as lines between tokens, coloured by head.

    Parameters
    ----------
    source : Model, Trace, or weights (H, L, L), (N, H, L, L) or a list of layers (H, L, L)
    text : str or Pair, for a model
    layer, heads : the layer and the heads to show initially
    words : bool
        Merge the pieces of each word: sum the weights to the pieces, and average the weights from the pieces.
    tokens, key_tokens : list of str, for weights
        The tokens of the queries, and of the keys if they differ, as in cross-attention.
    token_type_ids : list of 0 and 1, optional
        For a pair, the index of the text that each token belongs to.

    Returns
    -------
    HeadView
        Displays itself in a notebook, and has the methods of `View`.

    Raises
    ------
    NpformerError
        If the weights do not match the tokens, or the layer or head does not exist.

    Examples
    --------
    >>> view = heads(np.eye(2)[None], tokens=["time", "flies"])
    >>> print(view)
    Self-attention, layer 0, head 0
    rows attend to columns
    ...
    """
    found = stacks(traced(source, text), tokens, key_tokens, token_type_ids)
    first = most_telling(found)
    return HeadView(tuple(found), *chosen(found[first], layer, heads), words, first)


@dataclass(frozen=True, repr=False, eq=False)
class HeadView(StackView):
    """See `heads`."""

    kind: ClassVar[str] = "heads"
    scripts: ClassVar[tuple[str, ...]] = ("stacks", "links", "folding", "strongest", "heads")

    heading: ClassVar[str] = "Attention heads"

    def _meta(self) -> dict[str, Any]:
        return {**super()._meta(), "faint": FAINT, "fainter": FAINTER, "lines": LINES}

    def _notes(self) -> list[str]:
        lines = [f"Weights below {FAINT} are not drawn, or below {FAINTER} for selected tokens."]
        if max(len(side.tokens) for stack in self.stacks for side in (stack.queries, stack.keys)) > LONG:
            lines = [
                f"The smallest weight drawn is a quarter of the largest, up to {FAINT}; for selected tokens {FAINTER}.",
                f"At most the {LINES} strongest weights are drawn.",
                "In a long text, only the tokens with the largest weights have rows; a click opens a folded row.",
            ]
        return [*super()._notes(), *lines]

    def _height(self) -> int:
        longest = max(len(self._first.queries.tokens), len(self._first.keys.tokens))
        return min(760, 330 + max(380, 30 * longest))

    def _map(self) -> np.ndarray:
        return self._first.layers[self.layer][list(self.shown)]

    def _where(self) -> str:
        stack, count = self._first, len(self.shown)
        listed = ", ".join(map(str, self.shown))
        names = f"head {listed}" if count == 1 else f"all {count} heads" if count == stack.heads else f"heads {listed}"
        return f"{stack.title}, layer {stack.numbers[self.layer]}, {names}"

    def text(self, width: int = 80) -> str:
        """Returns the mean of the selected heads as a heat map, and the strongest links."""
        stack, weights = self._first, self._map()
        if not self.shown:
            return "no head is selected"
        several = len(self.shown) > 1
        lines = [self._where(), f"rows attend to columns{', mean of the heads' if several else ''}"]
        lines += ["", *heat_map(weights.mean(axis=0), stack.queries.names, stack.keys.names, width)]
        lines += ["", *legend(stack.queries.names, stack.keys.names, width)]
        lines += ["", f"strongest links{', with heads' if several else ''}"]
        for head, query, key in strongest(weights, 5):
            names = f"{query} {stack.queries.names[query]} → {key} {stack.keys.names[key]}"
            number = f"{weights[head, query, key]:.4f}" + (f"  head {self.shown[head]}" if several else "")
            lines.append(f"  {fit(names, min(40, width - 22))} {number}")
        lines += elsewhere(self.stacks, self.stack)
        return "\n".join(line if len(line) <= width else fit(line, width) for line in lines)

    def svg(self) -> str:
        """Draws lines of the selected layer and heads between two columns of tokens, with a key of colours."""
        stack, weights = self._first, self._map()
        sheet, row, top = Sheet(self.title), 22.0, 28.0
        left = max(text_width(printable(name)) for name in stack.queries.names) + 10
        right = left + 220.0
        colours = head_colours(stack.heads)["light"]
        sheet.text(0, 12, self._where(), bold=True)
        if len(self.shown) > 1:
            top += _colour_key(sheet, self.shown, colours, right)
        for place, head in enumerate(self.shown):
            shift = (place - (len(self.shown) - 1) / 2) * min(1.0, 12 / len(self.shown))
            _strands(sheet, weights[place], colours[head], (left, right, top + row / 2 + shift, row))
        for x, anchor, side in ((left - 6, "end", stack.queries), (right + 6, "start", stack.keys)):
            for i, name in enumerate(side.names):
                sheet.text(x, top + row * i + 15, name, anchor)
        return sheet.render()


def _colour_key(sheet: Sheet, shown: Sequence[int], colours: Sequence[str], width: float) -> float:
    """Draws numbered swatches under the heading, wrapped to `width`. Returns the height of the swatches."""
    across = max(1, int(width // 22))
    for place, head in enumerate(shown):
        x, y = place % across * 22.0, 22 + place // across * 26.0
        sheet.rect(x, y, 19, 10, colours[head])
        sheet.text(x + 9.5, y + 20, str(head), "middle", 9, MUTED)
    return 26.0 * -(-len(shown) // across) + 6


def _strands(sheet: Sheet, weights: np.ndarray, colour: str, place: tuple[float, float, float, float]) -> None:
    """Draws the lines of one head, more opaque and wider for larger weights."""
    left, right, top, row = place
    bend = (right - left) * 0.42
    for query, key in np.argwhere(weights >= FAINT):
        weight, start, end = float(weights[query, key]), top + row * query, top + row * key
        path = f"M{left:g} {start:g}C{left + bend:g} {start:g} {right - bend:g} {end:g} {right:g} {end:g}"
        width, opacity = f"{0.75 + 2.5 * weight:.2f}", f"{weight:.2f}"
        sheet.add("path", d=path, fill="none", stroke=colour, stroke_width=width, stroke_opacity=opacity)
