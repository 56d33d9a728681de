"""`Parts`: a whole model as its parts, which a family builds from a `Config` and `transformer.py` computes with."""

from __future__ import annotations

from dataclasses import dataclass

from npformer.embeddings import Embeddings
from npformer.heads import Head, HiddenStates
from npformer.layers import Stack


@dataclass(frozen=True)
class Parts:
    """A model: embeddings, the layers that read them, and the head that reads the last layer.

    Parameters
    ----------
    embeddings : Embeddings, of both stacks where there are two
    stack : Stack, the layers of an encoder, or of a decoder on its own
    head : Head or HiddenStates
    decoder : Stack, a second one that reads the first, optional; the head reads its last layer
    """

    embeddings: Embeddings
    stack: Stack
    head: Head | HiddenStates
    decoder: Stack | None = None
