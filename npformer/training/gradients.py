"""The loss of a batch and its gradients: shards of packed rows, forward and backward on every core.

Shards are cut by the texts' lengths alone and their gradients added in the shards' order, so a step has the same bits
for any number of threads. A batch of any size needs the memory of a shard's activations for each thread: what is
elsewhere called gradient accumulation is what every batch does here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from npformer.errors import NpformerError
from npformer.runtime.batch import SHARD, SMALL_SHARD, group_by_length
from npformer.runtime.threads import run_tasks, single_blas_thread
from npformer.tap import listening
from npformer.tape import Edit
from npformer.training.losses import Objective, Part
from npformer.training.trainable import Gradient, Trainable, add

E = TypeVar("E", contravariant=True)


@dataclass(frozen=True)
class Gradients:
    """A batch's mean loss, the targets it got right of how many, its tokens, and the gradients by parameter."""

    loss: float
    right: int
    count: int
    tokens: int
    flat: dict[str, Gradient]


def gradients(
    objective: Objective[E],
    weights: Trainable,
    examples: Sequence[E],
    threads: int = 1,
    edit: Callable[[int], Edit | None] = lambda shard: None,
) -> Gradients:
    """The mean loss over a batch's targets, and its gradients. edit: of a shard's stages, such as `Dropout`.

    Inside `npformer.edit` they are those of the edited forward. Whoever listens gets the batch in one shard, in order.
    Raises NpformerError for a batch without a target.
    """
    lengths = [objective.lengths(example) for example in examples]
    count = sum(objective.count(example) for example in examples)
    if not count:
        raise NpformerError(f"a batch of {len(examples)} examples without one target has no loss")
    total = _Sum(weights)

    def work(index: int, shard: list[int]) -> Part:
        with np.errstate(over="ignore", invalid="ignore"):  # the caller looks whether the gradients are finite
            part = objective.part(weights.tree, [examples[i] for i in shard], count, edit(index))
        total.add(index, weights.collect(part.tree))
        return part._replace(tree={})

    shards = [list(range(len(examples)))] if listening() else cut(lengths)
    with single_blas_thread():
        parts = run_tasks([partial(work, index, shard) for index, shard in enumerate(shards)], threads)
    return Gradients(sum(p.loss for p in parts), sum(p.right for p in parts), count, sum(map(sum, lengths)), total.flat)


def cut(lengths: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Indices in shards of about SHARD tokens, for two cores an even number where the lengths allow it.

    Whatever the cores at hand, as sums of gradients depend on it. A batch of few tokens stays whole.
    """
    total = sum(map(sum, lengths))
    return group_by_length(lengths, 2 * math.ceil(total / SHARD / 2) if total >= 2 * SMALL_SHARD else 1)


class _Sum:
    """Gradients added up in the order of the shards, whichever thread is done first."""

    def __init__(self, weights: Trainable) -> None:
        self.flat: dict[str, Gradient] = {}
        self._weights = weights
        self._waiting: dict[int, dict[str, Gradient]] = {}
        self._next = 0
        self._lock = threading.Lock()

    def add(self, index: int, flat: dict[str, Gradient]) -> None:
        with self._lock:
            self._waiting[index] = flat
            while self._next in self._waiting:
                for name, grad in self._waiting.pop(self._next).items():
                    self.flat[name] = add(self.flat[name], grad) if name in self.flat else grad
                self._next += 1
