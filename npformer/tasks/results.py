"""What a task gives: what transformers.pipeline gives, and with it how much of the text was read.

`Answer` is a dict, `Answers` a list, `Array` a NumPy array. Beside its content each has two attributes: `n_tokens`, the
tokens of the whole text with [CLS] and [SEP], and `truncated`, whether the model saw only the first of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Answer(dict[str, Any]):
    """A result of named values."""

    n_tokens: int = 0
    truncated: bool = False

    def __missing__(self, key: object) -> Any:
        """`answer[0]` is the answer: transformers.pipeline puts a single text's label in a list, code relies on it."""
        if key == 0:
            return self
        raise KeyError(key)


class Answers(list[Any]):
    """A result of several values: labels in order of their scores, entities in order of the text."""

    n_tokens: int = 0
    truncated: bool = False


class Array(np.ndarray):
    """A result of numbers. For several texts together, `n_tokens` and `truncated` are arrays of one entry a text."""

    n_tokens: Any = None  # so of a part of an array
    truncated: Any = None


def carrying(value: Any, n_tokens: Any, truncated: Any) -> Answer | Answers | Array:
    """The value as a result that says how much of the text was read."""
    result: Answer | Answers | Array
    if isinstance(value, np.ndarray):
        result = value.view(Array)
    elif isinstance(value, dict):
        result = Answer(value)
    else:
        result = Answers(value)
    result.n_tokens, result.truncated = n_tokens, truncated
    return result
