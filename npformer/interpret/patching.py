"""Measures the effect of parts of a forward pass on a metric, by ablating heads or patching in other runs' stages.

`metric.py` defines metrics. `ablate_heads` and `patch` run a copy of the text for each part (`copies.py`);
`attribution_patching` estimates the results of `patch` from the gradients of one run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.base_model import BaseModel, check_model
from npformer.common.checks import one_of, whole
from npformer.common.errors import NpformerError, warn
from npformer.interpret.copies import run_copies
from npformer.interpret.cost import affordable
from npformer.interpret.edits import from_trace, place, without_head
from npformer.interpret.effects import Effects
from npformer.interpret.metric import Metric, metric_of
from npformer.interpret.study_inputs import read_inputs, texts_of, tokens_read
from npformer.interpret.text_parts import has_source_rows
from npformer.interpret.traces import Trace, trace
from npformer.model import Model

BY = ("position", "head", "layer")
MOST = 65_536  # maximum tokens to read for patching by position; about a minute with BERT-base
BLOCKS = ("attention", "cross_attention", "ffn")  # prefixes of the names of a layer's stages, in order


def ablate_heads(
    model: BaseModel, texts: Any, metric: Any = None, *, position: int | None = None, progress: bool | None = None
) -> Effects:
    """Measures the effect of each attention head on a metric, by ablating one head at a time.

    Parameters
    ----------
    model : Model or Seq2Seq
    texts : str, Pair, token ids, or a list of these
        A translation model takes texts, which it translates, or tuples of token ids (source, target).
    metric : label, word or function, optional
        The logit of a label (name or number), or a function from the dict of a text's answers to a number. By default
        the logit of the unchanged model's answer: for tags and masked words the mean over the tokens, for spans the
        mean of start and end, for translations the mean log-probability of the tokens.
    position : int, optional
        The token of the logit, if `metric` is a label and the head has a row for each token.
    progress : bool, optional
        Show a progress bar on stderr; by default only if stderr is a terminal and the work takes over two seconds.

    Returns
    -------
    Effects
        `values` (layers, heads): the change in the metric, averaged over the texts. A translation model has a row for
        each layer's attention: the encoder's, the decoder's, and cross-attention.

    Raises
    ------
    NpformerError
        If the model does not support the metric.

    References
    ----------
    Michel, Levy and Neubig, 2019, "Are Sixteen Heads Really Better than One?", section 3.2, describes the ablation.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> ablate_heads(model, "I love ice cream").values.shape
    (6, 12)
    """
    check_model("ablate_heads", model)
    inputs = read_inputs(model, texts).inputs
    before = model.run(inputs)
    pairs = zip(inputs, before, strict=True)
    metrics = [metric_of(model, metric, position, answers, text, "ablate_heads") for text, answers in pairs]
    names = contexts(model)
    values = np.full((len(names), max(count for _, count in names.values())), np.nan)
    effects = [
        {cell: each.of(after) - each.of(then) for cell, after in without_each_head(model, text, progress).items()}
        for text, each, then in zip(inputs, metrics, before, strict=True)
    ]
    for cell in effects[0]:
        values[cell] = np.mean([of_text[cell] for of_text in effects])
    rows = tuple(title for title, _ in names.values())
    return Effects(
        values, rows, tuple(f"head {head}" for head in range(values.shape[1])), f"change in {metrics[0].what}"
    )


def without_each_head(
    model: BaseModel, given: Any, progress: bool | None = None, cells: Sequence[tuple[int, int]] | None = None
) -> dict[tuple[int, int], dict[str, np.ndarray]]:
    """Maps (index in `contexts`, head) to the answers without that head, for the heads in `cells` or for all heads."""
    counts = [(stage, count) for stage, (_, count) in contexts(model).items()]
    if cells is None:
        cells = [(row, head) for row, (_, count) in enumerate(counts) for head in range(count)]
    changes = [(counts[row][0], without_head(counts[row][0], head)[counts[row][0]]) for row, head in cells]
    return dict(zip(cells, run_copies(model, given, changes, progress), strict=True))


def contexts(model: BaseModel) -> dict[str, tuple[str, int]]:
    """Maps the stage of the heads' outputs in each attention block to a title and the number of heads."""
    config = model.config
    if not config.decoder:
        return {f"layers.{i}.attention.context": (f"layer {i}", config.n_heads) for i in range(config.n_layers)}
    encoder = {
        f"encoder.layers.{i}.attention.context": (f"encoder {i}", config.n_heads) for i in range(config.n_layers)
    }
    return encoder | {
        f"decoder.layers.{i}.{block}.context": (f"decoder {i}{title}", config.decoder.n_heads)
        for i in range(config.decoder.n_layers)
        for block, title in (("attention", ""), ("cross_attention", ", source"))
    }


