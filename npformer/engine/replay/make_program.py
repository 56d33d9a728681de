"""`make_program`: records a pass as a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npformer.engine.replay.passes import InPlace, Pass
from npformer.engine.replay.program import Program
from npformer.engine.replay.recorded_array import Recorded, plain
from npformer.engine.replay.recorder import Recorder
from npformer.engine.runtime.recording import Unrecordable, recorded_by


def make_program(each: Pass) -> Program:
    """The program of a pass. Raises Unrecordable for a pass that cannot be repeated."""
    recorder, own = Recorder(), [np.array(array) for array in each.inputs]
    inputs = [recorder.gives(array.view(Recorded), array) for array in own]
    caches: list[Any]
    if isinstance(each.caches, InPlace):
        in_place = [recorder.reads(array) for array in each.caches.arrays]
        caches = [array.view(Recorded) for array in each.caches.arrays]
    else:
        in_place, caches = [], [_Cache(recorder, index, cache) for index, cache in enumerate(each.caches)]
    with recorded_by(recorder):
        answers = plain(dict(each.work(_seen(recorder, each.weights), inputs, caches)))
    return Program(recorder, own, answers, in_place)


def _seen(recorder: Recorder, weights: Any) -> Any:
    """Returns the weights as recorded views, so that a lookup such as `table[ids]` is also recorded."""
    if isinstance(weights, Mapping):
        return {name: _seen(recorder, each) for name, each in weights.items()}
    if isinstance(weights, list | tuple):
        return [_seen(recorder, each) for each in weights]
    if type(weights) is not np.ndarray:
        raise Unrecordable(f"weights of class {type(weights).__name__}")
    return recorder.gives(weights.view(Recorded), weights)


class _Cache:
    """Replaces a cache in a recording.

    A program calls the caches of the pass that it replays, because each pass has its own caches.
    """

    complete = True  # whether the keys and values of the sources are stored

    def __init__(self, recorder: Recorder, index: int, cache: Any) -> None:
        self._recorder, self._index, self._cache = recorder, index, cache
        if not getattr(cache, "complete", True):
            raise Unrecordable("the first step of a decoder")

    def attend(self, *args: Any) -> np.ndarray:
        args = plain(args)
        with recorded_by(None):
            found = self._cache.attend(*args)
        self._recorder.new(found)
        self._recorder.attends(self._index, args, found)
        return found.view(Recorded)
