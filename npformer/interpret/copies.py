"""Runs copies of one input, each with one stage changed, in packed batches. Layers below the changes run once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from npformer.base_model import BaseModel
from npformer.common.progress import with_bar
from npformer.engine.runtime.threads import run_tasks, single_blas_thread
from npformer.engine.taps import listen, listening
from npformer.interpret import stages as table
from npformer.interpret.edits import Change, changed
from npformer.interpret.logit_lens import streams
from npformer.interpret.text_parts import TextParts, is_input
from npformer.interpret.traces import Trace
from npformer.model import Model

TOKENS = 1024  # tokens in a batch
_LAYER = re.compile(r"layers\.(\d+)\.")
Answers = dict[str, np.ndarray]


def run_copies(
    model: BaseModel, given: Any, changes: Sequence[tuple[str, Change]], progress: bool | None = None
) -> list[Answers]:
    """Returns the answers to one input, with each change applied alone. A change is a stage and an edit, as in `edit`.

    The answers have the same bits as a separate run for each change. A copy starts at the layer of its change or, in an
    encoder-decoder, at the first layer. By default, `progress` shows a bar only on a terminal. Raises NpformerError for
    a stage that does not fire.
    """
    read: list[np.ndarray] = []  # the input rows of each layer
    if isinstance(model, Model) and not model.config.decoder:
        stages = streams(model)
        with Trace(stages, model.config) as recorded:
            model.run([given])
        read = [recorded[stage] for stage in stages]
    batches, threads = list(_batches(given, changes, bool(read))), 1 if listening() else model.threads
    tasks = [partial(_run, model, given, read, layer, [changes[i] for i in at]) for layer, at in batches]
    with single_blas_thread():
        groups = (run_tasks(tasks[i : i + threads], threads) for i in range(0, len(tasks), threads))
        ran = (answers for group in groups for batch in group for answers in batch)
        found = list(with_bar(ran, len(changes), "runs", shown=progress))
    order = [i for _, at in batches for i in at]
    return [found[place] for place in np.argsort(order)]


def _batches(
    given: Any, changes: Sequence[tuple[str, Change]], resumes: bool
) -> Iterator[tuple[int | None, list[int]]]:
    """Yields, for each batch of copies, the first layer to run (None: all layers) and the indices of its changes."""
    size = max(1, TOKENS // (sum(map(len, given)) if isinstance(given, tuple) else len(given)))
    of_layer: dict[int | None, list[int]] = {}
    for number, (stage, _) in enumerate(changes):
        found = _LAYER.match(stage) if resumes else None
        of_layer.setdefault(int(found[1]) if found else None, []).append(number)
    for layer, numbers in of_layer.items():
        yield from ((layer, numbers[i : i + size]) for i in range(0, len(numbers), size))


def _run(
    model: Any, given: Any, read: Sequence[np.ndarray], layer: int | None, changes: Sequence[tuple[str, Change]]
) -> list[Answers]:
    copies = [given] * len(changes)
    try:
        edits = _Changes(changes)
        with listen(edits, first=True):
            if layer is None:
                answers = model.run(copies)
            else:
                answers = model.resume(copies, layer, np.concatenate([read[layer]] * len(changes)))
        table.matching([stage for stage, _ in changes], list(edits.fired))
        return list(answers)
    except _OfAllTexts:
        return [answers for each in changes for answers in _run(model, given, read, layer, [each])]


class _OfAllTexts(Exception):
    """Raised for a stage that all texts share, such as a table of distances, because copies cannot differ in it."""


class _Changes:
    """A listener that applies change i to text i."""

    def __init__(self, changes: Sequence[tuple[str, Change]]) -> None:
        self._changes = changes
        self._stages = {stage for stage, _ in changes}
        self._texts = TextParts()
        self.fired: dict[str, None] = {}

    def __call__(self, name: str, array: np.ndarray) -> np.ndarray:
        self._texts.hear(name, array)
        if is_input(name):
            return array
        self.fired[name] = None
        if name not in self._stages:
            return array
        _, cut, join = self._texts.split(name, array)
        parts = cut(array)
        if len(parts) != len(self._changes):
            raise _OfAllTexts
        pairs = zip(self._changes, parts, strict=True)
        return join([changed(name, change, 0, part) if stage == name else part for (stage, change), part in pairs])
