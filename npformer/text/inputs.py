"""The inputs of a task: a text, or a `Pair` for a model that reads two texts. A list of two texts means two inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from npformer.common.checks import shown, unknown
from npformer.common.errors import NpformerError

DEEPEST = 100  # maximum levels of nested lists and dicts
LONG = ("truncate", "window", "error")  # ways to handle a text that is too long for the model


class Pair(NamedTuple):
    """Two texts that a model reads together, such as a premise and its hypothesis.

    Parameters
    ----------
    text, text_pair : str

    Examples
    --------
    >>> npformer.Pair("A dog runs.", "An animal moves.").text_pair
    'An animal moves.'
    """

    text: str
    text_pair: str


def as_text_or_pair(item: Any) -> str | Pair:
    """Checks an input: a string, a `Pair`, or {"text": ..., "text_pair": ...}.

    A pair with an empty second text is replaced with its first text, as in the pipelines of Transformers.
    """
    if isinstance(item, str):
        return as_text(item)
    if isinstance(item, Mapping):
        item = _from_mapping(item)
    if isinstance(item, Pair):
        text, second = as_text(item.text, "text"), as_text(item.text_pair, "text_pair")
        return Pair(text, second) if second else text
    if isinstance(item, list | tuple):
        raise NpformerError(
            f"expected a text, got {type(item).__name__}; for a pair of texts use npformer.Pair(text, text_pair)"
        )
    return as_text(item)


def as_text(value: Any, name: str = "") -> str:
    """Checks that a value is a string without lone surrogates, which UTF-8 cannot encode."""
    where = f"{name}: " if name else ""
    if not isinstance(value, str):
        raise NpformerError(f"{where}expected a text, got {_kind(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise NpformerError(
                f"{where}character {error.start} is a lone surrogate, which is not valid text"
            ) from None
    return value


def check_nested(name: str, value: Any) -> None:
    """Checks the depth of nested lists and dicts for a chat template, and their texts as in `as_text`."""
    waiting = [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        if depth > DEEPEST:
            raise NpformerError(f"{name}: expected at most {DEEPEST} levels of lists and dicts, got more")
        if isinstance(each, str):
            as_text(each, name)
        elif isinstance(each, Mapping):
            waiting += [(inner, depth + 1) for pair in each.items() for inner in pair]
        elif isinstance(each, list | tuple):
            waiting += [(inner, depth + 1) for inner in each]


def as_texts(values: Any, name: str) -> list[str]:
    """Checks a list of texts, such as labels passed as an option."""
    if not isinstance(values, list | tuple):
        raise NpformerError(f"{name}: expected a list of texts, got {shown(values)}")
    return [as_text(each, name) for each in values]


def _from_mapping(item: Mapping[str, Any]) -> Pair | str:
    for name in item:
        if name not in ("text", "text_pair"):
            raise unknown("key of a text", name, ("text", "text_pair"))
    if "text" not in item:
        raise NpformerError('expected {"text": ...} or {"text": ..., "text_pair": ...}, got no "text"')
    if item.get("text_pair") is None:
        return as_text(item["text"], "text")
    return Pair(item["text"], item["text_pair"])


def _kind(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return f"{type(value).__name__}; decode them first"
    return "None" if value is None else type(value).__name__
