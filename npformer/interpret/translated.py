"""Records the stages of a translation model for the views: translates the text, then runs both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npformer.errors import NpformerError
from npformer.generation import generate
from npformer.interpret.trace import Trace
from npformer.model import Seq2Seq
from npformer.runtime.packing import Text
from npformer.text.encoding import SourceEncoder
from npformer.text.inputs import Pair, as_text_or_pair


class TranslationTrace(Trace):
    """A trace with two sides: `tokens` and `ids` of the decoder, `key_tokens` and `key_ids` of the source."""

    key_tokens: Sequence[str]
    key_ids: np.ndarray


def translated(model: Seq2Seq, given: Any) -> TranslationTrace:
    """Translates a text with the model's own settings and records every stage of (source, translation).

    The decoder reads the start token and the translation without its end token, so that row i of the logits is the one
    that token i + 1 was chosen from.
    Raises NpformerError for a pair, or a text without a token.
    """
    source = Text(_ids(model, given))
    if not len(source):
        raise NpformerError("view: expected a text to translate, got one without a token")
    (hypotheses,) = generate(model, [source])
    target = np.concatenate([[model.config.decoder.start_id], hypotheses[0].ids[:-1]]).astype(np.int64)
    found = TranslationTrace("*", model.config)
    found.describe([_names(model, target, is_source=False)], [np.zeros(len(target), np.int64)])
    found.key_tokens, found.key_ids = _names(model, source.ids, is_source=True), source.ids
    with found:
        model.run([(source, Text(target))])
    return found


def _ids(model: Seq2Seq, given: Any) -> np.ndarray:
    if isinstance(given, (list, np.ndarray)):
        return np.asarray(given, np.int64)
    text = as_text_or_pair(given)
    if isinstance(text, Pair):
        raise NpformerError(
            "view: a translation model writes the second text itself; give it one text, or trace it with a target: "
            "with trace() as t: model(ids, labels=...), then heads(t, tokens=..., key_tokens=...)"
        )
    return SourceEncoder(model).read(text).texts[0].ids


def _names(model: Seq2Seq, ids: np.ndarray, is_source: bool) -> list[str]:
    """Returns the tokens of one side, or the ids themselves if the model has no tokenizer."""
    try:
        tokenizer = model.tokenizer
    except NpformerError:  # token ids need no tokenizer
        return [str(each) for each in ids.tolist()]
    return tokenizer.tokens(ids.tolist(), is_source)
