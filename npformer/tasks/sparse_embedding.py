"""sparse-embedding: a weight for each word of the vocabulary, most of them 0, for an inverted index.

`word_weights.py` computes the weights. A masked language model (SPLADE) also gives weights to words that are related to
the text but do not occur in it. The head of BGE-M3 gives weights only to the words of the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.checkpoint.modules import TOKEN_WEIGHTS, file_at_home
from npformer.model import Model
from npformer.tasks.declaration import Form
from npformer.tasks.prompted import PromptOptions
from npformer.tasks.sentence_folder import Splade, recipe_of
from npformer.tasks.sentence_transformers import SparseEncoding
from npformer.tasks.task import Request
from npformer.tasks.word_weights import OfTokens, OfVocabulary, WordWeights


@dataclass(frozen=True)
class SparseOptions(PromptOptions):
    """Options of `SparseEmbedding`."""

    max_active_dims: int | None = None


class SparseEmbedding(SparseEncoding):
    """Returns a dict for each text: "indices", "values" and "tokens" of the words with nonzero weights.

    indices (N,) are the ids of the words in ascending order, values (N,) are the weights, and tokens is a list of the
    words. By default, the similarity of two texts is the dot product of their vectors.

    Parameters
    ----------
    model : Model with a masked-lm head, or with sparse_linear.pt in its folder, such as BGE-M3
        The SpladePooling module of a sentence-transformers folder determines how logits are pooled. The default is the
        maximum.
    prompt, prompt_name : str, optional
        The text to put before each input, or the name of one of the folder's prompts.
    max_active_dims : int, optional
        Maximum number of words, those with the largest weights. The default is the folder's setting.
    **options : options common to all tasks; see `Options`

    References
    ----------
    Formal et al., 2021, "SPLADE v2: Sparse Lexical and Expansion Model for Information Retrieval", section 3.1.
    Chen et al., 2024, "M3-Embedding", section 3.2.

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
        if options.get("max_active_dims") is None:
            options["max_active_dims"] = self.recipe.max_active_dims
        super().__init__(model, **options)
        self.width = model.config.vocab_size
        path = file_at_home(model.folder, TOKEN_WEIGHTS)
        splade = self.recipe.splade or Splade()
        self.weigh: WordWeights = OfVocabulary(model, splade) if path is None else OfTokens(model, path)

    @classmethod
    def accepts(cls, model: Model) -> bool:
        return file_at_home(model.folder, TOKEN_WEIGHTS) is not None or super().accepts(model)

    def runner(self) -> Model:
        return self.weigh.runner()

    def answer(self, requests: list[Request], options: SparseOptions) -> list[Any]:
        return [self._sparse(*words, options.max_active_dims) for words in self.weigh(requests)]

    def findings(self, text: str, answer: Any) -> list[str]:
        best = sorted(zip(answer["values"], answer["tokens"], strict=True), key=lambda each: -each[0])
        more = [f"... {len(best) - 12} more"] if len(best) > 12 else []
        return [*(f"{value:.4f}  {token}" for value, token in best[:12]), *more]

    def _sparse(self, indices: np.ndarray, values: np.ndarray, most: int | None) -> dict[str, Any]:
        if most is not None and len(indices) > most:
            largest = np.sort(np.argsort(-values, kind="stable")[:most])
            indices, values = indices[largest], values[largest]
        tokens = [self.model.tokenizer.id_to_token(each) for each in indices.tolist()]
        return {"indices": indices, "values": values, "tokens": tokens}
