"""The probabilities that a task computes from logits."""

from __future__ import annotations

import numpy as np

from npformer.functions import softmax
from npformer.stage import Stage
from npformer.taps import tap


def probabilities(logits: np.ndarray, function: str = "softmax") -> np.ndarray:
    """Applies softmax over the last axis, sigmoid or nothing ("none") to logits (..., C)."""
    if function == "softmax":
        return tap("probabilities", softmax(logits))
    if function == "sigmoid":
        e = np.exp(-np.abs(logits))
        return tap("probabilities", np.where(logits >= 0, 1 / (1 + e), e / (1 + e)))
    return logits


def probabilities_stage(answer: str = "", function: str = "softmax") -> Stage:
    """answer: "start_" or "end_" in extractive question answering."""
    shape = "(T,)" if answer else "(C,) or (T,) or (T, C)"
    made_by = "functions.softmax" if function == "softmax" else "probabilities.probabilities"
    logits = f"{answer}logits"
    return Stage(f"{answer}probabilities", shape, f"{function}({logits})", made_by, parents=(logits,), kept=False)
