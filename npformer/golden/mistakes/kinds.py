"""Kinds of mistakes that any stage can have, derived from the model's graph of stages, weights and sizes.

Examples are a stage computed without one of its parents, without some heads or columns, or with a factor such as
sqrt(K). `weight_kinds.py` has such mistakes in weights, and `general.py` has relations possible in any array of
numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from npformer.engine.attention import combine_heads, split_heads
from npformer.golden.at import At
from npformer.golden.graph import parents
from npformer.golden.mistake import Mistake, Rule, Ways
from npformer.golden.mistakes.general import flat, head_width_in
from npformer.golden.mistakes.maps import lines_said, said_of_map, zeros_said
from npformer.golden.mistakes.nearest import nearest
from npformer.golden.port import Port, made_by

NEAR = 2e-3  # tolerance for matching a fitted factor with a known number; the error budget then decides if it fits
MOST_COLUMNS = 4096  # maximum width in the search for missing columns


def in_all_layers(stage: str) -> str:
    """Returns the pattern that matches a stage in every layer."""
    return re.sub(r"layers\.\d+\.", "layers.*.", stage)


def parents_of(port: Port) -> list[str]:
    """Returns the other program's stages that the stage is computed from."""
    graph = parents(port.config, port.weights)
    return list(dict.fromkeys(each for stage in port.span for each in graph.get(stage, ()) if each not in port.span))


def is_single(port: Port) -> bool:
    """Returns whether the other program has all parents of the stage."""
    return not any(name != port.stage and not name.endswith(".input") for name in port.span)


def changing(port: Port, stage: str, rule: Rule) -> Port:
    """Returns a copy of the port with a new rule: on the stage if the port computes it, or else on its readers."""
    if stage in port.span:
        return port.ruling({in_all_layers(stage): rule})
    return port.rereading({in_all_layers(stage): rule}, port.stage)


def places(port: Port) -> list[str]:
    """Returns the computed stages, from last to first, then the other program's stages from which they start."""
    return [name for name in reversed(port.known) if name in port.span] + parents_of(port)


# --- factors ---------------------------------------------------------------------------------------------------------


def named(port: Port, numbers: list[float]) -> str:
    """Describes the factor of each text by a size that explains it, such as "1 / sqrt(K)", else by the mean factor."""
    fits = [
        said
        for said, factor in port.factors.items()
        if all(abs(number / factor(i) - 1) < NEAR for i, number in enumerate(numbers))
    ]
    number = f"{np.mean(numbers):.6g}"
    return f"{' or '.join(fits[:3])}, {number}," if fits else number


def _ratios(port: Port) -> list[float]:
    """Fits, for each text, the factor between the port's values and the correct ones."""
    pairs = [(right.ravel(), theirs.ravel()) for right, theirs in zip(port.rightly, port.theirs, strict=True)]
    return [float(right @ theirs / max(right @ right, 1e-300)) for right, theirs in pairs]


def constant(port: Port) -> Ways:
    """All values of the stage have a wrong factor (one for all texts, or one per text) or a wrong summand."""
    right, theirs = flat(port.rightly), flat(port.theirs)
    yield from _scaled_product(port)
    if right.size < 8 or not right.any():
        return
    ratios = _ratios(port)
    whole = [float(right @ theirs) / float(right @ right)] * len(ratios)
    added = any(each.products != 1 for kind in port.config.layer_kinds for each in kind)
    scores = port.stage.endswith("attention.scores") and not added
    for numbers in (whole, ratios):
        said = f"{named(port, numbers)} times the correct value"
        if scores:  # reports the whole factor of q k^T, including the correct one
            said = f"q k^T times {named(port, [number * port.scale for number in numbers])}".rstrip(",")
        yield said, {port.stage: lambda y, at, numbers=numbers: y * numbers[at.text]}
    d = float(np.median(theirs - right))
    yield f"{abs(d):.6g} {'more' if d > 0 else 'less'} than the correct value", {port.stage: lambda y, at: y + d}
    yield "all zeros", {port.stage: lambda y, at: 0 * y}
    yield from _inner_constant(port)


