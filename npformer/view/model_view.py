"""The model view: every head of every layer as a thumbnail that can be enlarged. Script: `assets/model.js`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from npformer.interpret.stacks import stacks, traced
from npformer.view.stack_view import StackView, chosen, elsewhere, most_telling
from npformer.view.svg import MUTED, Sheet, weight_cells
from npformer.view.terminal import LEGEND, pool, shade


def model(
    source: Any,
    text: Any = None,
    *,
    words: bool = False,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    token_type_ids: Sequence[int] | None = None,
) -> ModelView:
    """Draws every head of every layer as a small heat map, which a click enlarges.

    Parameters
    ----------
    source, text, words, tokens, key_tokens, token_type_ids : as in `heads`

    Returns
    -------
    ModelView
        Displays itself in a notebook, and has the methods of `View`.

    Raises
    ------
    NpformerError
        If the weights do not fit the tokens.

    Examples
    --------
    >>> view = model(npformer.load("distilbert-sst2"), "time flies like an arrow")
    >>> view.save("model.html").name
    'model.html'
    """
    found = stacks(traced(source, text), tokens, key_tokens, token_type_ids)
    first = most_telling(found)
    return ModelView(tuple(found), *chosen(found[first], found[first].numbers[0], None), words, first)


@dataclass(frozen=True, repr=False, eq=False)
class ModelView(StackView):
    """See `model`."""

    kind: ClassVar[str] = "model"
    scripts: ClassVar[tuple[str, ...]] = ("stacks", "model")

    heading: ClassVar[str] = "Attention of every head"

    def _height(self) -> int:
        return min(900, 260 + 100 * len(self.stacks[0].layers))

    def text(self, width: int = 80) -> str:
        """Draws every head as a few characters, from its matrix max-pooled in blocks."""
        stack = self._first
        cell = min(8, (width - 4) // stack.heads - 1)
        if cell < 2:
            return (
                f"{stack.heads} heads do not fit in {width} columns; print a layer with heads(...), or increase "
                "width in .text(width)"
            )
        lines = [f"{stack.title}: layers down, heads across; rows attend to columns"]
        lines += [LEGEND, "    " + " ".join(f"{h:^{cell}}" for h in range(stack.heads)).rstrip()]
        for number, weights in zip(stack.numbers, stack.layers, strict=True):
            across, down = -(-weights.shape[2] // cell), -(-weights.shape[1] // max(2, cell // 2))
            small = pool(weights, down, across)
            lines.append("")
            for row in range(small.shape[1]):
                cells = ("".join(shade(weight) for weight in head[row]).ljust(cell) for head in small)
                lines.append((f"{number if row == 0 else '':>3} " + "|".join(cells)).rstrip())
        lines += elsewhere(self.stacks, self.stack)
        return "\n".join(lines)

    def svg(self) -> str:
        """Draws the grid of heat maps."""
        stack, size, gap = self._first, 64.0, 6.0
        sheet = Sheet(self.title)
        sheet.text(0, 12, f"{stack.title}: layers down, heads across", bold=True)
        for head in range(stack.heads):
            sheet.text(24 + head * (size + gap) + size / 2, 32, str(head), "middle", 11, MUTED)
        for row, (number, weights) in enumerate(zip(stack.numbers, stack.layers, strict=True)):
            y = 38 + row * (size + gap)
            sheet.text(16, y + size / 2 + 4, str(number), "end", 11, MUTED)
            for head, matrix in enumerate(weights):
                block = -(-max(matrix.shape) // 128)
                sheet.image(24 + head * (size + gap), y, size, size, weight_cells(pool(matrix, block, block)))
        return sheet.render()
