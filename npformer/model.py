"""A model: a config, a tree of weights, and the one forward pass from token ids to the head's answer.

`forward` is the whole computation; `Model` packs what it is given, shares the work between cores and names the
answers as Hugging Face does. Text comes in and goes out in `tasks/`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from npformer import heads
from npformer.config import Config
from npformer.encoder import embeddings, embeddings_backward, encoder, encoder_backward
from npformer.errors import NpformerError
from npformer.functions import ACTIVATIONS
from npformer.runtime.batch import LONG, Batch, Text, as_padded, pack, shards
from npformer.runtime.products import kernel
from npformer.runtime.threads import (
    crew,
    hire,
    products,
    share,
    side_by_side,
    single_blas_thread,
    thread_count,
    wants_same_bits,
)
from npformer.tap import listening, tap
from npformer.tape import Stages

POOLED_HEADS = ("sequence-classification", "next-sentence", "multiple-choice")  # they read the first row alone


def forward(
    weights: Mapping[str, Any], config: Config, batch: Batch, whole: bool = False, cores: int = 1
) -> dict[str, np.ndarray]:
    """From packed token ids to the head's answer: rows (T, ...) for heads on tokens, (B, ...) for heads on texts.

    whole: compute every row of the last layer, even where the head reads only the first of each text.
    cores: for a batch of one long text, how many share its rows.
    """
    activation, first = ACTIVATIONS[config.activation], batch.first
    pooled_only = config.head in POOLED_HEADS and not whole
    if cores == 1 and listening():
        x = encode(weights, config, batch, only=first if pooled_only else None)
    elif cores == 1:
        rows = kernel(weights["embeddings"]["token"]["weight"].dtype).rows(len(batch.ids))
        x = encode(weights, config, batch.filled(rows), only=first if pooled_only else None)[: len(batch.ids)]
    else:
        only = [first] + [first[:0]] * (cores - 1) if pooled_only else [None] * cores
        pieces = zip(batch.pieces(cores), only, strict=True)
        x = np.concatenate(side_by_side([partial(encode, weights, config, *piece) for piece in pieces]))

    answers: dict[str, np.ndarray] = {}
    head = weights.get("head", {})
    pooled = x if pooled_only else x[first]
    if "pooler" in weights:
        pooled = heads.pool(pooled, ACTIVATIONS[config.pooler], **weights["pooler"])
    if config.head == "base":
        answers["last_hidden_state"] = x
        if "pooler" in weights:
            answers["pooler_output"] = pooled
    elif config.head in POOLED_HEADS:
        answers["logits"] = heads.classify(pooled, **head)
    elif config.head == "token-classification":
        answers["logits"] = heads.classify(x, **head)
    elif config.head == "question-answering":
        answers["start_logits"], answers["end_logits"] = heads.spans(x, **head)
    else:
        answers["logits"] = heads.masked_words(x, activation, **head, eps=config.eps)
    return answers


def backward(
    grads: Mapping[str, np.ndarray], stages: Stages, weights: Mapping[str, Any], config: Config, batch: Batch
) -> dict[str, Any]:
    """Of `forward`, of which `stages` is the recording: the gradients of the weights, in a tree like theirs.

    grads: of the answers, by their names. A tied projection has its share in "head", the token table its own in
    "embeddings"; tables have `SparseRows`.
    """
    x, head, tree = last_rows(stages, weights, config), weights.get("head", {}), {}
    of_texts = config.head in POOLED_HEADS
    only = batch.first if of_texts and len(x) == len(batch.first) else None  # unless the forward computed every row
    first = x[batch.first] if only is None else x
    if of_texts:
        pooled = stages["pooled"] if "pooler" in weights else first
        grad, tree["head"] = heads.classify_backward(grads["logits"], stages, pooled, **head)
    elif config.head == "base":
        grad = grads["last_hidden_state"].copy() if "last_hidden_state" in grads else np.zeros_like(x)
    elif config.head == "token-classification":
        grad, tree["head"] = heads.classify_backward(grads["logits"], stages, x, **head)
    elif config.head == "question-answering":
        grad, tree["head"] = heads.spans_backward(grads["start_logits"], grads["end_logits"], stages, x, **head)
    else:
        activation = ACTIVATIONS[config.activation]
        grad, tree["head"] = heads.masked_words_backward(grads["logits"], stages, x, activation, **head, eps=config.eps)
    if "pooler" in weights and (of_texts or "pooler_output" in grads):
        d_pooled = grad if of_texts else grads["pooler_output"]
        activation = ACTIVATIONS[config.pooler]
        d_first, tree["pooler"] = heads.pool_backward(d_pooled, stages, first, activation, **weights["pooler"])
        if of_texts:
            grad = d_first
        else:
            grad[batch.first] += d_first
    if of_texts and only is None:
        d_first, grad = grad, np.zeros_like(x)
        grad[batch.first] = d_first
    return tree | encode_backward(grad, stages, weights, config, batch, only)


def encode(weights: Mapping[str, Any], config: Config, batch: Batch, only: np.ndarray | None = None) -> np.ndarray:
    """The encoder's last layer, packed token ids -> (T, D), or (B, D) where `only` one row of each text is wanted."""
    ids, lengths = tap("ids", batch.ids), tap("lengths", batch.lengths)
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    positions = batch.positions + config.first_position
    x = embeddings(ids, positions, batch.segments, **weights["embeddings"], eps=config.eps, scale=scale)
    return encoder(
        x, lengths, config.n_heads, ACTIVATIONS[config.activation], weights["layers"], eps=config.eps, only=only,
        norm_first=config.norm_first, norm=weights.get("norm"),
    )  # fmt: skip


