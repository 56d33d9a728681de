"""The types of the functions in llama.py, whose text has none, so that it reads like the paper."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Array = np.ndarray
Cache = tuple[Array, Array]
Weights = Mapping[str, Any]
Activation = Callable[[Array], Array]

def grouped_query_attention(
    x: ArrayLike,
    past: Any,
    mask: ArrayLike,
    heads: Sequence[int],
    angles: Sequence[ArrayLike],
    query: Weights,
    key: Weights,
    value: Weights,
    output: Weights,
) -> tuple[Array, Cache]: ...
def llama_layer(
    x: ArrayLike,
    past: Any,
    mask: ArrayLike,
    heads: Sequence[int],
    angles: Sequence[ArrayLike],
    activation: Activation,
    eps: float,
    attention: Weights,
    attention_norm: Weights,
    ffn: Weights,
    ffn_norm: Weights,
) -> tuple[Array, Cache]: ...
def llama(
    ids: ArrayLike,
    positions: ArrayLike,
    past: Any,
    heads: Sequence[int],
    frequencies: ArrayLike,
    magnitude: float,
    activation: Activation,
    eps: float,
    embeddings: Weights,
    layers: Sequence[Weights],
    norm: Weights,
) -> tuple[Array, list[Cache]]: ...
def __getattr__(name: str) -> Any: ...  # MODEL, HEADS and other values
