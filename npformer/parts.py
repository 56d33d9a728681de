"""`Parts`: a whole model as its parts, which a family builds from a `Config` and `transformer.py` computes with."""

from __future__ import annotations

from dataclasses import dataclass

from npformer.embeddings import Embeddings
from npformer.group import Group, within
from npformer.heads import Head, HiddenStates
from npformer.layers import Stack


@dataclass(frozen=True)
class Parts:
    """A model: embeddings, the layers that read them, and the head that reads the last layer.

    Parameters
    ----------
    embeddings : Embeddings
    stack : Stack, the layers of an encoder, or of a decoder on its own
    head : Head or HiddenStates
    decoder : pair of Embeddings and a Stack that reads the first one, optional; the head then reads its last layer
    """

    embeddings: Embeddings
    stack: Stack
    head: Head | HiddenStates
    decoder: tuple[Embeddings, Stack] | None = None

    def groups(self, d_model: int) -> dict[str, Group]:
        """The groups of weights that the model may have, by name."""
        head, stack = self.head.groups(d_model), _of_stack(self.embeddings, self.stack, d_model)
        if self.decoder is None:
            return stack | head
        return within("encoder", stack) | within("decoder", _of_stack(*self.decoder, d_model)) | head


def _of_stack(embeddings: Embeddings, stack: Stack, d_model: int) -> dict[str, Group]:
    return embeddings.groups(d_model) | stack.groups(d_model)
