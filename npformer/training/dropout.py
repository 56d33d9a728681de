"""Dropout: an `Edit` of named stages. Srivastava et al., 2014.

`Dropout` zeroes elements of the stages that `rates` names and scales up the rest; evaluation runs without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np

from npformer.config import Config
from npformer.errors import NpformerError
from npformer.families import family_of
from npformer.tape import Edit, Pullback

Rates = Mapping[str, float]  # stage or pattern -> the share of its elements that become 0


def standard_rates(
    config: Config, rate: float = 0.1, attention: float | None = None, head: float | None = None
) -> dict[str, float]:
    """The stages that Transformers drops elements of (DistilBERT, BERT), or torch's nn.Transformer.

    attention: of attention weights, head: of what the classifier reads; by default `rate`, and DistilBERT's head's 0.2.
    """
    return family_of(config).dropout(config, rate, rate if attention is None else attention, head)


class Dropout(Edit):
    """x -> x * keep / (1 - p) with keep 0 for a share p of the elements, drawn from `seed`.

    seed: whole numbers, such as the run's seed, the step and the shard: the same ones draw the same elements. p is a
    multiple of 2^-16, the nearest to the rate, and the scale is that multiple's.
    """

    def __init__(self, rates: Rates, seed: int | Sequence[int]) -> None:
        for name, rate in rates.items():
            if not 0 <= rate <= 1 - 2**-16:
                raise NpformerError(f"dropout: the rate of {name} must lie in 0 ... 1, below 1, got {rate}")
        self._rates = dict(rates)
        self._random = np.random.Generator(np.random.SFC64(seed))
        self._of: dict[str, int] = {}  # stage that has fired -> its rate in 2^-16

    def change(self, name: str, array: np.ndarray) -> tuple[np.ndarray, Pullback] | None:
        if name not in self._of:
            rates = [rate for pattern, rate in self._rates.items() if fnmatchcase(name, pattern)]
            self._of[name] = round(max(rates, default=0) * 2**16)
        if not (dropped := self._of[name]):
            return None
        drawn = np.frombuffer(self._random.bytes(2 * array.size), np.uint16)
        factor = (drawn >= dropped).astype(array.dtype)
        factor *= 2**16 / (2**16 - dropped)
        factor = _laid_out_like(factor, array)
        return array * factor, lambda grad: grad * factor


def _laid_out_like(flat: np.ndarray, array: np.ndarray) -> np.ndarray:
    """Flat numbers in the shape of `array`, its axes in memory as they are there: one pass over both is quick."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return flat.reshape([array.shape[axis] for axis in order]).transpose(np.argsort(order))
