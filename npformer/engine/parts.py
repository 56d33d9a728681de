"""`Parts`: the parts of a whole model. A family builds the parts from a `Config`, and `transformer.py` runs them."""

from __future__ import annotations

from dataclasses import dataclass

from npformer.engine.descriptions.weight_group import Group, within
from npformer.engine.embeddings import Embeddings
from npformer.engine.layers.stack import Stack
from npformer.engine.output_heads.heads import Head, HiddenStates


@dataclass(frozen=True)
class Parts:
    """The parts of a model: the embeddings, the layers, and the head, which reads the output of the last layer.

    Parameters
    ----------
    embeddings : Embeddings
    stack : Stack, the layers of an encoder or of a decoder-only model
    head : Head or HiddenStates
    decoder : Embeddings and Stack of the decoder of an encoder-decoder, optional; the head then reads the decoder's
        last layer
    start_id, end_id : int, the tokens with which a text of the decoder begins and ends, optional
    """

    embeddings: Embeddings
    stack: Stack
    head: Head | HiddenStates
    decoder: tuple[Embeddings, Stack] | None = None
    start_id: int | None = None
    end_id: int | None = None

    def groups(self, d_model: int) -> dict[str, Group]:
        """The groups of weights, by name."""
        head = self.head.groups(self.stack.width(d_model))
        stack = _of_stack(self.embeddings, self.stack, d_model)
        if self.decoder is None:
            return stack | head
        return within("encoder", stack) | within("decoder", _of_stack(*self.decoder, d_model)) | head

    @property
    def dropped(self) -> list[str]:
        """The stages with dropout in training: the embeddings, and the output of each block.

        Vaswani et al., 2017, section 5.4.
        """
        names = [f"{name}.{block.dropped}" for name, block in self.stack.layers[0].blocks]
        after = [] if self.stack.after_first is None else self.stack.after_first.blocks
        own = [f"{name}.{block.dropped}" for name, block in after]
        return [self.embeddings.dropped, *(f"layers.*.{name}" for name in names), *own]


def _of_stack(embeddings: Embeddings, stack: Stack, d_model: int) -> dict[str, Group]:
    return embeddings.groups(d_model) | stack.groups(d_model)
