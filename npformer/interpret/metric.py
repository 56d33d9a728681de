"""Metrics: the number that an analysis explains, such as a logit, a mean of logits, or a function of the answers.

`ablate_heads`, `patch`, `trace(..., grads=)` and `logit_attribution` use these metrics. A metric is computed from the
answers for one text, with the same names as from `Model.run`: `logits`, `start_logits`, `last_hidden_state`, ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from npformer.common.errors import NpformerError
from npformer.config import POOLED_HEADS
from npformer.engine.functions import log_softmax, softmax
from npformer.engine.tape import Differentiable
from npformer.text.words import name_after_word

WORDS = ("masked-lm", "causal-lm")  # heads with a vocabulary
MASKS = ("[MASK]", "<mask>")
MOST = 1 << 16  # maximum total size of answers whose derivatives are computed by finite differences
STEP = 1e-4  # relative step of central differences, whose error is about the square of the step

Answers = Mapping[str, np.ndarray]


class Logit(NamedTuple):
    """A logit in a text's answers: a description, the name of the answer, and the logit's index in the answer."""

    what: str
    answer: str
    place: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Metric:
    """A number computed from a text's answers, and the function for its gradients with respect to the answers."""

    what: str  # a description for use in sentences
    of: Callable[[Answers], float]
    gradient: Callable[[Answers], dict[str, np.ndarray]]


def metric_of(
    model: Any, metric: Any, position: int | None, answers: Answers, text: Any, caller: str = "metric"
) -> Metric:
    """Makes the metric for a text with these answers.

    `metric` is a function of the answers, which may be a `Differentiable`, or the label, word or number of a logit.
    If it is None, the metric is the logit of the model's own answer. For a head with a row for each token, this is the
    mean over all tokens, the mean over the masked tokens (masked-lm), or the logit at the last token (causal-lm). For
    spans, it is the mean of start and end. For a translation, it is the mean log-probability of its tokens.
    """
    if isinstance(metric, Metric):
        return metric
    if callable(metric):
        if position is not None:
            raise NpformerError(
                f"{caller}: position: not allowed if the metric is a function, which selects its own token"
            )
        return Metric("the metric", lambda found: _number(metric, found, caller), lambda found: _slope(metric, found))
    if model.config.head == "translation" and metric is None and position is None:
        return _log_probability(text[1].ids[1:])
    return mean_of(logits_asked(model, metric, position, answers, text, caller))


def mean_of(logits: Sequence[Logit]) -> Metric:
    """Makes the metric that is the mean of several logits."""

    def gradient(answers: Answers) -> dict[str, np.ndarray]:
        grads: dict[str, np.ndarray] = {}
        for each in logits:
            grad = grads.setdefault(each.answer, np.zeros_like(answers[each.answer]))
            grad[each.place] += 1 / len(logits)
        return grads

    def of(answers: Answers) -> float:
        return float(np.mean([answers[each.answer][each.place] for each in logits], dtype=np.float64))

    return Metric(logits[0].what if len(logits) == 1 else f"the mean of {len(logits)} logits", of, gradient)


