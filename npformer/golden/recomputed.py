"""Parts of a model, computed again for one text from an `At`: biases of scores, and the convolution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from npformer.engine.blocks.convolution import convolve
from npformer.engine.mechanisms.alibi import Alibi, alibi_slopes
from npformer.engine.mechanisms.distances import at_distances
from npformer.engine.mechanisms.relative_bias import RelativeBias, relative_bias


def bias_of(at: Any, scores: np.ndarray, name: str = "relative_bias", **choices: Any) -> np.ndarray | float:
    """The biases of scores (H, L, S), or 0 in a stack without biases. choices: fields of `RelativeBias` to replace."""
    own = next((each for each in at.mechanisms if isinstance(each, RelativeBias)), None)
    if own is None:
        return 0.0
    _, length, width = scores.shape
    own = replace(own, **choices)
    values = relative_bias(at.weight(name), max(length, width), own.max_distance, own.bidirectional)
    return np.asarray(at_distances(values, np.arange(length)[None], np.arange(width)[None])[0])


def alibi_of(at: Any, scores: np.ndarray) -> np.ndarray | float:
    """The biases of scores (H, L, S), or 0 in a model without ALiBi."""
    if not any(isinstance(each, Alibi) for each in at.mechanisms):
        return 0.0
    distances = np.arange(scores.shape[-1]) - np.arange(scores.shape[-2])[:, None]
    return np.multiply(alibi_slopes(len(scores)).astype(scores.dtype)[:, None, None], distances)


def convolved(at: Any, x: np.ndarray) -> np.ndarray:
    """The convolution of the rows x of a text, (T, D) -> (T, D), without activation."""
    hidden = {part: array for part in ("weight", "bias") if (array := at.weight("convolution", part)) is not None}
    return np.asarray(at.unheard(lambda: convolve(x, np.array([len(x)]), np.arange(len(x)), **hidden)))
