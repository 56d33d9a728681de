"""sentence-embedding: one vector for each text, pooled from its tokens' vectors.

A sentence-transformers folder says in modules.json how to pool (Reimers and Gurevych, 2019). Without modules.json the
vector is the mean over tokens, as in sentence-transformers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.errors import NpformerError
from npformer.model import Model
from npformer.pooling import POOLINGS
from npformer.tasks.results import carrying
from npformer.tasks.sentence_folder import recipe_of
from npformer.tasks.task import Request, Task, without_head
from npformer.text.encoding import Encoder
from npformer.text.inputs import Pair, as_text


class SentenceEmbedding(Task):
    """Returns a vector (D,) for a text, an array (N, D) for a list of N texts.

    The vector of a text read in windows is the mean over the windows, weighted by their numbers of tokens.

    Parameters
    ----------
    model : Model with any head; the head is left out
        If its folder is a sentence-transformers one, modules.json says how to pool and whether to normalise.
    **options : the options of every task, see `Options`

    References
    ----------
    Reimers and Gurevych, 2019, "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks", section 3.

    Examples
    --------
    >>> embed = SentenceEmbedding(npformer.load("distilbert-sst2"))
    >>> embed(["I love ice cream", "not my music"]).shape
    (2, 384)
    """

    name = "sentence-embedding"
    head = "base"

    def __init__(self, model: Model, **options: Any) -> None:
        super().__init__(without_head(model), **options)
        self.recipe = recipe_of(model)
        if self.recipe.splade is not None:
            raise NpformerError(
                f"{model.folder}: its vectors are sparse, a weight for each word; make pipeline('sparse-embedding')"
            )
        self.encoder = Encoder(self.model, self.recipe.max_length)

    def inputs(self, item: Any, options: Any) -> list[str | Pair]:
        text = self.recipe.prompt + as_text(item)
        return [text.lower() if self.recipe.lowercase else text]

    def answer(self, requests: list[Request], options: Any) -> list[Any]:
        return [self._embedding(request) for request in requests]

    def collect(self, answers: list[Any]) -> Any:
        width = self.model.config.d_model * len(self.recipe.poolings)
        together = np.stack(answers) if answers else np.empty((0, width), self.model.dtype)
        n_tokens = np.array([each.n_tokens for each in answers], int)
        return carrying(together, n_tokens, np.array([each.truncated for each in answers], bool))

    def _embedding(self, request: Request) -> np.ndarray:
        windows = [output["last_hidden_state"] for output in request.outputs[0]]
        pooled = [np.concatenate([POOLINGS[mode](x) for mode in self.recipe.poolings]) for x in windows]
        vector = pooled[0] if len(pooled) == 1 else np.average(pooled, axis=0, weights=[len(x) for x in windows])
        if self.recipe.normalize:
            vector = vector / np.maximum(np.sqrt((vector * vector).sum()), 1e-12)
        return vector.astype(self.model.dtype)
