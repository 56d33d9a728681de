"""`without_copies`: omits copies of results from a list of recorded calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npformer.engine.replay.recorder import Call, InParts, Place, replaced

Calls = list[Call | InParts]


def without_copies(calls: Sequence[Call | InParts], sizes: Sequence[int], kept: Sequence[int]) -> Calls:
    """Returns the calls, with results written directly to the memory to which they would be copied.

    A copy of a whole memory is omitted if no later call uses that memory, and if no call between the first use of the
    memory and the copy uses the target.

    sizes: the bytes of each memory. kept: memories that are read after the last call, or that belong to the caller.
    """
    uses = defaultdict[int, list[int]](list)
    views = defaultdict[int, set[Place]](set)
    for index, call in enumerate(calls):
        for place in call.places:
            views[place.memory].add(place)
            if not uses[place.memory] or uses[place.memory][-1] != index:
                uses[place.memory].append(index)
    moved, dropped = dict[int, tuple[Place, Place]](), set[int]()
    for index, call in enumerate(calls):
        target, source = _copied(call)
        if target is None or source is None or source.memory in kept or source.memory == target.memory:
            continue
        first, last = uses[source.memory][0], uses[source.memory][-1]
        busy = any(first <= each < index for each in uses[target.memory])
        whole = source.offset == 0 and _nbytes(source) == sizes[source.memory]
        alike = views[source.memory] == {source} or (_is_contiguous(source) and _is_contiguous(target))
        if last == index and first < index and whole and alike and not busy and target.memory not in moved:
            moved[source.memory] = source, target
            dropped.add(index)
            uses[target.memory] = sorted({*uses[target.memory], *uses[source.memory]} - {index})
            views[target.memory] |= {_there(each, source, target) for each in views[source.memory]}
    return [_moved(call, moved) for index, call in enumerate(calls) if index not in dropped]


def _copied(call: Call | InParts) -> tuple[Place | None, Place | None]:
    """The target and the source of a call that only copies numbers, or (None, None)."""
    if isinstance(call, InParts):
        return None, None
    if call.function is np.copyto and "where" not in call.kwargs:
        target, source = call.args
    elif call.function is np.multiply and not call.kwargs and _is_one(call.args[1]):
        source, [target] = call.args[0], call.out
    else:
        return None, None
    same = type(source) is type(target) is Place and source.shape == target.shape and source.dtype == target.dtype
    return (target, source) if same else (None, None)


def _is_one(value: Any) -> bool:
    return type(value) is float and value == 1


def _nbytes(place: Place) -> int:
    return int(np.prod(place.shape, dtype=int)) * place.dtype.itemsize


def _is_contiguous(place: Place) -> bool:
    size = place.dtype.itemsize
    for length, stride in zip(place.shape[::-1], place.strides[::-1], strict=True):
        if length != 1 and stride != size:
            return False
        size *= length
    return True


def _moved(call: Any, moved: Mapping[int, tuple[Place, Place]]) -> Any:
    """Replaces each `Place` in moved memory with its new `Place`."""
    if isinstance(call, InParts):
        return InParts([[_moved(each, moved) for each in part] for part in call.parts])
    if not any(place.memory in moved for place in call.places):
        return call

    def move(place: Place) -> Place:
        while place.memory in moved:
            place = _there(place, *moved[place.memory])
        return place

    return Call(call.function, *replaced(call[1:], Place, move))


def _there(place: Place, source: Place, target: Place) -> Place:
    """The view of the target that corresponds to a view of the source."""
    if place == source:
        return target
    return place._replace(memory=target.memory, offset=target.offset + place.offset)
