"""Models: `Model`, an encoder with its head, and `Seq2Seq`, an encoder-decoder; token ids in, answers out.

What they compute is in `transformer.py`, what they run on in `runtime/runner.py`. Text comes in and goes out in
`tasks/`, and `generation/` writes with a `Seq2Seq`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npformer.config import Config
from npformer.decoder import shift
from npformer.errors import NpformerError
from npformer.functions import IGNORE_INDEX
from npformer.runtime.batch import Text, pack
from npformer.runtime.inputs import as_padded, check_texts, padded, texts_of
from npformer.runtime.products import kernel
from npformer.runtime.runner import Runner
from npformer.runtime.threads import run_row_parallel
from npformer.tap import listening
from npformer.transformer import POOLED_HEADS, encode_source, forward, transformer

if TYPE_CHECKING:
    from npformer.generation import Hypothesis
    from npformer.text.translation_tokenizer import TranslationTokenizer


class Output(dict[str, np.ndarray]):
    """A model's answers by Hugging Face's names, as attributes or keys: output.logits, output["logits"]."""

    def __getattr__(self, name: str) -> np.ndarray:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the model's answers are {', '.join(self)}, not {name}") from None


class BaseModel(Runner):
    """What all models are: a config, the weights that it describes, and what they run on.

    config: sizes and names. weights: the nested dict of arrays that the forward computes with. folder: the
    checkpoint's, from which the tokenizer is read when first asked for. threads: cores to use, by default
    NPFORMER_THREADS or all this process may use. same_bits: whether a text's numbers have the same bits alone and in
    any batch, by default as NPFORMER_SAME_BITS says, or True; False saves time where a CPU's kernels need care for it.
    """

    config: Config

    def __init__(
        self,
        config: Config,
        weights: Mapping[str, Any],
        folder: Path | None = None,
        threads: int | None = None,
        same_bits: bool | None = None,
    ) -> None:
        super().__init__(threads, same_bits)
        self.config = config
        self.weights = weights
        self.folder = folder

    def _tokenizer_folder(self) -> Path:
        if self.folder is None:
            raise NpformerError("this model was made without a folder, so it has no tokenizer; give it token ids")
        return self.folder


class Model(BaseModel):
    """A transformer encoder with its head, on NumPy arrays. Arguments as in `BaseModel`."""

    @cached_property
    def tokenizer(self) -> Any:
        from npformer.text.tokenizer import load_tokenizer

        return load_tokenizer(self._tokenizer_folder(), self.config)

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
        if self.config.head in POOLED_HEADS and not mask[..., 0].all():
            raise NpformerError(f"attention_mask: a {self.config.head} model reads the first token; one text masks it")
        lead, width = ids.shape[:-1], ids.shape[-1]
        ids, mask, segments = (each.reshape(-1, width) for each in (ids, mask, segments))
        answers = self.run(texts_of(ids, mask, segments))
        output = Output()
        for name in answers[0]:
            arrays = [answer[name] for answer in answers]
            output[name] = padded(arrays, mask) if self._per_token(name) else np.stack(arrays)
        if self.config.head == "multiple-choice":
            output["logits"] = output["logits"].reshape(lead)
        return output

    def run(self, texts: Sequence[Text]) -> list[dict[str, np.ndarray]]:
        """Each text's answers, without padding: the same bits for a text in any company, order or number of threads."""
        c = self.config
        check_texts(texts, c.max_length, c.vocab_size, c.n_segments)
        lengths = [len(text) for text in texts]
        some, rows_shared = lambda at: self._forward([texts[i] for i in at]), partial(self._forward, texts)
        return self.in_shards(lengths, some, rows_shared)

    def _forward(self, texts: Sequence[Text], threads: int = 1) -> list[dict[str, np.ndarray]]:
        """Each text's answers; threads: how many share the rows of one long text."""
        batch = pack(texts)
        if threads > 1:
            pieces = batch.pieces(threads)
            found = run_row_parallel([partial(forward, self.weights, self.config, piece) for piece in pieces])
            answers = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
        elif listening():
            answers = forward(self.weights, self.config, batch, all_rows=True)
        else:  # with rows of no text behind the others, so that no product need fill up its own
            filled = batch.filled(kernel(self.dtype).rows(len(batch.ids)))
            answers = forward(self.weights, self.config, filled)
        per_text = [batch.split(array) if self._per_token(name) else array for name, array in answers.items()]
        return [dict(zip(answers, arrays, strict=True)) for arrays in zip(*per_text, strict=True)]

    def _per_token(self, answer: str) -> bool:
        """Whether an answer has a row for each token, rather than one for each text."""
        return self.config.head not in POOLED_HEADS and answer != "pooler_output"


