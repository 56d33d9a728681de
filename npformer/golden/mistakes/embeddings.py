"""Mistakes in the embeddings: tokens, positions, token types and their sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from npformer.common.halves import HALVES
from npformer.config import Config
from npformer.engine.runtime.packing import Text, positions
from npformer.golden.at import At
from npformer.golden.graph import parted
from npformer.golden.mistake import Mistake, Rule, Ways
from npformer.golden.mistakes.nearest import nearest, nearest_normalized, put_first
from npformer.golden.mistakes.parts.norm import standard
from npformer.golden.port import Port

Change = Callable[[np.ndarray, Text, int], np.ndarray]  # (a text's positions, the text, its index) -> changed positions

SINUSOIDS, FORMULA = "sines and cosines in the wrong order", "positions from the wrong formula"
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
        "continuing from text to text": lambda at, text, i: at + begins[i],
        "each text's number": lambda at, text, i: at * 0 + i,
        "after left padding": lambda at, text, i: at + port.widths[i] - len(at),
        "padded with the first position": lambda at, text, i: at + 1 - (at == 0),
        "the token types": lambda at, text, i: types(text),
    }
    if port.config.uncounted is not None:
        others["counting padding inside a text"] = lambda at, text, i: np.arange(len(at))
    for way, change in others.items():
        if changed := _at_positions(port, change):
            yield way, changed


MOST = 1 << 28  # positions are searched for only up to this product of the table's size and the number of tokens


def found_positions(port: Port) -> Ways:
    """Finds the row of the position table that each token used, and a rule that maps the correct row to that one."""
    stack, layer, rest = parted(port.stage)
    table = port.weights.get(f"{stack}{POSITION}.weight")
    of_source = bool(port.sources) and stack == "encoder."
    texts, lengths = (port.sources, port.source_lengths) if of_source else (port.texts, port.lengths)
    if layer >= 0 or table is None or port.theirs[0].ndim != 2 or table.size * sum(lengths) > MOST:
        return
    if list(lengths) != list(map(len, port.theirs)) or list(lengths) != list(map(len, texts)):
        return
    table = table.astype(np.float64)
    right = [positions_of(port, text) for text in texts]
    first, last = port.config.positions.first, len(table) - port.config.positions.first - 1
    near = _nearest_rows(port, table, [each + first for each in right], rest)
    if near is None or all(np.array_equal(a, b + first) for a, b in zip(near, right, strict=True)):
        return
    found = [each - first for each in near]
    for said, rule in _rules(right, found).items():
        if all(np.array_equal(rule(at), each) for at, each in zip(right, found, strict=True)):

            def change(at: np.ndarray, text: Text, i: int, rule: Callable = rule) -> np.ndarray:
                made: np.ndarray = rule(at).clip(-first, last)
                return made

            if changed := _at_positions(port, change):
                yield f"{said}, where p is the correct position", changed
            return
    i, row = next(
        (i, int(j)) for i, (a, b) in enumerate(zip(right, found, strict=True)) for j in np.flatnonzero(a != b)
    )
    rows = {f"{stack}{POSITION}": lambda y, at: put_first(y, table[near[at.text]])}
    yield f"text {i}: {found[i][row]} instead of {right[i][row]}, {found[i].tolist()!s:.60}", rows


def _rules(right: list[np.ndarray], found: list[np.ndarray]) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Rules that map a token's correct position to a wrong one, with constants taken from the positions found."""
    p, q = np.concatenate(right), np.concatenate(found)
    k, most = int(p[p != q].min()), int(q.max())
    off = int(q[p == k][0]) - k
    return {
        f"min(p, {most})": lambda p: np.minimum(p, most),
        f"p mod {most + 1}": lambda p: p % (most + 1),
        f"p {'+' if off > 0 else '-'} {abs(off)} from {k} on": lambda p: np.where(p >= k, p + off, p),
        f"p + {off}": lambda p: p + off,
        f"{most} - p": lambda p: most - p,
        f"{most} for all": lambda p: 0 * p + most,
        "p // 2": lambda p: p // 2,
        "2 p": lambda p: 2 * p,
    }


