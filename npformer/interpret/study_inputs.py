"""The inputs of traces and studies: texts as token ids with their tokens, or a text and its translation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from npformer.base_model import BaseModel, packed
from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.engine.runtime.packing import Text
from npformer.generation import generate
from npformer.text.encoding import SourceEncoder, read_texts
from npformer.text.inputs import Pair, as_text_or_pair


class StudyInputs(NamedTuple):
    """Inputs in the form that a model reads, with their tokens."""

    texts: list[Text]  # the texts or, for a translation model, the targets as its decoder reads them
    tokens: list[list[str]]
    token_type_ids: list[np.ndarray]
    sources: list[Text]  # the sources, for a translation model
    source_tokens: list[list[str]]

    @property
    def inputs(self) -> list[Any]:
        """The inputs of `model.run`."""
        return list(zip(self.sources, self.texts, strict=True)) if self.sources else self.texts


def read_inputs(model: BaseModel, given: Any) -> StudyInputs:
    """Reads one input or a list of inputs, with `texts_of`, or with `pair_of` for a translation model."""
    if model.config.head != "translation":
        return StudyInputs(*texts_of(model, given), [], [])
    pairs, tokens, source_tokens = zip(*(pair_of(model, each) for each in _listed(given)), strict=True)
    sources, targets = map(list, zip(*pairs, strict=True))
    token_type_ids = [np.zeros(len(each), np.int64) for each in targets]
    return StudyInputs(targets, list(tokens), token_type_ids, sources, list(source_tokens))


def _listed(given: Any) -> list[Any]:
    """Returns a list of inputs from one input or several. A list of whole numbers is one input, its token ids."""
    several = isinstance(given, list) and not all(isinstance(each, int | np.integer) for each in given)
    return given if several else [given]


def texts_of(model: BaseModel, given: Any) -> tuple[list[Text], list[list[str]], list[np.ndarray]]:
    """Returns the token ids, tokens and token_type_ids of one text or a list of texts (str, Pair or token ids).

    Long texts are truncated with a warning; token ids are not truncated.
    """
    if model.config.head == "translation":
        raise NpformerError(
            "a translation model needs a text and its translation: trace(model, text) translates first; "
            "with trace() as t: model(ids, labels=...) takes a target"
        )
    texts, tokens, token_type_ids = [], [], []
    for encoded in read_texts(model, _listed(given)):
        (text,) = encoded.texts
        piece = next(iter(encoded.pieces), None)  # token ids have no pieces
        types = np.zeros(len(text), np.int64) if text.token_type_ids is None else text.token_type_ids
        texts.append(text)
        tokens.append(piece.tokens if piece else _tokens(model, text.ids))
        token_type_ids.append(np.array(piece.type_ids) if piece else types)
    return texts, tokens, token_type_ids


def row_read(config: Config, text: Text) -> int:
    """Returns the index of the row that the head reads: of the first token, the last token, or the last end token."""
    batch = packed(config, [text])
    return int((batch.last_of(config.decoder.end_ids[0]) if config.decoder else batch.read)[0])


def _tokens(model: BaseModel, ids: np.ndarray, is_source: bool = False) -> list[str]:
    """Returns the token of each id, or the id itself if the model has no tokenizer.

    `is_source` selects the source's vocabulary in a translation model.
    """
    try:
        tokenizer = model.tokenizer
    except NpformerError:  # raised for models without a tokenizer, such as the tiny model of a golden file
        return [str(number) for number in ids.tolist()]
    if model.config.head == "translation":
        return tokenizer.tokens(ids.tolist(), is_source)
    # the tokenizer rejects negative ids without naming them; the model's error names them
    return [(tokenizer.id_to_token(number) if number >= 0 else None) or str(number) for number in ids.tolist()]


def tokens_read_again(model: BaseModel, tokens: list[str]) -> list[str]:
    """Returns a text's tokens as a decoder reads them, one position later."""
    return [*_tokens(model, np.array([model.config.decoder.start_id])), *tokens[:-1]]


def tokens_read(model: BaseModel, tokens: list[str]) -> list[str]:
    """Returns a text's tokens as the model reads them, with the start token first in an encoder-decoder."""
    return [*tokens_read_again(model, tokens)[:1], *tokens] if model.config.decoder else tokens


def pair_of(model: BaseModel, given: Any) -> tuple[tuple[Text, Text], list[str], list[str]]:
    """Reads a text (str or token ids), and translates it with the model's own settings.

    Returns the pair that the model reads, the decoder's tokens, and the source's tokens. A tuple of token ids (source,
    target) is used as given. The decoder reads the start token and the translation without its end token, so token
    i + 1 was chosen from row i of the logits. Raises NpformerError for a pair of texts, or a text without tokens.
    """
    if isinstance(given, tuple) and not isinstance(given, Pair):
        source, target = (each if isinstance(each, Text) else Text(_ids(each)) for each in given)
    else:
        source = Text(_source(model, given))
        if not len(source):
            raise NpformerError("view: expected a text to translate, got one without tokens")
        (hypotheses,) = generate(model, [source])
        target = Text(np.concatenate([[model.config.decoder.start_id], hypotheses[0].ids[:-1]]).astype(np.int64))
    return (source, target), _tokens(model, target.ids), _tokens(model, source.ids, is_source=True)


def _ids(given: Any) -> np.ndarray:
    """Reads token ids: a sequence of whole numbers."""
    try:
        ids = np.asarray(given)
    except ValueError:  # raised for lists of different lengths
        ids = np.zeros((1, 1))
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise NpformerError(f"expected token ids, a sequence of whole numbers, got {shown(given)}")
    return ids.astype(np.int64)


def _source(model: BaseModel, given: Any) -> np.ndarray:
    if isinstance(given, (list, np.ndarray)):
        return _ids(given)
    text = as_text_or_pair(given)
    if isinstance(text, Pair):
        raise NpformerError(
            "view: a translation model generates the second text itself; pass one text, or trace it with a target: "
            "`with trace() as t: model(ids, labels=...)`, then `heads(t, tokens=..., key_tokens=...)`"
        )
    return SourceEncoder(model).read(text).texts[0].ids
