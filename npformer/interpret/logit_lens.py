"""The logit lens: the logits that the head computes from the hidden states of every layer, not only the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.base_model import BaseModel, check_model
from npformer.common.checks import whole
from npformer.common.errors import NpformerError
from npformer.config import POOLED_HEADS
from npformer.engine.output_heads.formulas import probabilities
from npformer.engine.runtime.packing import Text
from npformer.engine.transformer import head_stack
from npformer.interpret.metric import asked_label, label_name, masked, position_of
from npformer.interpret.study_inputs import row_read
from npformer.interpret.traces import Trace, trace


@dataclass(frozen=True, eq=False)
class LogitLens:
    """The result of `logit_lens`: the largest logits after the embeddings and after each layer.

    `rows` names the embeddings and the layers. `tokens` and `positions` are the tokens that were read. `numbers`,
    `logits` and `probabilities` (rows, positions, most) belong to the outputs with the largest logits, in descending
    order. `followed` names an output for each position: the requested one, or else the answer of the last row. Its
    probabilities and its ranks by logit, 1 for the largest, are (rows, positions).
    """

    rows: tuple[str, ...]
    tokens: tuple[str, ...]
    positions: tuple[int, ...]
    words: tuple[tuple[tuple[str, ...], ...], ...]  # the names of `numbers`
    numbers: np.ndarray
    logits: np.ndarray
    probabilities: np.ndarray
    followed: tuple[str, ...]
    followed_probabilities: np.ndarray
    followed_places: np.ndarray


def logit_lens(
    model: BaseModel,
    text: Any,
    positions: Sequence[int] | None = None,
    most: int = 5,
    label: str | int | None = None,
) -> LogitLens:
    """Computes logits from the hidden states of each layer, with the final norm and the head.

    logits_l = head(Normalize(x_l)), where x_l is the output of layer l. In a translation model, the layers are those of
    the decoder.

    Parameters
    ----------
    model : Model or Seq2Seq, with labels or words
    text : str, Pair or token ids; a translation model also takes a tuple of token ids (source, target)
    positions : tokens whose rows are read, optional
        By default the last token for causal-lm, the masked words for masked-lm, otherwise every token of the decoder
        or encoder. A classifier of texts reads one row, which `positions` cannot change.
    most : int
        The number of labels or words in each row.
    label : str or int, optional
        The label or word to follow through the rows. By default the last row's answer at each position.

    Returns
    -------
    LogitLens

    Raises
    ------
    NpformerError
        If the head has no labels or words, a position is outside the text, the text has no masked word, or the model
        lacks the label.

    References
    ----------
    nostalgebraist, 2020, "interpreting GPT: the logit lens".

    Examples
    --------
    >>> found = logit_lens(npformer.load("distilbert-sst2"), "I love ice cream")
    >>> found.rows[-1], found.words[-1][0]
    ('layer 5', ('POSITIVE', 'NEGATIVE'))
    """
    check_model("logit_lens", model)
    config = model.config
    if config.head in ("base", "question-answering", "replaced-token", "multiple-choice") or config.scoring == "none":
        raise NpformerError(f"logit_lens: expected a model with labels or words, got a {config.head} model")
    if config.head in POOLED_HEADS and config.pooling == "mean":
        raise NpformerError("logit_lens: unsupported: a head that reads the mean of all rows")
    whole("logit_lens: most", most, 1)
    stages = streams(model)
    recorded = trace(model, text, stages)
    if isinstance(recorded.ids, list):
        raise NpformerError("logit_lens: expected one text; call it once per text")
    at = _positions(model, recorded, positions)
    count = model.weights["head"]["output"]["weight"].shape[-1]
    asked = None if label is None else asked_label(model, label, count, "logit_lens")[0]
    follow = np.empty(0, int)
    found: list[tuple[np.ndarray, ...]] = []
    for name in reversed(stages):  # the last row's answers are followed through the other rows
        wide = hidden_logits(model, recorded[name][at], "logits").astype(np.float64)
        if not found:
            follow = wide.argmax(-1) if asked is None else np.full(len(wide), asked)
        found.append((*_largest(model, wide, most), *_followed(model, wide, follow)))
    numbers, logits, shares, follow_shares, places = (np.stack(each[::-1]) for each in zip(*found, strict=True))
    names = {int(each): label_name(model, int(each), count) for each in np.unique([*numbers.flat, *follow])}
    tokens = recorded.tokens or [str(each) for each in recorded.ids]
    return LogitLens(
        ("embeddings", *(f"layer {i}" for i in range(len(stages) - 1))),
        tuple(tokens[i] for i in at),
        tuple(at),
        tuple(tuple(tuple(names[each] for each in cell) for cell in row) for row in numbers.tolist()),
        *(numbers, logits, shares),
        tuple(names[each] for each in follow.tolist()),
        *(follow_shares, places),
    )


def streams(model: BaseModel) -> list[str]:
    """Returns the input of each layer in the head's stack, and the input of the final norm or the head."""
    embeddings, stack, at, _ = head_stack(model.parts, model.weights)
    return [at + each for each in stack.read(embeddings.output)]


def hidden_logits(model: BaseModel, rows: np.ndarray, answer: str) -> np.ndarray:
    """Computes head(Normalize(rows)), (R, D) -> (R, C), for rows of any layer, with the model's final norm, if any."""
    _, stack, _, weights = head_stack(model.parts, model.weights)
    rows = stack.finish(rows, weights)
    return model.parts.head(rows, rows, model.weights)[answer].reshape(len(rows), -1)


def _positions(model: BaseModel, recorded: Trace, asked: Sequence[int] | None) -> list[int]:
    config, count = model.config, len(recorded.ids)
    if config.head in POOLED_HEADS:
        if asked is not None:
            raise NpformerError(
                f"logit_lens: positions: omit it; a {config.head} model gives one answer for the whole text"
            )
        return [row_read(config, Text(recorded.ids if recorded.key_ids is None else recorded.key_ids))]
    if asked is not None:
        found = [position_of(each, count, "logit_lens") for each in np.atleast_1d(np.asarray(asked)).tolist()]
        if not found:
            raise NpformerError("logit_lens: positions: expected at least one token index")
        return found
    if config.head != "masked-lm":
        return [count - 1] if config.head == "causal-lm" else list(range(count))
    if not (at := masked(model, Text(recorded.ids))):
        raise NpformerError("logit_lens: the text has no masked word; pass positions=, the tokens to read")
    return at


def _largest(model: BaseModel, logits: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the numbers, logits and probabilities of the `most` largest logits of each row."""
    numbers = np.argsort(-logits, axis=-1, kind="stable")[:, :most]
    shares = probabilities(logits, model.config.scoring)
    return numbers, np.take_along_axis(logits, numbers, axis=-1), np.take_along_axis(shares, numbers, axis=-1)


def _followed(model: BaseModel, logits: np.ndarray, follow: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the probability of one output of each row, and its place in the order of the row's logits, from 1."""
    own = np.take_along_axis(logits, follow[:, None], axis=-1)
    shares = np.take_along_axis(probabilities(logits, model.config.scoring), follow[:, None], axis=-1)
    return shares[:, 0], 1 + (logits > own).sum(axis=-1)
