"""`ModelAnswer`: a model's answer to a text, its probability, and the effect of each attention head."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from npformer.common.errors import NpformerError
from npformer.engine.functions import log_softmax
from npformer.engine.output_heads.formulas import probabilities
from npformer.engine.tape import UnknownDerivative
from npformer.interpret.gradients import differentiate
from npformer.interpret.metric import Metric, label_name, masked, metric_of
from npformer.interpret.study_inputs import read_inputs
from npformer.interpret.traces import Trace

MOST = 5  # maximum number of outcomes in an answer
CONTEXT = ".context"  # suffix of the stages with the heads' outputs


class Effect(NamedTuple):
    """The change in a metric when a head's output is set to zero, estimated to first order."""

    attention: str  # the attention block, such as layers.3.attention
    head: int
    change: float

    @property
    def layer(self) -> int:
        return int(self.attention.split(".")[-2])


@dataclass(frozen=True)
class ModelAnswer:
    """A model's answer to one text.

    Parameters
    ----------
    about : str, the kind of answer, such as "next token"
    outcomes : pairs of an outcome and its probability, the most probable first
    metric : str, the number that `effects` explain, such as "the logit of POSITIVE"
    effects : tuple of `Effect`, the largest in magnitude first; for a translation, only the heads of cross-attention
    """

    about: str
    outcomes: tuple[tuple[str, float], ...]
    metric: str = ""
    effects: tuple[Effect, ...] = ()


def answer_of(model: Any, given: Any, label: str | int | None = None) -> ModelAnswer | None:
    """Returns a model's answer, and the effects of its heads on the logit of the answer, or of `label` if given.

    Returns None if the text has no single answer.

    The effect of a head is -sum(context * d metric / d context), the first-order estimate of the change in the metric
    when the head's output is zeroed. Michel, Levy and Neubig, 2019, "Are Sixteen Heads Really Better than
    One?", section 4.1.
    """
    text = read_inputs(model, given).inputs[0]
    (answers,) = model.run([text])
    found = outcome_of(model, text, answers)
    if found is None:
        return None
    with suppress(UnknownDerivative, NpformerError):  # raised if an edit has no derivative, or the answer has no metric
        metric = metric_of(model, label, None, answers, text)
        return replace(found, metric=metric.what, effects=tuple(_effects(model, text, metric)))
    return found


def outcome_of(model: Any, text: Any, answers: dict[str, np.ndarray]) -> ModelAnswer | None:
    """Returns a model's answer without the effects of its heads, or None if the text has no single answer."""
    shares = probabilities_of(model, text, answers)
    if shares is None:
        return None
    about = {"causal-lm": "next token", "masked-lm": "masked word", "translation": "translation"}
    return ModelAnswer(about.get(model.config.head, "answer"), tuple(outcomes_of(model, text, shares)))


def outcomes_of(model: Any, text: Any, shares: np.ndarray) -> list[tuple[str, float]]:
    """Returns at most `MOST` outcomes with their probabilities, the most probable first."""
    config = model.config
    if config.head == "translation":
        return [(model.tokenizer.decode(text[1].ids[1:].tolist()), float(shares[0]))]
    return [(label_name(model, number, len(shares)), float(shares[number])) for number in most_probable(shares, MOST)]


def most_probable(shares: np.ndarray, most: int) -> list[int]:
    """Returns the indices of the `most` most probable outputs, in order, without sorting a whole vocabulary."""
    shares = np.nan_to_num(shares, nan=-1.0)  # last
    least = np.partition(shares, -most)[-most] if most < len(shares) else shares.min()
    numbers = np.flatnonzero(shares >= least)
    return numbers[np.argsort(-shares[numbers], kind="stable")][:most].tolist()


def probabilities_of(model: Any, text: Any, answers: dict[str, np.ndarray]) -> np.ndarray | None:
    """Returns the probability of each label or word (C,), or their geometric mean over a translation (1,).

    Returns None if the text has no single answer.
    """
    head, logits = model.config.head, answers.get("logits", np.zeros(0)).astype(np.float64)
    if head == "translation":
        ids = text[1].ids[1:]
        return np.exp(log_softmax(logits[: len(ids)])[np.arange(len(ids)), ids].mean(keepdims=True))
    if head == "masked-lm":
        logits = logits[masked(model, text)[:1]]
    elif head == "causal-lm":
        logits = logits[-1:]
    elif head not in ("sequence-classification", "next-sentence") or model.config.scoring == "none":
        return None
    return probabilities(logits.reshape(-1), model.config.scoring) if logits.size else None


def _effects(model: Any, text: Any, metric: Metric) -> list[Effect]:
    wanted = "*cross_attention.context" if model.config.head == "translation" else "*attention.context"
    recorded = Trace(wanted, model.config)
    with recorded:
        recorded.keep_gradients(differentiate(model, [text], metric, None)[1])
    found = [
        Effect(stage.removesuffix(CONTEXT), head, float(change))
        for stage in recorded
        for head, change in enumerate(-(recorded[stage] * recorded.grads[stage]).sum(axis=(-2, -1), dtype=np.float64))
    ]
    return sorted(found, key=lambda effect: -abs(effect.change))
