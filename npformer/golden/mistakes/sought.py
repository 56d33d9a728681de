"""Kinds of mistakes in attention, found by solving for them or by trying all candidates: masks, products, rotations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from npformer.engine.functions import softmax
from npformer.golden.at import At
from npformer.golden.graph import QKV
from npformer.golden.mistake import Mistake, Rules, Ways
from npformer.golden.mistakes.kinds import in_all_layers, parents_of
from npformer.golden.port import Port

# --- masks -----------------------------------------------------------------------------------------------------------


def other_mask(port: Port) -> Ways:
    """The wrong keys are hidden: the port gives them a weight of 0 in every head."""
    if not port.stage.endswith("attention.weights") or any(array.ndim != 3 for array in port.theirs):
        return
    seen, ours = ([np.any(array, axis=0) for array in arrays] for arrays in (port.theirs, port.rightly))
    if all(map(np.array_equal, seen, ours)) or sum(int(a.sum()) for a in seen) < 1.5 * sum(len(a) for a in seen):
        return  # if a query sees only one key, that key has weight 1 with any score

    def rule(y: np.ndarray, at: At) -> np.ndarray:
        picture = np.zeros(y.shape[-2:], bool)
        own = seen[at.text]
        picture[tuple(map(slice, own.shape))] = own
        return np.where(picture, softmax(np.where(picture, at("attention.scores"), -1e9)), 0)

    yield _said(seen, ours), {in_all_layers(port.stage): rule}
    yield _said(seen, ours), {port.stage: rule}


def _said(seen: list[np.ndarray], ours: list[np.ndarray]) -> str:
    """Describes masks (queries, keys): by keys that no query sees, by distances, or by an example."""
    unseen = [[j for j in np.flatnonzero(b.any(0)) if not a[:, j].any()] for a, b in zip(seen, ours, strict=True)]
    if any(unseen) and all(
        np.array_equal(a | ~b, np.isin(np.arange(a.shape[1]), keys, invert=True) | ~b)
        for a, b, keys in zip(seen, ours, unseen, strict=True)
    ):
        return f"no query sees the keys {', '.join(str([int(j) for j in keys]) for keys in unseen[:3])}"
    shown = [np.subtract.outer(np.arange(len(a)), np.arange(a.shape[1])) for a in seen]
    low = min(int(distance[a].min()) for distance, a in zip(shown, seen, strict=True))
    high = max(int(distance[a].max()) for distance, a in zip(shown, seen, strict=True))
    inside = [(distance >= low) & (distance <= high) for distance in shown]
    if all(map(np.array_equal, seen, inside)):
        return f"a query sees keys from {high} before it to {-low} after it"
    text = next(i for i, (a, b) in enumerate(zip(seen, ours, strict=True)) if not np.array_equal(a, b))
    row = next(i for i in reversed(range(len(seen[text]))) if not np.array_equal(seen[text][i], ours[text][i]))
    keys, right = (np.flatnonzero(picture[text][row]).tolist() for picture in (seen, ours))
    return f"query {row} sees the keys {keys}, not {right}"


# --- products --------------------------------------------------------------------------------------------------------


def other_products(port: Port) -> Ways:
    """The scores or the context are products of the wrong arrays."""
    for rule in (_scores_of(port), _context_of(port)):
        yield from rule


def _scores_of(port: Port) -> Iterator[tuple[str, Rules]]:
    for one, other in product(QKV, QKV):
        if (one, other) != ("query", "key"):

            def scores(y: np.ndarray, at: At, one: str = one, other: str = other) -> np.ndarray:
                q, k, a, b = map(at.heads, ("query", "key", one, other))
                products, wrong = q @ k.swapaxes(-1, -2), a @ b.swapaxes(-1, -2)
                scale = float((products * y).sum() / np.square(products).sum())  # the model's own scale
                return y + scale * (wrong - products)

            yield f"the scores are products of {one} and {other}", {"*.attention.scores": scores}


def _context_of(port: Port) -> Iterator[tuple[str, Rules]]:
    for name in QKV[:2]:

        def context(y: np.ndarray, at: At, name: str = name) -> np.ndarray:
            return at("attention.weights") @ at.heads(name)

        yield f"the {name} is summed, not the value", {"*.attention.context": context}


def part_of_columns(port: Port) -> Ways:
    """The scores are products over some of a head's columns, found by solving s = sum_c m_c q_c k_c for m."""
    columns = np.arange(port.d_head)
    if (left := _left_out(port)) is not None:
        subsets = {f"column{'s' if len(left) > 1 else ''} {', '.join(map(str, left))}": left}
    elif port.stage.endswith("attention.scores"):
        return
    else:
        half = port.d_head // 2
        subsets = {"the last column": columns[-1:], "the first column": columns[:1]}
        subsets |= {"the second half": columns[half:], "the first half": columns[:half]}
    for said, left in subsets.items():

        def scores(y: np.ndarray, at: At, left: np.ndarray = left) -> np.ndarray:
            q, k = at.heads("query")[..., left], at.heads("key")[..., left]
            return at.scored(at.products(y) - q @ k.swapaxes(-1, -2) * at.scale, y)

        yield f"without {said} of q and k", {"*.attention.scores": scores}


