"""The encoder-decoder: source ids and target ids in, logits of the next token out.

`Seq2Seq` is to `transformer` what `Model` is to an encoder with its head. Generation is in `generation/`, text in
and out in `tasks/translation.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npformer.config import Config
from npformer.decoder import decoder, decoder_backward, project, project_backward, shift
from npformer.encoder import embeddings, embeddings_backward
from npformer.errors import NpformerError
from npformer.functions import ACTIVATIONS, IGNORED
from npformer.model import Model, Output, embedded, encode, encode_backward, last_rows
from npformer.runtime.batch import Batch, Text, as_padded, pack, shards
from npformer.runtime.threads import share
from npformer.tap import listening, scope, tap
from npformer.tape import Stages

if TYPE_CHECKING:
    from npformer.attention import Memory
    from npformer.generation import Hypothesis
    from npformer.text.translation_tokenizer import TranslationTokenizer


def transformer(weights: Mapping[str, Any], config: Config, source: Batch, target: Batch) -> dict[str, np.ndarray]:
    """From packed ids of sources and targets to the logits of what follows each target token. Vaswani et al., 2017.

    Text i's target attends to text i's source. Answers: logits (T, V), encoder_last_hidden_state (S, D).
    """
    memory = encode_source(weights, config, source)
    x = decode_target(weights, config, target, memory, source.lengths)
    return {"logits": project(x, **weights["head"]["output"]), "encoder_last_hidden_state": memory}


def transformer_backward(
    grads: Mapping[str, np.ndarray],
    stages: Stages,
    weights: Mapping[str, Any],
    config: Config,
    source: Batch,
    target: Batch,
) -> dict[str, Any]:
    """Of `transformer`, of which `stages` is the recording: the gradients of the weights, in a tree like theirs.

    grads: of the logits. A tied projection has its share in "head", each token table its own.
    """
    decoded, last = stages.within("decoder"), config.decoder.n_layers - 1
    name = "norm" if config.final_norm else f"layers.{last}.{'ffn_residual' if config.norm_first else 'ffn_norm'}"
    grad, d_output = project_backward(grads["logits"], stages, decoded[name], **weights["head"]["output"])
    memory = last_rows(stages.within("encoder"), weights["encoder"], config)
    grad, d_decoder = decode_target_backward(grad, stages, weights, config, target, memory, source.lengths)
    d_encoder = encode_backward(grad, stages.within("encoder"), weights["encoder"], config, source)
    return {"encoder": d_encoder, "decoder": d_decoder, "head": {"output": d_output}}


def encode_source(weights: Mapping[str, Any], config: Config, source: Batch) -> np.ndarray:
    """The encoder's output, (S, D)."""
    with scope("encoder"):
        return encode(weights["encoder"], config, source)


def decode_target(
    weights: Mapping[str, Any],
    config: Config,
    target: Batch,
    source: np.ndarray,
    source_lengths: np.ndarray,
    memory: Sequence[tuple[Memory, Memory]] | None = None,
) -> np.ndarray:
    """The decoder's last layer, (T, D). memory: each layer's of earlier rows and of the source, not given again."""
    ids, lengths, weights = tap("ids", target.ids), tap("lengths", target.lengths), weights["decoder"]
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    with scope("decoder"):
        x = embeddings(ids, target.positions + config.first_position, None, **weights["embeddings"], scale=scale)
        return decoder(
            x, lengths, source, source_lengths, config.decoder.n_heads, ACTIVATIONS[config.activation],
            weights["layers"], config.eps, config.norm_first, weights.get("norm"), memory,
        )  # fmt: skip


