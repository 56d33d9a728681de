"""The base of the head view and the model view: compressed attention weights of each stack, per token or per word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from npformer.common.errors import NpformerError
from npformer.interpret.stacks import Side, WeightStack, pick
from npformer.text.words import printable, shortened
from npformer.view.colour import head_colours
from npformer.view.document import View
from npformer.view.pack import BUDGET, Packed, pack_decimals, pack_weights, size

#: Tokens that models add to a text.
FRAME = ("[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<pad>", "<bos>", "<eos>", "<|endoftext|>")


@dataclass(frozen=True, repr=False, eq=False)
class StackView(View):
    """A view of attention stacks. It opens on one stack, at the layer with index `layer` and the heads `shown`.

    words: merge word pieces. stack: index of the initial stack.
    """

    stacks: tuple[WeightStack, ...]
    layer: int
    shown: tuple[int, ...]
    words: bool = False
    stack: int = 0

    @property
    def subject(self) -> str:
        return subtitle(self.stacks)

    @cached_property
    def _first(self) -> WeightStack:
        """Returns the stack for `text` and `svg`, with word pieces merged if `words` is true."""
        first = self.stacks[self.stack]
        return first.words() if self.words else first

    @cached_property
    def _forms(self) -> list[dict[str, WeightStack]]:
        """Returns the forms of each stack: with word pieces and, if any word has several pieces, with whole words."""
        return [{"pieces": s, "words": s.words()} if s.has_pieces else {"pieces": s} for s in self.stacks]

    @cached_property
    def _packed(self) -> dict[str, Packed]:
        """Packs every layer in the requested form, and in the other form too if the file stays small."""
        asked: dict[str, np.ndarray] = {}
        others: dict[str, np.ndarray] = {}
        for number, forms in enumerate(self._forms):
            wanted = "words" if self.words and "words" in forms else "pieces"
            for form, stack in forms.items():
                for layer, weights in enumerate(stack.layers):
                    (asked if form == wanted else others)[f"{number}.{layer}.{form}"] = weights
        blocks = pack_weights(list(asked), list(asked.values()))
        extra = [pack_decimals(name, weights, blocks[0].decimals) for name, weights in others.items()]
        return {block.name: block for block in (blocks + extra if size(blocks) + size(extra) <= BUDGET else blocks)}

    def _blocks(self) -> Sequence[Packed]:
        return list(self._packed.values())

    def _meta(self) -> dict[str, Any]:
        forms = [
            {form: stack for form, stack in each.items() if f"{number}.0.{form}" in self._packed}
            for number, each in enumerate(self._forms)
        ]
        form = "words" if self.words and "words" in forms[0] else next(iter(forms[0]))
        return {
            "stacks": [_stack_meta(stack, each) for stack, each in zip(self.stacks, forms, strict=True)],
            "shown": {"stack": self.stack, "layer": self.layer, "heads": self.shown, "form": form},
            "colours": head_colours(max(stack.heads for stack in self.stacks)),
            "notes": self._notes(),
        }

    def _notes(self) -> list[str]:
        """Returns the notes about numbers on the page."""
        dtype, decimals = self.stacks[0].layers[0].dtype, self._blocks()[0].decimals
        lines = [f"Weights are the model's own ({dtype}), rounded to {decimals} decimals."]
        if any(stack.queries.is_pair for stack in self.stacks):
            lines.append("Filtered weights are not renormalized.")
        if any(stack.has_pieces for stack in self.stacks):
            lines.append("Whole words: weights to a word are summed over its pieces; weights from a word are averaged.")
        return lines


def _stack_meta(stack: WeightStack, forms: dict[str, WeightStack]) -> dict[str, Any]:
    sides = {form: {"queries": _side_meta(each.queries), "keys": _side_meta(each.keys)} for form, each in forms.items()}
    return {"title": stack.title, "numbers": stack.numbers, "heads": stack.heads, "forms": sides}


def _side_meta(side: Side) -> dict[str, Any]:
    return {"tokens": side.names, "tokenTypes": side.token_type_ids if side.is_pair else ()}


def chosen(stack: WeightStack, layer: int, heads: Sequence[int] | None) -> tuple[int, tuple[int, ...]]:
    """Checks the layer and the heads to show. Returns the layer's index in `stack`, and the heads (default: all)."""
    if isinstance(heads, int | np.integer):
        raise NpformerError(f"heads={heads}: expected a list of heads; for one head use heads=[{heads}]")
    if isinstance(heads, str):
        raise NpformerError(f"heads={heads!r:.80}: expected a list of heads; omit it for all heads")
    every = range(stack.heads)
    shown = every if heads is None else sorted({pick("head", head, every) for head in heads})
    return pick("layer", layer, stack.numbers), tuple(shown)


def most_telling(parts: Sequence[Looks]) -> int:
    """Returns the index of the kind of attention to show initially: cross-attention if present, else the first."""
    return next((i for i, part in enumerate(parts) if part.title == "Cross-attention"), 0)


def sentence(side: Side) -> str:
    """Joins the words of a side for a title. Special tokens are left out, unless there are no other words."""
    words = side.words()
    every = list(zip(words.token_type_ids or (0,) * len(words.tokens), words.tokens, strict=True))
    kept = [(segment, word) for segment, word in every if word not in FRAME] or every
    parts = (" ".join(printable(word) for _, word in part) for _, part in groupby(kept, key=itemgetter(0)))
    return shortened(" / ".join(parts))


def elsewhere(parts: Sequence[Looks], first: int = 0) -> list[str]:
    """Returns a line with the names of the other kinds of attention, which only the page shows."""
    others = [part.title for i, part in enumerate(parts) if i != first]
    return ["", f"also on the page: {', '.join(others)}"] if others else []


class Looks(Protocol):
    """A kind of attention: title, queries and keys."""

    @property
    def title(self) -> str: ...

    @property
    def queries(self) -> Side: ...

    @property
    def keys(self) -> Side: ...


def subtitle(parts: Sequence[Looks]) -> str:
    """Describes the input: the text, `queries → keys` for cross-attention alone, or `source / target`."""
    if len(parts) == 1 and parts[0].queries != parts[0].keys:
        return f"{sentence(parts[0].queries)} → {sentence(parts[0].keys)}"
    return " / ".join(dict.fromkeys(sentence(side) for part in parts for side in (part.keys, part.queries)))


def strongest(weights: np.ndarray, count: int) -> list[tuple[int, int, int]]:
    """Returns (head, query, key) of the largest weights (H, L, L), with only the best head for each pair of tokens."""
    best = weights.max(axis=0)
    order = np.argsort(-best, axis=None, kind="stable")[:count]
    pairs = [divmod(int(at), best.shape[1]) for at in order]
    return [(int(weights[:, query, key].argmax()), query, key) for query, key in pairs]
