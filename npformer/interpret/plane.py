"""Projects embeddings onto a plane: principal components by NumPy's SVD, or t-SNE with scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.common.checks import one_of
from npformer.common.errors import NpformerError
from npformer.common.extras import lacks

METHODS = ("pca", "tsne")


def project(embeddings: Any, method: str = "pca", dimensions: int = 2, seed: int = 0) -> np.ndarray:
    """Projects rows (N, D) to points (N, dimensions).

    For a trace of N texts, projects the first row of each text in the last layer. For a causal model, projects the last
    row, because the first row does not depend on later tokens.

    "pca": the coordinates along the directions of largest variance, U S of x - mean(x) = U S V^T (Pearson, 1901), with
    signs chosen so that the largest entry of each direction in V is positive. "tsne": van der Maaten and Hinton, 2008,
    computed by scikit-learn.
    """
    one_of("method", method, METHODS)
    rows = np.asarray(embeddings if not hasattr(embeddings, "texts") else _rows(embeddings))
    if rows.ndim != 2 or not 1 <= dimensions <= min(rows.shape):
        raise NpformerError(
            f"project: expected rows (N, D) with N and D at least {dimensions} (dimensions=), got {rows.shape}"
        )
    if method == "tsne":
        return _tsne(rows, dimensions, seed)
    left, values, right = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    right = right[:dimensions]
    signs = np.sign(np.take_along_axis(right, np.abs(right).argmax(axis=1)[:, None], axis=1)[:, 0])
    return left[:, :dimensions] * (values[:dimensions] * np.where(signs == 0, 1, signs))


def _rows(trace: Any) -> np.ndarray:
    ends = ("ffn_norm", "ffn_residual")  # the last stage of a post-norm or a pre-norm layer
    last = [name for name in trace if name == "norm" or (name.startswith("layers.") and name.split(".", 2)[2] in ends)]
    if not last:
        raise NpformerError("project: expected a trace with a layer's output; record layers.*.ffn_norm")
    at = -1 if trace.config is not None and trace.config.causal else 0
    return np.stack([rows[at] for rows in trace.texts(last[-1])])


def _tsne(rows: np.ndarray, dimensions: int, seed: int) -> np.ndarray:
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise lacks("t-SNE", "scikit-learn", "plots", '; "pca" needs only NumPy') from None
    perplexity = min(30.0, (len(rows) - 1) / 3)
    points: np.ndarray = TSNE(dimensions, random_state=seed, perplexity=perplexity, init="pca").fit_transform(rows)
    return points
