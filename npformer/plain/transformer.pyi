"""The types of the functions in transformer.py, whose text has none, so that it reads like the paper."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Array = np.ndarray
Weights = Mapping[str, Any]
Activation = Callable[[Array], Array]

def sinusoidal_positions(length: int, width: int) -> Array: ...
def shifted(ids: ArrayLike, start_id: int) -> Array: ...
def embed(ids: ArrayLike, positions: ArrayLike, scale: float, token: Weights, position: Weights) -> Array: ...
def decoder_layer(
    x: ArrayLike,
    source: ArrayLike,
    mask: ArrayLike,
    n_heads: int,
    activation: Activation,
    eps: float,
    attention: Weights,
    attention_norm: Weights,
    cross_attention: Weights,
    cross_attention_norm: Weights,
    ffn: Weights,
    ffn_norm: Weights,
) -> Array: ...
def decoder(
    x: ArrayLike,
    source: ArrayLike,
    mask: ArrayLike,
    n_heads: int,
    activation: Activation,
    eps: float,
    layers: Sequence[Weights],
) -> Array: ...
def encode(
    ids: ArrayLike,
    positions: ArrayLike,
    n_heads: int,
    activation: Activation,
    eps: float,
    scale: float,
    embeddings: Weights,
    layers: Sequence[Weights],
) -> Array: ...
def decode(
    ids: ArrayLike,
    positions: ArrayLike,
    source: ArrayLike,
    n_heads: int,
    activation: Activation,
    eps: float,
    scale: float,
    embeddings: Weights,
    layers: Sequence[Weights],
) -> Array: ...
def transformer(
    ids: ArrayLike,
    positions: ArrayLike,
    target_ids: ArrayLike,
    target_positions: ArrayLike,
    n_heads: int,
    n_target_heads: int,
    activation: Activation,
    eps: float,
    scale: float,
    encoder: Weights,
    decoder: Weights,
) -> tuple[Array, Array]: ...
def __getattr__(name: str) -> Any: ...  # MODEL, HEADS and other values
