"""The effect of each attention head on a model's answer: its probability, and the answers without the head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.base_model import BaseModel, check_model
from npformer.interpret.answer import CONTEXT, outcomes_of, probabilities_of
from npformer.interpret.patching import contexts, without_each_head
from npformer.interpret.study_inputs import read_inputs


@dataclass(frozen=True, eq=False)
class HeadEffects:
    """The result of `head_effects`: what an answer's probability becomes without a head.

    `before` is the answer's probability, `changes` (attentions, heads) its change without each head, NaN where an
    attention has no such head. `outcomes` has the answers without a head with their probabilities, the most probable
    first; a translation's words are kept, with the mean of their probabilities.
    """

    answer: str
    before: float
    attentions: tuple[str, ...]  # stages without ".context": layers.3.attention
    changes: np.ndarray
    outcomes: tuple[tuple[tuple[tuple[str, float], ...], ...], ...]  # by attention and head


def head_effects(model: BaseModel, text: Any, progress: bool | None = None) -> HeadEffects | None:
    """Ablates one head at a time, and compares the probability of the model's answer.

    Parameters
    ----------
    model : Model or Seq2Seq
    text : str, Pair or token ids; a translation model also takes a tuple of token ids (source, target)
    progress : bool, optional
        Show a progress bar on stderr; by default if it is a terminal and the work takes over two seconds.

    Returns
    -------
    HeadEffects, or None for a model without one answer for the text

    Raises
    ------
    NpformerError
        If the model cannot read the text.

    References
    ----------
    Michel, Levy and Neubig, 2019, "Are Sixteen Heads Really Better than One?", section 3.2.

    Examples
    --------
    >>> found = head_effects(npformer.load("distilbert-sst2"), "I love ice cream")
    >>> found.answer, found.changes.shape, found.outcomes[0][0][0][0]
    ('POSITIVE', (6, 12), 'POSITIVE')
    """
    check_model("head_effects", model)
    (given,) = read_inputs(model, text).inputs
    before = probabilities_of(model, given, model.run([given])[0])
    if before is None:
        return None
    counts = [(stage, count) for stage, (_, count) in contexts(model).items()]
    best = int(before.argmax())
    changes = np.full((len(counts), max(count for _, count in counts)), np.nan)
    outcomes: list[list[Any]] = [[] for _ in counts]
    for (row, head), answers in without_each_head(model, given, progress).items():
        shares = probabilities_of(model, given, answers)
        assert shares is not None
        changes[row, head] = shares[best] - before[best]
        outcomes[row].append(tuple(outcomes_of(model, given, shares)))
    answer, probability = outcomes_of(model, given, before)[0]
    names = tuple(stage.removesuffix(CONTEXT) for stage, _ in counts)
    return HeadEffects(answer, probability, names, changes, tuple(map(tuple, outcomes)))
