"""`Direction`: a logit as a linear function of one row. The parts of a model pull a direction from output to input.

Each part has a method `pull`, which replaces a direction in the part's output with the corresponding direction in its
input, and returns the part's contributions to the logit. `interpret/direct_attribution.py` has the formulas and
combines the parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Direction:
    """logit = u . x + the recorded terms, where x is one row of the current stage of a text.

    Norms and gates are treated as constant factors, with the values that they have for this text.

    Parameters
    ----------
    u : (D,) float64 array
    row : int, index of the row
    stages : the stages of the text
    embedded : the stage with the input of the stack
    places : (T,) integer array, the place of each row in its text
    biases : the contribution of each bias to the logit, by the name of its stage
    """

    u: np.ndarray
    row: int
    stages: Mapping[str, np.ndarray]
    embedded: str
    places: np.ndarray
    biases: dict[str, float] = field(default_factory=dict)

    def at(self, name: str) -> np.ndarray:
        """The row of a stage. A one-dimensional stage consists of a single row."""
        array = self.stages[name]
        return array if array.ndim == 1 else array[self.row]

    def add_bias(self, name: str, layer: Mapping[str, np.ndarray]) -> float:
        """Records and returns the contribution of the bias of a layer with stage `name`, or 0 if there is no bias."""
        self.biases[name] = float(self.u @ layer["bias"]) if "bias" in layer else 0.0
        return self.biases[name]

    def linear(self, name: str, layer: Mapping[str, np.ndarray]) -> None:
        """u . (x W + b) = (W u) . x + u . b, where the stage `name` is the output of the linear layer."""
        if "bias" in layer:
            self.add_bias(name, layer)
        self.u = layer["weight"].astype(np.float64) @ self.u

    def gate(self, x: str, activated: str) -> None:
        """u . act(x) = (u act(x) / x) . x, where x and `activated` are stages. act(0) must be 0."""
        h = self.at(x).astype(np.float64)
        self.u = self.u * np.divide(self.at(activated), h, out=np.zeros_like(h), where=h != 0)
