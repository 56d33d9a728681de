"""The results of tasks: values as in transformers.pipeline, with information on truncation.

`Answer` is a dict, `Answers` a list, `Array` a NumPy array. They have two more attributes: `n_tokens`, the number of
tokens of the whole text with [CLS] and [SEP], and `truncated`, whether the model read only some of these tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.common.other_libraries import ARRAY, Answering


class Answer(dict[str, Any]):
    """A result with named values."""

    n_tokens: int = 0
    truncated: bool = False

    def __missing__(self, key: object) -> Any:
        """Returns the answer itself for `answer[0]`, because transformers.pipeline returns a list for each text."""
        if key == 0:
            return self
        raise KeyError(key)


class Answers(list[Any]):
    """A result with several values, such as labels by score or entities by position."""

    n_tokens: int = 0
    truncated: bool = False

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, str):
            raise NpformerError(
                f"expected an index into {len(self)} answers, got {place!r:.80}; for the first answer use "
                f"[0][{place!r:.80}]. If the input is a list, even of one text, the result has one such list of "
                "answers per text"
            )
        return super().__getitem__(place)


class Array(Answering, np.ndarray):
    """A result that is an array. For several texts, `n_tokens` and `truncated` are arrays with one entry per text."""

    lines = ARRAY
    n_tokens: Any = None  # None for a slice of a result
    truncated: Any = None


class Written(dict[str, Any]):
    """A generated text, or the messages of a conversation with the generated message.

    `n_tokens` is the number of generated tokens. `ended` is the reason why generation ended: an "end" token, a "stop"
    string, or the maximum "length". With the setting logprobs, `likely` has tokens and their log probabilities, each
    (L, 1 + logprobs), with the generated tokens in the first column and the most likely tokens in the other columns.
    """

    def __init__(self, text: Any, n_tokens: int, ended: str, likely: Any = None) -> None:
        super().__init__(generated_text=text)
        self.n_tokens, self.ended, self.likely = n_tokens, ended, likely


def carrying(value: Any, n_tokens: Any, truncated: Any) -> Answer | Answers | Array:
    """Wraps a value as a result with these attributes."""
    result: Answer | Answers | Array
    if isinstance(value, np.ndarray):
        result = value.view(Array)
    elif isinstance(value, dict):
        result = Answer(value)
    else:
        result = Answers(value)
    result.n_tokens, result.truncated = n_tokens, truncated
    return result
