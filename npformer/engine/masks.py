"""Masks, which are True for the keys to which a query may attend, and the softmax over these keys.

Attention Is All You Need (Vaswani et al., 2017), section 3.2.3. Next: `attention.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npformer.engine.runtime.sums import sum_in_order


def padding_mask(lengths: np.ndarray, width: int | None = None) -> np.ndarray:
    """True where a key is a token, False where it is padding: lengths (B,) -> mask (B, 1, 1, width).

    Parameters
    ----------
    lengths : (B,) integer array, number of tokens of each sequence
    width : int, length of the padded sequences, by default max(lengths)

    Examples
    --------
    >>> npformer.padding_mask(np.array([1, 3]))[:, 0, 0].astype(int)
    array([[1, 0, 0],
           [1, 1, 1]])
    """
    lengths = np.asarray(lengths)
    return (np.arange(lengths.max(initial=0) if width is None else width) < lengths[:, None])[:, None, None, :]


def masked_softmax(
    scores: np.ndarray,
    mask: np.ndarray,
    total: Callable[..., np.ndarray] = sum_in_order,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """softmax over the keys that the mask allows. A row without such a key becomes zeros.

    total: function that sums the exponentials. out: array for the result, which may be `scores` itself.
    """
    seen = mask.any(axis=-1, keepdims=True)
    every_row = bool(seen.all())
    if not scores.size or not (every_row or seen.any()):
        return np.zeros_like(scores)
    weights = np.empty_like(scores) if out is None else out
    if weights is not scores:
        weights[...] = scores
    np.copyto(weights, -np.inf, where=~mask)
    if not every_row:
        np.copyto(weights, 0, where=~seen)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        weights -= weights.max(axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= total(weights)
    return weights if every_row else weights * seen