def _scaled_product(port: Port) -> Ways:
    """The stage is c x W + b: the product x W has a wrong factor c, and the bias has none."""
    bias = port.weights.get(f"{'head.output' if port.stage == 'logits' else port.stage}.bias", np.zeros(0))
    if bias.size * len(port.theirs) < 4 or any(array.shape[-1:] != bias.shape for array in port.theirs):
        return
    right, theirs = (flat([array - bias for array in arrays]) for arrays in (port.rightly, port.theirs))
    c = float(right @ theirs) / max(float(right @ right), 1e-300)
    said = f"{named(port, [c] * len(port.theirs))} times the correct value, but not the bias"
    yield said, {port.stage: lambda y, at: c * (y - bias) + bias}


def _inner_constant(port: Port) -> Ways:
    """An inner stage is scaled by a factor that is a common mistake, such as the factor of dropout."""
    for name in inside(port):
        for c in (0.9, 0.8, 0.5, 1 / 0.9, 1 / 0.8, 2.0):
            yield f"{c:.4g} times {name}", changing(port, name, lambda y, at, c=c: c * y)
        for said, factor in port.factors.items() if name.endswith("attention.weights") else ():
            if said.startswith("1 /") and "T" in said:
                yield f"{said} times {name}", changing(port, name, lambda y, at, of=factor: of(at.text) * y)


def inside(port: Port) -> list[str]:
    """Returns the inner stages of blocks that the port computes on the way to this stage."""
    of_ffn = ("ffn.hidden", "ffn.gate", "activation", "gated")
    ends = ("attention.weights", "attention.value", *of_ffn, "embeddings.position")
    return [name for name in port.span if name != port.stage and name.endswith(ends)]


def _terms(port: Port) -> tuple[list[str], np.ndarray] | None:
    """Returns the stages that add up to a stage, and their values in columns; None if it is not a sum."""
    names = parents_of(port)
    arrays = [port.given.get(name) for name in names]
    sizes = [sum(a.size for a in each or ()) for each in (*arrays, port.theirs)]
    if not is_single(port) or len(names) < 2 or len(set(sizes)) > 1:
        return None
    columns = np.stack([flat(each or []) for each in arrays], axis=1)
    right = flat(port.rightly)
    return (names, columns) if np.abs(columns.sum(1) - right).max() < 1e-5 * np.abs(right).max() else None


def summands(port: Port) -> Ways:
    """A sum of stages has factors other than 1, such as 0."""
    if (terms := _terms(port)) is None:
        return
    names, columns = terms
    found = np.linalg.lstsq(columns, flat(port.theirs), rcond=None)[0]
    found = np.where(np.abs(found - np.rint(found)) < NEAR, np.rint(found), found)
    said = [
        f"without {name}" if c == 0 else f"{named(port, [float(c)] * len(port.theirs))} times {name}"
        for name, c in zip(names, found, strict=True)
        if c != 1
    ]
    more = [(name, float(c) - 1) for name, c in zip(names, found, strict=True)]
    yield "; ".join(said), {port.stage: lambda y, at: y + sum(c * at(name) for name, c in more)}


# --- stages, heads and columns left out ------------------------------------------------------------------------------


def left_out(port: Port) -> Ways:
    """The stage is computed without one of the stages that it depends on."""
    for name in places(port) if _terms(port) is None else ():
        if name != port.stage and not name.endswith(".input"):
            yield name, changing(port, name, lambda y, at: 0 * y)


def some_left_out(port: Port) -> Ways:
    """Some heads or columns of the stage, or of its input, are 0."""
    heads = list(some_heads(port))
    yield from heads
    if not heads or not is_single(port):
        yield from some_columns(port)