def encode_backward(
    grad: np.ndarray,
    stages: Stages,
    weights: Mapping[str, Any],
    config: Config,
    batch: Batch,
    only: np.ndarray | None = None,
) -> dict[str, Any]:
    """Of `encode`: the gradients of the encoder's weights from that of its last layer, (T, D) or (B, D)."""
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    tables = weights["embeddings"]
    x = stages[embedded(tables)]
    grad, tree = encoder_backward(
        grad, stages, x, batch.lengths, config.n_heads, ACTIVATIONS[config.activation], weights["layers"],
        eps=config.eps, only=only, norm_first=config.norm_first, norm=weights.get("norm"),
    )  # fmt: skip
    grads = embeddings_backward(
        grad, stages, batch.ids, batch.positions + config.first_position, batch.segments, **tables, eps=config.eps,
        scale=scale, padding_idx=config.padding_idx,
    )  # fmt: skip
    return {"embeddings": grads, **tree}


def embedded(tables: Mapping[str, Any]) -> str:
    """The stage that the embeddings with these weights end in."""
    last = "project" if "project" in tables else "norm" if "norm" in tables else "sum"
    return f"embeddings.{last}"


def last_rows(stages: Stages, weights: Mapping[str, Any], config: Config) -> np.ndarray:
    """The encoder's last layer in a recording, (T, D) or (B, D)."""
    if "norm" in weights:
        return stages["norm"]
    return stages[f"layers.{config.n_layers - 1}.{'ffn_residual' if config.norm_first else 'ffn_norm'}"]


class Output(dict[str, np.ndarray]):
    """A model's answers by Hugging Face's names, as attributes or keys: output.logits, output["logits"]."""

    def __getattr__(self, name: str) -> np.ndarray:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the model's answers are {', '.join(self)}, not {name}") from None


