"""Mistakes in the embeddings: tokens, positions, token types and their sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from npformer.common.mistake import Mistake, Ways
from npformer.config import ROUNDED
from npformer.embeddings import sinusoidal_positions
from npformer.golden.at import At
from npformer.golden.port import Port
from npformer.norms import standard
from npformer.runtime.packing import Text, positions

Change = Callable[[np.ndarray, Text, int], np.ndarray]  # (a text's positions, the text, its index) -> other positions

POSITION, SEGMENT = "embeddings.position", "embeddings.segment"


def positions_of(port: Port, text: Text) -> np.ndarray:
    return positions(text.ids, port.config.uncounted) if text.positions is None else text.positions


def types(text: Text) -> np.ndarray:
    return np.zeros(len(text), np.int64) if text.token_type_ids is None else text.token_type_ids


def _at_positions(port: Port, change: Change) -> Port | None:
    """Returns the port with changed positions; None if they are outside the position table."""
    changed = port.reading(lambda text, i: replace(text, positions=change(positions_of(port, text), text, i)))
    rows = [text.positions for text in (*changed.texts, *changed.sources) if text.positions is not None]
    first, count = -port.config.positions.first, port.config.max_length
    return changed if all(first <= each.min() <= each.max() < count for each in rows) else None


def positions_off(port: Port) -> Ways:
    begin = port.config.positions.first
    for row in (begin + 1, begin + 2):
        if shifted := _at_positions(port, lambda at, text, i, row=row: at + row - begin):
            yield f"from {row}", shifted
    for row in range(begin):  # without the offset, positions do not skip padding
        if shifted := _at_positions(port, lambda at, text, i, row=row: np.arange(len(at)) + row - begin):
            yield f"from {row}", shifted


def wrong_positions(port: Port) -> Ways:
    begins = np.cumsum([0, *map(len, port.texts)])
    others: dict[str, Change] = {
        "0 for every token": lambda at, text, i: at * 0,
        "from the end": lambda at, text, i: at[::-1],
        "restarting at the second segment": lambda at, text, i: (
            at - np.where(types(text) > 0, (types(text) == 0).sum(), 0)
        ),
        "from -1, the first two tokens alike": lambda at, text, i: np.maximum(at - 1, 0),
        "going on from text to text": lambda at, text, i: at + begins[i],
        "each text's number": lambda at, text, i: at * 0 + i,
        "after left padding": lambda at, text, i: at + port.width - len(at),
        "padded with the first position": lambda at, text, i: at + 1 - (at == 0),
        "the token types": lambda at, text, i: types(text),
    }
    if port.config.uncounted is not None:
        others["padding inside of a text counted"] = lambda at, text, i: np.arange(len(at))
    for way, change in others.items():
        if changed := _at_positions(port, change):
            yield way, changed


def sinusoids(port: Port) -> Ways:
    if port.config.positions.table == "learned":
        for halves in (False, True):
            way = "sines first, then cosines" if halves else "sines and cosines in turn"
            yield way, {POSITION: lambda y, at, halves=halves: _sinusoids(port, at, halves)}


def other_sinusoids(port: Port) -> Ways:
    if port.config.positions.table.startswith("sinusoidal"):
        halves = port.config.positions.table == "sinusoidal"  # the order that the model does not use
        yield "", {POSITION: lambda y, at: _sinusoids(port, at, halves)}
        yield "cosines before sines", {POSITION: lambda y, at: _sinusoids(port, at, not halves, cosines_first=True)}
        for base in (1e3, 1e5, 1e6):
            said = f"{base:.0f} for 10000"
            yield said, {POSITION: lambda y, at, base=base: _sinusoids(port, at, not halves, base)}


def _sinusoids(port: Port, at: At, halves: bool, base: float = 1e4, cosines_first: bool = False) -> np.ndarray:
    places, width = positions_of(port, at.read_text) + port.config.positions.first, port.config.table_width
    if base == 1e4 and not cosines_first:
        return sinusoidal_positions(port.config.n_positions, width, np.float64, halves)[places]
    angle = places[:, None] / base ** (np.arange(0, width, 2) / width)
    pair = (np.cos(angle), np.sin(angle)) if cosines_first else (np.sin(angle), np.cos(angle))
    return np.concatenate(pair, axis=-1) if halves else np.stack(pair, axis=-1).reshape(len(places), width)


def twice(port: Port) -> Ways:
    yield "the positions", {POSITION: lambda y, at: 2 * y}
    yield "the tokens", {"embeddings.token": lambda y, at: 2 * y}
    if port.config.n_token_types:
        yield "the token types", {SEGMENT: lambda y, at: 2 * y}


def scaled(port: Port) -> Ways:
    root = port.config.table_width**0.5
    if port.config.scale_embedding:
        own = port.config.token_scale
        yield "not multiplied by sqrt(D)", {"embeddings.token": lambda y, at: y / own}
        for dtype in ROUNDED:  # rounding to float32 would not show
            number = replace(port.config, scale_dtype=dtype).token_scale
            if abs(number / own - 1) > 1e-5:
                said = f"by sqrt(D) rounded to {dtype}"
                yield said, {"embeddings.token": lambda y, at, number=number: y * (number / own)}
    else:
        yield "the tokens", {"embeddings.token": lambda y, at: y * root}
        yield "the sum", {"embeddings.sum": lambda y, at: y * root}
        yield "the tokens, by 1 / sqrt(D)", {"embeddings.token": lambda y, at: y / root}
        yield "the normalized sum", {"embeddings.norm": lambda y, at: y * root}


def summed_after_norm(port: Port) -> Ways:
    if port.has("embeddings.norm.weight"):
        kinds = {"position embeddings": (POSITION,)}
        if port.config.n_token_types:
            kinds["token type embeddings"] = (SEGMENT,)
        for way, late in {**kinds, "position and token type embeddings": (POSITION, SEGMENT)}.items():
            yield way, {"embeddings.norm": lambda y, at, late=late: _late(at, late)}


def _late(at: At, stages: tuple[str, ...]) -> np.ndarray:
    """Normalizes the sum of the other embeddings, then adds the embeddings `stages`."""
    added = at.source - at("embeddings.token") if len(stages) > 1 else at(stages[0])
    return at.affine(standard(at.source - added, at.config.eps)) + added


def segments_ignored(port: Port) -> Ways:
    if port.config.reads_token_types:
        yield "all 0", port.reading(lambda text, i: replace(text, token_type_ids=None))
    if port.config.n_token_types:
        yield "not added", {SEGMENT: lambda y, at: 0 * y}


def other_segments(port: Port) -> Ways:
    if not port.config.reads_token_types:
        return
    changes: dict[str, Callable[[np.ndarray, Text], np.ndarray]] = {
        "all 1": lambda types, text: types * 0 + 1,
        "0 and 1 exchanged": lambda types, text: 1 - np.minimum(types, 1),
        "by parity of the token": lambda types, text: np.arange(len(types)) % 2,
        "1 from a token later": lambda types, text: np.concatenate([types[:1], types[:-1]]),
        "1 from a token earlier": lambda types, text: np.concatenate([types[1:], types[-1:]]),
    }
    for way, change in changes.items():
        yield way, port.reading(lambda text, i, change=change: replace(text, token_type_ids=change(types(text), text)))


def swapped_tables(port: Port) -> Ways:
    """Looks up rows in another table, such as positions in the token table."""
    tables = {name: name.replace(".position.", ".token.") for name in port.weights if name.endswith(".position.weight")}
    changes = {position: port.weights[token] for position, token in tables.items()}
    alike = all(table.shape[1] == port.weights[position].shape[1] for position, table in changes.items())
    if tables and alike and port.config.vocab_size >= port.config.n_positions:
        yield "positions from the token table", port.weighing(changes)


MISTAKES = (
    Mistake(
        "positions off by one",
        "positions begin at row 0 of BERT's table, at row 2 of RoBERTa's and OPT's",
        positions_off,
    ),
    Mistake("wrong positions", "a token's position is its place in its text, from 0, without padding", wrong_positions),
    Mistake("sinusoidal positions for learned", "this model has a table of learned positions", sinusoids),
    Mistake(
        "sines and cosines in another order",
        "the paper's table alternates sines and cosines, Marian's has all sines first",
        other_sinusoids,
    ),
    Mistake("positions left out", "the position embeddings are not added", {"": {POSITION: lambda y, at: 0 * y}}),
    Mistake("embeddings added twice", "token, position and token type embeddings are added once each", twice),
    Mistake(
        "embeddings scaled by sqrt(D)",
        "the model of 2017 multiplies token embeddings by sqrt(D), BERT does not",
        scaled,
    ),
    Mistake("embeddings added after the norm", "the norm is applied to the sum of all embeddings", summed_after_norm),
    Mistake(
        "token types ignored", "the second of two texts has token type 1, and its embedding is added", segments_ignored
    ),
    Mistake("wrong token types", "the first text and its [SEP] have token type 0, the second 1", other_segments),
    Mistake(
        "another table of embeddings", "tokens, positions and token types each have their own table", swapped_tables
    ),
)
