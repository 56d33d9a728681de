"""Adds the main methods of sentence-transformers' classes to the corresponding tasks.

`Encoding` has methods of SentenceTransformer, `SparseEncoding` of SparseEncoder, and `Ranking` of CrossEncoder. Methods
that read texts call the task itself. `ignored_keywords.py` lists ignored arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from npformer.common.checks import boolean, shown, whole
from npformer.common.errors import NpformerError
from npformer.tasks.prompted import PromptedTask
from npformer.tasks.task import Task
from npformer.tasks.vector_search import similarity
from npformer.text.inputs import Pair

Prompt = str | None
SIZES = ("truncate_dim", "max_active_dims")  # for these options, None means the setting of the task or the folder


class Encoding(PromptedTask):
    """A task that makes vectors of texts, with the main methods of SentenceTransformer."""

    width: int  # length of an untruncated vector
    default_similarity: ClassVar[str] = "cosine"

    def encode(self, inputs: Any = None, prompt_name: Prompt = None, prompt: Prompt = None, **options: Any) -> Any:
        """Returns the vector of a text (D,), or the vectors of several texts (N, D).

        Parameters
        ----------
        inputs : str, or an iterable of str
        prompt_name, prompt : str, optional
            The name of one of the folder's prompts, or the prompt itself; by default the task's prompt.
        **options : the task's options, and the sentence-transformers keywords normalize_embeddings, truncate_dim and
            show_progress_bar. Other keywords (batch_size, device, convert_to_numpy, ...) are ignored; requests for
            tensors, other precisions or token embeddings are rejected.

        Returns
        -------
        array of the model's dtype

        Raises
        ------
        NpformerError
            An input is not a text, or an option is unknown or not supported.

        Examples
        --------
        >>> model = npformer.pipeline("sentence-embedding", "distilbert-sst2")
        >>> model.encode(["I love ice cream", "not my music"], batch_size=32, show_progress_bar=False).shape
        (2, 384)
        """
        return _answers(self, inputs, prompt_name, prompt, options)

    def encode_query(
        self, inputs: Any = None, prompt_name: Prompt = None, prompt: Prompt = None, **options: Any
    ) -> Any:
        """Like `encode`, but by default with the folder's prompt for queries."""
        return self.encode(inputs, "query" if prompt_name is prompt is None else prompt_name, prompt, **options)

    def encode_document(
        self, inputs: Any = None, prompt_name: Prompt = None, prompt: Prompt = None, **options: Any
    ) -> Any:
        """Like `encode`, but by default with the folder's prompt for documents."""
        return self.encode(inputs, "document" if prompt_name is prompt is None else prompt_name, prompt, **options)

    def get_embedding_dimension(self) -> int:
        """Returns the length of a vector."""
        return getattr(self.options, "truncate_dim", None) or self.width

    get_sentence_embedding_dimension = get_embedding_dimension  # the older name

    @property
    def prompts(self) -> dict[str, str]:
        """The folder's prompts by name."""
        return self.recipe.prompts

    @property
    def similarity_fn_name(self) -> str:
        """The function used by `similarity`: "cosine", "dot", "euclidean" or "manhattan"."""
        return self.recipe.similarity or self.default_similarity

    def similarity(self, a: Any, b: Any) -> np.ndarray:
        """Returns the similarity of each vector in a to each vector in b, (N, D) and (M, D) -> (N, M).

        Parameters
        ----------
        a, b : arrays of vectors, or one vector (D,), which counts as an array of one

        Returns
        -------
        (N, M) array. The similarity function is similarity_fn_name in config_sentence_transformers.json: "cosine",
        "dot", "euclidean" or "manhattan" (the last two as negative distances). The default is the cosine for dense
        vectors, and the dot product for sparse vectors.

        Raises
        ------
        NpformerError
            The shapes do not fit.
        """
        return similarity(a, b, self.similarity_fn_name)