def patch(
    model: Model,
    clean: Any,
    corrupted: Any,
    stages: str | Iterable[str] | None = None,
    metric: Any = None,
    *,
    position: int | None = None,
    by: str = "position",
    group: int | None = None,
    progress: bool | None = None,
) -> Effects:
    """Measures the contribution of parts of stages to a metric, by activation patching.

    The model runs on the corrupted text with one part of a stage taken from its run on the clean text.

    Parameters
    ----------
    model : Model
    clean, corrupted : str, Pair or token ids
        Two texts with the same number of tokens that differ in the words under study.
    stages : name of a stage, pattern, or several, optional
        By default, the outputs of the layers for "position", the outputs of the heads (`layers.*.attention.context`)
        for "head", and the outputs of attention, the FFN and the layer for "layer"; in an encoder-decoder, the stages
        of both stacks.
    metric, position : as in `ablate_heads`, optional
        By default, the logit of the clean text's answer.
    by : "position", "head" or "layer"
        The parts to patch: the row of one token (of one query in scores and weights), one head, or the whole stage.
    group : int, optional
        For "position", the number of adjacent tokens that are patched together; by default 1, or more for a long text,
        with a warning.
    progress : as in `ablate_heads`, optional

    Returns
    -------
    Effects
        The change in the metric; `values` (stages, tokens), (stages, heads), or (layers, stages of a layer).

    Raises
    ------
    NpformerError
        If the texts differ in length, a stage has no such parts, or the model does not support the metric.

    References
    ----------
    Zhang and Nanda, 2024, "Towards Best Practices of Activation Patching in Language Models", section 2.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> print(patch(model, "I love ice cream", "I hate ice cream", "layers.[34].ffn_norm"))
                       [CLS]      i   hate    ice  cream  [SEP]
    layers.3.ffn_norm +0.001 +1.289 +3.901 +0.644 +1.075 +1.793
    layers.4.ffn_norm +0.382 +0.728 +1.802 +0.917 +0.617 +0.611
    """
    study = _study(model, clean, corrupted, stages, metric, position, by, group)
    changes = [
        (part.stage, from_trace(study.clean, part.stage, part.positions, part.heads)[part.stage])
        for part in study.parts
    ]
    ran = run_copies(model, study.inputs[0], changes, progress)
    return study.table([study.metric.of(after) - study.before for after in ran])


def attribution_patching(
    model: Model,
    clean: Any,
    corrupted: Any,
    stages: str | Iterable[str] | None = None,
    metric: Any = None,
    *,
    position: int | None = None,
    by: str = "position",
) -> Effects:
    """Estimates the effects of `patch` to first order, from one forward and backward pass on the corrupted text.

    effect = sum((clean - corrupted) * d metric / d corrupted) over the elements of a part. The arguments (except
    `group` and `progress`), the result and the errors are the same as for `patch`. Nanda, 2023, "Attribution Patching:
    Activation Patching At Industrial Scale".

    >>> model = npformer.load("distilbert-sst2")
    >>> attribution_patching(model, "I love ice cream", "I hate ice cream", by="head").values.shape
    (6, 12)
    """
    study = _study(model, clean, corrupted, stages, metric, position, by, 1)
    ran = trace(model, corrupted, list(study.clean), grads=study.metric)

    def effect(part: _Part) -> float:
        before, after, slope = ran[part.stage], study.clean[part.stage], ran.grads[part.stage]
        here = place(part.stage, before.shape, part.positions, part.heads)
        return float(((after - before) * slope)[here].sum(dtype=np.float64))

    return study.table(map(effect, study.parts))


@dataclass(frozen=True)
class _Part:
    """A part of a stage, with its cell in the table."""

    stage: str
    row: str
    column: str
    place: int = 0  # position of the column in the table
    positions: Sequence[int] | None = None
    heads: int | None = None


