"""`Mistake`: a mistake that ports make in a part of a model. The file of the part declares it.

`golden.diagnose` makes each mistake in the model and compares the numbers with those of the port.
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
    """A mistake: its name, the correct computation in a sentence, and the ways to make it.

    Parameters
    ----------
    name, explanation : str
    changes : description of each way -> its `Rules`, or a function of a `Port` that yields `Ways`
    reorders : bool, the mistake changes which array a name of a stage stands for
    """

    name: str
    explanation: str
    changes: Mapping[str, Rules] | Callable[[Any], Ways]
    reorders: bool = False

    def ways(self, port: Any) -> Ways:
        """Yields the description of each way to make the mistake, and the changed port."""
        for way, change in self.changes.items() if isinstance(self.changes, Mapping) else self.changes(port):
            yield way, port.ruling(change) if isinstance(change, Mapping) else change
