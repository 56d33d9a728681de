"""`Exercise`: a function of the course with its cases, its hints, and the mistakes that learners make in it.

The exercises are in `chapters/`. The right answer of an exercise is the function of a plain page, and a mistake is an
edit of its text. `judge.py` compares a learner's function with the right answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from textwrap import dedent
from typing import Any, NamedTuple

import numpy as np

from npformer.learn.contents import Function, right
from npformer.learn.programs import Edit, edited, program

NUMBER = "{number}"
TITLE = re.compile(r"(.+?)(?: \[([-\d. e]+)\])?")  # matches "name [1e-6 1.0]"
EDIT = re.compile(r"(.+?) -> ?(.*)")
_seeds = [0]  # 0, then the seed of each `seeded` block that is being executed, from the outermost to the innermost


class Slip(NamedTuple):
    """A mistake in a single function.

    Parameters
    ----------
    of : str, the function
    name : str
    sentence : str, the mistake and its correction
    edits : changes of the text of the page's function
    starts : if the sentence has a {number}, initial values of the search for the `number` that the edits read
    """

    of: str
    name: str
    sentence: str
    edits: tuple[Edit, ...] = ()
    starts: tuple[float, ...] = ()

    @property
    def text(self) -> str:
        """The text of the function with the mistake."""
        return edited(self.of, self.edits)

    def wrong(self, name: str = "", **values: float) -> Function:
        """Returns the function with the mistake. With `name`, returns the function of that name, which calls it."""
        return program(name or self.of, {self.of: self.text}, **values)


class Candidate(NamedTuple):
    """A program that may return the learner's numbers.

    Parameters
    ----------
    name : str, the mistake
    sentence : str, the mistake and its correction
    wrong : the program, which takes the arguments of the exercise
    """

    name: str
    sentence: str
    wrong: Function


@dataclass(frozen=True)
class Exercise:
    """A function that the learner writes.

    Parameters
    ----------
    name : str, the function of a page
    cases : function without parameters that returns the arguments of each call, with the simplest numbers first
    hints : up to three, each more detailed than the previous one
    mistakes : a table of slips. Each slip has a line `name: sentence`, which may be continued below, and an indented
    line `old -> new` for each edit. If the sentence has a {number}, `name [1e-6 1.0]` gives initial values of a search
    values : names of the returned values, if there are several
    optional : name of an argument that is True or has no tokens in some cases; a mistake may be in only one branch
    """

    name: str
    cases: Callable[[], list[tuple[Any, ...]]]
    hints: tuple[str, ...]
    mistakes: str
    values: tuple[str, ...] = ()
    optional: str = ""

    @property
    def right(self) -> Function:
        return right(self.name)

    @cached_property
    def _table(self) -> list[Slip]:
        return list(_read(self.name, self.mistakes))

    @property
    def slips(self) -> list[Slip]:
        return [each for each in self._table if not each.starts]

    @property
    def constants(self) -> list[Slip]:
        """The mistakes with an unknown number, such as a wrong constant. The learner's answers reveal the number."""
        return [each for each in self._table if each.starts]


def _read(of: str, table: str) -> Iterator[Slip]:
    """Yields the slips in a table."""
    for block in re.split(r"\n(?! )", dedent(table).strip("\n")):
        first, *rest = (each.strip() for each in block.split("\n"))
        title, said = first.split(": ", 1)
        name, starts = TITLE.fullmatch(title).groups("")  # type: ignore[union-attr]
        sentence = " ".join([said, *(each for each in rest if not EDIT.fullmatch(each))])
        found = filter(None, map(EDIT.fullmatch, rest))
        edits = tuple(Edit(*(text.replace(r"\n", "\n") for text in each.groups())) for each in found)
        yield Slip(of, name, sentence, edits, tuple(map(float, starts.split())) or (1.0,) * (NUMBER in sentence))


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
    """Changes the numbers drawn inside the block, so that learners cannot know them. A seed of 0 changes nothing."""
    _seeds.append(seed)
    try:
        yield
    finally:
        _seeds.pop()


def seeded_by() -> int:
    """Returns the seed of the surrounding `seeded` block, or 0."""
    return _seeds[-1]


def array(values: Any) -> np.ndarray:
    """Returns a float32 array of these values."""
    return np.array(values, np.float32)


def linear_weights(seed: int, inputs: int, outputs: int) -> dict[str, np.ndarray]:
    """Returns the weights of a linear layer, with a nonzero bias."""
    return {"weight": drawn(seed, inputs, outputs), "bias": drawn(seed + 1000, outputs)}


def norm_weights(seed: int, width: int) -> dict[str, np.ndarray]:
    """Returns the weights of a norm, with a weight that is not 1 and a nonzero bias."""
    return {"weight": 1 + drawn(seed, width) / 4, "bias": drawn(seed + 1000, width)}


def layer_weights(seed: int, width: int, hidden: int) -> dict[str, Any]:
    """Returns the weights of a layer of an encoder or decoder."""
    names = ("query", "key", "value", "output")
    return {
        "attention": {name: linear_weights(seed + i, width, width) for i, name in enumerate(names)},
        "attention_norm": norm_weights(seed + 4, width),
        "ffn": {"hidden": linear_weights(seed + 5, width, hidden), "output": linear_weights(seed + 6, hidden, width)},
        "ffn_norm": norm_weights(seed + 7, width),
    }
