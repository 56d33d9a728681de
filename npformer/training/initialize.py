"""Draws initial weights from BERT's or torch's distributions, with NumPy's generator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.checkpoint.parameters import Parameter
from npformer.checkpoint.tied import drawn
from npformer.common.errors import NpformerError
from npformer.config import Config

SCHEMES = ("normal", "torch", "xavier")


def initialize(config: Config, seed: int = 0, scheme: str = "normal", dtype: Any = np.float32) -> layout.Tree:
    """Draws the weights of a model. In every scheme, norms have weights of 1 and biases of 0.

    Parameters
    ----------
    config : Config
    seed : int
    scheme : "normal", "torch" or "xavier"
        "normal", as in BERT: N(0, 0.02^2) for weights, and 0 for biases. "torch", as in nn.Linear and nn.Embedding:
        U(-1, 1) / sqrt(inputs) for weights and biases, and N(0, 1) for tables. "xavier", as in nn.Transformer: U(-1, 1)
        sqrt(6 / (inputs + outputs)) for weights, where query, key and value are one matrix of 3 D outputs, and N(0, 1 /
        D) for tables. Biases of attention are 0, and other biases are as in "torch".
    dtype : dtype of the arrays

    Returns
    -------
    dict
        The nested dict of arrays that a `Model` takes.

    Raises
    ------
    NpformerError
        If the scheme is unknown.

    References
    ----------
    Devlin et al., 2019 (normal); Glorot and Bengio, 2010, equation 16 (xavier).

    Examples
    --------
    >>> tree = initialize(npformer.load("distilbert-sst2").config)
    >>> tree["embeddings"]["token"]["weight"].shape
    (30522, 384)
    """
    if scheme not in SCHEMES:
        raise NpformerError(f"scheme: expected one of {', '.join(SCHEMES)}, got {scheme!r:.80}")
    random = np.random.default_rng(seed)
    flat, inputs = {}, 1
    for name, each in drawn(config).items():
        if each.kind != "norm" and each.name == "weight":
            inputs = each.shape[0]
        flat[name] = _drawn(each, random, scheme, inputs).astype(dtype)
    return layout.own_to_tree(flat, config, np.dtype(dtype))


def _drawn(each: Parameter, random: np.random.Generator, scheme: str, inputs: int) -> np.ndarray:
    if each.kind == "norm":
        return np.full(each.shape, each.start if each.name == "weight" else 0.0)
    if scheme == "normal":
        return np.zeros(each.shape) if each.name == "bias" else random.normal(0, 0.02, each.shape)
    if each.kind == "table":
        return random.normal(0, 1 if scheme == "torch" else each.shape[-1] ** -0.5, each.shape)
    bound = 1 / math.sqrt(inputs)
    if scheme == "xavier" and each.name == "weight":
        bound = math.sqrt(6 / (inputs + max(each.joined, 1) * each.shape[1]))
    elif scheme == "xavier" and each.joined:
        bound = 0.0
    return random.uniform(-bound, bound, each.shape)
