"""Models that map token ids to answers: `Model`, a stack of layers with a head, and `Seq2Seq`, an encoder-decoder.

`engine/transformer.py` has the computation, `engine/runtime/runner.py` distributes it over cores, and `generation/`
generates tokens. `tasks/` maps texts to results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from npformer.base_model import expect_finite, packed
from npformer.common.errors import NpformerError
from npformer.common.other_libraries import answering
from npformer.config import POOLED_HEADS, Config
from npformer.engine.embeddings import shift_right
from npformer.engine.functions import IGNORE_INDEX
from npformer.engine.replay.passes import Arrays, Pass
from npformer.engine.runtime.output import Output
from npformer.engine.runtime.packing import Batch, Text, pack, shards
from npformer.engine.runtime.padding import as_padded, check_texts, padded, unpadded
from npformer.engine.runtime.products import kernel
from npformer.engine.runtime.steps import Steps
from npformer.engine.runtime.threads import run_row_parallel
from npformer.engine.tape import Stages
from npformer.engine.taps import listening
from npformer.engine.transformer import backward, forward, forward_in_steps, transformer, transformer_backward
from npformer.generating_model import GeneratingModel

if TYPE_CHECKING:
    from npformer.text.translation_tokenizer import TranslationTokenizer

REPLAYED = 128  # maximum rows of a replayed pass; with more rows, the interpreter takes only a small part of the time


class Model(GeneratingModel):
    """A transformer with its head, on token ids.

    Parameters
    ----------
    config : Config
    weights : nested dict of arrays, as `load_folder` returns them
    folder : Path of the checkpoint, from which the tokenizer is read
    threads : int, number of cores to use; by default the environment variable NPFORMER_THREADS, or all available cores
    same_bits : bool, a text has the same bits in its answers alone and in any batch; by default the environment
        variable NPFORMER_SAME_BITS, or True. False saves time on CPUs where this guarantee needs extra work.
    limits : Limits on texts and on the files of the tokenizer

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> output = model([[101, 1045, 2293, 3256, 6949, 102]])  # I love ice cream
    >>> model.config.labels[output.logits[0].argmax()]
    'POSITIVE'
    """

    @cached_property
    def tokenizer(self) -> Any:
        from npformer.text.tokenizer import load_tokenizer

        return load_tokenizer(self._tokenizer_folder(), self.config, self.limits)

    def __repr__(self) -> str:
        c = self.config
        size = f"{c.n_layers} layers, {c.n_heads} heads, width {c.d_model}, {self.dtype}"
        return f"<npformer.Model {c.model_type} {c.head}: {size}>"

    @answering
    def __call__(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Output:
        """Computes the answers of the head, with the same shapes as in Hugging Face.

        Parameters
        ----------
        input_ids : (L,) or (B, L) integers, or a ragged list of sequences; (B, N, L) for a multiple-choice head
        attention_mask : integers of the same shape, 1 = token, 0 = padding. Padding is ignored, and answers for padding
            are zeros.
        token_type_ids : integers of the same shape, 0 by default

        Returns
        -------
        Output of arrays (B, ...); answers for a ragged list are padded with zeros on the right

        Raises
        ------
        NpformerError
            The ids, the mask or the lengths are invalid for this model.
        """
        ids, mask, token_type_ids = as_padded(input_ids, attention_mask, token_type_ids)
        if ids.ndim != (3 if self.config.head == "multiple-choice" else 2):
            expected = "(B, N, L)" if self.config.head == "multiple-choice" else "(L,) or (B, L)"
            raise NpformerError(f"input_ids: a {self.config.head} model takes {expected}, got {ids.shape}")
        if self.config.decoder and (np.diff(mask.astype(int), axis=-1) > 0).any():
            raise NpformerError(
                "attention_mask: expected padding only after a text, because the decoder reads the ids shifted right"
            )
        if self.config.head in POOLED_HEADS and self.config.pooling != "last" and not mask[..., 0].all():
            index = int(mask[..., 0].argmin())
            raise NpformerError(
                f"attention_mask: text {index} masks its first token, which a {self.config.head} model reads"
            )
        lead, width = ids.shape[:-1], ids.shape[-1]
        ids, mask, token_type_ids = (each.reshape(-1, width) for each in (ids, mask, token_type_ids))
        skips_masked = self.config.positions.skips_masked
        answers = self.run(unpadded(ids, mask, token_type_ids, self.config.uncounted, skips_masked))
        output = Output()
        for name in answers[0]:
            arrays = [answer[name] for answer in answers]
            output[name] = padded(arrays, mask) if self._per_token(name) else np.stack(arrays)
        if self.config.head == "multiple-choice":
            output["logits"] = output["logits"].reshape(lead)
        return output

    def run(self, texts: Sequence[Text]) -> list[dict[str, np.ndarray]]:
        """Returns the answers for each text, without padding.

        With same_bits, the bits of an answer do not depend on the other texts or the number of threads.
        """
        self.check_inputs(texts)
        c, lengths = self.config, [len(text) for text in texts]
        some, rows_shared = lambda at: self._forward([texts[i] for i in at]), partial(self._forward, texts)
        answers = self.in_shards(lengths, some, None if c.decoder else rows_shared)
        expect_finite(answers)
        return answers

    def run_in_steps(self, texts: Sequence[Text]) -> Steps[list[dict[str, np.ndarray]]]:
        """Computes the answers of `run` in steps, one per layer, so that a caller can do other work between steps."""
        if listening() or sum(map(len, texts)) <= REPLAYED:
            return self.run(texts)
        self.check_inputs(texts)
        c, groups = self.config, shards([len(text) for text in texts], self.threads)
        batches = [packed(c, [texts[i] for i in group]) for group in groups]
        filled = [batch.filled(kernel(self.dtype).usable(len(batch.ids))) for batch in batches]
        found = yield from self.together([forward_in_steps(self.weights, self.parts, batch) for batch in filled])
        split = [self._split(batch, answers) for batch, answers in zip(batches, found, strict=True)]
        by_index = dict(zip(chain(*groups), chain(*split), strict=True))
        answers = [by_index[index] for index in range(len(texts))]
        expect_finite(answers)
        return answers

    def check_inputs(self, inputs: Sequence[Text]) -> None:
        c = self.config
        check_texts(inputs, c.max_length, c.vocab_size, c.n_token_types, first_position=-c.positions.first)

    def resume(self, texts: Sequence[Text], layer: int, rows: np.ndarray) -> list[dict[str, np.ndarray]]:
        """Continues `run` at a layer, from the packed rows (T, D) that the layer reads."""
        with self.cores(1):
            answers = self._forward(texts, resumed=(layer, rows))
        expect_finite(answers)
        return answers

    def backward(self, grads: Mapping[str, np.ndarray], stages: Stages, inputs: Sequence[Text]) -> dict[str, Any]:
        return backward(grads, stages, self.weights, self.parts, packed(self.config, inputs))

    def _forward(
        self, texts: Sequence[Text], threads: int = 1, resumed: tuple[int, np.ndarray] | None = None
    ) -> list[dict[str, np.ndarray]]:
        """Computes the answers for each text. Several threads share the rows of a long text."""
        batch = packed(self.config, texts)
        if threads > 1:
            pieces = batch.pieces(threads)
            found = run_row_parallel([partial(forward, self.weights, self.parts, piece) for piece in pieces])
            answers = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
        elif resumed or listening():
            answers = forward(self.weights, self.parts, batch, all_rows=True, resumed=resumed)
        else:  # products need padding rows: add these rows once, not in each product
            filled = batch.filled(kernel(self.dtype).usable(len(batch.ids)))
            replayed = len(filled.ids) <= REPLAYED
            answers = dict(self._replayed(filled)) if replayed else forward(self.weights, self.parts, filled)
        return self._split(batch, answers)

    def _replayed(self, batch: Batch) -> Arrays:
        """Returns the answers of `forward`, replayed if batches of this shape recur."""
        c, count = self.config, 2 if self.config.n_token_types > 1 else 1
        arrays = batch.lengths, batch.positions, batch.places, batch.read
        shape = (*[each.tobytes() for each in arrays], batch.farthest)

        def work(weights: Mapping[str, Any], inputs: Sequence[np.ndarray], caches: Sequence[Any]) -> Arrays:
            ids, token_type_ids = (*inputs, batch.token_type_ids)[:2]
            return forward(weights, self.parts, replace(batch, ids=ids, token_type_ids=token_type_ids))

        def others(inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            ids, *types = inputs
            ids = np.where(ids == self.parts.end_id, ids, (ids + 1) % c.vocab_size)
            return ids, *[(each + 1) % c.n_token_types for each in types]

        return self.replays.run(Pass(shape, work, self.weights, (batch.ids, batch.token_type_ids)[:count], others))

    def _split(self, batch: Batch, answers: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Splits the packed answers of a batch into the answers for each text."""
        per_text = [batch.split(array) if self._per_token(name) else array for name, array in answers.items()]
        return [dict(zip(answers, arrays, strict=True)) for arrays in zip(*per_text, strict=True)]

    def _per_token(self, answer: str) -> bool:
        """Whether an answer has a row for each token, not for each text."""
        return self.config.head not in POOLED_HEADS and answer != "pooler_output"