@dataclass(frozen=True)
class _Study:
    """The stages of the clean text, the corrupted text as the model's input, and the metric of its unchanged run."""

    clean: Trace
    inputs: list[Any]
    metric: Metric
    before: float
    parts: Sequence[_Part]

    def table(self, effects: Iterable[float]) -> Effects:
        """Returns the table of the parts' effects; cells without a part stay empty."""
        rows = list(dict.fromkeys(part.row for part in self.parts))
        found = dict.fromkeys((part.place, part.column) for part in self.parts)  # column names may repeat
        columns = sorted(found, key=lambda column: column[0])
        values = np.full((len(rows), len(columns)), np.nan)
        for part, effect in zip(self.parts, effects, strict=True):
            values[rows.index(part.row), columns.index((part.place, part.column))] = effect
        return Effects(values, tuple(rows), tuple(name for _, name in columns), f"change in {self.metric.what}")


def _study(
    model: Model,
    clean: Any,
    corrupted: Any,
    stages: Any,
    metric: Any,
    position: int | None,
    by: str,
    group: int | None,
) -> _Study:
    one_of("patch: by", by, BY)
    check_model("patch", model, Model)
    last = "ffn_residual" if model.config.norm_first else "ffn_norm"
    default = {
        "position": [f"*layers.*.{last}"],
        "head": ["*layers.*attention.context"],
        "layer": ["*layers.*attention.output", "*layers.*.ffn.output", f"*layers.*.{last}"],
    }
    source = trace(model, clean, default[by] if stages is None else stages)
    inputs, tokens, _ = texts_of(model, corrupted)
    if len(inputs) != 1 or isinstance(source.ids, list):
        raise NpformerError("patch: expected one clean and one corrupted text; call it once per pair")
    if len(source.ids) != len(inputs[0]):
        raise NpformerError(
            f"patch: expected two texts with the same number of tokens, got {len(source.ids)} and {len(inputs[0])}; "
            "replace a word with one that has the same number of tokens"
        )
    (text,) = texts_of(model, clean)[0]
    measured = metric_of(model, metric, position, model.run([text])[0], text, "patch")
    (found,) = model.run(inputs)
    columns = tokens_read(model, tokens[0])
    size = _together(model, len(source), len(text), group) if by == "position" else 1
    return _Study(source, inputs, measured, measured.of(found), list(_parts(source, by, columns, size)))


def _together(model: Model, stages: int, length: int, asked: int | None) -> int:
    """Returns how many adjacent tokens to patch together: one, or more in a long text, with a warning."""
    if asked is not None:
        return whole("patch: group", asked, 1)
    size = math.ceil(stages * length**2 / affordable(model, MOST))
    if size > 1:
        warn(f"patch: the text is long: {size} adjacent tokens are patched together; group=1 patches one at a time")
    return size


def _parts(source: Trace, by: str, tokens: Sequence[str], size: int) -> Iterator[_Part]:
    """Yields the parts of the recorded stages. A decoder reads each token one position later than the encoder.

    `tokens` are the tokens that the model reads, with a decoder's start token first.
    """
    behind = len(tokens) - len(source.ids)
    for name in source:
        shape = source[name].shape
        if by == "position":
            if len(shape) < 2 or shape[-2] != len(source.ids):
                wanted = "a stage with a row for each token, such as layers.*.ffn_norm"
                raise NpformerError(f"patch: {name}: expected {wanted}, got {shape}")
            first = 0 if name.startswith("decoder.") and not has_source_rows(name) else behind
            for i in range(0, len(source.ids), size):
                rows = range(i, min(i + size, len(source.ids)))
                column = tokens[first + i] + (f"…{tokens[first + rows[-1]]}" if len(rows) > 1 else "")
                yield _Part(name, name, column, first + i, positions=rows)
        elif by == "head":
            if len(shape) != 3:
                raise NpformerError(f"patch: {name}: expected a stage with heads, such as layers.*.attention.context")
            yield from (_Part(name, name, f"head {i}", i, heads=i) for i in range(shape[0]))
        else:
            stack, found, rest = name.rpartition("layers.")
            if not found:
                raise NpformerError(f"patch: {name}: expected a stage of a layer, such as layers.*.ffn.output")
            layer, _, rest = rest.partition(".")
            block = next((i for i, each in enumerate(BLOCKS) if rest.startswith(each)), len(BLOCKS))
            yield _Part(name, f"{stack[:-1] or 'layer'} {layer}", rest, block)
