"""A head with soft-capped logits over the vocabulary.

Gemma Team, 2024, Gemma 2: Improving Open Language Models at a Practical Size, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.engine.activations import soft_cap, soft_cap_backward
from npformer.engine.descriptions.stage import Stage
from npformer.engine.functions import linear, linear_backward
from npformer.engine.output_heads.heads import Answers, Logits
from npformer.engine.tape import Stages
from npformer.engine.taps import spare, tap

UNCAPPED_LOGITS = "head.output"  # the logits before the cap


@dataclass(frozen=True)
class CappedLogits(Logits):
    """`soft_cap` of the logits over the vocabulary. Gemma Team, 2024, Gemma 2, section 2.

    Parameters
    ----------
    cap : float
    """

    cap: float = 1.0

    def finish(self, logits: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return soft_cap(logits, self.cap, out)

    def gain(self, stages: Mapping[str, np.ndarray], place: tuple[int, ...]) -> float:
        """cap tanh(x / cap) / x, or 1 for x = 0."""
        x = float(stages[UNCAPPED_LOGITS][place])
        return float(stages["logits"][place]) / x if x else 1.0

    def _answer(self, rows: np.ndarray, **head: Any) -> Answers:
        logits = tap(UNCAPPED_LOGITS, linear(rows, **head["output"]))
        return {"logits": tap("logits", self.finish(logits, out=spare(logits)))}

    def _answer_backward(
        self, grads: Mapping[str, np.ndarray], stages: Stages, rows: np.ndarray, **head: Any
    ) -> tuple[np.ndarray, dict[str, Any]]:
        grad = soft_cap_backward(stages.through_edit("logits", grads["logits"]), stages[UNCAPPED_LOGITS], self.cap)
        grad, d_output = linear_backward(stages.through_edit(UNCAPPED_LOGITS, grad), rows, **head["output"])
        return grad, {"output": d_output}

    def _stages(self, x: str) -> list[Stage]:
        [logits] = super()._stages(x)
        formula = f"{self.cap:g} tanh({UNCAPPED_LOGITS} / {self.cap:g})"
        capped = Stage("logits", logits.shape, formula, "activations.soft_cap", "", (UNCAPPED_LOGITS,), kept=False)
        return [logits._replace(name=UNCAPPED_LOGITS, kept=True), capped]
