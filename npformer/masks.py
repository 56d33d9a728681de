"""Masks: which keys a query may attend to, True = may. Section 3.2.3 of the 2017 paper. Next: `attention.py`."""

from __future__ import annotations

import numpy as np


def padding_mask(lengths: np.ndarray, width: int | None = None) -> np.ndarray:
    """True where a key is a token, False where it is padding: lengths (B,) -> mask (B, 1, 1, width).

    Parameters
    ----------
    lengths : (B,) integer array, tokens of each sequence
    width : int, keys of the padded array; max(lengths) unless given

    Examples
    --------
    >>> npformer.padding_mask(np.array([1, 3]))[:, 0, 0].astype(int)
    array([[1, 0, 0],
           [1, 1, 1]])
    """
    lengths = np.asarray(lengths)
    return (np.arange(lengths.max() if width is None else width) < lengths[:, None])[:, None, None, :]


def causal_mask(queries: int, keys: int | None = None) -> np.ndarray:
    """True where key j is not later than query i, (queries, keys); the last query sees every key. Section 3.2.3.

    Parameters
    ----------
    queries, keys : int, how many; as many keys as queries unless given

    Examples
    --------
    >>> npformer.causal_mask(3).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]])
    """
    keys = queries if keys is None else keys
    return np.tri(queries, keys, keys - queries, dtype=bool)