class Model:
    """A transformer encoder with its head, on NumPy arrays.

    config: sizes and names. weights: the nested dict of arrays that `forward` computes with. tokenizer: a
    `tokenizers.Tokenizer`, read from the checkpoint's folder when first asked for. threads: cores to use, by default
    NPFORMER_THREADS or all this process may use. same_bits: whether a text's numbers have the same bits alone and in
    any batch, by default as NPFORMER_SAME_BITS says, or True; False saves time where a CPU's kernels need care for it.
    """

    def __init__(
        self,
        config: Config,
        weights: Mapping[str, Any],
        folder: Path | None = None,
        threads: int | None = None,
        same_bits: bool | None = None,
    ) -> None:
        self.config = config
        self.weights = weights
        self.folder = folder
        self.threads = thread_count(threads)
        self.same_bits = wants_same_bits(same_bits)

    @cached_property
    def tokenizer(self) -> Any:
        from npformer.text.tokenizer import load_tokenizer

        if self.folder is None:
            raise NpformerError("this model was made without a folder, so it has no tokenizer; give it token ids")
        return load_tokenizer(self.folder, self.config)

    @property
    def dtype(self) -> np.dtype:
        return self.weights["embeddings"]["token"]["weight"].dtype

    def __repr__(self) -> str:
        c = self.config
        size = f"{c.n_layers} layers, {c.n_heads} heads, width {c.d_model}, {self.dtype}"
        return f"<npformer.Model {c.model_type} {c.head}: {size}>"

    def __call__(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Output:
        """The answers for one sequence (L,), a padded array (B, L), or a ragged list of sequences.

        attention_mask: 1 where a token stands, 0 where padding does; what it leaves out takes no part in anything, and
        its rows of the answer are zeros. For a multiple-choice head: (B, N, L), N choices a question.
        Answers have the shape Hugging Face gives them; a ragged list is padded with zeros on the right.
        Raises NpformerError for ids, masks or lengths the model cannot take.
        """
        ids, mask, segments = as_padded(input_ids, attention_mask, token_type_ids)
        if ids.ndim != (3 if self.config.head == "multiple-choice" else 2):
            expected = "(B, N, L)" if self.config.head == "multiple-choice" else "(L,) or (B, L)"
            raise NpformerError(f"input_ids: a {self.config.head} model takes {expected}, got {ids.shape}")
        lead, width = ids.shape[:-1], ids.shape[-1]
        rows = zip(ids.reshape(-1, width), mask.reshape(-1, width), segments.reshape(-1, width), strict=True)
        texts = [Text(i[m], s[m], np.flatnonzero(m)) for i, m, s in rows]
        if self.config.head in POOLED_HEADS and not mask[..., 0].all():
            raise NpformerError(f"attention_mask: a {self.config.head} model reads the first token; one text masks it")
        answers = self.run(texts)
        output = Output()
        for name in answers[0]:
            arrays = [answer[name] for answer in answers]
            if self._per_token(name):
                padded = np.zeros((len(arrays), width, *arrays[0].shape[1:]), self.dtype)
                padded[mask] = np.concatenate(arrays)
                output[name] = padded
            else:
                output[name] = np.stack(arrays)
        if self.config.head == "multiple-choice":
            output["logits"] = output["logits"].reshape(lead)
        return output

    def run(self, texts: Sequence[Text]) -> list[dict[str, np.ndarray]]:
        """Each text's answers, without padding: the same bits for a text in any company, order or number of threads."""
        self._check(texts)
        if not texts:
            return []
        if listening():  # every stage once, whole, in the order given, on this thread
            with self.cores(1):
                return self._unpack(list(range(len(texts))), texts)
        groups = shards([len(text) for text in texts], self.threads)
        with self.cores(1):
            if len(texts) == 1 and len(texts[0]) >= LONG * self.threads and hire(self.threads - 1) == self.threads - 1:
                results = [self._unpack([0], texts, self.threads)]
            elif len(groups) == 1:
                with crew(self.threads):
                    results = [self._unpack(groups[0], texts)]
            else:
                results = share([partial(self._unpack, group, texts) for group in groups], self.threads)
        answers: list[dict[str, np.ndarray]] = [{}] * len(texts)
        for group, result in zip(groups, results, strict=True):
            for index, answer in zip(group, result, strict=True):
                answers[index] = answer
        return answers

    @contextmanager
    def cores(self, threads: int | None = None) -> Iterator[None]:
        """BLAS held to one thread, a crew of all threads, or of fewer, and products as the model's same_bits says."""
        crew_of = crew(self.threads if threads is None else threads)
        with single_blas_thread(), crew_of, products(plain=not self.same_bits):
            yield

    def _unpack(self, group: list[int], texts: Sequence[Text], cores: int = 1) -> list[dict[str, np.ndarray]]:
        batch = pack([texts[index] for index in group])
        answers = forward(self.weights, self.config, batch, listening(), cores)
        per_text = [batch.split(array) if self._per_token(name) else array for name, array in answers.items()]
        return [dict(zip(answers, arrays, strict=True)) for arrays in zip(*per_text, strict=True)]

    def _per_token(self, answer: str) -> bool:
        """Whether an answer has a row for each token, rather than one for each text."""
        return self.config.head not in POOLED_HEADS and answer != "pooler_output"

    def _check(self, texts: Sequence[Text]) -> None:
        """Each text is non-empty, and its ids, segments and positions have rows in the tables."""
        tables = {
            "input_ids": ("ids", self.config.vocab_size, "the vocabulary"),
            "token_type_ids": ("segments", max(self.config.n_segments, 1), "the segments"),
            "position": ("positions", self.config.max_length, "the model's positions"),
        }
        for index, text in enumerate(texts):
            if len(text) == 0:
                raise NpformerError(f"input_ids: text {index} has no tokens")
            if len(text) > self.config.max_length:
                most = self.config.max_length
                raise NpformerError(f"input_ids: text {index} has {len(text)} tokens, the model takes {most}")
            for name, (field, size, where) in tables.items():
                values = getattr(text, field)
                if values is not None and not (values.min() >= 0 and values.max() < size):
                    wrong = values[(values < 0) | (values >= size)][0]
                    raise NpformerError(f"{name}: {wrong} of text {index} is outside {where}, 0 ... {size - 1}")
