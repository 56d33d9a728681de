"""`Runner`: runs a model on several cores, with BLAS limited to one thread on each core.

Many texts are split into shards of packed rows. For few texts, threads share each product. For a single text, threads
share either its products or its rows. While a listener observes the stages (`taps.py`), each stage is computed once for
all texts, in order. The models in `model.py` are Runners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TypeVar, cast

from npformer.common.progress import part, reporter
from npformer.engine.runtime.packing import LONG, PIECE, shards
from npformer.engine.runtime.steps import Steps
from npformer.engine.runtime.threads import (
    num_threads,
    products,
    run_tasks,
    single_blas_thread,
    start_workers,
    thread_count,
    wants_same_bits,
)
from npformer.engine.runtime.trials import Trial
from npformer.engine.taps import listening

A = TypeVar("A")


class Runner:
    """Distributes work to threads. `same_bits` makes products independent of the batch. Parameters as in `Model`."""

    def __init__(self, threads: int | None = None, same_bits: bool | None = None) -> None:
        self.threads = thread_count(threads)
        self.same_bits = wants_same_bits(same_bits)
        self._trials: dict[int, Trial[bool]] = {}  # for single texts, by the bit length of the number of tokens

    @contextmanager
    def cores(self, threads: int | None = None) -> Iterator[None]:
        """Inside the block, BLAS uses one thread, `parallel_for` uses up to `threads`, and `same_bits` takes effect."""
        for_products = num_threads(self.threads if threads is None else threads)
        with single_blas_thread(), for_products, products(plain=not self.same_bits):
            yield

    def in_shards(
        self,
        lengths: Sequence[int],
        work: Callable[[list[int]], list[A]],
        work_on_long: Callable[[int], list[A]] | None = None,
    ) -> list[A]:
        """The outputs for texts of these lengths, in order. work(indices) computes the outputs of some texts.

        work_on_long(n_threads) computes the output of a single long text, with its rows split between n_threads
        threads.
        """
        if not lengths:
            return []
        if listening():
            with self.cores(1):
                return work(list(range(len(lengths))))
        groups = shards(lengths, self.threads)
        lone = work_on_long and len(lengths) == 1 and self.threads > 1 and lengths[0] >= PIECE * self.threads
        if work_on_long and lone and self._has_all_threads():
            return self._lone_text(lengths[0], work, work_on_long)
        with self.cores(self.threads if len(groups) == 1 else 1), part(1, sum(lengths)):
            report = reporter()

            def reported(group: list[int]) -> list[A]:
                answers = work(group)
                report(sum(lengths[index] for index in group))
                return answers

            answered = run_tasks([partial(reported, group) for group in groups], self.threads)
        by_index = dict(zip(chain(*groups), chain(*answered), strict=True))
        return [by_index[index] for index in range(len(lengths))]

    def together(self, shards: Sequence[Steps[A]]) -> Steps[list[A]]:
        """Runs shards together, and returns their results: each step runs one step of every shard, in threads."""
        found: list[A | None] = [None] * len(shards)
        left = list(enumerate(shards))
        while left:
            with self.cores(self.threads if len(shards) == 1 else 1):
                ended = run_tasks([partial(_advance, steps, found, i) for i, steps in left], self.threads)
            left = [each for each, is_over in zip(left, ended, strict=True) if not is_over]
            if left:
                yield
        return cast("list[A]", found)

    def _lone_text(
        self, length: int, work: Callable[[list[int]], list[A]], work_on_long: Callable[[int], list[A]]
    ) -> list[A]:
        """The output for a single text. A trial decides whether threads share its rows or its products."""

        def in_way(share_rows: bool) -> list[A]:
            with self.cores(1 if share_rows else self.threads):
                return work_on_long(self.threads) if share_rows else work([0])

        size = length.bit_length()
        trial = self._trials.setdefault(size, Trial((False, True), first=length >= LONG * self.threads))
        return trial.run(in_way, length)

    def _has_all_threads(self) -> bool:
        return start_workers(self.threads - 1) == self.threads - 1


def _advance(steps: Steps[A], found: list[A | None], index: int) -> bool:
    """Runs one step, and returns whether the steps have ended. If so, also stores their result in `found`."""
    try:
        next(steps)
    except StopIteration as end:
        found[index] = end.value
        return True
    return False
