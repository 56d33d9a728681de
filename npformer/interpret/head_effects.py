"""The effect of each attention head on a model's answer and its probability, by ablation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.base_model import BaseModel, check_model
from npformer.common.errors import NpformerError
from npformer.interpret.answer import CONTEXT, outcomes_of, probabilities_of
from npformer.interpret.metric import asked_label, label_name
from npformer.interpret.patching import contexts, without_each_head
from npformer.interpret.study_inputs import read_inputs


@dataclass(frozen=True, eq=False)
class HeadEffects:
    """The result of `head_effects`: how an answer's probability changes when each head is removed in turn.

    `answer` is the model's own answer, or the requested label, and `before` is its probability. `changes` (attention
    blocks, heads) is the change in this probability when the head is removed, or NaN if the head does not exist or was
    not ablated. `outcomes` has, for each removed head, the model's answers and their probabilities, the most probable
    first, or () where `changes` is NaN. `whole` has the answers with all heads. The words of a translation stay the
    same, and its probability is the geometric mean over the words.
    """

    answer: str
    before: float
    attentions: tuple[str, ...]  # attention blocks, such as layers.3.attention
    changes: np.ndarray
    outcomes: tuple[tuple[tuple[tuple[str, float], ...], ...], ...]  # the outcomes for each attention block and head
    whole: tuple[tuple[str, float], ...] = ()


def head_effects(
    model: BaseModel,
    text: Any,
    progress: bool | None = None,
    heads: Sequence[tuple[str, int]] | None = None,
    label: str | int | None = None,
) -> HeadEffects | None:
    """Ablates one head at a time, and measures the change in the probability of the model's answer.

    Parameters
    ----------
    model : Model or Seq2Seq
    text : str, Pair or token ids; a translation model also takes a tuple of token ids (source, target)
    progress : bool, optional
        Show a progress bar on stderr; by default only if stderr is a terminal and the work takes over two seconds.
    heads : pairs of an attention and a head, such as ("layers.3.attention", 9), optional
        The heads to ablate; by default all of them.
    label : str or int, optional
        The label, or the next or masked word, whose probability is measured; by default the model's own answer.

    Returns
    -------
    HeadEffects, or None if the model has no single answer for the text

    Raises
    ------
    NpformerError
        If the model cannot read the text, or lacks one of `heads` or `label`.

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
    counts = {stage.removesuffix(CONTEXT): count for stage, (_, count) in contexts(model).items()}
    names, best = tuple(counts), int(before.argmax())
    if label is not None:
        best, _ = asked_label(model, label, len(before), "head_effects")
    for name, head in heads or ():
        if not 0 <= head < counts.get(name, 0):
            raise NpformerError(
                f"head_effects: heads: expected an attention block and one of its heads, got {name}, {head}"
            )
    cells = None if heads is None else [(names.index(name), head) for name, head in heads]
    changes = np.full((len(names), max(counts.values())), np.nan)
    outcomes: list[list[Any]] = [[()] * count for count in counts.values()]
    for (row, head), answers in without_each_head(model, given, progress, cells).items():
        shares = probabilities_of(model, given, answers)
        assert shares is not None
        changes[row, head] = shares[best] - before[best]
        outcomes[row][head] = tuple(outcomes_of(model, given, shares))
    whole = tuple(outcomes_of(model, given, before))
    answer = whole[0] if label is None else (label_name(model, best, len(before)), float(before[best]))
    return HeadEffects(*answer, names, changes, tuple(map(tuple, outcomes)), whole)
