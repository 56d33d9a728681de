"""Mistakes of kernels that work in tiles: ends that no tile covers, tiles added twice, sums that count padding lanes.

A tile's size is not known, so sizes and ends that kernels commonly have are tried. If the port exports all inputs of a
linear layer, `kinds.py` solves for the columns instead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npformer.engine.functions import softmax
from npformer.engine.norms.root_mean_square import RMSNorm
from npformer.golden.at import At
from npformer.golden.graph import QKV, parted
from npformer.golden.mistake import Mistake, Rule, Ways
from npformer.golden.mistakes.kinds import in_all_layers, is_single, rows
from npformer.golden.mistakes.maps import lines_said
from npformer.golden.mistakes.rows import product_twice, wrong_rows
from npformer.golden.port import Port, made_by

TILES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
ENDS = (1, 2, 4, 8, 16, 32, 64)  # numbers of inputs or columns to try for the last tile, besides remainders
LANES = (8, 16, 32, 64, 128, 256, 512, 1024)  # numbers of lanes: a row is padded to a multiple of one of these

# --- products --------------------------------------------------------------------------------------------------------

Count = Callable[[int], int]  # number of inputs or columns -> how many of them are in the last tile


def _weights(at: At) -> tuple[np.ndarray, np.ndarray | None] | None:
    """The weight and bias of a linear stage; None for any other stage."""
    group = at.name if at.weight(at.name) is not None else "head.output"
    weight = at.weight(group)
    return None if weight is None or weight.ndim != 2 else (weight, at.weight(group, "bias"))


def _with_inputs(count: Count, times: int) -> Rule:
    """x W + b, with the last inputs counted `times` times."""

    def rule(y: np.ndarray, at: At) -> np.ndarray:
        if (weights := _weights(at)) is None or not 0 < (n := count(len(weights[0]))) < len(weights[0]):
            return y
        return y + (times - 1) * (at.source[..., -n:] @ weights[0][-n:])

    return rule


def _with_columns(count: Count, product: int, bias: int) -> Rule:
    """x W + b, with the product and the bias of the last columns counted `product` and `bias` times."""

    def rule(y: np.ndarray, at: At) -> np.ndarray:
        if (weights := _weights(at)) is None or not 0 < (n := count(y.shape[-1])) < y.shape[-1]:
            return y
        b = np.zeros(n) if weights[1] is None else weights[1][-n:]
        y = y.copy()
        y[..., -n:] = product * (y[..., -n:] - b) + bias * b
        return y

    return rule


#: Description of a mistake at the end of a product -> the rule for the last inputs or columns.
PRODUCTS: dict[str, Callable[[Count], Rule]] = {
    "without {} inputs": lambda count: _with_inputs(count, 0),
    "{} inputs added twice": lambda count: _with_inputs(count, 2),
    "{} columns are the bias alone": lambda count: _with_columns(count, 0, 1),
    "{} columns are 0": lambda count: _with_columns(count, 0, 0),
    "{} columns without the bias": lambda count: _with_columns(count, 1, 0),
    "{} columns added twice": lambda count: _with_columns(count, 2, 1),
}


def _ends(widths: set[int]) -> list[int]:
    return sorted({*ENDS, *(width % tile for width in widths for tile in TILES)} - {0})


def _counts(widths: set[int]) -> dict[str, Count]:
    """Maps descriptions of the last inputs or columns to functions that return their number."""
    counts: dict[str, Count] = {f"the last {n}": lambda width, n=n: n for n in _ends(widths)}
    for tile in TILES:
        if len({width % tile for width in widths}) > 1:
            counts[f"the last (number mod {tile})"] = lambda width, tile=tile: width % tile
    return counts


def products(port: Port) -> Ways:
    """The last inputs or columns are left out or counted twice, in all linear layers, in some, or in one."""
    groups = {name.removesuffix(".weight"): array.shape for name, array in port.weights.items() if array.ndim == 2}
    of = {in_all_layers(stage): group for group in groups for stage in made_by(group) if stage in port.known}
    linear = [pattern for pattern, group in of.items() if not parted(group)[2].startswith("embeddings.")]
    spanned = {in_all_layers(name) for name in port.span}
    own = [pattern for pattern in linear if pattern in spanned]
    if not own:
        return
    yield from _columns_twice(port)
    scopes = {
        "every product of the layers": [pattern for pattern in linear if "layers." in pattern],
        "every product": linear,
        "query, key and value": [pattern for pattern in linear if pattern.endswith(QKV)],
    }
    few = len({parted(name)[1] for name in port.span}) <= 2 and (not is_single(port) or parted(port.stage)[1] < 0)
    scopes |= {pattern.removeprefix("layers.*."): [pattern] for pattern in (own if few else ())}
    widths = {size for pattern in linear for size in groups[of[pattern]] if "layers." in pattern}
    for which, count in _counts(widths).items():
        for said, rule in PRODUCTS.items():
            for scope, patterns in scopes.items():
                if spanned.intersection(patterns) and (len(patterns) > 1 or "mod" not in which):
                    yield f"{scope}: {said.format(which)}", dict.fromkeys(patterns, rule(count))


def _columns_twice(port: Port) -> Ways:
    """Some columns of x W are added twice, so the port has 2 x W + b in these columns."""
    theirs, right = rows(port.theirs), rows(port.rightly)
    if (
        not is_single(port)
        or theirs.shape != right.shape
        or port.weights.get(f"{port.stage}.weight", np.zeros(0)).ndim != 2
    ):
        return
    bias = port.weights.get(f"{port.stage}.bias", np.zeros(right.shape[1]))
    allowed = port.budgets[port.stage]
    correct, twice = ((np.abs(theirs - other) <= allowed).all(0) for other in (right, 2 * right - bias))
    if (twice & ~correct).any() and (twice | correct).all():
        rule = {in_all_layers(port.stage): lambda y, at: np.where(correct, y, product_twice(y, at))}
        yield f"{lines_said('column', np.flatnonzero(~correct))} added twice", rule


# --- attention -------------------------------------------------------------------------------------------------------


def _sizes(port: Port) -> list[int]:
    """Tile sizes, in keys, for which some text needs a second tile."""
    longest = max(map(len, (*port.texts, *port.sources)))
    return [tile for tile in (1, 2, *TILES) if tile < longest]


def _has(port: Port, end: str) -> bool:
    return any(name.endswith(end) for name in port.span)


def keys(port: Port) -> Ways:
    """The last keys are left out, or a tile of keys is added twice."""
    if not _has(port, "attention.context"):
        return
    yielded = set()
    for tile in _sizes(port):
        for width in dict.fromkeys((0, port.width)):

            def end(count: int, width: int = width, tile: int = tile) -> int:
                return (width or count) // tile * tile

            of_texts = tuple(min(end(len(text)), len(text)) for text in port.texts)
            if tile > 2 and of_texts not in yielded and 0 not in of_texts:
                yielded.add(of_texts)
                batch = f" of {width}" if width else ""
                said = f"the keys after the last whole tile of {tile}{batch} are left out"

                def hidden(y: np.ndarray, at: At, end: Callable[[int], int] = end) -> np.ndarray:
                    seen = np.arange(y.shape[-1]) < end(y.shape[-1])
                    return softmax(np.where(seen, at.scores, -np.inf))

                def unread(y: np.ndarray, at: At, end: Callable[[int], int] = end) -> np.ndarray:
                    return y - _part(at, slice(end(len(at.heads("value")[0])), None))

                yield said, {"*.attention.weights": hidden}
                yield f"{said} in the product of weights and values", {"*.attention.context": unread}

        def twice(y: np.ndarray, at: At, tile: int = tile) -> np.ndarray:
            return y + _part(at, slice(tile, 2 * tile))

        yield f"the second tile of {tile} keys is added twice", {"*.attention.context": twice}


def _part(at: At, keys: slice) -> np.ndarray:
    """The part of the context that comes from some keys."""
    product: np.ndarray = at("attention.weights")[..., keys] @ at.heads("value")[..., keys, :]
    return product


#: Description of a wrong rescaling in an online softmax -> factors of (context, sum) for an old and a new maximum.
RESCALED: dict[str, Callable[[np.ndarray, np.ndarray], tuple[np.ndarray | float, np.ndarray | float]]] = {
    "neither the context nor the sum": lambda old, new: (1.0, 1.0),
    "only the sum, not the context": lambda old, new: (1.0, np.exp(old - new)),
    "only the context, not the sum": lambda old, new: (np.exp(old - new), 1.0),
    "both by e^(new - old)": lambda old, new: (np.exp((new - old).clip(max=80)), np.exp((new - old).clip(max=80))),
    "both by 2^(old - new)": lambda old, new: (np.exp2(old - new), np.exp2(old - new)),
}


def online_softmax(port: Port) -> Ways:
    """The context and the sum of earlier tiles are not rescaled when a later tile has a larger maximum."""
    for tile in _sizes(port) if _has(port, "attention.context") else ():
        for said, factors in RESCALED.items():

            def rule(y: np.ndarray, at: At, tile: int = tile, factors: Callable = factors) -> np.ndarray:
                scores, v = at.scores, at.heads("value")
                most, total, context = np.full_like(scores[..., :1], -1e30), 0.0, 0.0
                for i in range(0, scores.shape[-1], tile):
                    some = scores[..., i : i + tile]
                    new = np.maximum(most, some.max(-1, keepdims=True))
                    of_context, of_sum = factors(most, new) if i else (0.0, 0.0)
                    part = np.exp(some - new)
                    context = context * of_context + part @ v[..., i : i + tile, :]
                    total = total * of_sum + part.sum(-1, keepdims=True)
                    most = new
                return np.asarray(context / total)

            yield f"tiles of {tile} keys; rescaled: {said}", {"*.attention.context": rule}


def _by_tile(tile: int) -> dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """Maps descriptions of wrong causal masks to functions of (queries, keys), True where a query sees a key."""
    return {
        f"from key {tile} on, a token sees the next token too": lambda i, j: j <= i + (j >= tile),
        f"from key {tile} on, a token does not see itself": lambda i, j: j <= i - (j >= tile),
        f"from query {tile} on, a token sees the next token too": lambda i, j: j <= i + (i >= tile),
        f"places are counted within tiles of {tile}": lambda i, j: (j % tile <= i % tile) & (j <= i),
        f"in tiles of {tile}, places of keys only are counted within the tile": lambda i, j: j % tile <= i,
    }


def causal_tiles(port: Port) -> Ways:
    """The causal mask is wrong from the second tile on, or a cache of keys overwrites or forgets some."""
    causal = port.config.causal or port.stack == "decoder."
    if not causal or not _has(port, "attention.weights"):
        return
    pictures: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {}
    for tile in _sizes(port):
        pictures |= _by_tile(tile)
    wrong = wrong_rows(port)
    first = min((int(np.flatnonzero(rows)[0]) for rows in wrong if rows.any()), default=0) if wrong else 0
    if first > 1:
        pictures[f"a cache of {first} keys overwrites its last key"] = lambda i, j: (
            (j < first - 1) & (j <= i) | (j == i)
        )
        pictures[f"a cache of {first} keys wraps one key too early"] = lambda i, j: (
            (j <= i) & ((i < first) | (i - j < first - 1))
        )
    for said, seen in pictures.items():

        def rule(y: np.ndarray, at: At, seen: Callable[..., np.ndarray] = seen) -> np.ndarray:
            if at.crosses:
                return y
            scores = at.uncovered
            queries, keys = np.indices(scores.shape[-2:])
            return softmax(np.where(seen(queries, keys), scores, -1e9))

        yield said, {"*.attention.weights": rule}


def lanes_in_softmax(port: Port) -> Ways:
    """The sum of the softmax counts padding lanes with scores of 0."""
    if not _has(port, "attention.weights"):
        return
    yielded = set()
    for lanes in LANES:
        for width in dict.fromkeys((0, port.width)):
            counts = tuple(-(width or len(text)) % lanes for text in port.texts)
            if not any(counts) or counts in yielded:
                continue
            yielded.add(counts)

            def rule(y: np.ndarray, at: At, width: int = width, lanes: int = lanes) -> np.ndarray:
                scores = at.scores
                most = np.maximum(scores.max(-1, keepdims=True), 0)
                e = np.exp(scores - most)
                extra = -(width or scores.shape[-1]) % lanes
                return np.asarray(e / (e.sum(-1, keepdims=True) + extra * np.exp(-most)))

            of = f"{width} keys" if width else "each text's keys"
            yield (
                f"padding lanes of 0 from {of} to a multiple of {lanes} are counted in the sum",
                {"*.attention.weights": rule},
            )


# --- norms -----------------------------------------------------------------------------------------------------------


#: Description of the sums that count padding lanes -> 1 if the number of lanes is added to D in (mean, deviation).
LANES_IN_NORM = {
    "the mean": (1, 0),
    "the deviation": (0, 1),
    "the mean and the deviation": (1, 1),
    "the sum of squares, but not in D": (0, 0),
}


def norms(port: Port) -> Ways:
    """The sums of a norm count padding lanes, or leave out the last columns."""
    if not _has(port, "norm"):
        return
    width = port.config.d_model
    for extra in dict.fromkeys(-width % lanes for lanes in LANES):
        if extra:
            for said, (mean, deviation) in LANES_IN_NORM.items():
                yield f"{extra} padding lanes counted in {said}", {"*norm": _padded_norm(extra, mean, deviation)}
    for n in _ends({width}):
        if n < width:
            for said, count in (("", n), (", but in the number of columns", 0)):
                yield f"the last {n} columns not in the sums{said}", {"*norm": _short_norm(n, count)}


def _padded_norm(extra: int, mean: int, deviation: int) -> Rule:
    """A norm over rows with padding lanes of 0. mean, deviation: 1 if the divisor counts the lanes."""

    def rule(y: np.ndarray, at: At) -> np.ndarray:
        x = at.source
        width = x.shape[-1]
        if isinstance(at.norm, RMSNorm):
            if not deviation or mean:
                raise ValueError("RMSNorm has no mean")
            return at.affine(x / np.sqrt(np.square(x).sum(-1, keepdims=True) / (width + extra) + at.config.eps))
        m = x.sum(-1, keepdims=True) / (width + extra * mean)
        lanes = extra * np.square(m) * (deviation or not mean)
        variance = (np.square(x - m).sum(-1, keepdims=True) + lanes) / (width + extra * deviation)
        return at.affine((x - m) / np.sqrt(variance + at.config.eps))

    return rule


def _short_norm(n: int, fewer: int) -> Rule:
    """A norm that omits the last `n` columns from its sums, and divides the sums by D - `fewer`."""

    def rule(y: np.ndarray, at: At) -> np.ndarray:
        x = at.source
        some, count = x[..., :-n], x.shape[-1] - fewer
        m = 0.0 if isinstance(at.norm, RMSNorm) else some.sum(-1, keepdims=True) / count
        variance = np.square(some - m).sum(-1, keepdims=True) / count
        return at.affine((x - m) / np.sqrt(variance + at.config.eps))

    return rule


MISTAKES = (
    Mistake("the end of a product wrong", "a product covers all inputs and columns, each of them once", products),
    Mistake("keys of a tile left out or repeated", "the context sums over all keys, each of them once", keys),
    Mistake(
        "online softmax rescaled wrongly",
        "when a tile has a larger maximum, the earlier context and sum are multiplied by e^(old - new)",
        online_softmax,
    ),
    Mistake(
        "causal mask wrong after the first tile",
        "a token sees itself and all earlier tokens, whichever tile or slot of the cache has them",
        causal_tiles,
    ),
    Mistake("padding lanes in the softmax", "a lane without a key must have a score of -inf", lanes_in_softmax),
    Mistake("norm over the wrong columns", "the sums of a norm have each of the D columns once", norms),
)
