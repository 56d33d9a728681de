"""The weights of words in sparse vectors, from logits over the vocabulary (SPLADE) or a number per token (BGE-M3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from npformer.checkpoint.modules import linear_weights
from npformer.engine.activations import relu
from npformer.engine.functions import linear
from npformer.engine.taps import listening
from npformer.families import family_of
from npformer.model import Model
from npformer.tasks.feature_extraction import vectors
from npformer.tasks.fill_mask import word_logits
from npformer.tasks.pooling import splade
from npformer.tasks.sentence_folder import Splade
from npformer.tasks.task import Request, without_head

ROWS = 256  # maximum tokens with logits in memory at the same time

Words = tuple[np.ndarray, np.ndarray]  # (ids in ascending order, their nonzero weights)


class WordWeights(Protocol):
    """A head that computes the weights of a text's words."""

    def runner(self) -> Model:
        """Returns the model that reads the texts."""

    def __call__(self, requests: list[Request]) -> list[Words]:
        """Returns the weighted words of each text."""


class OfTokens:
    """Computes relu(x w + b) for each token x of a text. A word that occurs several times gets its largest weight.

    Special tokens except the mask have no weight.

    Chen et al., 2024, "M3-Embedding", section 3.2, lexical retrieval.
    """

    def __init__(self, model: Model, path: Path) -> None:
        self.model = without_head(model)
        self.linear = linear_weights(path, model.config.d_model, 1, model.dtype, model.limits)
        special = family_of(model.config).special_tokens
        ids = (model.tokenizer.token_to_id(token) for name, token in special.items() if name != "mask_token")
        self.special = [each for each in ids if each is not None]

    def runner(self) -> Model:
        return self.model

    def __call__(self, requests: list[Request]) -> list[Words]:
        with self.model.cores():
            return [self._words(request) for request in requests]

    def _words(self, request: Request) -> Words:
        weights = relu(linear(vectors(request), **self.linear))[:, 0]
        pieces = zip(request.encoded[0].texts, request.encoded[0].rows(), strict=True)
        ids = np.concatenate([text.ids[rows] for text, rows in pieces])
        counted = (weights > 0) & ~np.isin(ids, self.special)
        words, places = np.unique(ids[counted], return_inverse=True)
        largest = np.zeros(len(words), weights.dtype)
        np.maximum.at(largest, places, weights[counted])
        return words, largest


class OfVocabulary:
    """The weights of `pooling.splade`, from the logits of a masked-language model.

    Formal et al., 2021, "SPLADE v2: Sparse Lexical and Expansion Model for Information Retrieval", section 3.1.
    """

    def __init__(self, model: Model, settings: Splade) -> None:
        self.model, self.settings = model, settings
        self.encoder_model = without_head(model)

    def runner(self) -> Model:
        """Returns the encoder, because the head runs in parts. With a listener, returns the whole model."""
        return self.model if listening() else self.encoder_model

    def __call__(self, requests: list[Request]) -> list[Words]:
        combine = np.maximum if self.settings.strategy == "max" else np.add
        weights: list[np.ndarray | None] = [None] * len(requests)
        for index, logits in self._logits(requests):
            found = splade(logits, self.settings.strategy, self.settings.twice)
            before = weights[index]
            weights[index] = found if before is None else combine(before, found)
        words = ((np.flatnonzero(each), each) for each in weights if each is not None)
        return [(ids, each[ids]) for ids, each in words]

    def _logits(self, requests: list[Request]) -> Iterator[tuple[int, np.ndarray]]:
        """Yields logits (L, V) of at most ROWS tokens, with the index of their text. Each token occurs once.

        Several short texts go through the head together. A long text is split independently of other texts.
        """
        waiting: list[tuple[int, np.ndarray]] = []
        for index, request in enumerate(requests):
            rows = vectors(request)
            if listening():  # with a listener, the whole model was run, and the rows are logits
                yield index, rows
                continue
            for start in range(0, len(rows), ROWS):
                piece = rows[start : start + ROWS]
                if sum(len(each) for _, each in waiting) + len(piece) > ROWS:
                    yield from self._through_head(waiting)
                    waiting = []
                waiting.append((index, piece))
        if waiting:
            yield from self._through_head(waiting)

    def _through_head(self, pieces: list[tuple[int, np.ndarray]]) -> Iterator[tuple[int, np.ndarray]]:
        logits = word_logits(self.model, np.concatenate([rows for _, rows in pieces]), "token")
        ends = np.cumsum([len(rows) for _, rows in pieces])
        for (index, _), each in zip(pieces, np.split(logits, ends[:-1]), strict=True):
            yield index, each