def logits_asked(
    model: Any, label: str | int | None, position: int | None, answers: Answers, text: Any, caller: str
) -> list[Logit]:
    """Finds the logits of a label at a position. The label is a name or number, or None for the model's answer.

    Raises NpformerError for an unknown label, a position outside the text, or a model without logits.
    """
    head = model.config.head
    if head == "base":
        raise NpformerError(
            f"{caller}: expected a function of the answers, because a base model has no labels; for example "
            "lambda answers: answers['last_hidden_state'][0] @ direction"
        )
    if head in POOLED_HEADS:
        if position is not None:
            raise NpformerError(f"{caller}: position: omit it; a {head} model gives one answer for the whole text")
        logits = answers["logits"]
        number, name = (
            asked_label(model, label, len(logits), caller) if label is not None else (int(logits.argmax()), "")
        )
        return [Logit(f"the logit of {name or label_name(model, number, len(logits))}", "logits", (number,))]
    if head == "question-answering":
        return _span(label, position, answers, caller)
    logits = answers["logits"]
    if head == "replaced-token":
        if label is not None:
            raise NpformerError(f"{caller}: label={label!r:.80}: omit it; a {head} model has one logit per token")
        places = range(len(logits)) if position is None else [position_of(position, len(logits), caller)]
        return [Logit(f"the replaced-token logit of token {at}", "logits", (at,)) for at in places]
    if position is None:
        if head == "causal-lm":  # by default, the logit of the next word
            positions: Sequence[int] = [len(logits) - 1]
        else:
            positions = masked(model, text) if head == "masked-lm" else range(len(logits))
        if label is not None and len(positions) != 1:
            raise NpformerError(f"{caller}: {label!r:.80}: expected position=, the token of the logit")
        if not len(positions):
            raise NpformerError(f"{caller}: the text has no masked word; pass position=, the token of the logit")
    else:
        positions = [position_of(position, len(logits), caller)]
    found = []
    for at in positions:
        if label is None:
            number = int(logits[at].argmax())
            name = label_name(model, number, logits.shape[-1])
        else:
            number, name = asked_label(model, label, logits.shape[-1], caller)
        name = f"'{name}'" if head in (*WORDS, "translation") else name
        found.append(Logit(f"the logit of {name} at token {at}", "logits", (int(at), number)))
    return found


def _span(label: str | int | None, position: int | None, answers: Answers, caller: str) -> list[Logit]:
    """Finds the logits of an answer's start or end at a token."""
    if label not in (None, "start", "end"):
        raise NpformerError(f"{caller}: {label!r:.80}: expected 'start' or 'end' of the answer")
    found = []
    for side in ("start", "end") if label is None else (str(label),):
        logits = answers[f"{side}_logits"]
        at = int(logits.argmax()) if position is None else position_of(position, len(logits), caller)
        found.append(Logit(f"the answer-{side} logit of token {at}", f"{side}_logits", (at,)))
    return found


def label_name(model: Any, number: int, count: int) -> str:
    """Returns the name of an output: a label, a token of the vocabulary, or else its number.

    A token that continues a word begins with `##`, as in `piece_names`.
    """
    config = model.config
    if len(config.labels) == count:
        return str(config.labels[number])
    if config.head in (*WORDS, "translation"):
        token = _token(model, number)
        return str(number) if token is None else name_after_word(token, _words(model))
    return f"label {number}"


def _token(model: Any, number: int) -> str | None:
    try:
        tokenizer = model.tokenizer
    except NpformerError:  # token ids need no tokenizer
        return None
    found = tokenizer.tokens([number], False) if model.config.head == "translation" else [tokenizer.id_to_token(number)]
    return None if found[0] is None else str(found[0])


def _words(model: Any) -> list[str]:
    """Returns the tokens of the text "a a", which show how the vocabulary marks the start of a word."""
    found, tokenizer = model.tokenizer.encode("a a"), model.tokenizer
    return list(tokenizer.tokens(found, True) if model.config.head == "translation" else found.tokens)


def asked_label(model: Any, label: str | int, count: int, caller: str) -> tuple[int, str]:
    """Returns the number and the name of an output, given either of them."""
    number: Any = label
    if isinstance(label, str):
        names = list(model.config.labels)
        if label in names:
            number = names.index(label)
        elif model.config.head in (*WORDS, "translation"):
            number = _token_number(model, label, count)
    if isinstance(number, (bool, str)) or not isinstance(number, int | np.integer) or not 0 <= number < count:
        some = [label_name(model, i, count) for i in range(min(count, 8))] + ["..."] * (count > 8)
        known = (
            "a token of the vocabulary, or a text that is one token" if count > 1000 else f"one of {', '.join(some)}"
        )
        raise NpformerError(f"{caller}: label={label!r:.80}: expected {known}")
    return int(number), label_name(model, int(number), count)