def some_heads(port: Port) -> Ways:
    """Some heads of a stage are 0 or copies of other heads."""
    if port.theirs[0].ndim == 3 or port.stage.endswith("attention.combined"):
        order = _heads(port)
        if order is not None:
            zero, copied = np.flatnonzero(order < 0), [int(i) for i in np.flatnonzero(order >= 0) if order[i] != i]
            said = [zeros_said("head", zero)] if len(zero) else []
            said += [f"head {i} is head {order[i]}" for i in copied]
            yield ", ".join(said), {port.stage: lambda y, at: _taken(y, order)}
        return
    context = next((each for each in port.span if each.endswith("attention.context")), "")
    for some in _subsets(port.n_heads) if context else ():
        left = np.array([-1 if i in some else i for i in range(port.n_heads)])
        yield zeros_said("head", some), changing(port, context, lambda y, at, left=left: _taken(y, left))


def _taken(y: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Returns the heads of y in the order `order`; -1 gives a head of zeros."""
    heads = y if y.ndim == 3 else split_heads(y, len(order))
    made = heads[order] * (order >= 0)[:, None, None]
    return made if y.ndim == 3 else combine_heads(made)


def _heads(port: Port) -> np.ndarray | None:
    """Returns the correct head nearest to each head of the port, -1 for zeros; None if no correct head is missing."""
    count = len(port.theirs[0]) if port.theirs[0].ndim == 3 else port.n_heads
    theirs, ours = (
        np.concatenate([(a if a.ndim == 3 else split_heads(a, count)).reshape(count, -1) for a in arrays], axis=1)
        for arrays in (port.theirs, port.rightly)
    )
    order = nearest(theirs, ours)
    order[~theirs.any(-1)] = -1
    return None if len(set(order.tolist()) - {-1}) == count else order


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    """Yields all proper subsets of up to four heads or, of more heads, single heads and runs from either end."""
    if count <= 4:
        yield from (some for size in range(1, count) for some in combinations(range(count), size))
        return
    yield from ((i,) for i in range(count))
    for i in range(2, count - 1):
        yield from (tuple(range(i)), tuple(range(i, count)))


def some_columns(port: Port) -> Ways:
    """Some columns of the stage, or of its linear layer's input, are 0."""
    if is_single(port):
        theirs, right = rows(port.theirs), rows(port.rightly)
        zero = np.flatnonzero(~theirs.any(0) & right.any(0))
        if 0 < len(zero) < theirs.shape[1]:
            yield zeros_said("column", zero), {port.stage: lambda y, at: _without(y, zero)}
        if (empty := _without_product(port)) is not None:
            bias = port.weights[f"{port.stage}.bias"].astype(np.float64)
            alone = np.isin(np.arange(len(bias)), empty)
            yield (zeros_said("column", empty, " of the weight"), {port.stage: lambda y, at: np.where(alone, bias, y)})
        if (order := _copied(theirs, right)) is not None:
            yield f"columns {said_of_map(order, head_width_in(port))}", {port.stage: lambda y, at: y[..., order]}
        if (inputs := _inputs(port)) is not None:
            name, times = inputs
            yield _inputs_said(port, name, times), {in_all_layers(port.stage): _counting(times, port.groups[0])}
        return
    graph = parents(port.config, port.weights)
    made = [stage for group in port.groups for stage in made_by(group) if stage in graph]
    wide = [name for stage in made for name in (*graph[stage], stage)]
    ends = ("activation", "gated", "attention.output", "ffn.output")
    for name in dict.fromkeys(each for each in wide if each in port.span and each.endswith(ends)):
        for begin, end in ((0.5, 1), (0, 0.5), (0.75, 1), (0, 0.25), (0.25, 1)):

            def rule(y: np.ndarray, at: At, begin: float = begin, end: float = end) -> np.ndarray:
                return _without(y, np.arange(int(begin * y.shape[-1]), int(end * y.shape[-1])))

            yield f"columns of {name} from {begin:.0%} to {end:.0%} of its width are 0", changing(port, name, rule)
        for n in (1, 2, 4, 8, 16, 32, 64):

            def last(y: np.ndarray, at: At, n: int = n) -> np.ndarray:
                return _without(y, np.arange(max(y.shape[-1] - n, 0), y.shape[-1]))

            yield f"the last {n} columns of {name} are 0", changing(port, name, last)


def _copied(theirs: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    """Returns the nearest correct column of each column; None unless several columns have the same nearest one."""
    if theirs.shape != right.shape or not 1 < theirs.shape[1] <= MOST_COLUMNS:
        return None
    order = nearest(theirs.T, right.T)
    return order if len(set(order.tolist())) < len(order) else None


def _without_product(port: Port) -> np.ndarray | None:
    """Returns the columns of the port's stage that equal the bias; None if no column or every column does."""
    bias, theirs = port.weights.get(f"{port.stage}.bias"), rows(port.theirs)
    if bias is None or theirs.shape[1:] != bias.shape:
        return None
    columns = np.flatnonzero((theirs == bias).all(0))
    return columns if 0 < len(columns) < len(bias) else None


def rows(arrays: list[np.ndarray]) -> np.ndarray:
    """Returns the concatenated rows of all texts; empty if arrays have heads or different numbers of columns."""
    if arrays[0].ndim > 2 or len({a.shape[-1] for a in arrays}) > 1:
        return np.zeros((0, 0))
    return np.concatenate([a.reshape(-1, a.shape[-1]) for a in arrays]).astype(np.float64)


def _without(y: np.ndarray, columns: np.ndarray) -> np.ndarray:
    y = y.copy()
    y[..., columns] = 0
    return y


def _inputs(port: Port) -> tuple[str, np.ndarray] | None:
    """Finds how many times the port's linear layer counts each column j of x: m_j in sum_j m_j x_j W_j = theirs - b.

    Returns the stage x, and m, which is 0 for columns left out and 2 for columns added twice; None if every column
    counts once.
    """
    groups = [group for group in port.groups if port.weights.get(f"{group}.weight", np.zeros(0)).ndim == 2]
    names = parents_of(port)
    if len(groups) != 1 or len(names) != 1 or (arrays := port.given.get(names[0])) is None:
        return None
    weight = port.weights[f"{groups[0]}.weight"].astype(np.float64)
    x, error = rows(arrays), rows(port.theirs) - rows(port.rightly)
    if x.shape[1] != len(weight) or len(weight) > MOST_COLUMNS or error.shape != (len(x), weight.shape[1]):
        return None
    gram = (x.T @ x) * (weight @ weight.T)  # Gram matrix of the products x_j W_j, without computing the products
    m = 1 + np.linalg.lstsq(gram, ((error @ weight.T) * x).sum(0), rcond=1e-12)[0]
    times = np.where(m < 0.5, 0, np.where(m > 1.5, 2, 1))
    return (names[0], times) if (times != 1).any() and times.any() else None


def _counting(times: np.ndarray, group: str) -> Rule:
    """x W + b with column j of x counted times[j] times. group: the name of W if the stage has no weight of its own."""

    def rule(y: np.ndarray, at: At) -> np.ndarray:
        weight = at.weight(at.name)
        return y + (at.source * (times - 1)) @ (at.weight(group) if weight is None else weight)

    return rule


def _inputs_said(port: Port, name: str, times: np.ndarray) -> str:
    left, twice = np.flatnonzero(times == 0), np.flatnonzero(times == 2)
    said = [_zeros_said(port, name, left)] if len(left) else []
    return ", ".join([*said, *([f"{lines_said('column', twice)} of {name} counted twice"] if len(twice) else [])])


def _zeros_said(port: Port, name: str, columns: np.ndarray) -> str:
    """Says that columns are 0, by head if they are whole attention heads."""
    heads = sorted(set((columns // port.d_head).tolist()))
    if name.endswith("attention.combined") and len(heads) * port.d_head == len(columns):
        return zeros_said("head", heads)
    return zeros_said("column", columns, f" of {name}")


MISTAKES = (
    Mistake("scaled by a constant", "all values of the stage are off by the same factor or offset", constant),
    Mistake("sum with wrong factors", "the stage is the sum of other stages, without factors", summands),
    Mistake("a part left out", "the stage is computed without a stage that it depends on", left_out),
    Mistake("heads or columns missing", "every head, column and hidden unit is computed and used", some_left_out),
)
