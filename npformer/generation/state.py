"""The state of a model that generates several texts at once. `decoding.py` advances the state token by token.

`Seq2SeqState` generates targets for sources, and `PromptState` continues prompts. The rows of a batch are the num_beams
texts of the first source or prompt, then the texts of the second, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from npformer.base_model import BaseModel, expect_finite
from npformer.common.errors import NpformerError
from npformer.engine.blocks.packed_texts import Caches, Source
from npformer.engine.mechanisms.mechanism import Mechanism
from npformer.engine.output_heads.heads import Head
from npformer.engine.replay.passes import Arrays, Pass, Work
from npformer.engine.runtime.packing import Batch, Text, pack
from npformer.engine.runtime.padding import check_texts
from npformer.engine.runtime.steps import Steps, finished, pieces
from npformer.engine.taps import listening
from npformer.engine.transformer import decode_target, encode, encode_source
from npformer.generation.kv_cache import BeamAncestry, KVCache, PromptRows, SelfAttentionCache
from npformer.generation.logits import Projection
from npformer.generation.settings import Settings

BLOCK = 1024  # rows of a long prompt in each pass; matrix products of fewer rows are less efficient
NO_TOKEN = -1  # padding to the left of shorter prompts


class State(Protocol):
    """The state of generation, with num_beams texts for each source or prompt."""

    prompts: np.ndarray  # (B, P) tokens before the first generated token, with NO_TOKEN before shorter prompts

    @property
    def model(self) -> BaseModel: ...

    def __init__(
        self, model: Any, prepared: Sequence[Any], settings: Settings, projection: Projection, read: Any = None
    ) -> None: ...

    @staticmethod
    def prepare(model: Any, sources: Sequence[Text]) -> Steps[list[Any]]:
        """Prepares each source or prompt."""

    @staticmethod
    def reading(model: Any, prepared: Sequence[Any]) -> Steps[Any]:
        """Reads the prompts of a group step by step. The result is the constructor's argument `read`.

        Without `read`, the constructor reads all prompts itself, without a pause.
        """

    @staticmethod
    def before(prepared: Any) -> int:
        """The number of tokens before the first generated token."""

    def step(self, tokens: np.ndarray, parents: np.ndarray | None = None) -> np.ndarray:
        """Returns the logits after one more token of each text, (R,) -> (R, V). parents: the beams to continue.

        In the first step, the tokens are the last tokens of the prompts.
        """

    def keep(self, texts: np.ndarray) -> None:
        """Keeps only the sources or prompts with these indices (B',)."""


class Seq2SeqState:
    """The state of an encoder-decoder that generates targets from the encoder's output (S, D) for each source."""

    def __init__(
        self,
        model: BaseModel,
        sources: Sequence[np.ndarray],
        settings: Settings,
        projection: Projection,
        read: None = None,
    ) -> None:
        self.model = model
        self.n_beams = settings.num_beams
        self.projection = projection
        self.prompts = np.full((len(sources), 1), settings.start_id)
        self.source = Source(np.concatenate(sources), np.array([len(source) for source in sources]))
        self.cache = KVCache(model.config.decoder.n_layers, self.source.lengths, self.n_beams)
        self.steps = 0

    @staticmethod
    def prepare(model: BaseModel, sources: Sequence[Text]) -> Steps[list[np.ndarray]]:
        check_sources(model, sources)
        read: list[np.ndarray] = []
        for some in pieces(list(map(len, sources)), model.threads):
            read += read_sources(model, [sources[i] for i in some])
            yield
        return read

    @staticmethod
    def reading(model: BaseModel, sources: Sequence[np.ndarray]) -> Steps[None]:
        yield from ()

    @staticmethod
    def before(source: np.ndarray) -> int:
        return 1

    def step(self, tokens: np.ndarray, parents: np.ndarray | None = None) -> np.ndarray:
        self.cache.step(parents)
        target = _rows(tokens, np.full(len(tokens), self.steps), self.n_beams)
        with self.model.cores():
            x = self._decoded(target)
            self.steps += 1
            return self.projection(self.model.parts.head.input(x, self.model.weights))

    def _decoded(self, target: Batch) -> np.ndarray:
        """The decoder's output for the newest token of each text, (R, D)."""

        def work(weights: Mapping[str, Any], inputs: Sequence[np.ndarray], caches: Sequence[Any]) -> Arrays:
            ids, positions = inputs
            batch, pairs = replace(target, ids=ids, positions=positions), list(map(Caches, caches[::2], caches[1::2]))
            return {"rows": decode_target(weights, self.model.parts, batch, self.source, pairs)}

        caches, first = list(chain(*self.cache.layers)), not self.steps  # the first step reads the source
        return replayed_step(self.model, work, target, caches, recurs=not first)

    def keep(self, texts: np.ndarray) -> None:
        self.cache.keep(texts)
        self.source = self.source._replace(lengths=self.source.lengths[texts])


KeptRows = Sequence[tuple[np.ndarray, np.ndarray]]  # keys and values (P, G K) of each layer


class Read(NamedTuple):
    """The result of reading a prompt: the last row (D,) of the last layer, and the keys and values of each layer."""

    row: np.ndarray
    kept: list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Continued(Text):
    """A prompt whose first rows, but not all rows, have cached keys and values, from `PromptState.rows`."""

    kept: KeptRows = ()


class PromptState:
    """The state of a causal model that continues prompts. A repeated prompt is computed once."""

    def __init__(
        self,
        model: BaseModel,
        prompts: Sequence[Text],
        settings: Settings,
        projection: Projection,
        read: list[Read] | None = None,
    ) -> None:
        self.model = model
        self.n_beams = settings.num_beams
        self.projection = projection
        distinct = {id(prompt): prompt for prompt in prompts}
        places = {each: place for place, each in enumerate(distinct)}
        read = finished(self.reading(model, prompts)) if read is None else read
        lengths = np.array([len(prompt) for prompt in distinct.values()])
        self.ancestry = BeamAncestry(self.n_beams, lengths)
        self.layers = [
            SelfAttentionCache(self.ancestry, _reach(each.mechanisms)) for each in model.parts.stack.attentions
        ]
        for layer in reversed(self.layers):  # each pop frees a layer's rows, so that few rows are in memory twice
            layer.begin([each.kept.pop() for each in read], model.config.kv_heads)
        counted = [np.count_nonzero(prompt.ids != model.config.uncounted) for prompt in distinct.values()]
        # The number of tokens so far that have a position.
        self.counts = np.repeat(np.array(counted)[:, None], self.n_beams, axis=1)
        self.first: np.ndarray | None = np.stack([each.row for each in read])
        self.keep(np.array([places[id(prompt)] for prompt in prompts]))
        self.prompts = np.full((len(prompts), lengths.max()), NO_TOKEN)
        for row, prompt in zip(self.prompts, prompts, strict=True):
            row[len(row) - len(prompt) :] = prompt.ids

    @staticmethod
    def prepare(model: BaseModel, prompts: Sequence[Text]) -> Steps[list[Text]]:
        for each in model.parts.stack.mechanisms:
            if not each.cached:
                kind = type(each).__name__
                raise NpformerError(
                    f"generate: not supported for a model with {kind} attention, which cannot run step by step"
                )
        start, texts = model.config.start_id, []
        for index, prompt in enumerate(prompts):
            if not len(prompt) and start is None:
                raise NpformerError(
                    f"prompt {index}: expected at least one token, because the model has no start token (bos_token_id)"
                )
            known = isinstance(prompt, Continued)
            texts.append(prompt if known else Text(prompt.ids if len(prompt) else np.array([start])))
        check_texts(texts, model.config.max_length, model.config.vocab_size)
        yield from ()
        return texts

    @staticmethod
    def reading(model: BaseModel, prompts: Sequence[Text]) -> Steps[list[Read]]:
        distinct = list({id(prompt): prompt for prompt in prompts}.values())
        read: list[Read] = []
        for some in pieces(list(map(len, distinct)), model.threads):
            read += _read(model, [distinct[i] for i in some])
            yield
        return read

    @staticmethod
    def before(prompt: Text) -> int:
        return len(prompt)

    def step(self, tokens: np.ndarray, parents: np.ndarray | None = None) -> np.ndarray:
        with self.model.cores():
            if self.first is not None:
                rows, self.first = self.first, None
                return np.repeat(self._logits(rows), self.n_beams, axis=0)
            self.ancestry.step(parents)
            if parents is not None:
                self.counts = np.take_along_axis(self.counts, parents, axis=1)
            counted = tokens.reshape(self.counts.shape) != self.model.config.uncounted
            batch = _rows(tokens, np.where(counted, self.counts, -1).ravel(), self.n_beams)
            self.counts = self.counts + counted
            return self._logits(self._encoded(batch))

    def _encoded(self, batch: Batch) -> np.ndarray:
        """The last layer's output for the newest token of each text, (R, D)."""

        def work(weights: Mapping[str, Any], inputs: Sequence[np.ndarray], caches: Sequence[Any]) -> Arrays:
            ids, positions = inputs
            newest = replace(batch, ids=ids, positions=positions)
            return {"rows": encode(weights, self.model.parts, newest, caches=list(map(Caches, caches)))}

        return replayed_step(self.model, work, batch, self.layers)

    def continued(self, ids: np.ndarray, count: int) -> Text:
        """Returns a prompt that begins with `count` tokens of the state's only text, with the keys and values of these
        tokens.

        Keys and values are omitted if a text of the prompt's length has different keys, or if the prompt's new tokens
        read keys that a window has dropped.
        """
        if not all(each.has_rows(count) for each in self.layers):
            return Text(ids)
        for each in self.model.parts.stack.mechanisms:
            if each.same_until(self.length) != each.same_until(len(ids)):
                return Text(ids)
        return Continued(ids, kept=self.rows(count))

    def rows(self, count: int) -> KeptRows:
        """The keys and values of each layer for the first `count` rows of the state's only text."""
        return [each.rows(count) for each in self.layers]

    @property
    def length(self) -> int:
        """The number of rows of the state's only text that have keys and values."""
        return self.ancestry.length

    def _logits(self, rows: np.ndarray) -> np.ndarray:
        head = self.model.parts.head
        assert isinstance(head, Head)
        if listening():
            return head(rows, rows, self.model.weights)["logits"].copy()
        logits = self.projection(head.input(rows, self.model.weights))
        return head.finish(logits, out=logits)

    def keep(self, texts: np.ndarray) -> None:
        self.ancestry.keep(texts)
        for layer in self.layers:
            layer.keep(texts)
        self.counts = self.counts[texts]
        if self.first is not None:
            self.first = self.first[texts]


def _reach(mechanisms: Sequence[Mechanism]) -> int | None:
    """The largest distance from a row to a key that it reads; None without a limit."""
    return min((far for each in mechanisms if (far := each.farthest()) is not None), default=None)


def replayed_step(model: BaseModel, work: Work, batch: Batch, caches: Sequence[Any], recurs: bool = True) -> np.ndarray:
    """Computes the rows of a step, which is replayed if it recurs and no listener observes its stages."""
    size = (model.config.decoder or model.config).vocab_size

    def others(inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return (inputs[0] + 1) % size, batch.positions

    shape, inputs = ("step", len(batch.ids), batch.lengths.tobytes()), (batch.ids, batch.positions)
    each = Pass(shape, work, model.weights, inputs, others, caches)
    return (model.replays.run(each) if recurs and not listening() else each())["rows"]


def _rows(tokens: np.ndarray, positions: np.ndarray, n_beams: int) -> Batch:
    """A batch of the newest token of each text, with its position."""
    return Batch(tokens, positions, np.zeros_like(tokens), np.full(len(tokens) // n_beams, n_beams))


def check_sources(model: BaseModel, sources: Sequence[Text]) -> None:
    """Raises NpformerError for a source that the model cannot read."""
    c = model.config
    check_texts(sources, c.max_length, c.vocab_size, first_position=-c.positions.first)


def read_sources(model: BaseModel, sources: Sequence[Text]) -> list[np.ndarray]:
    """Returns the encoder's output (S, D) for each source. The bits do not depend on the other sources."""
    check_sources(model, sources)

    def work(indices: list[int]) -> list[np.ndarray]:
        batch = pack([sources[i] for i in indices])
        return batch.split(encode_source(model.weights, model.parts, batch))

    states = model.in_shards([len(source) for source in sources], work)
    expect_finite([{"encoder_last_hidden_state": each} for each in states])
    return states


def _read(model: BaseModel, prompts: Sequence[Text]) -> list[Read]:
    """Reads prompts. The results have the same bits as in `Model.run`."""

    size = _block_size(model)

    def work(indices: list[int]) -> list[Read]:
        together = [i for i in indices if len(prompts[i]) <= size]
        found = dict(zip(together, _together(model, [prompts[i] for i in together]), strict=True))
        return [found[i] if i in found else _in_blocks(model, prompts[i], size) for i in indices]

    if len(prompts) == 1 and isinstance(prompts[0], Continued) and prompts[0].kept and not listening():
        with model.cores():
            return [_in_blocks(model, prompts[0], size, prompts[0].kept)]
    return model.in_shards([len(prompt) for prompt in prompts], work)


def _together(model: BaseModel, prompts: Sequence[Text]) -> list[Read]:
    """Reads prompts in one pass."""
    if not prompts:
        return []
    batch = pack(prompts, model.config.uncounted, last=True)
    layers = [PromptRows(len(batch.ids)) for _ in range(model.config.n_layers)]
    x = encode(model.weights, model.parts, batch, batch.read, [Caches(each) for each in layers])
    kept = [list(zip(batch.split(each.keys), batch.split(each.values), strict=True)) for each in layers]
    return [Read(row, list(pairs)) for row, *pairs in zip(x, *kept, strict=True)]


def _in_blocks(model: BaseModel, prompt: Text, size: int, kept: KeptRows = ()) -> Read:
    """Reads the rows of a prompt after the `kept` rows, in blocks of `size` rows.

    The blocks keep the memory for a long prompt constant, except for its keys and values. The results have the same
    bits as in a single pass.
    """
    batch, before = pack([prompt], model.config.uncounted, last=True), len(kept[0][0]) if kept else 0
    layers = [PromptRows(len(prompt)) for _ in range(model.config.n_layers)]
    for layer, rows in zip(layers, kept, strict=False):
        layer.store(*rows)
    for first, end in pairwise([*range(before, len(prompt), size), len(prompt)]):
        block = batch.between(first, end)
        [row] = encode(model.weights, model.parts, block, block.read, [Caches(each) for each in layers])
    return Read(row, [(each.keys, each.values) for each in layers])


def _block_size(model: BaseModel) -> int:
    """The number of rows of a prompt in one pass: all rows if keys depend on its length or there is a listener."""
    by_length = any(each.same_until(1) is not None for each in model.parts.stack.mechanisms)
    return model.config.max_length if by_length or listening() else BLOCK
