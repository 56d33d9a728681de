"""Poolings, which combine the outputs for the tokens of a text into one vector. Names as in sentence-transformers.

`tasks/sentence_embedding.py` pools vectors of the last layer, and `tasks/word_weights.py` pools logits of the
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npformer.engine.functions import linear


def weighted_mean(x: np.ndarray, start: int) -> np.ndarray:
    """Returns the mean of the rows from `start` on, weighted by row numbers counted from 1: (L, D) -> (D,).

    Muennighoff, 2022, "SGPT: GPT Sentence Embeddings for Semantic Search", section 4.1.1.
    """
    weights = np.arange(start + 1, len(x) + 1, dtype=x.dtype)
    mean: np.ndarray = (x[start:] * weights[:, None]).sum(axis=0) / weights.sum()
    return mean


#: Poolings of token vectors, (L, D) -> (D,). Rows before `start`, which belong to a prompt, are skipped.
#: Reimers and Gurevych, 2019, section 3.
POOLINGS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "cls": lambda x, start: x[start],
    "max": lambda x, start: x[start:].max(axis=0),
    "mean": lambda x, start: x[start:].mean(axis=0),
    "mean_sqrt_len_tokens": lambda x, start: x[start:].sum(axis=0) / np.sqrt(np.array(len(x) - start, x.dtype)),
    "weightedmean": weighted_mean,
    "lasttoken": lambda x, start: x[-1],
}


def normalize(x: np.ndarray) -> np.ndarray:
    """Returns x / |x| for each vector x, (..., D) -> (..., D). A zero vector stays zero."""
    lengths = np.sqrt((x * x).sum(axis=-1, keepdims=True))
    scaled: np.ndarray = x / np.maximum(lengths, 1e-12)
    return scaled


def dense(
    x: np.ndarray,
    activation: Callable[[np.ndarray], np.ndarray] | None,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
) -> np.ndarray:
    """Returns act(x W + b) + x R, (B, D) -> (B, E). The activation and R are optional."""
    y = linear(x, weight, bias)
    y = y if activation is None else activation(y)
    return y if residual is None else y + linear(x, residual)


def splade(logits: np.ndarray, strategy: str = "max", twice: bool = False) -> np.ndarray:
    """Returns the weight of each word in the vocabulary: max over tokens of log(1 + relu(logits)), (L, V) -> (V,).

    Strategy "sum" sums over the tokens instead of taking the maximum. With `twice`, the logarithm is applied twice:
    log(1 + log(1 + relu(logits))).

    Formal et al., 2021, "SPLADE: Sparse Lexical and Expansion Model for First Stage Ranking", equation 2 (sum), and
    "SPLADE v2: Sparse Lexical and Expansion Model for Information Retrieval", section 3.1 (max). Geng et al., 2024,
    "Towards Competitive Search Relevance For Inference-Free Learned Sparse Retrievers" (twice).
    """
    if strategy == "max":  # log(1 + relu(x)) is monotonic, so only the largest logit matters
        logits = logits.max(axis=0, keepdims=True)
    weights: np.ndarray = np.log1p(np.maximum(logits, 0))
    weights = np.log1p(weights) if twice else weights
    # float32 would lose accuracy in a sum of many terms of the same sign.
    return weights.sum(axis=0, dtype=np.float64).astype(logits.dtype)
