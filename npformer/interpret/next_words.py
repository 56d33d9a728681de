"""The probabilities of a causal model's next words at several temperatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.base_model import BaseModel, check_model
from npformer.common.errors import NpformerError
from npformer.interpret.metric import label_name
from npformer.interpret.study_inputs import read_inputs

TEMPERATURES = tuple(round(0.1 * step, 1) for step in range(1, 21))  # 0.1, 0.2, ..., 2.0
MOST = 10  # default number of words


@dataclass(frozen=True, eq=False)
class NextWords:
    """The result of `next_words`: the words with the largest logits, and the total for all other words.

    `logits` (most,) are the largest logits, in float64. `others` (temperatures,) is log sum exp(logit / temperature)
    over all other words. With `others`, the probabilities at each of `temperatures` are exact: exp(logit / t - log sum
    exp(logit / t)), with the sum over all words.
    """

    words: tuple[str, ...]
    logits: np.ndarray
    temperatures: tuple[float, ...]
    others: np.ndarray

    def probabilities(self, temperature: float) -> tuple[np.ndarray, float]:
        """Returns the probabilities of `words` (most,) at a temperature, and the probability of all other words."""
        if temperature not in self.temperatures:
            steps = ", ".join(map(str, self.temperatures))
            raise NpformerError(f"next_words: temperature: expected one of {steps}, got {temperature!r:.80}")
        others = float(self.others[self.temperatures.index(temperature)])
        total = np.logaddexp(np.logaddexp.reduce(self.logits / temperature), others)
        return np.exp(self.logits / temperature - total), float(np.exp(others - total))


def next_words(
    model: BaseModel, text: Any, most: int = MOST, temperatures: Sequence[float] = TEMPERATURES
) -> NextWords:
    """Computes the logits of the words that may follow a text, for sampling at several temperatures.

    p_i = exp(l_i / t) / sum_j exp(l_j / t), where l are the logits after the last token, and t is the temperature.

    Parameters
    ----------
    model : Model, causal-lm
    text : str or token ids
    most : int
        The number of words; at most the size of the vocabulary.
    temperatures : positive numbers

    Returns
    -------
    NextWords

    Raises
    ------
    NpformerError
        If the model does not predict a next word, or a temperature is not positive.

    References
    ----------
    Ackley, Hinton and Sejnowski, 1985, "A Learning Algorithm for Boltzmann Machines", section 2.

    Examples
    --------
    >>> found = next_words(npformer.load("gpt2-austen"), "It is a truth universally")
    >>> shares, others = found.probabilities(1.0)
    >>> round(float(shares.sum() + others), 9)
    1.0
    """
    check_model("next_words", model)
    if model.config.head != "causal-lm":
        raise NpformerError(f"next_words: expected a causal-lm model, got a {model.config.head} model")
    if not all(t > 0 for t in temperatures):
        raise NpformerError(f"next_words: temperatures: expected positive numbers, got {temperatures!r:.80}")
    (given,) = read_inputs(model, text).inputs
    logits = model.run([given])[0]["logits"][-1].astype(np.float64)
    order = np.argsort(-logits, kind="stable")
    kept, rest = order[:most], logits[order[most:]]
    others = np.array([np.logaddexp.reduce(rest / t, initial=-np.inf) for t in temperatures])
    words = tuple(label_name(model, int(each), len(logits)) for each in kept)
    return NextWords(words, logits[kept], tuple(map(float, temperatures)), others)