def _nearest_rows(port: Port, table: np.ndarray, own: list[np.ndarray], rest: str) -> list[np.ndarray] | None:
    """Returns, for each token, the table row that comes closest to reproducing the port's stage.

    The stage is the positions, the sum of embeddings, or the normalized sum.
    """
    sums = port.truth.get(port.stage.removesuffix("norm") + "sum")
    if rest == "embeddings.norm" and sums is not None:
        weight, bias = (port.weights.get(f"{port.stage}.{part}") for part in ("weight", "bias"))
        near = []
        for total, theirs, rows in zip(sums, port.theirs, own, strict=True):
            z = (theirs - (0 if bias is None else bias)) / (1 if weight is None else weight)
            near.append(nearest_normalized(z, total - table[rows], table, port.config.eps))
        return near
    if rest not in (POSITION, "embeddings.sum"):
        return None
    wanted = (a - b + table[rows] for a, b, rows in zip(port.theirs, port.rightly, own, strict=True))
    return [nearest(each, table) for each in wanted]


def sinusoids(port: Port) -> Ways:
    if port.config.positions.table == "learned":
        for way, table in sinusoids_of(port.config).items():
            yield way, {POSITION: _rows_of(port, table)}


def sinusoids_of(config: Config) -> dict[str, np.ndarray]:
    """Returns sinusoidal tables (P, D) by the order of their columns."""
    orders = {"sines and cosines alternating": False, "sines first, then cosines": True}
    return {way: _sinusoids(config, halves) for way, halves in orders.items()}


def other_sinusoids(port: Port) -> Ways:
    for said, table in other_orders(port.config).items():
        yield said, {POSITION: _rows_of(port, table)}


def other_angles(port: Port) -> Ways:
    for said, table in other_formulas(port.config).items():
        yield said, {POSITION: _rows_of(port, table)}


def _rows_of(port: Port, table: np.ndarray) -> Rule:
    return lambda y, at: table[positions_of(port, at.read_text) + port.config.positions.first]


def other_orders(config: Config) -> dict[str, np.ndarray]:
    """Returns sinusoidal tables (P, D) with columns in wrong orders, by description; {} without a sinusoidal table."""
    if not config.positions.table.startswith("sinusoidal"):
        return {}
    halves = config.positions.table != "sinusoidal"
    return {"": _sinusoids(config, not halves), "cosines before sines": _sinusoids(config, halves, swapped=True)}


def other_formulas(config: Config) -> dict[str, np.ndarray]:
    """Returns sinusoidal tables (P, D) with wrong angles, by description; {} without a sinusoidal table."""
    if not config.positions.table.startswith("sinusoidal"):
        return {}
    halves, half = config.positions.table != "sinusoidal", config.table_width // 2
    ways = {f"exponents i / {n}, not i / {half}": _sinusoids(config, halves, n=n) for n in (half - 1, 2 * half) if n}
    return ways | {f"{base:.0f} instead of 10000": _sinusoids(config, halves, base) for base in (1e3, 1e5, 1e6)}


def _sinusoids(config: Config, halves: bool, base: float = 1e4, n: int = 0, swapped: bool = False) -> np.ndarray:
    """sin and cos of p / base^(i / n), by default for n = D / 2, in two halves of the columns or alternating."""
    width = config.table_width
    angle = np.arange(config.n_positions)[:, None] / base ** (np.arange(0, width, 2) / (2 * n or width))
    pair = (np.cos(angle), np.sin(angle)) if swapped else (np.sin(angle), np.cos(angle))
    table = np.concatenate(pair, axis=-1) if halves else np.stack(pair, axis=-1).reshape(len(angle), -1)
    return table[:, :width]


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
        yield "the positions by sqrt(D), too", {POSITION: lambda y, at: y * own}
        for dtype in HALVES:  # leaving it unrounded is also correct
            number = replace(port.config, scale_dtype=dtype).token_scale
            if abs(number / own - 1) > 1e-5:
                said = f"by sqrt(D) rounded to {dtype}"
                yield said, {"embeddings.token": lambda y, at, number=number: y * (number / own)}
    else:
        yield "the tokens by sqrt(D)", {"embeddings.token": lambda y, at: y * root}
        yield "the sum by sqrt(D)", {"embeddings.sum": lambda y, at: y * root}
        yield "the tokens by 1 / sqrt(D)", {"embeddings.token": lambda y, at: y / root}
        yield "the normalized sum by sqrt(D)", {"embeddings.norm": lambda y, at: y * root}


