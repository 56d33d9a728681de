"""Attribution of a translation's words to the words of its source, by leaving words out and by gradients.

The translation stays the same. The log-odds of each word are computed given the same preceding words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import Text
from npformer.interpret.attribution import (
    ODDS,
    Method,
    Target,
    left_out,
    logits_of,
    on_tokens,
    together,
    words_together,
)
from npformer.interpret.integrated_gradients import explained_by_gradients
from npformer.interpret.metric import label_name, position_of
from npformer.interpret.study_inputs import read_inputs
from npformer.model import Seq2Seq
from npformer.text.words import word_spans

METHODS = ("leave-one-out", "gradient", "integrated")


def by_source(
    model: Seq2Seq,
    given: Any,
    position: int | None = None,
    methods: Sequence[str] = METHODS,
    steps: int | None = None,
    group: int | None = None,
    progress: bool | None = None,
) -> list[Method]:
    """Scores each word of a source by how much a word of the translation depends on it.

    Parameters
    ----------
    model : Seq2Seq
    given : str, token ids, or a tuple of token ids (source, target)
    position : int, optional
        The token of the decoder's input that precedes the word to explain, as in `logit_attribution`; by default all
        words, with the mean of their log-odds.
    methods : "leave-one-out", "gradient", "integrated"
    steps, group, progress : as in `view.attribution`

    Returns
    -------
    list of Method, in the order of METHODS

    Raises
    ------
    NpformerError
        If there is no word at the position, or the source has only one word to leave out.

    Examples
    --------
    >>> model = npformer.load("en-de-multi30k")
    >>> (found,) = by_source(model, "A man rides a bike.", 1, ["leave-one-out"])
    >>> found.words[int(found.scores.argmax())]
    'man'
    """
    read = read_inputs(model, given)
    ((source, target),), tokens = read.inputs, read.source_tokens[0]
    explained = written(model, target, position)
    found = []
    if "leave-one-out" in methods:
        found += _leave_one_out(model, source, target, tokens, [explained], group, progress)
    if {"gradient", "integrated"} & set(methods):
        found += explained_by_gradients(model, (source, target), explained, tokens, tokens, steps, methods, progress)
    return found


def each_word_by_source(
    model: Seq2Seq,
    given: Any,
    methods: Sequence[str] = METHODS[:2],
    group: int | None = None,
    progress: bool | None = None,
) -> list[list[Method]]:
    """Scores the words of a source for each token of its translation.

    Leave-one-out needs only one set of runs for all tokens.

    Parameters
    ----------
    model, given, methods, group, progress : as in `by_source`

    Returns
    -------
    list of lists of Method, one for each position, as from `by_source`

    Raises
    ------
    NpformerError
        If the source has only one word, or the translation has no word.

    Examples
    --------
    >>> model = npformer.load("en-de-multi30k")
    >>> found = each_word_by_source(model, "A man rides a bike.", ["leave-one-out"])
    >>> [each.words[int(each.scores.argmax())] for each, in found][1:3]
    ['man', 'rides']
    """
    read = read_inputs(model, given)
    ((source, target),), tokens = read.inputs, read.source_tokens[0]
    every = [written(model, target, position) for position in range(max(1, len(target) - 1))]
    found: list[list[Method]] = [[] for _ in every]
    if "leave-one-out" in methods:
        left = _leave_one_out(model, source, target, tokens, every, group, progress)
        found = [[method] for method in left]
    if {"gradient", "integrated"} & set(methods):
        for methods_of_word, explained in zip(found, every, strict=True):
            methods_of_word += explained_by_gradients(
                model, (source, target), explained, tokens, tokens, None, methods, progress
            )
    return found


def written(model: Seq2Seq, target: Text, position: int | None) -> Target:
    """Makes the target for the word after a token of the decoder's input, or by default for all words."""
    ids = target.ids[1:].tolist()
    if not ids:
        raise NpformerError("attribution: expected a translation with at least one word")
    if position is None:
        return Target(f"the mean {ODDS.removeprefix('the ')} the translation's words", tuple(ids), False, first=0)
    at = position_of(position, len(ids), "attribution")
    name = label_name(model, ids[at], model.config.decoder.vocab_size)
    return Target(f"{ODDS} '{name}' after token {at}", (ids[at],), False, f"'{name}'", first=at)


def _leave_one_out(
    model: Seq2Seq,
    source: Text,
    target: Text,
    tokens: Sequence[str],
    every: Sequence[Target],
    group: int | None,
    progress: bool | None,
) -> list[Method]:
    """For each target, computes score_i = log-odds with the whole source - log-odds without word i of the source."""
    ends = np.isin(source.ids, model.config.decoder.end_ids)
    kept = [token for token, is_end in zip(tokens, ends, strict=True) if not is_end]
    spans = word_spans(kept)
    if len(spans) < 2:
        raise NpformerError("attribution: expected a source with at least two words, to leave one out")
    size = words_together(model, len(spans), len(source) + len(target), group)
    parts = together(spans, size)
    without = [Text(np.delete(source.ids, np.flatnonzero(~ends)[first:end])) for first, end in parts]
    places = [explained.rows(np.array([len(target)])) for explained in every]
    logits = logits_of(model, [(each, target) for each in (source, *without)], progress)
    odds = np.array(
        [[explained.of(each[rows])[0] for explained, rows in zip(every, places, strict=True)] for each in logits]
    )
    pieces = on_tokens("", "", kept, np.zeros(len(kept)), signed=True).texts[0]
    words = [piece for piece, number in pieces if number is not None]
    joined = together([(i, i + 1) for i in range(len(words))], size)
    texts: list[tuple[str, int | None]] = []
    for number, (first, end) in enumerate(joined):
        texts += [(" ".join(words[first:end]), number), (" ", None)]
    marked = (tuple(texts[:-1]),)
    first_tokens = tuple(np.flatnonzero(~ends)[[first for first, _ in parts]].tolist())
    return [
        left_out(each, odds[:, i], marked, first_tokens, size, is_long=group is None) for i, each in enumerate(every)
    ]