class Seq2Seq(BaseModel):
    """An encoder-decoder transformer on NumPy arrays. Arguments as in `BaseModel`; its head is "translation"."""

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

        return load_tokenizer(self._tokenizer_folder(), self.config)

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
        pairs = zip(texts_of(ids, mask), texts_of(target_ids, target_mask), strict=True)
        answers = self.run(list(pairs))
        masks = {"logits": target_mask, "encoder_last_hidden_state": mask}
        return Output({name: padded([answer[name] for answer in answers], where) for name, where in masks.items()})

    def _shifted(self, labels: Any) -> tuple[list[np.ndarray], None]:
        """The decoder's input for each row of labels: start, label, ..., without the last."""
        several = isinstance(labels, list | tuple | np.ndarray) and len(labels) and np.ndim(labels[0])
        rows = []
        for row in map(np.asarray, labels if several else [labels]):
            if row.ndim != 1 or row.dtype.kind not in "iu":
                raise NpformerError(f"labels: expected token ids, a row or several, got shape {row.shape}, {row.dtype}")
            count = int((row != IGNORE_INDEX).sum())
            if not count or (row[:count] == IGNORE_INDEX).any():
                raise NpformerError("labels: expected at least one in each row, and -100 behind the last alone")
            # The others are what the decoder is given, and checked as that.
            if not 0 <= row[count - 1] < self.config.decoder.vocab_size:
                raise NpformerError(f"labels: {row[count - 1]} is outside 0 ... {self.config.decoder.vocab_size - 1}")
            rows.append(shift(row[:count], self.config.decoder.start_id, 0)[0][:-1])
        return rows, None

    def run(self, pairs: Sequence[tuple[Text, Text]]) -> list[dict[str, np.ndarray]]:
        """Each (source, target)'s answers without padding: logits (L, V), encoder_last_hidden_state (S, D).

        The same bits for a pair in any company, order or number of threads, and step by step in `generate`.
        """
        self._check_sources([source for source, _ in pairs])
        targets = [target for _, target in pairs]
        check_texts(targets, self.config.max_length, self.config.decoder.vocab_size, name="decoder_input_ids")

        def work(indices: list[int]) -> list[dict[str, np.ndarray]]:
            source, target = (pack(texts) for texts in zip(*(pairs[i] for i in indices), strict=True))
            answers = transformer(self.weights, self.config, source, target)
            logits = target.split(answers["logits"])
            states = source.split(answers["encoder_last_hidden_state"])
            return [{"logits": a, "encoder_last_hidden_state": b} for a, b in zip(logits, states, strict=True)]

        return self.in_shards([len(source) + len(target) for source, target in pairs], work)

    def encode(self, sources: Sequence[Text]) -> list[np.ndarray]:
        """The encoder's output for each source, (S, D); the same bits in any company."""
        self._check_sources(sources)

        def work(indices: list[int]) -> list[np.ndarray]:
            batch = pack([sources[i] for i in indices])
            return batch.split(encode_source(self.weights, self.config, batch))

        return self.in_shards([len(source) for source in sources], work)

    def _check_sources(self, sources: Sequence[Text]) -> None:
        check_texts(sources, self.config.max_length, self.config.vocab_size)

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
        return texts_of(ids, mask)
