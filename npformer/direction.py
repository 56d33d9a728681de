"""`Direction`: a logit as a linear function of one row, which the parts of a model pull back from output to input.

Each part has a `pull` that replaces the direction in its output by that in its input, and returns what the part itself
adds to the logit. `interpret/direct_attribution.py` has the formulas and puts the parts together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Direction:
    """logit = u . x + the recorded terms, for a row x of the stages of one text. Norms and gates are held at their
    values.

    Parameters
    ----------
    u : (D,) float64 array
    row : int, the number of the row
    stages : the text's stages
    embedded : the stage of the rows that the stack reads
    places : (T,) integer array, each row's place in its text
    biases : the part of each bias in the logit, by the name of its stage
    """

    u: np.ndarray
    row: int
    stages: Mapping[str, np.ndarray]
    embedded: str
    places: np.ndarray
    biases: dict[str, float] = field(default_factory=dict)

    def at(self, name: str) -> np.ndarray:
        """The row of a stage; a stage with a single row is that row."""
        array = self.stages[name]
        return array if array.ndim == 1 else array[self.row]

    def add_bias(self, name: str, layer: Mapping[str, np.ndarray]) -> float:
        """Notes and returns the part of a stage's bias, 0 without one."""
        self.biases[name] = float(self.u @ layer["bias"]) if "bias" in layer else 0.0
        return self.biases[name]

    def linear(self, name: str, layer: Mapping[str, np.ndarray]) -> None:
        """u . (x W + b) = (W u) . x + u . b, for the stage that is the output of a linear layer."""
        if "bias" in layer:
            self.add_bias(name, layer)
        self.u = layer["weight"].astype(np.float64) @ self.u

    def gate(self, x: str, activated: str) -> None:
        """u . act(x) = (u act(x) / x) . x, for two stages; where x is 0, so is act(x)."""
        h = self.at(x).astype(np.float64)
        self.u = self.u * np.divide(self.at(activated), h, out=np.zeros_like(h), where=h != 0)
