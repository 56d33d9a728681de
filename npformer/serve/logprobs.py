"""Log probabilities of generated tokens, in the formats of OpenAI's two routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from npformer.generation import joined
from npformer.generation.logits import Best
from npformer.tasks.text_generation import Writer

LEAST = -9999.0  # the value that OpenAI returns for an impossible token


class Scored(NamedTuple):
    """The text and log probability of a token, and of the most likely tokens at its position."""

    text: str
    score: float
    best: list[tuple[str, float]]


def scored(tokenizer: Any, likely: Best | None, ended: str | None, begins: bool = True) -> list[Scored]:
    """Returns the tokens of a text without its end token.

    ended: why the text ended, or None before the end. begins: whether the first of these tokens begins the text.
    """
    found = []
    steps = [] if likely is None else list(zip(likely.tokens.tolist(), likely.scores.tolist(), strict=True))
    for place, (ids, scores) in enumerate(steps[:-1] if ended == "end" else steps):
        texts = [_text(tokenizer, i, begins and place == 0) for i in ids]
        (text, score), *best = zip(texts, [max(value, LEAST) for value in scores], strict=True)
        found.append(Scored(text, score, best))
    return found


def _text(tokenizer: Any, token: int, begins: bool) -> str:
    """Returns a token's text. At the beginning of a text, decoders such as Llama 2's drop the leading space."""
    alone: str = tokenizer.decode([token], skip_special_tokens=False)
    if begins:
        return alone
    twice: str = tokenizer.decode([token, token], skip_special_tokens=False)
    return twice[len(alone) :]


class NewScores:
    """Returns, at each call, the tokens generated since the previous call, with their scores."""

    def __init__(self, writer: Writer) -> None:
        self.writer, self.count = writer, 0

    def __call__(self, complete: bool = False) -> list[Scored]:
        if self.writer.stream is None:
            return []
        steps = self.writer.stream.likely[self.count :]
        begins, ended = self.count == 0, self.writer.ended if complete else None
        self.count += len(steps)
        return scored(self.writer.task.model.tokenizer, joined(steps), ended, begins)


def of_chat(tokens: Sequence[Scored]) -> dict[str, Any]:
    """Returns the logprobs field of /v1/chat/completions."""
    content = [
        {**_entry(each.text, each.score), "top_logprobs": [_entry(*best) for best in each.best]} for each in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(text: str, score: float) -> dict[str, Any]:
    known = None if "\ufffd" in text else list(text.encode())  # None for a part of a character, whose bytes are unknown
    return {"token": text, "logprob": score, "bytes": known}


def _by_text(best: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Returns text -> score. If tokens have the same text, such as parts of characters, returns the first score."""
    found: dict[str, float] = {}
    for text, score in best:
        found.setdefault(text, score)
    return found


def of_completion(tokens: Sequence[Scored], offset: int) -> dict[str, Any]:
    """Returns the logprobs field of /v1/completions. `offset` counts the characters before the first token."""
    offsets = [offset]
    for each in tokens:
        offsets.append(offsets[-1] + len(each.text))
    return {
        "tokens": [each.text for each in tokens],
        "token_logprobs": [each.score for each in tokens],
        "top_logprobs": [_by_text(each.best) for each in tokens],
        "text_offset": offsets[:-1],
    }
