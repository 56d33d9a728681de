"""Computes the loss and gradients of a batch, in shards of packed rows, on all cores.

A step has the same bits for any number of threads, because the shards depend only on the lengths of the texts, and the
gradients of shards are added in order. A batch of any size needs memory for the activations of only one shard per
thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import SHARD, SMALL_SHARD, group_by_length
from npformer.engine.runtime.threads import run_tasks, single_blas_thread
from npformer.engine.tape import Edit
from npformer.engine.taps import listening
from npformer.training.losses import Objective, ShardLoss
from npformer.training.trainable import Gradient, Trainable, add

E = TypeVar("E", contravariant=True)


@dataclass(frozen=True)
class Gradients:
    """The result of `gradients`.

    Parameters
    ----------
    loss : mean loss over the targets
    right, count : number of correct predictions, and number of targets
    tokens : number of tokens in the batch
    flat : gradients by name of the parameter; gradients of tables are `SparseRows`
    """

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
    """Computes the mean loss over the targets of a batch, and the gradients of this mean.

    Inside `npformer.edit`, these are the gradients of the edited forward pass. While a listener is open
    (`npformer.engine.taps.listen`), the batch is a single shard.

    Parameters
    ----------
    objective : HeadLoss, TranslationLoss, or another `Objective`
    weights : Trainable
    examples : list of Example
    threads : number of threads
    edit : function from the index of a shard to an `Edit` of its stages, such as `Dropout`, or None

    Returns
    -------
    Gradients

    Raises
    ------
    NpformerError
        If the batch has no targets.

    Examples
    --------
    >>> from npformer.training import Example, HeadLoss
    >>> model = npformer.load("distilbert-sst2")
    >>> weights = Trainable(model.weights, model.config)
    >>> example = Example(npformer.Text(np.array([101, 2053, 102])), target=0)
    >>> batch = gradients(HeadLoss(model.config), weights, [example])
    >>> batch.flat["layers.0.attention.query.weight"].shape
    (384, 384)
    """
    lengths = [objective.lengths(example) for example in examples]
    count = sum(objective.count(example) for example in examples)
    if not count:
        raise NpformerError(f"expected at least one target in the batch, got none in {len(examples)} examples")
    total = _Sum(weights)

    def work(index: int, shard: list[int]) -> ShardLoss:
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks that the gradients are finite
            part = objective.part(weights.tree, [examples[i] for i in shard], count, edit(index))
        total.add(index, weights.collect(part.tree))
        return part._replace(tree={})

    shards = [list(range(len(examples)))] if listening() else cut(lengths)
    with single_blas_thread():
        parts = run_tasks([partial(work, index, shard) for index, shard in enumerate(shards)], threads)
    return Gradients(sum(p.loss for p in parts), sum(p.right for p in parts), count, sum(map(sum, lengths)), total.flat)


def cut(lengths: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Splits a batch into shards of about SHARD tokens, as indices of examples. A small batch is a single shard.

    The shards, and thus the bits of the gradients, do not depend on the number of cores. A large batch has an even
    number of shards, for two cores.
    """
    total = sum(map(sum, lengths))
    return group_by_length(lengths, 2 * math.ceil(total / SHARD / 2) if total >= 2 * SMALL_SHARD else 1)


class _Sum:
    """Adds gradients in the order of the shards, regardless of the order in which threads finish."""

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
