"""multi-vector-embedding: a vector for each token of a text, compared token by token (ColBERT, BGE-M3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npformer.checkpoint.modules import TOKEN_VECTORS, file_at_home, linear_weights
from npformer.common.errors import NpformerError
from npformer.engine.functions import linear
from npformer.model import Model
from npformer.tasks.feature_extraction import vectors
from npformer.tasks.pooling import normalize
from npformer.tasks.prompted import PromptOptions
from npformer.tasks.sentence_folder import recipe_of
from npformer.tasks.sentence_transformers import Encoding
from npformer.tasks.task import Request, without_head


class MultiVectorEmbedding(Encoding):
    """Returns the vectors (L - 1, E) of all tokens of a text after the first, normalized to length 1.

    A linear layer computes the vectors. In a text read in windows, the vector of a token comes from the window with the
    most context around the token.

    Parameters
    ----------
    model : Model with colbert_linear.pt in its folder, such as BGE-M3
    prompt, prompt_name : str, optional
        The text to put before each input, or the name of one of the folder's prompts.
    **options : options common to all tasks; see `Options`

    References
    ----------
    Khattab and Zaharia, 2020, "ColBERT: Efficient and Effective Passage Search via Contextualized Late Interaction over
    BERT", section 3.2. Chen et al., 2024, "M3-Embedding", section 3.2, multi-vector retrieval.

    Examples
    --------
    With a model from the hub::

        embed = npformer.pipeline("multi-vector-embedding", "BAAI/bge-m3")
        queries, texts = embed(["what is ice cream?"]), embed(["I love ice cream", "not my music"])
        embed.similarity(queries, texts)
    """

    name = "multi-vector-embedding"
    options_type = PromptOptions

    def __init__(self, model: Model, **options: Any) -> None:
        self.recipe = recipe_of(model)
        path = file_at_home(model.folder, TOKEN_VECTORS)
        if path is None:
            raise NpformerError(
                f"{self.name}: expected {TOKEN_VECTORS} in the model's folder, a linear layer for token vectors"
            )
        super().__init__(without_head(model), **options)
        self.linear = linear_weights(path, model.config.d_model, None, self.model.dtype, model.limits)
        self.width = self.linear["weight"].shape[1]

    def answer(self, requests: list[Request], options: Any) -> list[Any]:
        with self.model.cores():
            return [normalize(linear(vectors(request)[1:], **self.linear)) for request in requests]

    def columns(self) -> Mapping[str, Any]:
        return {"vectors": [(np.floating, self.width)]}

    def values(self, answer: Any) -> dict[str, Any]:
        return {"vectors": list(answer)}

    def findings(self, text: str, answer: Any) -> list[str]:
        return [f"{len(answer)} vectors of {self.width} numbers"]

    @property
    def similarity_fn_name(self) -> str:
        """The function used by `similarity`."""
        return "meanmaxsim"

    def similarity(self, a: Any, b: Any) -> np.ndarray:
        """Returns the similarity of each text in a to each text in b: the best match of each token of a, averaged.

        Parameters
        ----------
        a, b : lists of N and M arrays of vectors, or the array of a single text

        Returns
        -------
        (N, M) array

        Raises
        ------
        NpformerError
            A vector has the wrong length, or a text has no vectors.
        """
        a, b = _texts(a, self.width), _texts(b, self.width)
        found = np.empty((len(a), len(b)), self.model.dtype)
        for i, j in np.ndindex(found.shape):
            found[i, j] = (a[i] @ b[j].T).max(axis=1).mean()
        return found


def _texts(given: Any, width: int) -> list[np.ndarray]:
    """Returns a list with the vectors of each text, given one or several texts."""
    several: Sequence[Any] = [given] if isinstance(given, np.ndarray) and given.ndim == 2 else given
    found = list(map(np.asarray, several))
    for each in found:
        if each.ndim != 2 or not len(each) or each.shape[1] != width:
            raise NpformerError(f"similarity: expected vectors (L, {width}) of each text, got shape {each.shape}")
    return found
