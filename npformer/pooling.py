"""Pooling: one vector of a text from what a model says of each of its tokens, by sentence-transformers' names.

`tasks/sentence_embedding.py` pools the last layer's vectors, `tasks/sparse_embedding.py` the vocabulary's logits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def weighted_mean(x: np.ndarray, before: int = 0) -> np.ndarray:
    """The mean of rows with weights 1, 2, ..., (L, D) -> (D,). before: rows of the text before x, which are counted.

    Muennighoff, 2022, "SGPT: GPT Sentence Embeddings for Semantic Search", section 4.1.1.
    """
    weights = np.arange(before + 1, before + len(x) + 1, dtype=x.dtype)
    mean: np.ndarray = (x * weights[:, None]).sum(axis=0) / weights.sum()
    return mean


#: How the tokens' vectors become one, (L, D) -> (D,). Reimers and Gurevych, 2019, section 3.
POOLINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "cls": lambda x: x[0],
    "max": lambda x: x.max(axis=0),
    "mean": lambda x: x.mean(axis=0),
    "mean_sqrt_len_tokens": lambda x: x.sum(axis=0) / np.sqrt(np.array(len(x), x.dtype)),
    "weightedmean": weighted_mean,
    "lasttoken": lambda x: x[-1],
}


def splade(logits: np.ndarray, strategy: str = "max", twice: bool = False) -> np.ndarray:
    """max over tokens of log(1 + relu(logits)), (L, V) -> (V,): how much each word of the vocabulary matters.

    strategy "sum" adds over the tokens in place of the maximum. With `twice` the logarithm is taken again,
    log(1 + log(1 + relu(logits))).

    Formal et al., 2021, "SPLADE: Sparse Lexical and Expansion Model for First Stage Ranking", equation 2 (sum), and
    "SPLADE v2: Sparse Lexical and Expansion Model for Information Retrieval", section 3.1 (max). Geng et al., 2024,
    "Towards Competitive Search Relevance For Inference-Free Learned Sparse Retrievers" (twice).
    """
    if strategy == "max":  # the function below never falls, so that it is enough to compute it for the largest logit
        logits = logits.max(axis=0, keepdims=True)
    weights: np.ndarray = np.log1p(np.maximum(logits, 0))
    weights = np.log1p(weights) if twice else weights
    return weights.sum(axis=0, dtype=np.float64).astype(logits.dtype)  # many terms, all of one sign