def decode_target_backward(
    grad: np.ndarray,
    stages: Stages,
    weights: Mapping[str, Any],
    config: Config,
    target: Batch,
    source: np.ndarray,
    source_lengths: np.ndarray,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Of `decode_target`: the gradients of the source's rows (S, D) and of the decoder's weights."""
    stages, weights = stages.within("decoder"), weights["decoder"]
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    x = stages[embedded(weights["embeddings"])]
    grad, dsource, tree = decoder_backward(
        grad, stages, x, target.lengths, source, source_lengths, config.decoder.n_heads,
        ACTIVATIONS[config.activation], weights["layers"], config.eps, config.norm_first, weights.get("norm"),
    )  # fmt: skip
    tables = weights["embeddings"]
    d_tables = embeddings_backward(
        grad,
        stages,
        target.ids,
        target.positions + config.first_position,
        None,
        **tables,
        scale=scale,
        padding_idx=config.padding_idx,
    )
    return dsource, {"embeddings": d_tables, **tree}


class Seq2Seq(Model):
    """An encoder-decoder transformer on NumPy arrays. Arguments as in `Model`; the config's head is "translation"."""

    config: Config

    def __init__(
        self,
        config: Config,
        weights: Mapping[str, Any],
        folder: Path | None = None,
        threads: int | None = None,
        same_bits: bool | None = None,
    ) -> None:
        if config.head != "translation":
            raise NpformerError(f"Seq2Seq takes an encoder-decoder with its projection, not a {config.head} model")
        super().__init__(config, weights, folder, threads, same_bits)

    @cached_property
    def tokenizer(self) -> TranslationTokenizer:
        from npformer.text.translation_tokenizer import load_tokenizer

        if self.folder is None:
            raise NpformerError("this model was made without a folder, so it has no tokenizer; give it token ids")
        return load_tokenizer(self.folder, self.config)

    @property
    def dtype(self) -> np.dtype:
        return self.weights["decoder"]["embeddings"]["token"]["weight"].dtype

    def __repr__(self) -> str:
        c = self.config
        size = f"{c.n_layers} + {c.decoder.n_layers} layers, {c.n_heads} heads, width {c.d_model}, {self.dtype}"
        return f"<npformer.Seq2Seq {c.model_type}: {size}>"

    def __call__(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        decoder_input_ids: Any = None,
        decoder_attention_mask: Any = None,
        labels: Any = None,
    ) -> Output:
        """Logits (B, L, V) of what follows each target token, and the encoder's output (B, S, D), padded with zeros.

        Sources and targets: one sequence, a padded array with its mask, or a ragged list. Give decoder_input_ids, which
        begin with the start token, or labels, which are shifted behind it (-100 at their end is padding).
        Raises NpformerError for ids, masks or lengths the model cannot take.
        """
        ids, mask, _ = as_padded(input_ids, attention_mask, None)
        if (decoder_input_ids is None) == (labels is None):
            raise NpformerError("give decoder_input_ids or labels, one of the two")
        if labels is not None:
            if decoder_attention_mask is not None:
                raise NpformerError("decoder_attention_mask: labels need none; -100 marks what is no token")
            decoder_input_ids, decoder_attention_mask = self._shifted(labels)
        target_ids, target_mask, _ = as_padded(decoder_input_ids, decoder_attention_mask, None)
        if ids.ndim != 2 or target_ids.ndim != 2 or len(ids) != len(target_ids):
            got = f"{target_ids.shape} for {ids.shape}"
            raise NpformerError(f"decoder_input_ids: expected a target for each source, got {got}")
        sources, targets = (
            [Text(row[kept], None, np.flatnonzero(kept)) for row, kept in zip(*each, strict=True)]
            for each in ((ids, mask), (target_ids, target_mask))
        )
        answers = self.run(list(zip(sources, targets, strict=True)))
        output = Output()
        for name, padding in (("logits", target_mask), ("encoder_last_hidden_state", mask)):
            rows = np.concatenate([answer[name] for answer in answers])
            output[name] = np.zeros((*padding.shape, rows.shape[-1]), self.dtype)
            output[name][padding] = rows
        return output

    def _shifted(self, labels: Any) -> tuple[list[np.ndarray], None]:
        """The decoder's input for each row of labels: start, label, ..., without the last."""
        several = isinstance(labels, list | tuple | np.ndarray) and len(labels) and np.ndim(labels[0])
        rows = []
        for row in map(np.asarray, labels if several else [labels]):
            if row.ndim != 1 or row.dtype.kind not in "iu":
                raise NpformerError(f"labels: expected token ids, a row or several, got shape {row.shape}, {row.dtype}")
            count = int((row != IGNORED).sum())
            if not count or (row[:count] == IGNORED).any():
                raise NpformerError("labels: expected at least one in each row, and -100 behind the last alone")
            # The others are what the decoder is given, and checked as that.
            if not 0 <= row[count - 1] < self.config.decoder.vocab_size:
                raise NpformerError(f"labels: {row[count - 1]} is outside 0 ... {self.config.decoder.vocab_size - 1}")
            rows.append(shift(row[:count], self.config.decoder.start_id, 0)[0][:-1])
        return rows, None

    def run(self, pairs: Sequence[tuple[Text, Text]]) -> list[dict[str, np.ndarray]]:  # type: ignore[override]
        """Each (source, target)'s answers without padding: logits (L, V), encoder_last_hidden_state (S, D).

        The same bits for a pair in any company, order or number of threads, and step by step in `generate`.
        """
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        self.check(sources, "input_ids", self.config.vocab_size)
        self.check(targets, "decoder_input_ids", self.config.decoder.vocab_size)

        def forward(group: list[int]) -> list[dict[str, np.ndarray]]:
            source, target = pack([sources[i] for i in group]), pack([targets[i] for i in group])
            answers = transformer(self.weights, self.config, source, target)
            logits, states = (
                target.split(answers["logits"]),
                source.split(answers["encoder_last_hidden_state"]),
            )
            return [{"logits": a, "encoder_last_hidden_state": b} for a, b in zip(logits, states, strict=True)]

        return self.in_shards([len(source) + len(target) for source, target in pairs], forward)

    def encode(self, sources: Sequence[Text]) -> list[np.ndarray]:
        """The encoder's output for each source, (S, D); the same bits in any company."""
        self.check(sources, "input_ids", self.config.vocab_size)

        def forward(group: list[int]) -> list[np.ndarray]:
            batch = pack([sources[i] for i in group])
            return batch.split(encode_source(self.weights, self.config, batch))

        return self.in_shards([len(source) for source in sources], forward)

    def generate(self, sources: Any, attention_mask: Any = None, **settings: Any) -> list[list[Hypothesis]]:
        """Targets for one source's ids, a padded array's with its mask, or a list of them: `generation.generate`."""
        from npformer.generation import generate

        return generate(self, self.sources(sources, attention_mask), **settings)

    def stream(self, source: Any, **settings: Any) -> Iterator[int]:
        """The target's tokens of one source as they are found, greedily or sampled: `generation.stream`."""
        from npformer.generation import stream

        sources = self.sources(source)
        if len(sources) != 1:
            raise NpformerError(f"stream: one source at a time, got {len(sources)}")
        return stream(self, sources[0], **settings)

    def sources(self, input_ids: Any, attention_mask: Any = None) -> list[Text]:
        """What a caller hands the model as texts: as in `__call__`."""
        ids, mask, _ = as_padded(input_ids, attention_mask, None)
        if ids.ndim != 2:
            raise NpformerError(f"input_ids: expected (S,) or (B, S), got {ids.shape}")
        return [Text(row[kept], None, np.flatnonzero(kept)) for row, kept in zip(ids, mask, strict=True)]

    def in_shards(self, lengths: list[int], work: Callable[[list[int]], list[Any]]) -> list[Any]:
        """work(indices) over shards of the texts, put back in order; in one for whoever listens."""
        if not lengths:
            return []
        if listening():
            with self.cores(1):
                return work(list(range(len(lengths))))
        groups = shards(lengths, self.threads)
        with self.cores(self.threads if len(groups) == 1 else 1):
            results = share([partial(work, group) for group in groups], self.threads)
        answers: list[Any] = [None] * len(lengths)
        for index, answer in zip(chain(*groups), chain(*results), strict=True):
            answers[index] = answer
        return answers

    def check(self, texts: Sequence[Text], name: str, vocabulary: int) -> None:
        """Each text is non-empty, no longer than the position table, and its ids are in the vocabulary."""
        longest = self.config.max_length
        for index, text in enumerate(texts):
            if len(text) == 0:
                raise NpformerError(f"{name}: text {index} has no tokens")
            last = int(text.positions.max()) if text.positions is not None else len(text) - 1
            if last >= longest:
                raise NpformerError(f"{name}: text {index} has {last + 1} tokens, the model takes {longest}")
            if (wrong := text.ids[(text.ids < 0) | (text.ids >= vocabulary)]).size:
                vocabulary_is = f"the vocabulary, 0 ... {vocabulary - 1}"
                raise NpformerError(f"{name}: {wrong[0]} of text {index} is outside {vocabulary_is}")
