"""`Exercise`: a function of the course with its right answer, its cases, and the mistakes that learners make in it.

The exercises are in `chapters/`, their right answers in `right.py`. `judge.py` compares a learner's function with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Function = Callable[..., Any]
_seeds = [0]  # the last one changes the numbers that `drawn` returns, unless it is 0


class Undetermined(Exception):
    """Raised if the answer depends on how a mistake is made, so that the case can neither show nor refute it."""


class Slip(NamedTuple):
    """A mistake in a single function.

    Parameters
    ----------
    name : str
    sentence : str, the mistake and its correction
    wrong : function with the mistake; it takes the arguments of the exercise, and may raise `Undetermined`
    """

    name: str
    sentence: str
    wrong: Function


class Constant(NamedTuple):
    """A mistake with a number that the learner's answers reveal, such as a wrong constant in a formula.

    Parameters
    ----------
    name : str
    sentence : str, the mistake with its {number}, and its correction
    wrong : function of the number that returns the function with the mistake
    starts : initial values of the search, one for each sign
    """

    name: str
    sentence: str
    wrong: Callable[[float], Function]
    starts: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class Exercise:
    """A function that the learner writes.

    Parameters
    ----------
    name : str
    right : the right function, which calls npformer's own
    cases : function without parameters that returns the arguments of each call, with the simplest numbers first
    hints : up to three, each more detailed than the previous one
    solution : names of the corresponding functions of pages, in `module:name` form, after one that calls the learner's
    slips : mistakes with their names
    values : names of the returned values, if there are several
    optional : name of an argument that may be None; a mistake may be in only one of the two branches
    constants : mistakes with numbers
    """

    name: str
    right: Function
    cases: Callable[[], list[tuple[Any, ...]]]
    hints: tuple[str, ...]
    solution: tuple[str, ...]
    slips: tuple[Slip, ...]
    values: tuple[str, ...] = ()
    optional: str = ""
    constants: tuple[Constant, ...] = ()


@dataclass(frozen=True)
class Chapter:
    """A chapter of exercises.

    Parameters
    ----------
    title : str
    exercises : in order
    """

    title: str
    exercises: tuple[Exercise, ...]


def drawn(seed: int, *shape: int) -> np.ndarray:
    """Draws float32 numbers with one decimal, which are easy to read."""
    random = np.random.default_rng([seed, seeded_by()] if seeded_by() else seed)
    return random.normal(size=shape).round(1).astype(np.float32)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Changes the drawn numbers in the block, so that they are not known in advance. 0 leaves them as they are."""
    _seeds.append(seed)
    try:
        yield
    finally:
        _seeds.pop()


def seeded_by() -> int:
    """Returns the seed of the surrounding `seeded` block, or 0."""
    return _seeds[-1]


def array(values: Any) -> np.ndarray:
    """A float32 array of these values."""
    return np.array(values, np.float32)


def linear_weights(seed: int, inputs: int, outputs: int) -> dict[str, np.ndarray]:
    """A linear layer with a bias that is not 0."""
    return {"weight": drawn(seed, inputs, outputs), "bias": drawn(seed + 1000, outputs)}


def norm_weights(seed: int, width: int) -> dict[str, np.ndarray]:
    """A norm with a weight that is not 1 and a bias that is not 0."""
    return {"weight": 1 + drawn(seed, width) / 4, "bias": drawn(seed + 1000, width)}


def layer_weights(seed: int, width: int, hidden: int) -> dict[str, Any]:
    """A layer of an encoder or decoder."""
    names = ("query", "key", "value", "output")
    return {
        "attention": {name: linear_weights(seed + i, width, width) for i, name in enumerate(names)},
        "attention_norm": norm_weights(seed + 4, width),
        "ffn": {"hidden": linear_weights(seed + 5, width, hidden), "output": linear_weights(seed + 6, hidden, width)},
        "ffn_norm": norm_weights(seed + 7, width),
    }