class SparseEncoding(Encoding):
    """A task that makes sparse vectors of texts, with the main methods of SparseEncoder. V: size of the vocabulary."""

    default_similarity = "dot"

    def encode(self, inputs: Any = None, prompt_name: Prompt = None, prompt: Prompt = None, **options: Any) -> Any:
        """Like `Encoding.encode`, but returns dense vectors (V,) or (N, V).

        For many texts, call the task itself: its answers contain only the nonzero weights.
        """
        answers = super().encode(inputs, prompt_name, prompt, **options)
        several = [answers] if isinstance(answers, dict) else answers
        vectors = np.zeros((len(several), self.width), self.model.dtype)
        for vector, answer in zip(vectors, several, strict=True):
            vector[answer["indices"]] = answer["values"]
        return vectors[0] if isinstance(answers, dict) else vectors

    def decode(self, embeddings: Any, top_k: int | None = None) -> Any:
        """Returns a vector's words with their weights, largest first, or a list of such lists for vectors (N, V)."""
        if top_k is not None:
            whole("top_k", top_k, 1)
        vectors = _vectors(embeddings)
        if vectors.ndim == 2:
            return [self.decode(each, top_k) for each in vectors]
        order = np.argsort(-vectors, kind="stable")
        best = order[vectors[order] != 0][:top_k]
        return [(self.model.tokenizer.id_to_token(int(i)), float(vectors[i])) for i in best]

    @staticmethod
    def sparsity(embeddings: Any) -> dict[str, float]:
        """Returns the mean number of nonzero weights in vectors (V,) or (N, V), and the share of zeros."""
        vectors = np.atleast_2d(_vectors(embeddings))
        if not len(vectors):
            raise NpformerError("sparsity: expected at least one vector")
        active = np.count_nonzero(vectors, axis=1).mean()
        return {"active_dims": float(active), "sparsity_ratio": float(1 - active / vectors.shape[1])}


class Ranking(PromptedTask):
    """A task that scores pairs of a query and a text, with the main methods of CrossEncoder."""

    def predict(self, inputs: Any = None, prompt_name: Prompt = None, prompt: Prompt = None, **options: Any) -> Any:
        """Returns the score of a pair of a query and a text, or the scores (N,) of several pairs.

        Parameters
        ----------
        inputs : tuple or list of two str, or an iterable of these
        prompt_name, prompt : str, optional
            As in `Encoding.encode`; a prompt precedes the query.
        **options : the task's options, and the sentence-transformers keywords activation_fn (torch's Sigmoid or
            Identity) and show_progress_bar. Other keywords (batch_size, device, convert_to_numpy, ...) are ignored.

        Returns
        -------
        number, or array of the model's dtype

        Raises
        ------
        NpformerError
            An input is not a pair of a query and a text, or an option is unknown or not supported.

        Examples
        --------
        With a model from the hub::

            rank = npformer.pipeline("text-ranking", "cross-encoder/ms-marco-MiniLM-L6-v2")
            rank.predict([("Who lives in Berlin?", "Sarah lives in Berlin."), ("Who lives in Berlin?", "It rains.")])
        """
        answers = _answers(self, inputs, prompt_name, prompt, options)
        if isinstance(answers, dict):
            return self.model.dtype.type(answers["score"])
        return np.array([each["score"] for each in answers], self.model.dtype)

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: Prompt = None,
        prompt: Prompt = None,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Ranks texts for a query, best first: dicts with "corpus_id", the text's index, and "score".

        Parameters
        ----------
        query : str
        documents : iterable of str
        top_k : int, optional
            Number of texts to return; by default all.
        return_documents : bool
            Add "text", the text itself.
        prompt_name, prompt, **options : as in `predict`

        Raises
        ------
        NpformerError
            The query or a document is not a text, or an option is unknown or not supported.

        Examples
        --------
        With a model from the hub::

            rank = npformer.pipeline("text-ranking", "cross-encoder/ms-marco-MiniLM-L6-v2")
            rank.rank("Who lives in Berlin?", ["Paul is from Rome.", "Sarah lives in Berlin."], return_documents=True)
        """
        if top_k is not None:
            whole("top_k", top_k, 1)
        boolean("return_documents", return_documents)
        if isinstance(documents, str) or not isinstance(documents, Iterable):
            raise NpformerError(f"documents: expected a list of texts, got {shown(documents)}")
        texts = list(documents)
        scores = self.predict([Pair(query, text) for text in texts], prompt_name, prompt, **options)
        found: list[dict[str, Any]] = [
            {"corpus_id": i, "score": float(scores[i])} for i in np.argsort(-scores, kind="stable").tolist()
        ]
        if return_documents:
            found = [{**each, "text": texts[each["corpus_id"]]} for each in found]
        return found[:top_k]


def _vectors(embeddings: Any) -> np.ndarray:
    """Checks vectors (V,) or (N, V) from `encode`."""
    vectors = np.asarray(embeddings)
    if vectors.ndim not in (1, 2) or vectors.dtype.kind not in "fiu":
        raise NpformerError(f"embeddings: expected vectors (V,) or (N, V) from encode, got {shown(embeddings)}")
    return vectors


def _answers(task: Task, inputs: Any, prompt_name: Prompt, prompt: Prompt, options: dict[str, Any]) -> Any:
    """Calls a task with one input or a list. A prompt replaces the task's prompt; a size of None has no effect."""
    options = {name: value for name, value in options.items() if value is not None or name not in SIZES}
    if inputs is None:
        inputs = options.pop("sentences", None)  # an older name of `inputs`
    if prompt_name is not None or prompt is not None:
        options |= {"prompt_name": prompt_name, "prompt": prompt}
    return task(inputs if task.is_one(inputs) else list(inputs), **options)