def summed_after_norm(port: Port) -> Ways:
    if port.has("embeddings.norm.weight"):
        kinds = {"position embeddings": (POSITION,)}
        if port.config.n_token_types:
            kinds["token type embeddings"] = (SEGMENT,)
        for way, late in {**kinds, "position and token type embeddings": (POSITION, SEGMENT)}.items():
            yield way, {"embeddings.norm": lambda y, at, late=late: _late(at, late)}
            yield (  # the sum is exported without these embeddings
                way,
                {
                    "embeddings.sum": lambda y, at, late=late: y - sum(map(at, late)),
                    "embeddings.norm": lambda y, at, late=late: y + sum(map(at, late)),
                },
            )


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
        "0 and 1 alternating": lambda types, text: np.arange(len(types)) % 2,
        "1 from a token later": lambda types, text: np.concatenate([types[:1], types[:-1]]),
        "1 from a token earlier": lambda types, text: np.concatenate([types[1:], types[-1:]]),
    }
    for way, change in changes.items():
        yield way, port.reading(lambda text, i, change=change: replace(text, token_type_ids=change(types(text), text)))


def swapped_tables(port: Port) -> Ways:
    """Looks up positions in the token table."""
    tables = {name: name.replace(".position.", ".token.") for name in port.weights if name.endswith(".position.weight")}
    changes = {position: port.weights[token] for position, token in tables.items()}
    alike = all(table.shape[1] == port.weights[position].shape[1] for position, table in changes.items())
    if tables and alike and port.config.vocab_size >= port.config.n_positions:
        yield "positions from the token table", port.weighing(changes)


MISTAKES = (
    Mistake(
        "positions off by one",
        "positions begin at row 0 of BERT's table, and at row 2 of RoBERTa's and OPT's",
        positions_off,
    ),
    Mistake(
        "wrong positions",
        "a token's position is its place in its text, counted from 0, without padding",
        wrong_positions,
    ),
    Mistake("positions from the wrong rule", "a token's position is its place in its text", found_positions),
    Mistake("sinusoidal positions instead of learned", "this model has a table of learned positions", sinusoids),
    Mistake(SINUSOIDS, "the paper's table alternates sines and cosines; Marian's has all sines first", other_sinusoids),
    Mistake(
        FORMULA, "the angle of position p in pair i of columns is p / 10000^(i / n), for n = D / 2 pairs", other_angles
    ),
    Mistake("positions left out", "the position embeddings are not added", {"": {POSITION: lambda y, at: 0 * y}}),
    Mistake("embeddings added twice", "token, position and token type embeddings are added once each", twice),
    Mistake(
        "embeddings scaled differently",
        "the model of 2017, Marian and Gemma multiply token embeddings by sqrt(D); BERT and Llama do not",
        scaled,
    ),
    Mistake("embeddings added after the norm", "the norm is applied to the sum of all embeddings", summed_after_norm),
    Mistake(
        "token types ignored", "the second of two texts has token type 1, and its embedding is added", segments_ignored
    ),
    Mistake(
        "wrong token types", "the first text and its [SEP] have token type 0, and the second text has 1", other_segments
    ),
    Mistake("wrong embedding table", "tokens, positions and token types each have their own table", swapped_tables),
)
