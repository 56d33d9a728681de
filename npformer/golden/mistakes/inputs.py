"""Mistakes in what the model is given: token ids, and padding with its mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from npformer.functions import softmax
from npformer.golden.port import At, Mistake, Port, Rule, Ways
from npformer.runtime.packing import Text

WEIGHTS = "*.attention.weights"
LOWEST = float(np.finfo(np.float32).min)


def padded(port: Port, left: bool = False) -> Port | None:
    """Returns the port with every text as long as the batch, as padded ones are; None if it is too long."""
    pad, config = port.config.pad_id or 0, port.config
    if config.pooling == "last" and config.pad_id is None:  # the head is to find padding by an id that no text has
        pad = next(i for i in range(config.vocab_size) if not any(i in text.ids for text in port.texts))
        config = replace(config, pad_id=pad)
    if port.width > port.config.max_length:
        return None
    texts = []
    for text in port.texts:
        room = (port.width - len(text), 0) if left else (0, port.width - len(text))
        segments = None if text.segments is None else np.pad(text.segments, room)
        texts.append(Text(np.pad(text.ids, room, constant_values=pad), segments))
    touched = {"*.attention.scores", WEIGHTS, *(["embeddings.*"] if left else [])}
    return replace(port, config=config, texts=texts, touched=port.touched | touched)


def masked(formula: Callable[[np.ndarray, np.ndarray], np.ndarray], left: bool = False) -> dict[str, Rule]:
    """Makes the weights of the scores and of the keys that are tokens."""

    def rule(y: np.ndarray, at: At) -> np.ndarray:
        scores = at.causal(at("attention.scores"))
        return formula(scores, at.is_token(scores, left))

    return {WEIGHTS: rule}


def hidden(scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """softmax over the keys that are tokens, as it should be; over all keys where a query sees none."""
    return softmax(np.where(seen, scores, -1e9))


def in_a_batch(port: Port) -> Port | None:
    """Returns the port with padded texts and a right mask; None where there is no padding, or not the room for it."""
    made = padded(port) if has_padding(port) else None
    return made and replace(made.ruling({WEIGHTS: lambda y, at: softmax(at.scores)}), hides=True)


def has_padding(port: Port) -> bool:
    return any(length < port.width for length in port.lengths)


def mask_ignored(port: Port) -> Ways:
    if has_padding(port) and (port_ := padded(port)):
        yield "", port_


def mask_inverted(port: Port) -> Ways:
    if not (port := padded(port) or port):
        return
    yield (
        "added, the lowest number",
        port.ruling(masked(lambda scores, seen: softmax((scores + np.where(seen, LOWEST, 0)).astype(np.float32)))),
    )
    yield "added, -10000", port.ruling(masked(lambda scores, seen: softmax(scores + np.where(seen, -1e4, 0))))
    yield (
        "added, -10000 in half precision",
        port.ruling(
            masked(
                lambda scores, seen: softmax((scores + np.where(seen, -1e4, 0)).astype(np.float16).astype(np.float64))
            )
        ),
    )
    yield "filled with -1e9", port.ruling(masked(lambda scores, seen: softmax(np.where(seen, -1e9, scores))))


def mask_misused(port: Port) -> Ways:
    if not has_padding(port) or not (port := padded(port) or port):
        return
    ways: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
        "applied after the softmax": lambda scores, seen: softmax(scores) * seen,
        "applied after the softmax, with -10000": lambda scores, seen: softmax(scores) + np.where(seen, 0, -1e4),
        "added as it is, 1 and 0": lambda scores, seen: softmax(scores + seen),
        "multiplied with the scores": lambda scores, seen: softmax(scores * seen),
        "set to 1e-9, not -1e9": lambda scores, seen: softmax(np.where(seen, scores, 1e-9)),
        "set to the smallest positive number": lambda scores, seen: softmax(np.where(seen, scores, 1e-38)),
        **{
            f"too weak, {low:g}": lambda scores, seen, low=low: softmax(scores + np.where(seen, 0, low))
            for low in (-1.0, -2.0, -5.0, -10.0, -20.0, -100.0)
        },
    }
    for way, formula in ways.items():
        yield way, port.ruling(masked(formula))


def left_padding(port: Port) -> Ways:
    if has_padding(port) and (port_ := padded(port, left=True)):
        yield "", port_.ruling(masked(hidden, left=True))
        yield "and the mask ignored", port_
        yield "and the mask of padding on the right", port_.ruling(masked(hidden))


def other_ids(port: Port) -> Ways:
    """Tries usual mistakes, then finds the ids whose rows of the token table are nearest to theirs."""
    if not port.from_ids:
        return
    size = port.config.vocab_size
    changes: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "one too high": lambda ids: (ids + 1) % size,
        "one too low": lambda ids: (ids - 1) % size,
        "in the reverse order": lambda ids: ids[::-1],
        "without the first": lambda ids: np.append(ids[1:], 0),
        "after another one": lambda ids: np.insert(ids[:-1], 0, ids[0]),
    }
    for way, change in changes.items():
        yield way, port.reading([replace(text, ids=change(text.ids)) for text in port.texts])
    if port.stage == "embeddings.token" and list(map(len, port.texts)) == list(map(len, port.theirs)):  # not padded
        rows = port.weights["embeddings.token.weight"].astype(np.float64)
        sizes = np.vecdot(rows, rows)  # |e - row|^2 is smallest where |row|^2 / 2 - e row is
        ids = [np.argmin(sizes / 2 - array @ rows.T, axis=-1) for array in port.theirs]
        texts = [replace(text, ids=each) for text, each in zip(port.texts, ids, strict=True)]
        yield f"{ids[0].tolist()!s:.60}", port.reading(texts)


MISTAKES = (
    Mistake("mask ignored", "padding is attended to; its scores must be -inf before the softmax", mask_ignored),
    Mistake("mask inverted", "1 is for tokens and 0 for padding; here tokens are hidden", mask_inverted),
    Mistake(
        "mask misused", "the scores of padding must be -inf, or far below all others, before the softmax", mask_misused
    ),
    Mistake(
        "left padding",
        "padding stands before the texts, so tokens have other positions, and row 0 is padding; pad on the right",
        left_padding,
    ),
    Mistake("other token ids", "these are embeddings of other tokens: another tokenizer, or another text", other_ids),
)
