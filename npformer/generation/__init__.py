"""Generates targets for sources, or texts after prompts, with greedy search, sampling or beam search.

This file has `generate`, `stream` and `generating`, which runs in steps so that other work can run between steps
(`steps.py`). `decoding.py` has the loops, `state.py` the state of a model, `logits.py` and `processors.py` the choice
of tokens, `settings.py` the settings, and `kv_cache.py` the cached keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from npformer.base_model import BaseModel
from npformer.common.errors import NpformerError, warn
from npformer.common.progress import part
from npformer.config import Config, Decoder
from npformer.engine.runtime.packing import Text
from npformer.engine.runtime.steps import Steps, finished
from npformer.engine.taps import listen
from npformer.generation.decoding import Hypothesis, Step, Stopping, beam_search, greedy_or_sample
from npformer.generation.logits import Best, Projection
from npformer.generation.settings import Settings, resolve
from npformer.generation.state import PromptState, Seq2SeqState, State

__all__ = ["Hypothesis", "Settings", "Stream", "cross_attentions", "generate", "padded_targets", "stream"]

TOGETHER = 256  # maximum number of texts generated together: enough for fast products, with about 60 MB of logits
KEPT = 1 << 30  # maximum bytes of cached keys and values for the texts that are generated together
STATES: dict[str, type[State]] = {"translation": Seq2SeqState, "causal-lm": PromptState}


def generate(
    model: BaseModel,
    sources: Sequence[Text],
    output_scores: bool = False,
    output_attentions: bool = False,
    stopping: Stopping | None = None,
    **settings: Any,
) -> list[list[Hypothesis]]:
    """Generates num_return_sequences targets for each source, or texts after each prompt.

    Beam search returns the best text first, and sampling returns the texts in the order of their draws. The bits of a
    text do not depend on the other sources. A sampled text depends on the seed and on its index in the list. For
    RoBERTa, positions are the same as in a forward pass, whereas in Transformers 5, `generate` begins at row 0 of the
    position table unless positions are given.

    Parameters
    ----------
    model : Seq2Seq, or Model with head "causal-lm"
    sources : sequence of `Text`, the sources of a Seq2Seq or the prompts of a Model; an empty prompt becomes the start
        token
    output_scores : bool, return the log probabilities of tokens
    output_attentions : bool, return the cross-attention weights of each layer of a Seq2Seq
    stopping : function from the tokens (R, L) so far, which include prompts and are padded with -1 on the left, to a
        mask (R,) of the texts that end here
    settings : fields of `Settings`, with the names of Transformers; defaults come from generation_config.json

    Returns
    -------
    list with a list of `Hypothesis` for each source

    Raises
    ------
    NpformerError
        A setting or a source is invalid, or the model cannot generate.

    Examples
    --------
    >>> sizes = {"vocab_size": 9, "n_heads": 2, "n_layers": 1, "d_ffn": 16}
    >>> decoder = npformer.config.Decoder(**sizes)
    >>> config = npformer.Config("marian", "translation", d_model=8, max_length=8, decoder=decoder, **sizes)
    >>> model = npformer.model.Seq2Seq(config, npformer.training.initialize(config))
    >>> [[hypothesis]] = generate(model, [npformer.Text(np.array([3, 4]))], max_new_tokens=5)
    >>> hypothesis.ids.shape
    (5,)
    """
    return finished(generating(model, sources, output_scores, output_attentions, stopping, **settings))


def generating(
    model: BaseModel,
    sources: Sequence[Text],
    output_scores: bool = False,
    output_attentions: bool = False,
    stopping: Stopping | None = None,
    **settings: Any,
) -> Steps[list[list[Hypothesis]]]:
    """Runs `generate` in steps. A step reads some sources or prompts, or generates one more token of each text."""
    kind = _kind(model)
    if output_attentions and not model.config.decoder:
        raise NpformerError("output_attentions: only an encoder-decoder has cross-attention; use npformer.trace")
    with part(0, 1):
        prepared = yield from kind.prepare(model, sources)
    projection = Projection(**model.weights["head"]["output"])
    answers: list[list[Hypothesis]] = [[] for _ in sources]
    by_settings = _by_settings(model, list(map(kind.before, prepared)), settings)
    for chosen, indices in by_settings.items():
        copies = chosen.num_return_sequences if chosen.do_sample else 1
        wanted = [(i, copy) for i in indices for copy in range(copies)]
        wanted.sort(key=lambda each: -len(sources[each[0]]))
        size = _together(model, chosen, kind.before(prepared[wanted[0][0]]))
        for group in (wanted[at : at + size] for at in range(0, len(wanted), size)):
            with part(len(group) / copies / len(sources), len(group) * chosen.max_new_tokens):
                some = [prepared[i] for i, _ in group]
                state = kind(model, some, chosen, projection, read=(yield from kind.reading(model, some)))
                if chosen.num_beams > 1:
                    found = yield from beam_search(state, chosen, stopping)
                else:
                    steps = greedy_or_sample(state, chosen, output_scores, group, stopping)
                    found = yield from _joined(steps, len(group))
            for (i, _), hypotheses in zip(group, found, strict=True):
                answers[i] += hypotheses[: chosen.num_return_sequences]
                for each in hypotheses if output_attentions else []:
                    each.cross_attentions = cross_attentions(model, sources[i], each.ids, state.prompts[0, 0])
    for hypothesis in chain(*answers):
        hypothesis.token_scores = hypothesis.token_scores if output_scores else None
    return answers


def stream(model: BaseModel, source: Text, stopping: Stopping | None = None, **settings: Any) -> Iterator[int]:
    """Generates the target of one source, or the text after one prompt, and yields its tokens one by one.

    Parameters
    ----------
    model, source, stopping : as in `generate`
    settings : as in `generate`, for greedy search or sampling of one sequence

    Returns
    -------
    iterator of token ids

    Raises
    ------
    NpformerError
        A setting or the source is invalid.

    Examples
    --------
    >>> sizes = {"vocab_size": 9, "n_heads": 2, "n_layers": 1, "d_ffn": 16}
    >>> decoder = npformer.config.Decoder(**sizes)
    >>> config = npformer.Config("marian", "translation", d_model=8, max_length=8, decoder=decoder, **sizes)
    >>> model = npformer.model.Seq2Seq(config, npformer.training.initialize(config))
    >>> len(list(stream(model, npformer.Text(np.array([3, 4])), max_new_tokens=5)))
    5
    """
    return iter(Stream(model, source, stopping, **settings))


class Stream:
    """A text that is generated token by token. It can be iterated over only once.

    Parameters
    ----------
    model, source, stopping, settings : as in `stream`

    Attributes
    ----------
    ids : list of the tokens so far
    likely : with the setting logprobs, a list of `Best` of shape (1, 1 + logprobs), each with a token and the most
        likely tokens at its position

    Raises
    ------
    NpformerError
        A setting or the source is invalid.
    """

    def __init__(self, model: BaseModel, source: Text, stopping: Stopping | None = None, **settings: Any) -> None:
        kind = _kind(model)
        [prepared] = finished(kind.prepare(model, [source]))
        [chosen] = _by_settings(model, [kind.before(prepared)], settings)
        if chosen.num_beams > 1 or chosen.num_return_sequences > 1:
            raise NpformerError("stream: expected one beam and one sequence; use num_beams=1, num_return_sequences=1")
        _cached_bytes(model, chosen, kind.before(prepared))
        self.state = kind(model, [prepared], chosen, Projection(**model.weights["head"]["output"]))
        self.ids: list[int] = []
        self.likely: list[Best] = []
        self._steps = greedy_or_sample(self.state, chosen, group=[(0, 0)], stopping=stopping)

    def __iter__(self) -> Iterator[int]:
        for step in self._steps:
            self.ids.append(int(step.tokens[0]))
            self.likely += [] if step.likely is None else [step.likely]
            yield self.ids[-1]


def padded_targets(hypotheses: Sequence[Hypothesis], start_id: int, pad_id: int | None = None) -> np.ndarray:
    """Returns targets in the format of Transformers, (B, L), with the start token and padding on the right."""
    width = max(len(each.ids) for each in hypotheses) + 1
    table = np.full((len(hypotheses), width), pad_id or 0)
    table[:, 0] = start_id
    for row, each in zip(table, hypotheses, strict=True):
        row[1 : 1 + len(each.ids)] = each.ids
    return table


def cross_attentions(model: BaseModel, source: Text, ids: np.ndarray, start_id: int) -> list[np.ndarray]:
    """The cross-attention weights (H, L, S) of each decoder layer, from target tokens `ids` (L,) to source tokens.

    One pass over the whole target computes the weights, with the same bits as one step per token.
    """
    heard = []

    def hear(name: str, array: np.ndarray) -> np.ndarray:
        if name.endswith(".cross_attention.weights"):
            heard.append(array[0])
        return array

    with listen(hear):
        model.run([(source, Text(np.concatenate([[start_id], ids[:-1]])))])
    return heard


def _kind(model: BaseModel) -> type[State]:
    """The class of `State` for a model. Raises NpformerError if the model cannot generate."""
    kind = STATES.get(model.config.head)
    if kind is None:
        raise NpformerError(
            f"a {model.config.head} model cannot generate text; expected the head {' or '.join(STATES)}"
        )
    return kind


def _by_settings(model: BaseModel, before: Sequence[int], given: Mapping[str, Any]) -> dict[Settings, list[int]]:
    """Groups the texts by their settings, and returns the indices of each group's texts.

    Texts have different settings if their maximum lengths depend on the number of tokens `before` the generated text.
    For sampling without a seed, a random seed is drawn.
    """
    seed, found = int(np.random.SeedSequence().generate_state(1)[0]), dict[Settings, list[int]]()
    for count in dict.fromkeys(before):
        chosen = resolve(model.folder, model.config, given, count)
        if chosen.do_sample and chosen.seed is None:
            chosen = replace(chosen, seed=seed)
        found.setdefault(chosen, []).extend(i for i, each in enumerate(before) if each == count)
    if short := [each for each in found if each.min_new_tokens > each.max_new_tokens]:
        new, most = short[0].min_new_tokens, short[0].max_new_tokens
        warn(f"min_length or min_new_tokens asks for {new} new tokens, but texts end at the maximum of {most}")
    return found


def _together(model: BaseModel, settings: Settings, longest: int) -> int:
    """Returns the number of sources or prompts to process together."""
    most = KEPT // _cached_bytes(model, settings, longest)
    return max(1, min(TOGETHER // settings.num_beams, most))


def _cached_bytes(model: BaseModel, settings: Settings, before: int) -> int:
    """Bytes of the cached keys and values of a text with max_new_tokens new tokens. before: number of tokens in its
    prompt.

    Raises NpformerError if the bytes exceed the model's limit `cache`.
    """
    stack: Decoder | Config = model.config.decoder or model.config
    rows = before + settings.num_beams * settings.max_new_tokens
    size = 2 * stack.n_layers * model.config.kv_heads * model.config.d_head * rows * model.dtype.itemsize
    where = f"max_new_tokens {settings.max_new_tokens}, num_beams {settings.num_beams}: bytes of cached keys and values"
    model.limits.check("cache", size, where)
    return size


def _joined(steps: Iterator[Step], count: int) -> Steps[list[list[Hypothesis]]]:
    """Joins the steps of `greedy_or_sample` into `count` targets."""
    tokens: list[list[int]] = [[] for _ in range(count)]
    scores: list[list[float]] = [[] for _ in range(count)]
    likely: list[list[Best]] = [[] for _ in range(count)]
    for step in steps:
        for i, place in enumerate(step.texts.tolist()):
            tokens[place].append(int(step.tokens[i]))
            scores[place].append(step.scores[i])
            likely[place] += [] if step.likely is None else [Best(*(each[i : i + 1] for each in step.likely))]
        yield
    return [
        [Hypothesis(np.array(ids), token_scores=np.array(values), likely=joined(best))]
        for ids, values, best in zip(tokens, scores, likely, strict=True)
    ]


def joined(likely: Sequence[Best]) -> Best | None:
    """Concatenates the most likely tokens of each step, (1, n), into (L, n). Returns None if there are no steps."""
    return Best(*map(np.concatenate, zip(*likely, strict=True))) if likely else None
