"""`Mistake`: a mistake that ports make in a part of a model, declared in the part's own file.

`golden.diagnose` makes each of them in the model and compares the numbers with another program's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

#: (the model's array of a stage, for one text; an `At` of golden/at.py) -> the array of a port with the mistake.
Rule = Callable[[np.ndarray, Any], np.ndarray]
#: Patterns of stages -> rules. "*.attention.scores" means self-attention and attention to a source.
Rules = Mapping[str, Rule]
#: Descriptions of the ways to make a mistake, each with its rules, or with a changed `Port` of golden/port.py.
Ways = Iterator[tuple[str, Any]]


class Mistake(NamedTuple):
    """A mistake: its name, the correct computation in a sentence, and the ways to make it.

    Parameters
    ----------
    name, explanation : str
    changes : descriptions of the ways with their `Rules`, or a function of a `Port` that yields `Ways`
    reorders : with it, a stage's name has another meaning than in the golden file
    """

    name: str
    explanation: str
    changes: Mapping[str, Rules] | Callable[[Any], Ways]
    reorders: bool = False

    def ways(self, port: Any) -> Ways:
        """Yields each way to make the mistake: its description and the changed port."""
        for way, change in self.changes.items() if isinstance(self.changes, Mapping) else self.changes(port):
            yield way, port.ruling(change) if isinstance(change, Mapping) else change
