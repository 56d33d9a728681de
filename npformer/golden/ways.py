"""Computes a stage with each variant ("way") of each mistake; `diagnose.py` compares the values with another
program's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice

import numpy as np

from npformer.common.errors import NpformerError
from npformer.engine.runtime.threads import run_tasks
from npformer.golden.budget import largest_error
from npformer.golden.forward import Forward, corner_of
from npformer.golden.mistake import Mistake, Ways
from npformer.golden.mistakes.general import flat
from npformer.golden.port import Port

TOGETHER = 1 << 16  # maximum total size (T * D) of ports that run together
LARGE = 1 << 12  # larger runs spend most of their time in NumPy, so several threads are faster

Way = tuple[Mistake, str, Port]
Computed = tuple[Mistake, str, Port, list[np.ndarray]]


def computed(
    forward: Forward, mistakes: Iterable[Mistake], port: Port, progress: Callable[[str], object]
) -> Iterator[Computed]:
    """Yields each possible variant of each mistake, with its port and the values that the port computes."""
    size = sum(map(len, (*port.texts, *port.sources))) * port.config.d_model
    runs, threads = _runs(mistakes, port, TOGETHER // size, progress), forward.threads if size > LARGE else 1
    while some := list(islice(runs, threads)):
        for values in run_tasks([partial(_run, forward, run) for run in some], threads):
            yield from values


def _runs(mistakes: Iterable[Mistake], port: Port, most: int, progress: Callable[[str], object]) -> Iterator[list[Way]]:
    """Yields the variants of mistakes, in lists of at most `most` that share a run.

    Ports that differ from `port` only in their rules share a run, because a small model spends most of its time in
    Python itself.
    """
    waiting: list[Way] = []
    for mistake in mistakes:
        progress(f"{port.stage}: {mistake.name}?")
        for way, wrong in _solvable(mistake.ways(port)):
            if not wrong.matters:
                continue
            if most <= 1 or not wrong.runs_with(port):
                yield [(mistake, way, wrong)]
                continue
            waiting.append((mistake, way, wrong))
            if len(waiting) == most:
                yield waiting
                waiting = []
    if waiting:
        yield waiting


def _solvable(ways: Ways) -> Ways:
    """Yields the items of `ways`, and stops if computing the next one raises LinAlgError for a singular matrix."""
    with suppress(np.linalg.LinAlgError):
        yield from ways


def _run(forward: Forward, ways: list[Way]) -> list[Computed]:
    """Computes the stage of all these ports in one run. Leaves out ports that are impossible with this model."""
    ports = [port for _, _, port in ways]
    with suppress(NpformerError, ValueError):  # ValueError: NumPy refuses the shapes
        runs = zip(ways, forward.together(ports, ports[0].stage), strict=True)
        return [(*way, cut(values, ports[0].theirs, ports[0])) for way, values in runs if values is not None]
    return []


def cut(made: list[np.ndarray], theirs: list[np.ndarray], port: Port) -> list[np.ndarray]:
    """Removes the padding that a port added."""
    return [
        array[corner_of(array, other, port.at_end)].astype(np.float64)
        for array, other in zip(made, theirs, strict=True)
    ]


def share_explained(port: Port, made: list[np.ndarray], texts: list[int], budget: float) -> float:
    """Returns the share of the error on these texts that `made` explains; 0 without an error or a change."""
    theirs, rightly, own = ([arrays[i] for i in texts] for arrays in (port.theirs, port.rightly, made))
    if not texts or not all(np.isfinite(array).all() for array in own):
        return 0.0
    if largest_error(own, rightly) <= budget or largest_error(theirs, rightly) <= budget:
        return 0.0
    return 1 - float(np.linalg.norm(flat(theirs) - flat(own)) / np.linalg.norm(flat(theirs) - flat(rightly)))
