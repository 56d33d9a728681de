"""Reads a text of a state as the model does, with notes for the page if it is empty, too long, or truncated."""

from __future__ import annotations

from typing import Any

from npformer.common.errors import NpformerError
from npformer.interpret.study_inputs import read_inputs
from npformer.text.encoding import Encoder
from npformer.text.tokenizer import longest_text

TOKENS = 512  # maximum tokens of a text, because every stage of the model is kept
EMPTY = "Type a text: there is nothing to read yet."


def read_given(model: Any, given: Any) -> Any:
    """Returns the model's input for a text or a Pair. Raises NpformerError with a sentence for the page."""
    if not "".join([given] if isinstance(given, str) else given).strip():
        raise NpformerError(EMPTY)
    inputs = read_inputs(model, given).inputs[0]
    if not _count(inputs):
        raise NpformerError("The tokenizer finds no token in this text. Type something else.")
    if _count(inputs) > TOKENS:
        raise NpformerError(
            f"The text has {_count(inputs):,} tokens, and this page shows at most {TOKENS}: shorten it."
        )
    return inputs


def cut_note(model: Any, given: Any, name: str) -> str:
    """Returns a sentence for a text that was truncated to the model's maximum length; "" for a text that fits."""
    if model.config.head == "translation" or not _may_be_cut(model, given):
        return ""
    (encoded,) = Encoder(model).read([given])
    if not encoded.truncated:
        return ""
    kept = len(encoded.texts[0])
    return f"{name} has {encoded.n_tokens:,} tokens, and the model reads {kept:,} of them: the rest is cut off."


def room_to_write(model: Any, given: Any) -> int:
    """Returns how many tokens can follow a text. Raises NpformerError for a text longer than the maximum length."""
    limit = min(longest_text(model.folder, model.config), TOKENS)
    (encoded,) = Encoder(model).read([given])
    size = encoded.n_tokens
    if size > limit:
        raise NpformerError(
            f"Write: the text has {size:,} tokens, and the model reads at most {limit:,}, so a token after it has no "
            "meaning. Shorten the text."
        )
    return limit - size


def _may_be_cut(model: Any, given: Any) -> bool:
    """Returns whether a text may be too long, assuming at most one token per byte and 8 special tokens."""
    size = sum(len(each.encode(errors="replace")) for each in ([given] if isinstance(given, str) else given))
    return size + 8 > longest_text(model.folder, model.config)


def _count(inputs: Any) -> int:
    return sum(map(len, inputs)) if isinstance(inputs, tuple) else len(inputs)