class Seq2Seq(GeneratingModel):
    """An encoder-decoder transformer on token ids, with head "translation".

    Parameters
    ----------
    config, weights, folder, threads, same_bits, limits : as in `Model`

    Raises
    ------
    NpformerError
        The config's head is not "translation".

    Examples
    --------
    >>> sizes = {"vocab_size": 9, "n_heads": 2, "n_layers": 1, "d_ffn": 16}
    >>> decoder = npformer.config.Decoder(**sizes)
    >>> config = npformer.Config("marian", "translation", d_model=8, max_length=8, decoder=decoder, **sizes)
    >>> model = Seq2Seq(config, npformer.training.initialize(config))
    >>> model([3, 4, 0], labels=[5, 6, 7, 0]).logits.shape
    (1, 4, 9)
    """

    def _check_head(self, config: Config) -> None:
        if config.head != "translation":
            raise NpformerError(f"Seq2Seq: expected head 'translation', got {config.head!r}")

    @cached_property
    def tokenizer(self) -> TranslationTokenizer:
        from npformer.text.translation_tokenizer import load_tokenizer

        return load_tokenizer(self._tokenizer_folder(), self.config, self.limits)

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
        """Computes the logits of the token after each target token.

        Parameters
        ----------
        input_ids, attention_mask : sources: one sequence, a padded array (B, S) with a mask, or a ragged list
        decoder_input_ids, decoder_attention_mask : targets in the same forms, beginning with the start token
        labels : targets without the start token, instead of decoder_input_ids; -100 at the end is padding

        Returns
        -------
        Output, logits (B, L, V) and encoder_last_hidden_state (B, S, D), padded with zeros

        Raises
        ------
        NpformerError
            The ids, the masks or the lengths are invalid for this model.
        """
        ids, mask, _ = as_padded(input_ids, attention_mask, None)
        if (decoder_input_ids is None) == (labels is None):
            given = "neither" if labels is None else "both"
            raise NpformerError(f"labels: expected either decoder_input_ids or labels, got {given}")
        if labels is not None:
            if decoder_attention_mask is not None:
                raise NpformerError("decoder_attention_mask: not used with labels, where -100 marks padding")
            decoder_input_ids, decoder_attention_mask = self._shifted(labels)
        target_ids, target_mask, _ = as_padded(decoder_input_ids, decoder_attention_mask, None)
        if ids.ndim != 2 or target_ids.ndim != 2 or len(ids) != len(target_ids):
            got = f"{target_ids.shape} for {ids.shape}"
            raise NpformerError(f"decoder_input_ids: expected a target for each source, got {got}")
        pairs = zip(unpadded(ids, mask), unpadded(target_ids, target_mask), strict=True)
        answers = self.run(list(pairs))
        masks = {"logits": target_mask, "encoder_last_hidden_state": mask}
        return Output({name: padded([answer[name] for answer in answers], where) for name, where in masks.items()})

    def _shifted(self, labels: Any) -> tuple[list[np.ndarray], None]:
        """Returns the decoder's input for each row of labels: the start token, then all labels except the last."""
        several = isinstance(labels, list | tuple | np.ndarray) and len(labels) and np.ndim(labels[0])
        rows = []
        for row in map(np.asarray, labels if several else [labels]):
            if row.ndim != 1 or row.dtype.kind not in "iu":
                raise NpformerError(f"labels: expected rows of token ids, got {row.dtype} of shape {row.shape}")
            count = int((row != IGNORE_INDEX).sum())
            if not count or (row[:count] == IGNORE_INDEX).any():
                raise NpformerError("labels: expected at least one id in each row, and -100 only after the last id")
            # Only the last label is checked here. The other labels become decoder input, which is checked later.
            if not 0 <= row[count - 1] < self.config.decoder.vocab_size:
                raise NpformerError(f"labels: {row[count - 1]} is outside 0 ... {self.config.decoder.vocab_size - 1}")
            rows.append(shift_right(row[:count], self.config.decoder.start_id, 0)[0][:-1])
        return rows, None

    def run(self, pairs: Sequence[tuple[Text, Text]]) -> list[dict[str, np.ndarray]]:
        """Returns the answers for each pair, without padding: logits (L, V), encoder_last_hidden_state (S, D).

        The bits do not depend on the other pairs or on threads, and the steps of `generate` give the same bits.
        """
        self.check_inputs(pairs)

        def work(indices: list[int]) -> list[dict[str, np.ndarray]]:
            source, target = (pack(texts) for texts in zip(*(pairs[i] for i in indices), strict=True))
            answers = transformer(self.weights, self.parts, source, target)
            logits = target.split(answers["logits"])
            states = source.split(answers["encoder_last_hidden_state"])
            return [{"logits": a, "encoder_last_hidden_state": b} for a, b in zip(logits, states, strict=True)]

        answers = self.in_shards([len(source) + len(target) for source, target in pairs], work)
        expect_finite(answers)
        return answers

    def check_inputs(self, inputs: Sequence[tuple[Text, Text]]) -> None:
        c, (sources, targets) = self.config, ([pair[side] for pair in inputs] for side in (0, 1))
        first = -c.positions.first
        check_texts(sources, c.max_length, c.vocab_size, first_position=first)
        check_texts(targets, c.max_length, c.decoder.vocab_size, name="decoder_input_ids", first_position=first)

    def backward(
        self, grads: Mapping[str, np.ndarray], stages: Stages, inputs: Sequence[tuple[Text, Text]]
    ) -> dict[str, Any]:
        """As in `BaseModel`. Raises NpformerError for a gradient of the encoder's output."""
        if np.any(grads["encoder_last_hidden_state"]):
            raise NpformerError("grads: expected a gradient of the logits only, got one of the encoder's output")
        source, target = (pack(texts) for texts in zip(*inputs, strict=True))
        return transformer_backward(grads, stages, self.weights, self.parts, source, target)

    def encode(self, sources: Sequence[Text]) -> list[np.ndarray]:
        """Returns the encoder's output (S, D) for each source. The bits do not depend on the other sources."""
        from npformer.generation.state import read_sources

        return read_sources(self, sources)