def _left_out(port: Port) -> np.ndarray | None:
    """Returns the columns that the port's products leave out; None without such columns, or without queries or keys."""
    name = port.stage.removesuffix("scores")
    arrays = [port.given.get(f"{name}{each}_heads") for each in QKV[:2]]
    if not port.stage.endswith("attention.scores") or None in arrays:
        return None
    gram, sums = np.zeros((port.d_head, port.d_head)), np.zeros(port.d_head)
    for q, k, theirs, right in zip(*arrays, port.theirs, port.rightly, strict=True):  # type: ignore[arg-type]
        q, k = (np.repeat(each, len(right) // len(each), axis=0).astype(np.float64) for each in (q, k))
        gram += ((q.swapaxes(-1, -2) @ q) * (k.swapaxes(-1, -2) @ k)).sum(0)
        sums += (q * ((theirs - right) @ k)).sum((0, 1))
    m = 1 + np.linalg.lstsq(gram, sums / port.scale, rcond=1e-12)[0]
    left = np.flatnonzero(m < 0.5)
    return left if 0 < len(left) < len(m) else None


# --- rotation --------------------------------------------------------------------------------------------------------


def other_frequencies(port: Port) -> Ways:
    """Solves for the frequency of each pair of columns: row p is turned by p times the frequency, relative to row 0."""
    names = parents_of(port)
    if not port.stage.endswith("_rotated") or len(names) != 1 or names[0] not in port.given:
        return
    pairs = [(_complex(port, x), _complex(port, y)) for x, y in zip(port.given[names[0]], port.theirs, strict=True)]
    turned = max((np.sum(y * x.conj(), axis=1) for x, y in pairs), key=len)  # (T, K / 2)
    if len(turned) < 3:
        return
    first, found = np.angle(turned[0]), np.angle(turned[1] / turned[0])
    for start in (0 * first, first):

        def rule(y: np.ndarray, at: At, start: np.ndarray = start) -> np.ndarray:
            angle = start + found * np.arange(len(y))[:, None]
            z = _complex(port, at.source) * np.exp(1j * angle)[:, None]
            return np.concatenate([z.real, z.imag], axis=-1).reshape(y.shape)

        yield f"frequencies {', '.join(f'{f:.4g}' for f in found[:6])}", {port.stage: rule}


def _complex(port: Port, x: np.ndarray) -> np.ndarray:
    """Returns the pairs of columns that rotate together, as complex numbers (T, H, K / 2)."""
    first, second = np.split(x.astype(np.float64).reshape(len(x), -1, port.d_head), 2, axis=-1)
    made: np.ndarray = first + 1j * second
    return made


MISTAKES = (
    Mistake("columns missing from the scores", "q k^T is the sum over all columns of a head", part_of_columns),
    Mistake("wrong mask", "a query sees only the keys that the model's mask allows", other_mask),
    Mistake(
        "rotation with wrong frequencies",
        "the frequencies follow from rope_parameters in config.json",
        other_frequencies,
    ),
    Mistake(
        "products of the wrong heads",
        "scores are products of queries and keys; the context is a weighted sum of values",
        other_products,
    ),
)
