"""Mistakes in what the model is given: token ids, what a decoder reads of them, and padding with its mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from npformer.blocks.convolution import convolve
from npformer.functions import softmax
from npformer.golden.at import At
from npformer.golden.graph import parted
from npformer.golden.port import Mistake, Port, Rule, Ways
from npformer.runtime.packing import Text

WEIGHTS = "*.attention.weights"
LOWEST = float(np.finfo(np.float32).min)


def padded(port: Port, left: bool = False) -> Port | None:
    """Returns the port with every text as long as the batch, as padded ones are; None if it is too long."""
    pad, config = port.config.pad_id or 0, port.config
    if config.pooling == "last" and config.pad_id is None:  # the head is to find padding by an id that no text has
        pad = next(i for i in range(config.vocab_size) if not any(i in text.ids for text in port.texts))
        config = replace(config, pad_id=pad)
    if max(port.width, port.source_width) > port.config.max_length:
        return None

    def filled(texts: list[Text], width: int) -> list[Text]:
        rooms = [(width - len(text), 0) if left else (0, width - len(text)) for text in texts]
        ids = [np.pad(text.ids, room, constant_values=pad) for text, room in zip(texts, rooms, strict=True)]
        types = [
            None if text.token_type_ids is None else np.pad(text.token_type_ids, room)
            for text, room in zip(texts, rooms, strict=True)
        ]
        return list(map(Text, ids, types))

    touched = {"*.attention.scores", WEIGHTS, *(["embeddings.*"] if left else [])}
    texts, sources = filled(port.texts, port.width), filled(port.sources, port.source_width)
    return replace(port, config=config, texts=texts, sources=sources, touched=port.touched | touched)


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
    if made is None:
        return None
    rules: dict[str, Rule] = {WEIGHTS: lambda y, at: softmax(at.scores)}
    if port.config.convolution:
        rules["convolution.hidden"] = lambda y, at: convolved(at, at.source * (np.arange(len(y)) < at.n_real)[:, None])
    return replace(made.ruling(rules), hides=True)


def convolved(at: At, x: np.ndarray) -> np.ndarray:
    """The convolution of a text's rows x, (T, D) -> (T, D), before its activation."""
    hidden = {part: array for part in ("weight", "bias") if (array := at.weight("convolution", part)) is not None}
    return at.unheard(lambda: convolve(x, np.array([len(x)]), np.arange(len(x)), **hidden))


def has_padding(port: Port) -> bool:
    return any(map(port.is_padded, range(len(port.texts))))


def mask_ignored(port: Port) -> Ways:
    if has_padding(port) and (port_ := padded(port)):
        yield "", port_
        if port.config.decoder and (hiding := in_a_batch(port)) is not None:
            of_source: dict[str, Rule] = {"*.cross_attention.weights": lambda y, at: softmax(at("attention.scores"))}
            yield "in attention to the source", hiding.ruling(of_source)


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
        yield way, port.reading(lambda text, i, change=change: replace(text, ids=change(text.ids)))
    texts = port.sources if port.sources and port.stack == "encoder." else port.texts
    unpadded = list(map(len, texts)) == list(map(len, port.theirs))
    if parted(port.stage)[2] == "embeddings.token" and unpadded:
        scale = np.sqrt(port.config.d_model) if port.config.scale_embedding else 1.0
        rows = port.weights[f"{port.stage}.weight"].astype(np.float64) * scale
        sizes = np.vecdot(rows, rows)  # |e - row|^2 is smallest where |row|^2 / 2 - e row is
        ids = [np.argmin(sizes / 2 - array @ rows.T, axis=-1) for array in port.theirs]
        found = port.ruling({port.stage: lambda y, at: rows[ids[at.text]]})
        if not port.config.decoder:
            found = port.reading(lambda text, i: replace(text, ids=ids[i]))
        yield f"{ids[0].tolist()!s:.60}", found


def decoder_input(port: Port) -> Ways:
    """Gives the decoder other tokens than the start token and then the text without its last."""
    if not port.config.decoder:
        return
    yield "not shifted", read_by_decoder(port, lambda read, labels: labels)
    yield "shifted twice", read_by_decoder(port, lambda read, labels: np.insert(read[:-1], 0, read[0]))


def start_token(port: Port) -> Ways:
    config = port.config
    if not config.decoder:
        return
    usual = (0, 1, 2, 3, config.pad_id, config.start_id, *config.decoder.end_ids, config.decoder.vocab_size - 1)
    for token in dict.fromkeys(each for each in usual if each is not None and each < config.decoder.vocab_size):
        if token != config.decoder.start_id:
            changed = read_by_decoder(port, lambda read, labels, token=token: np.insert(read[1:], 0, token))
            yield f"{token} for {config.decoder.start_id}", changed


def read_by_decoder(port: Port, change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Port:
    """Returns the port whose decoder reads other ids, a function of the right ones and of the labels after each."""
    decoder = port.config.decoder
    scale = np.sqrt(port.config.d_model) if port.config.scale_embedding else 1.0

    def rule(y: np.ndarray, at: At) -> np.ndarray:
        ids, table = port.texts[at.text].ids, at.weight("embeddings.token")
        assert table is not None
        if port.sources:
            read, labels = ids, np.append(ids[1:], decoder.end_ids or ids[-1:])[: len(ids)]
        else:  # it reads the encoder's text again
            read, labels = np.insert(ids[:-1], 0, decoder.start_id), ids
        made = y.copy()
        made[: len(ids)] = table[change(read, labels)] * scale
        return made

    return port.ruling({"decoder.embeddings.token": rule})


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
    Mistake(
        "decoder input not shifted",
        "the decoder reads the start token and then each token but the last, one place later than the labels",
        decoder_input,
    ),
    Mistake(
        "another start token",
        "the first token that the decoder reads is decoder_start_token_id of config.json",
        start_token,
    ),
    Mistake("other token ids", "these are embeddings of other tokens: another tokenizer, or another text", other_ids),
)
