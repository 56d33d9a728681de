"""Soft caps of scores: a scaled tanh keeps scores between -cap and cap.

Gemma Team, 2024, Gemma 2: Improving Open Language Models at a Practical Size, section 2; Bello et al., 2016, Neural
Combinatorial Optimization with Reinforcement Learning, appendix A, "Logit clipping".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.common import checks
from npformer.engine.activations import soft_cap, soft_cap_backward
from npformer.engine.descriptions.stage import Stage
from npformer.engine.mechanisms.mechanism import Mechanism, Sums
from npformer.engine.tape import Stages
from npformer.engine.taps import spare, tap

UNCAPPED_SCORES = "uncapped_scores"


@dataclass(frozen=True)
class SoftCap(Mechanism):
    """score_ij = cap tanh(q_i . k_j * scale / cap), before the mask is applied. Gemma Team, 2024, Gemma 2, section 2.

    Parameters
    ----------
    cap : float
    """

    cap: float

    cached = True

    def check(self, config: Any) -> None:
        checks.positive("soft_cap.cap", self.cap)

    def terms(self, queries: np.ndarray, keys: np.ndarray, n_heads: int) -> dict[str, np.ndarray]:
        return {}

    def add(self, scores: np.ndarray, q: np.ndarray, k: np.ndarray, scale: float, **terms: np.ndarray) -> np.ndarray:
        scores = tap(UNCAPPED_SCORES, scores)
        return soft_cap(scores, self.cap, out=spare(scores))

    def add_backward(
        self,
        grad: np.ndarray,
        q: np.ndarray,
        k: np.ndarray,
        scale: float,
        queries: np.ndarray,
        keys: np.ndarray,
        stages: Stages,
    ) -> tuple[np.ndarray, float, float, Sums]:
        grad = soft_cap_backward(grad, stages[UNCAPPED_SCORES], self.cap)
        return stages.through_edit(UNCAPPED_SCORES, grad), 0.0, 0.0, {}

    def formula(self, scores: str) -> str:
        return f"{self.cap:g} tanh({UNCAPPED_SCORES} / {self.cap:g})"

    @property
    def added(self) -> tuple[Stage, ...]:
        products, parents = "Q_h K_h^T * scale", ("query_heads", "key_heads")
        return (Stage(UNCAPPED_SCORES, "(H, T, T)", products, "mechanisms.soft_cap.SoftCap", parents=parents),)
