"""Mistakes in the embeddings: tokens, positions, token types and their sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from npformer.embeddings import sinusoidal_positions
from npformer.golden.mistakes.activation import standard
from npformer.golden.port import At, Mistake, Port, Ways
from npformer.runtime.packing import Text, positions

POSITION, SEGMENT = "embeddings.position", "embeddings.segment"


def positions_of(port: Port, text: Text) -> np.ndarray:
    return positions(text.ids, port.config.uncounted) if text.positions is None else text.positions


def _placed(port: Port, place: Callable[[np.ndarray, int], np.ndarray]) -> Port | None:
    """Returns the port with other positions, a function of a text's own and its number; None if the table is short."""
    places = [place(positions_of(port, text), i) for i, text in enumerate(port.texts)]
    if not all(-port.config.first_position <= each.min() <= each.max() < port.config.max_length for each in places):
        return None
    return port.reading([replace(text, positions=each) for text, each in zip(port.texts, places, strict=True)])


def positions_off(port: Port) -> Ways:
    begin = port.config.first_position
    for row in (begin + 1, begin + 2):
        if shifted := _placed(port, lambda at, i, row=row: at + row - begin):
            yield f"from {row}", shifted
    for row in range(begin):  # without an offset, nothing is left to count padding apart
        if shifted := _placed(port, lambda at, i, row=row: np.arange(len(at)) + row - begin):
            yield f"from {row}", shifted


def wrong_positions(port: Port) -> Ways:
    begins = np.cumsum([0, *map(len, port.texts)])
    segments = [text.segments if text.segments is not None else np.zeros(len(text), int) for text in port.texts]
    places: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
        "0 for every token": lambda at, i: at * 0,
        "from the end": lambda at, i: at[::-1],
        "restarting at the second segment": lambda at, i: at - np.where(segments[i] > 0, (segments[i] == 0).sum(), 0),
        "from -1, the first two tokens alike": lambda at, i: np.maximum(at - 1, 0),
        "going on from text to text": lambda at, i: at + begins[i],
        "each text's number": lambda at, i: at * 0 + i,
        "after left padding": lambda at, i: at + port.width - len(at),
        "padded with the first position": lambda at, i: at + 1 - (at == 0),
        "the token types": lambda at, i: segments[i],
    }
    if port.config.uncounted is not None:
        places["padding inside of a text counted"] = lambda at, i: np.arange(len(at))
    for way, place in places.items():
        if placed := _placed(port, place):
            yield way, placed


def sinusoids(port: Port) -> Ways:
    if port.config.positions == "learned":
        for halves in (False, True):
            way = "sines first, then cosines" if halves else "sines and cosines in turn"
            yield way, port.ruling({POSITION: lambda y, at, halves=halves: _sinusoids(port, at, halves)})


def _sinusoids(port: Port, at: At, halves: bool) -> np.ndarray:
    table = sinusoidal_positions(port.config.n_positions, port.config.table_width, np.float64, halves)
    return table[positions_of(port, port.texts[at.text]) + port.config.first_position]


def without_positions(port: Port) -> Ways:
    yield "", port.ruling({POSITION: lambda y, at: 0 * y})


def twice(port: Port) -> Ways:
    yield "the positions", port.ruling({POSITION: lambda y, at: 2 * y})
    yield "the tokens", port.ruling({"embeddings.token": lambda y, at: 2 * y})
    if port.config.n_segments:
        yield "the token types", port.ruling({SEGMENT: lambda y, at: 2 * y})


def scaled(port: Port) -> Ways:
    root = port.config.table_width**0.5
    if port.config.scale_embedding:
        yield "not multiplied by sqrt(D)", port.ruling({"embeddings.token": lambda y, at: y / root})
    else:
        yield "the tokens", port.ruling({"embeddings.token": lambda y, at: y * root})
        yield "the sum", port.ruling({"embeddings.sum": lambda y, at: y * root})
        yield "the tokens, by 1 / sqrt(D)", port.ruling({"embeddings.token": lambda y, at: y / root})
        yield "the normalized sum", port.ruling({"embeddings.norm": lambda y, at: y * root})


def summed_after_norm(port: Port) -> Ways:
    if "embeddings.norm.weight" in port.weights:
        eps = port.config.eps
        for kind in (POSITION, *([SEGMENT] if port.config.n_segments else [])):
            yield (
                f"{kind.partition('.')[2]} embeddings",
                port.ruling(
                    {
                        "embeddings.norm": lambda y, at, kind=kind: (
                            at.affine(standard(at.source - at(kind), eps)) + at(kind)
                        )
                    }
                ),
            )
        yield (
            "position and token type embeddings",
            port.ruling(
                {
                    "embeddings.norm": lambda y, at: (
                        at.affine(standard(at("embeddings.token"), eps)) + at.source - at("embeddings.token")
                    )
                }
            ),
        )


def segments_ignored(port: Port) -> Ways:
    if port.config.reads_token_types:
        yield "all are 0", port.reading([replace(text, segments=None) for text in port.texts])
    if port.config.n_segments:
        yield "none is added", port.ruling({SEGMENT: lambda y, at: 0 * y})


def other_segments(port: Port) -> Ways:
    if not port.config.reads_token_types:
        return
    given = [text.segments if text.segments is not None else np.zeros(len(text), np.int64) for text in port.texts]
    changes: dict[str, Callable[[np.ndarray, Text], np.ndarray]] = {
        "all are 1": lambda types, text: types * 0 + 1,
        "0 and 1 exchanged": lambda types, text: 1 - np.minimum(types, 1),
        "by parity of the token": lambda types, text: np.arange(len(types)) % 2,
        "1 from a token later": lambda types, text: np.concatenate([types[:1], types[:-1]]),
        "1 from a token earlier": lambda types, text: np.concatenate([types[1:], types[-1:]]),
    }
    for way, change in changes.items():
        texts = [replace(text, segments=change(types, text)) for text, types in zip(port.texts, given, strict=True)]
        yield way, port.reading(texts)


def swapped_tables(port: Port) -> Ways:
    """Looks positions up in the token table, and the like."""
    token, position = "embeddings.token.weight", "embeddings.position.weight"
    if port.config.vocab_size >= port.config.n_positions:
        yield "positions from the token table", port.weighing({position: port.weights[token]})


MISTAKES = (
    Mistake(
        "positions off by one", "BERT's positions begin at row 0 of their table, RoBERTa's at row 2", positions_off
    ),
    Mistake("wrong positions", "a token's position is its place in its text, from 0, without padding", wrong_positions),
    Mistake("sinusoidal positions for learned", "this model has a table of learned positions", sinusoids),
    Mistake("positions left out", "the position embeddings are not added", without_positions),
    Mistake("embeddings added twice", "token, position and token type embeddings are added once each", twice),
    Mistake(
        "embeddings scaled by sqrt(D)",
        "the model of 2017 multiplies token embeddings by sqrt(D), BERT's do not",
        scaled,
    ),
    Mistake("embeddings added after the norm", "the norm is of the whole sum", summed_after_norm),
    Mistake(
        "token types ignored", "the second of two texts has token type 1, and its embedding is added", segments_ignored
    ),
    Mistake("wrong token types", "the first text and its [SEP] have token type 0, the second 1", other_segments),
    Mistake("another table of embeddings", "tokens, positions and token types have a table each", swapped_tables),
)
