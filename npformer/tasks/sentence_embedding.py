"""sentence-embedding: one vector for each text, pooled from the vectors of its tokens.

modules.json of a sentence-transformers folder determines the pooling and later modules (Reimers and Gurevych, 2019).
Without modules.json the vector is the mean over tokens, as in sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.checkpoint.modules import home
from npformer.common.checks import whole
from npformer.common.errors import NpformerError
from npformer.model import Model
from npformer.tasks.pooling import POOLINGS, normalize
from npformer.tasks.prompted import PromptOptions
from npformer.tasks.results import carrying
from npformer.tasks.sentence_folder import recipe_of
from npformer.tasks.sentence_modules import Function, load_steps
from npformer.tasks.sentence_transformers import Encoding
from npformer.tasks.task import Request, without_head


@dataclass(frozen=True)
class EmbeddingOptions(PromptOptions):
    """Options of `SentenceEmbedding`."""

    normalize_embeddings: bool = False
    truncate_dim: int | None = None


class SentenceEmbedding(Encoding):
    """Returns a vector (D,) for a text, and an array (N, D) for N texts; `encode` does the same.

    For a text read in windows, the vector is the mean over the windows of their pooled vectors, weighted by the lengths
    of the windows.

    Parameters
    ----------
    model : Model with any head; the head is not computed
        modules.json of a sentence-transformers folder determines the pooling and later modules.
    prompt, prompt_name : str, optional
        The text to put before each input, or the name of one of the folder's prompts, such as "query" or "document".
    normalize_embeddings : bool
        Scale each vector to length 1.
    truncate_dim : int, optional
        Keep only the first truncate_dim numbers of each vector, for a model trained for this (Matryoshka).
    **options : options common to all tasks; see `Options`

    References
    ----------
    Reimers and Gurevych, 2019, "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks", section 3. Kusupati et
    al., 2022, "Matryoshka Representation Learning", section 3.

    Examples
    --------
    >>> embed = SentenceEmbedding(npformer.load("distilbert-sst2"))
    >>> embed(["I love ice cream", "not my music"]).shape
    (2, 384)
    """

    name = "sentence-embedding"
    options_type = EmbeddingOptions

    def __init__(self, model: Model, **options: Any) -> None:
        self.recipe = recipe_of(model)
        if options.get("truncate_dim") is None:
            options["truncate_dim"] = self.recipe.truncate_dim
        if self.recipe.splade is not None:
            raise NpformerError(f"{model.folder}: its vectors are sparse; use pipeline('sparse-embedding')")
        pooled, steps = model.config.d_model * len(self.recipe.poolings), self.recipe.steps
        self.width = steps[-1].width if steps else pooled  # the width before truncation
        super().__init__(without_head(model), **options)
        self.steps: list[Function] = []
        self.module_sums: dict[str, str] = {}  # folder of a module -> sha256 of its weights
        if steps and model.folder is not None:
            folder, dtype = home(model.folder), self.model.dtype
            self.steps, self.module_sums = load_steps(folder, steps, pooled, dtype, model.limits)

    def settle(self, options: Any, given: Mapping[str, Any]) -> Any:
        settled: EmbeddingOptions = super().settle(options, given)
        if settled.truncate_dim is not None:
            whole("truncate_dim", settled.truncate_dim, 1, self.width)
        return settled

    def is_normalized(self, options: EmbeddingOptions) -> bool:
        """Returns whether every vector has length 1."""
        ends = self.recipe.steps[-1].kind == "Normalize" if self.recipe.steps else False
        return options.normalize_embeddings or (ends and options.truncate_dim in (None, self.width))

    def answer(self, requests: list[Request], options: EmbeddingOptions) -> list[Any]:
        start = 0 if self.recipe.include_prompt else self._prompt_tokens(options)
        answers = [self._pooled(request, start) for request in requests]
        there = [i for i, each in enumerate(answers) if isinstance(each, np.ndarray)]
        if there:
            x = np.stack([answers[i] for i in there])
            with self.model.cores():
                for step in self.steps:
                    x = step(x)
            x = x[:, : options.truncate_dim]
            x = normalize(x) if options.normalize_embeddings else x
            for i, vector in zip(there, x, strict=True):
                answers[i] = vector
        return answers

    def collect(self, answers: list[Any]) -> Any:
        width = self.options.truncate_dim or self.width
        together = np.stack(answers) if answers else np.empty((0, width), self.model.dtype)
        n_tokens = np.array([each.n_tokens for each in answers], int)
        return carrying(together, n_tokens, np.array([each.truncated for each in answers], bool))

    def columns(self) -> dict[str, Any]:
        return {"embedding": (np.floating, self.options.truncate_dim or self.width)}

    def values(self, answer: Any) -> dict[str, Any]:
        return {"embedding": answer}

    def findings(self, text: str, answer: Any) -> list[str]:
        numbers = " ".join(f"{each:.4f}" for each in answer[:6])
        return [f"{len(answer)} numbers: {numbers}{' ...' if len(answer) > 6 else ''}"]

    def _pooled(self, request: Request, start: int) -> Any:
        """Returns the pooled vector (D,) of rows from `start` on, or an NpformerError if there are no such rows."""
        windows = [output["last_hidden_state"] for output in request.outputs[0]]
        if start >= len(windows[0]):
            return NpformerError(f"the prompt fills all {len(windows[0])} tokens; shorten it")
        starts = [start, *(0 for _ in windows[1:])]
        pooled = [
            np.concatenate([POOLINGS[mode](x, first) for mode in self.recipe.poolings])
            for x, first in zip(windows, starts, strict=True)
        ]
        if len(pooled) == 1:
            return pooled[0]
        return np.average(pooled, axis=0, weights=[len(x) for x in windows]).astype(self.model.dtype)

    def _prompt_tokens(self, options: EmbeddingOptions) -> int:
        """Returns the number of tokens before the text, including start tokens, or 0 without a prompt."""
        prompt = self.cased(self.prompt(options))
        if not prompt:
            return 0
        (encoded,) = self.encoder.read([prompt])
        piece = encoded.pieces[0]
        return len(piece) - piece.special_tokens_mask[-1]
