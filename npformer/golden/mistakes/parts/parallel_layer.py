"""Mistakes that ports make in layers whose blocks read the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npformer.golden.mistake import Mistake, Rules, Ways


def _normed(of: str, norm: str, read: Callable[[Any], np.ndarray] = lambda at: at("input")) -> Rules:
    """Rules that recompute the norm `of` with the weights of `norm`, from the rows that `read` returns."""

    return {f"*.{of}": lambda y, at: at.norm(read(at), weight=at.weight(norm), bias=at.weight(norm, "bias"))}


def _one_norm(port: Any) -> Ways:
    """One norm for both blocks, as in GPT-J."""
    yield "attention's", _normed("ffn_norm", "attention_norm")
    yield "the FFN's", _normed("attention_norm", "ffn_norm")
    yield "exchanged", port.exchanging_in_layers("attention_norm", "ffn_norm")


MISTAKES = (
    Mistake(
        "blocks one after another",
        "with use_parallel_residual both blocks read the layer's input, and both outputs are added to it",
        {"": _normed("ffn_norm", "ffn_norm", lambda at: at("input") + at.written("attention"))},
    ),
    Mistake("one norm for both blocks", "attention and the FFN each normalize the layer's input separately", _one_norm),
)
