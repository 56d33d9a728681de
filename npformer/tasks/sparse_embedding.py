"""sparse-embedding: a weight for each word of the vocabulary, by a masked-language model (SPLADE).

Only the text's words and related words have nonzero weights, so the vector fits an inverted index.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.model import Model
from npformer.taps import listening
from npformer.tasks.declaration import Form
from npformer.tasks.fill_mask import word_logits
from npformer.tasks.pooling import splade
from npformer.tasks.prompted import PromptOptions
from npformer.tasks.sentence_folder import Splade, recipe_of
from npformer.tasks.sentence_transformers import SparseEncoding
from npformer.tasks.task import Request, without_head
from npformer.text.encoding import Encoder

ROWS = 256  # tokens with logits in memory at once


@dataclass(frozen=True)
class SparseOptions(PromptOptions):
    """Options of `SparseEmbedding`."""

    max_active_dims: int | None = None


class SparseEmbedding(SparseEncoding):
    """Returns a dict for each text: "indices", "values" and "tokens" of the words with nonzero weights.

    indices (N,) are the words' ids, in ascending order, values (N,) their weights, tokens a list of the words
    themselves. The similarity of two texts is the dot product of their vectors.

    Parameters
    ----------
    model : Model with a masked-lm head
        SpladePooling of a sentence-transformers folder sets the pooling; the default is the maximum.
    prompt, prompt_name : str, optional
        The text to put before each input, or the name of a prompt of the folder.
    max_active_dims : int, optional
        Keep only the words with the largest weights, at most this many; by default the folder's setting.
    **options : the options of every task, see `Options`

    References
    ----------
    Formal et al., 2021, "SPLADE v2: Sparse Lexical and Expansion Model for Information Retrieval", section 3.1.

    Examples
    --------
    With a model from the hub::

        embed = npformer.pipeline("sparse-embedding", "naver/splade-cocondenser-ensembledistil")
        answer = embed("I love ice cream")
        dict(zip(answer["tokens"], answer["values"]))
    """

    name = "sparse-embedding"
    options_type = SparseOptions
    form = Form({"indices": [int], "values": [np.floating], "tokens": [str]})

    def __init__(self, model: Model, **options: Any) -> None:
        self.recipe = recipe_of(model)
        super().__init__(model, **{"max_active_dims": self.recipe.max_active_dims, **options})
        self.splade = self.recipe.splade or Splade()
        self.width = model.config.vocab_size
        self.encoder = Encoder(model, self.recipe.max_length)
        self.encoder_model = without_head(model)

    def runner(self) -> Model:
        """Returns the encoder alone, because `answer` runs the head in parts; with a listener, the whole model."""
        return self.model if listening() else self.encoder_model

    def answer(self, requests: list[Request], options: SparseOptions) -> list[Any]:
        combine = np.maximum if self.splade.strategy == "max" else np.add
        weights: list[np.ndarray | None] = [None] * len(requests)
        for index, logits in self._logits(requests):
            found = splade(logits, self.splade.strategy, self.splade.twice)
            before = weights[index]
            weights[index] = found if before is None else combine(before, found)
        return [self._sparse(each, options.max_active_dims) for each in weights if each is not None]

    def findings(self, text: str, answer: Any) -> list[str]:
        best = sorted(zip(answer["values"], answer["tokens"], strict=True), key=lambda each: -each[0])
        more = [f"... {len(best) - 12} more"] if len(best) > 12 else []
        return [*(f"{value:.4f}  {token}" for value, token in best[:12]), *more]

    def _logits(self, requests: list[Request]) -> Iterator[tuple[int, np.ndarray]]:
        """Yields logits (L, V) of at most ROWS tokens with their text's index: each token once.

        Several short texts go through the head together. The parts of a long text depend on it alone.
        """
        waiting: list[tuple[int, np.ndarray]] = []
        for index, request in enumerate(requests):
            pairs = zip(request.outputs[0], request.encoded[0].rows(), strict=True)
            rows = np.concatenate([next(iter(output.values()))[each] for output, each in pairs])
            if listening():  # then the whole model has run
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

    def _sparse(self, weights: np.ndarray, most: int | None) -> dict[str, Any]:
        indices = np.flatnonzero(weights)
        if most is not None and len(indices) > most:
            indices = np.sort(indices[np.argsort(-weights[indices], kind="stable")[:most]])
        tokens = [self.model.tokenizer.id_to_token(each) for each in indices.tolist()]
        return {"indices": indices, "values": weights[indices], "tokens": tokens}
