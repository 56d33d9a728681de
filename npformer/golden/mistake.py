"""`Mistake`: a mistake that ports make in a part of a model. `mistakes/` has all of them.

`golden.diagnose` makes each mistake in the model and compares the resulting values with the port's values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

#: The correct array of a stage for one text, and an `At` of golden/at.py -> the array with the mistake.
Rule = Callable[[np.ndarray, Any], np.ndarray]
#: Pattern of stages -> rule. "*.attention.scores" matches self-attention and cross-attention.
Rules = Mapping[str, Rule]
#: Descriptions of ways to make a mistake, each with its rules or a changed `Port` of golden/port.py.
Ways = Iterator[tuple[str, Any]]


class Mistake(NamedTuple):
    """A mistake: its name, the correct computation in a sentence, and the ways to make the mistake.

    Parameters
    ----------
    name, explanation : str
    changes : description of each way -> its `Rules`, or a function of a `Port` that yields `Ways`
    reorders : bool, the mistake reorders texts or blocks, so that a stage's name refers to a different array
    of_weights : bool, the mistake mixes several weights, and also shows in the weights of a torch model
    """

    name: str
    explanation: str
    changes: Mapping[str, Rules] | Callable[[Any], Ways]
    reorders: bool = False
    of_weights: bool = False

    def ways(self, port: Any) -> Ways:
        """Yields the description of each way to make the mistake, and the changed port."""
        for way, change in self.changes.items() if isinstance(self.changes, Mapping) else self.changes(port):
            yield way, port.ruling(change) if isinstance(change, Mapping) else change


class Steps(NamedTuple):
    """Two consecutive steps of a model that a port may swap, second(first(x)).

    Parameters
    ----------
    first, second : str, patterns of the stages after each step
    source : x for an `At`
    of_first, of_second : Rule, the steps; each takes an array and an `At`
    """

    first: str
    second: str
    source: Callable[[Any], np.ndarray]
    of_first: Rule
    of_second: Rule

    def unchanged(self, y: np.ndarray, at: Any) -> np.ndarray:
        return self.source(at)

    def between(self, y: np.ndarray, at: Any) -> np.ndarray:
        return self.of_second(self.source(at), at)

    def after(self, y: np.ndarray, at: Any) -> np.ndarray:
        return self.of_first(self.between(y, at), at)


def exchanged(port: Any, readers: tuple[str, ...], *pairs: Steps, said: str = "") -> Ways:
    """Ways to compute first(second(x)) instead of second(first(x)), whatever the port calls the two stages.

    readers: patterns of the stages that are computed from the second stage
    """
    after: Rules = {each.second: each.after for each in pairs}
    between: Rules = {each.second: each.between for each in pairs}
    completed: Rules = {each.second: each.of_first for each in pairs}
    yield said, after
    for way, first, second in (
        ("each stage named by its place", "between", after),
        ("both stages show the result", "after", after),
        ("the first stage shows the input", "unchanged", after),
        ("each stage named by its step", "after", between),
        ("the stages show the input and the second step", "unchanged", between),
    ):
        changed = port.ruling({**{each.first: getattr(each, first) for each in pairs}, **second})
        way = f"{said}, {way}".removeprefix(", ")
        yield way, changed.rereading(completed, *readers) if second is between else changed