def _token_number(model: Any, word: str, count: int) -> int | None:
    """Returns the id of a token, given as in the vocabulary (`Ġthe`) or as a text (" the"); None for other texts."""
    tokenizer = model.tokenizer
    if model.config.head == "translation":
        tokens = tokenizer.tokens(list(range(count)), False)
        return next((tokens.index(each) for each in (word, word.replace(" ", "▁")) if each in tokens), None)
    if (number := tokenizer.token_to_id(word)) is not None:
        return int(number)
    ids = tokenizer.encode(word, add_special_tokens=False).ids
    is_word = len(ids) == 1 and tokenizer.decode(ids).strip() == word.strip()  # the unknown token decodes to ""
    return int(ids[0]) if is_word else None


def position_of(position: Any, count: int, caller: str) -> int:
    """Returns the index of a token. Raises NpformerError for a position outside the text."""
    is_whole = isinstance(position, int | np.integer) and not isinstance(position, bool)
    if not is_whole or not -count <= position < count:
        raise NpformerError(f"{caller}: position: expected a token's number, 0 to {count - 1}, got {position!r:.80}")
    return int(position) % count


def masked(model: Any, text: Any) -> list[int]:
    """Returns the positions of the masked words."""
    try:
        numbers = [number for name in MASKS if (number := model.tokenizer.token_to_id(name)) is not None]
    except NpformerError:  # token ids need no tokenizer
        numbers = []
    return [int(at) for at in np.flatnonzero(np.isin(text.ids, numbers))]


# --- derivatives -----------------------------------------------------------------------------------------------------


def _log_probability(ids: np.ndarray) -> Metric:
    """Returns the mean log-probability of a translation's tokens, each predicted by the row before it."""
    rows = np.arange(len(ids))
    count = max(1, len(ids))

    def of(answers: Answers) -> float:
        return float(log_softmax(answers["logits"][: len(ids)].astype(np.float64))[rows, ids].sum() / count)

    def gradient(answers: Answers) -> dict[str, np.ndarray]:
        grad = np.zeros_like(answers["logits"])
        grad[: len(ids)] = -softmax(answers["logits"][: len(ids)]) / count
        grad[rows, ids] += 1 / count
        return {"logits": grad}

    return Metric("the mean log-probability of the translation", of, gradient)


def _number(metric: Callable[..., Any], answers: Answers, caller: str) -> float:
    value = np.asarray(metric(answers))
    if value.shape != () or value.dtype.kind not in "fiub":
        got = f"{value.dtype} of shape {value.shape}"
        raise NpformerError(f"{caller}: expected a function from the answers to one number, got {got}")
    return float(value)


def _slope(metric: Any, answers: Answers) -> dict[str, np.ndarray]:
    """Returns the gradients of a function of the answers, by its derivative or by central differences in float64."""
    if isinstance(metric, Differentiable):
        return {name: np.asarray(grad) for name, grad in metric.backward(answers, 1.0).items()}
    count = sum(array.size for array in answers.values())
    if count > MOST:
        raise NpformerError(
            f"metric: expected at most {MOST} numbers in the answers to find the derivative of {metric!r:.60} by "
            f"differences, got {count}; pass a label, or Differentiable(function, backward), whose "
            "backward(answers, 1.0) returns {name: gradient}"
        )
    wide = {name: array.astype(np.float64) for name, array in answers.items()}
    grads = {}
    for name, array in wide.items():
        grad = grads[name] = np.zeros_like(array)
        for at in np.ndindex(*array.shape):
            before = array[at]
            h = STEP * max(1.0, float(abs(before)))
            ends = []
            for sign in (1, -1):
                array[at] = before + sign * h
                ends.append(_number(metric, wide, "metric"))
            array[at] = before
            grad[at] = (ends[0] - ends[1]) / (2 * h)
    return grads
