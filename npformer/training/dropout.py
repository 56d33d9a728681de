"""Dropout as an `Edit` of named stages (Srivastava et al., 2014). Evaluation runs without dropout.

The property `dropped` of the parts of a model lists the stages with dropout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np

from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.engine.tape import Edit, Pullback
from npformer.families import family_of

Rates = Mapping[str, float]  # fraction of elements to set to 0, by stage or pattern


def standard_rates(
    config: Config, rate: float = 0.1, attention: float | None = None, head: float | None = None
) -> dict[str, float]:
    """Returns the dropout rates for the stages of a family, as in Transformers (DistilBERT, BERT) or nn.Transformer.

    Parameters
    ----------
    config : Config
    rate : float, rate of all other stages
    attention : float, rate of attention weights; `rate` by default
    head : float, rate of the input of a classifier; `rate` by default, or 0.2 for DistilBERT

    Returns
    -------
    dict from stage or pattern to rate

    Examples
    --------
    >>> standard_rates(npformer.load("distilbert-sst2").config)["*attention.weights"]
    0.1
    """
    return family_of(config).dropout(config, rate, rate if attention is None else attention, head)


class Dropout(Edit):
    """Maps x to x * keep / (1 - p), where keep is 0 for each element with probability p, else 1.

    Parameters
    ----------
    rates : mapping from stage or pattern to a rate p, 0 <= p < 1
        Each p is rounded to a multiple of 2^-16.
    seed : int or sequence of int, such as the seed of the run, the step and the shard
        With the same seed, the same elements are dropped.

    Raises
    ------
    NpformerError
        If a rate is not in [0, 1).

    References
    ----------
    Srivastava et al., 2014, "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", section 4.

    Examples
    --------
    >>> from npformer.engine.taps import listen
    >>> with listen(Dropout({"ffn": 0.5}, seed=0), first=True):
    ...     y = npformer.tap("ffn", np.ones((1, 1000)))
    >>> np.unique(y)
    array([0., 2.])
    """

    def __init__(self, rates: Rates, seed: int | Sequence[int]) -> None:
        for name, rate in rates.items():
            if not 0 <= rate <= 1 - 2**-16:
                raise NpformerError(f"dropout: {name}: expected a rate of at least 0 and below 1, got {rate}")
        self._rates = dict(rates)
        self._random = np.random.Generator(np.random.SFC64(seed))
        self._of: dict[str, int] = {}  # rate times 2^16 of each computed stage

    @property
    def unmatched(self) -> list[str]:
        """The patterns that have matched no stage so far."""
        return [pattern for pattern in self._rates if not any(fnmatchcase(name, pattern) for name in self._of)]

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
    """Reshapes flat numbers to the shape and memory order of `array`, so that their product is fast."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return flat.reshape([array.shape[axis] for axis in order]).transpose(np.argsort(order))
