"""Generation: the targets of sources, by greedy search, sampling or beam search, with a cache of keys and values.

`generate` and `stream` are here, the loops in `search.py`, the choice of tokens in `logits.py` and `processors.py`, the
settings in `settings.py`, the kept keys and values in `kv_cache.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from npformer.errors import NpformerError
from npformer.generation.logits import Projection
from npformer.generation.search import Hypothesis, beam_search, greedy_or_sample
from npformer.generation.settings import Settings, resolve
from npformer.runtime.packing import Text
from npformer.tap import listen

if TYPE_CHECKING:
    from npformer.model import Seq2Seq

__all__ = ["Hypothesis", "Settings", "cross_attentions", "generate", "padded", "stream"]

TOGETHER = 256  # targets generated together: enough for fast products, and 60 MB of usual logits


def generate(
    model: Seq2Seq,
    sources: Sequence[Text],
    output_scores: bool = False,
    output_attentions: bool = False,
    **settings: Any,
) -> list[list[Hypothesis]]:
    """Generates num_return_sequences targets for each source, the best first.

    A target's bits do not depend on the other sources. A sampled target depends on the seed and on its place in the
    list.

    Parameters
    ----------
    model : Seq2Seq
    sources : sequence of `Text`
    output_scores : bool, keep the tokens' log probabilities
    output_attentions : bool, keep the cross-attention weights of each layer
    settings : fields of `Settings`, by Transformers' names; the model's generation_config.json has those not given

    Returns
    -------
    for each source a list of `Hypothesis`

    Raises
    ------
    NpformerError
        A setting or a source is impossible.

    Examples
    --------
    >>> sizes = {"vocab_size": 9, "n_heads": 2, "n_layers": 1, "d_ffn": 16}
    >>> decoder = npformer.config.Decoder(**sizes)
    >>> config = npformer.Config("marian", "translation", d_model=8, max_length=8, decoder=decoder, **sizes)
    >>> model = npformer.model.Seq2Seq(config, npformer.training.initialise(config))
    >>> [[hypothesis]] = generate(model, [npformer.Text(np.array([3, 4]))], max_new_tokens=5)
    >>> hypothesis.ids.shape
    (5,)
    """
    chosen = _with_seed(resolve(model.folder, model.config, settings))
    encoded = model.encode(sources)
    projection = Projection(**model.weights["head"]["output"])
    copies = chosen.num_return_sequences if chosen.do_sample else 1
    wanted = [(i, copy) for i in range(len(sources)) for copy in range(copies)]
    wanted.sort(key=lambda each: -len(sources[each[0]]))
    answers: list[list[Hypothesis]] = [[] for _ in sources]
    size = max(1, TOGETHER // chosen.num_beams)
    for group in (wanted[at : at + size] for at in range(0, len(wanted), size)):
        some = [encoded[i] for i, _ in group]
        if chosen.num_beams > 1:
            found = beam_search(model, some, chosen, projection)
        else:
            found = _joined(greedy_or_sample(model, some, chosen, projection, output_scores, group), len(group))
        for (i, _), hypotheses in zip(group, found, strict=True):
            answers[i] += hypotheses[: chosen.num_return_sequences]
    for source, hypotheses in zip(sources, answers, strict=True):
        for hypothesis in hypotheses:
            hypothesis.token_scores = hypothesis.token_scores if output_scores else None
            if output_attentions:
                hypothesis.cross_attentions = cross_attentions(model, source, hypothesis.ids, chosen.start_id)
    return answers


def stream(model: Seq2Seq, source: Text, **settings: Any) -> Iterator[int]:
    """Yields one source's target token by token, greedily or by sampling.

    Parameters
    ----------
    model : Seq2Seq
    source : Text
    settings : as in `generate`, with one beam and one target

    Returns
    -------
    iterator of token ids

    Raises
    ------
    NpformerError
        A setting or the source is impossible.

    Examples
    --------
    >>> sizes = {"vocab_size": 9, "n_heads": 2, "n_layers": 1, "d_ffn": 16}
    >>> decoder = npformer.config.Decoder(**sizes)
    >>> config = npformer.Config("marian", "translation", d_model=8, max_length=8, decoder=decoder, **sizes)
    >>> model = npformer.model.Seq2Seq(config, npformer.training.initialise(config))
    >>> len(list(stream(model, npformer.Text(np.array([3, 4])), max_new_tokens=5)))
    5
    """
    chosen = _with_seed(resolve(model.folder, model.config, settings))
    if chosen.num_beams > 1 or chosen.num_return_sequences > 1:
        raise NpformerError("stream: unsupported for beam search; use num_beams=1, num_return_sequences=1")
    projection = Projection(**model.weights["head"]["output"])
    steps = greedy_or_sample(model, model.encode([source]), chosen, projection, group=[(0, 0)])
    return (int(tokens[0]) for _, tokens, _ in steps)


def padded(hypotheses: Sequence[Hypothesis], start_id: int, pad_id: int | None = None) -> np.ndarray:
    """Targets as Transformers returns them, (B, L): the start token first, shorter targets padded on the right."""
    width = max(len(each.ids) for each in hypotheses) + 1
    table = np.full((len(hypotheses), width), pad_id or 0)
    table[:, 0] = start_id
    for row, each in zip(table, hypotheses, strict=True):
        row[1 : 1 + len(each.ids)] = each.ids
    return table


def cross_attentions(model: Seq2Seq, source: Text, ids: np.ndarray, start_id: int) -> list[np.ndarray]:
    """Each decoder layer's weights (H, L, S) from target tokens to source tokens, for the tokens ids (L,).

    One pass over the whole target computes them, with the same bits as the steps.
    """
    heard = []

    def hear(name: str, array: np.ndarray) -> np.ndarray:
        if name.endswith(".cross_attention.weights"):
            heard.append(array[0])
        return array

    with listen(hear):
        model.run([(source, Text(np.concatenate([[start_id], ids[:-1]])))])
    return heard


def _with_seed(settings: Settings) -> Settings:
    """Gives sampling without a seed a random one."""
    if not settings.do_sample or settings.seed is not None:
        return settings
    return replace(settings, seed=int(np.random.SeedSequence().generate_state(1)[0]))


def _joined(steps: Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]], count: int) -> list[list[Hypothesis]]:
    """Joins the steps of `greedy_or_sample` into one target for each of `count` places."""
    tokens: list[list[int]] = [[] for _ in range(count)]
    scores: list[list[float]] = [[] for _ in range(count)]
    for places, chosen, given in steps:
        for place, token, score in zip(places.tolist(), chosen.tolist(), given, strict=True):
            tokens[place].append(token)
            scores[place].append(score)
    return [
        [Hypothesis(np.array(ids), token_scores=np.array(values))] for ids, values in zip(tokens, scores, strict=True)
    ]
