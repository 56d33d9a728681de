"""Computations in steps: generators that yield after each step, so that other work can run, then return a result."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TypeVar

from npformer.engine.taps import listening

A = TypeVar("A")
Steps = Generator[None, None, A]

PIECE = 128  # tokens per core in one step; larger steps are hardly faster per token


def finished(steps: Steps[A]) -> A:
    """Computes all steps and returns the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: A = end.value
            return result


def pieces(lengths: Sequence[int], threads: int) -> Iterator[list[int]]:
    """Yields the indices of texts of these lengths in groups, one for each step: several short texts, or one long text.

    While a listener is open, all texts form one group.
    """
    if listening():
        yield list(range(len(lengths)))
        return
    group: list[int] = []
    taken = 0
    for index, length in enumerate(lengths):
        if group and taken + length > PIECE * threads:
            yield group
            group, taken = [], 0
        group.append(index)
        taken += length
    if group:
        yield group
