"""Mistakes made only in some rows: in the first row, in the rows after some position, or in every row of one text.

A stage that diverges in some rows and agrees in others shows which rows these are.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import numpy as np

from npformer.golden.at import At
from npformer.golden.graph import parted
from npformer.golden.mistake import Mistake, Rule, Ways
from npformer.golden.mistakes.kinds import in_all_layers
from npformer.golden.mistakes.maps import lines_said
from npformer.golden.mistakes.nearest import nearest
from npformer.golden.port import TABLES, Port

#: Description of some rows -> a function of (places, length of the text) that is True for these rows.
SETS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "the first row": lambda place, length: place == 0,
    "the last row": lambda place, length: place == length - 1,
    "all rows but the first": lambda place, length: place > 0,
    "all rows but the last": lambda place, length: place < length - 1,
    "the first and the last row": lambda place, length: (place == 0) | (place == length - 1),
    "every other row from the first": lambda place, length: place % 2 == 0,
    "every other row from the second": lambda place, length: place % 2 == 1,
}


def wrong_rows(port: Port) -> list[np.ndarray] | None:
    """Returns which rows of each text diverge, in any head; None if all or none do, or if the stage has no rows."""
    pairs = list(zip(port.theirs, port.rightly, strict=True))
    if port.theirs[0].ndim not in (2, 3) or any(a.shape != b.shape for a, b in pairs):
        return None
    allowed = port.budgets[port.stage]
    wrong = [(np.abs(by_row(a) - by_row(b)) > allowed).any(1) for a, b in pairs]
    some = np.concatenate(wrong)
    return wrong if some.any() and not some.all() else None


def suspects(port: Port, compared: Container[str]) -> list[str]:
    """Returns the groups of weights that the stage uses and that were not compared, so they may be wrong.

    If some rows are correct, returns only tables, because any other wrong weight would spoil all rows, or with a causal
    mask all rows except the first.
    """
    groups = [group for group in port.groups if f"{group}.weight" not in compared]
    wrong = wrong_rows(port)
    if wrong is None or (port.config.causal and all(each[1:].all() for each in wrong)):
        return groups
    return [group for group in groups if parted(group)[2] in TABLES or parted(group)[2].startswith("embeddings.")]


def by_row(array: np.ndarray) -> np.ndarray:
    """Returns one row of numbers for each token: (T, D) as it is, (H, T, K) as (T, H K)."""
    return np.moveaxis(array, -2, 0).reshape(array.shape[-2], -1)


def where_wrong(theirs: list[np.ndarray], rightly: list[np.ndarray], allowed: float) -> str:
    """Says which heads, rows and columns of a stage diverge, as in "head 2, row 70"; "" if they are all or none."""
    wrong = [~(np.abs(a - b) <= allowed) for a, b in zip(theirs, rightly, strict=True)]
    axes = {"head": 0, "row": -2, "column": -1} if wrong[0].ndim == 3 else {"row": 0, "column": -1}
    if wrong[0].ndim != len(axes) or not any(each.any() for each in wrong):
        return ""
    said = []
    for kind, axis in axes.items():
        lines = [np.moveaxis(each, axis, 0).reshape(each.shape[axis], -1).any(1) for each in wrong]
        if kind == "row":
            said += [] if all(each.all() for each in lines) else [rows_said(lines)]
        elif len({len(each) for each in lines}) == 1 and not (some := np.logical_or.reduce(lines)).all():
            said.append(lines_said(kind, np.flatnonzero(some)))
    return ", ".join(said)


def rows_said(wrong: list[np.ndarray]) -> str:
    """Describes rows by a rule that holds in all texts, else by row numbers."""
    places = [np.arange(len(each)) for each in wrong]
    first = min(int(np.flatnonzero(each)[0]) for each in wrong if each.any())
    end = max(int(np.flatnonzero(each)[-1]) for each in wrong if each.any()) + 1
    sets: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
        **SETS,
        f"the rows from {first}": lambda place, length: place >= first,
        f"the rows before {end}": lambda place, length: place < end,
    }
    for said, of in sets.items():
        if all(np.array_equal(of(place, len(place)), each) for place, each in zip(places, wrong, strict=True)):
            return said
    whole = [i for i, each in enumerate(wrong) if each.all()]
    if len(whole) == sum(bool(each.any()) for each in wrong):
        return f"every row of {'text' if len(whole) == 1 else 'texts'} {', '.join(map(str, whole))}"
    shown = [f"{lines_said('row', np.flatnonzero(each))} of text {i}" for i, each in enumerate(wrong) if each.any()]
    return f"{'; '.join(shown[:3])}{'; ...' if len(shown) > 3 else ''}"


def in_rows(rows: list[np.ndarray], rule: Rule) -> Rule:
    """Restricts a rule to these rows, without padding.

    The rule raises ValueError if it would leave all other rows unchanged.
    """

    def changed(y: np.ndarray, at: At) -> np.ndarray:
        own, made = np.flatnonzero(rows[at.text]), np.asarray(rule(y, at))
        if y.ndim < 2 or made.shape != y.shape or y.shape[-2] < len(rows[at.text]):
            raise ValueError("no rows of tokens")
        others = np.flatnonzero(~rows[at.text])
        if len(others) and np.array_equal(made[..., others, :], y[..., others, :]):
            raise ValueError("the same in all rows")
        y = y.copy()
        y[..., own, :] = made[..., own, :]
        return y

    return changed


def _bias(at: At) -> np.ndarray | float:
    found = at.weight(at.name, "bias")
    return 0.0 if found is None else found


def product_twice(y: np.ndarray, at: At) -> np.ndarray:
    """Adds the product of a stage x W + b twice: 2 x W + b."""
    if at.own().ndim != 2:
        raise ValueError("no product")
    return 2 * y - _bias(at)


#: Description of the values that some rows have -> the rule for these rows.
OF_ROWS: dict[str, Rule] = {
    "its input, unchanged": lambda y, at: at.source,
    "0": lambda y, at: 0 * y,
    "the bias alone": lambda y, at: 0 * y + at.own("bias"),
    "the product twice": product_twice,
}


def some_rows(port: Port) -> Ways:
    """Some rows are zeros, the bias, twice the product, their unchanged input, or another row of the stage."""
    yield from _first_of_norms(port)
    if (wrong := wrong_rows(port)) is None:
        return
    said = rows_said(wrong)
    for name in [each for each in reversed(port.known) if each in port.span]:
        for what, rule in OF_ROWS.items():
            of = "" if name == port.stage else f" of {name}"
            yield f"{said}{of}: {what}", {in_all_layers(name): in_rows(wrong, rule)}
    groups = [name.removesuffix(".weight") for name, w in port.weights.items() if w.ndim == 2 and "layers." in name]
    no_product = in_rows(wrong, lambda y, at: 0 * y + _bias(at))
    linear = {in_all_layers(group): no_product for group in groups if group in port.known}
    if sum(in_all_layers(name) in linear for name in port.span) > 1:
        yield f"{said} of every product of the layers: the bias alone", linear
    if (other := _other_rows(port, wrong)) is not None:
        pairs = [f"{i} is {j}" for each, own in zip(other, wrong, strict=True) for i, j in enumerate(each) if own[i]]
        way = f"{said}: values of other rows, {', '.join(dict.fromkeys(pairs[:4]))}"
        yield way, {port.stage: lambda y, at: _taken(y, other[at.text])}


def _taken(y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the array with the row rows[i] as row i, and padding as it is."""
    return y[..., np.append(rows, np.arange(len(rows), y.shape[-2])), :]


def _first_of_norms(port: Port) -> Ways:
    """A norm skips the first or the last row, and attention then spreads the error over all rows."""
    for name in port.span:
        if name.endswith("norm") and name != port.stage:
            for said in ("the first row", "the last row"):

                def rule(y: np.ndarray, at: At, of: str = said) -> np.ndarray:
                    y = y.copy()
                    chosen = np.flatnonzero(SETS[of](np.arange(len(y)), at.n_real))
                    y[chosen] = at.source[chosen]
                    return y

                yield f"{said} of {name}: its input, unchanged", {in_all_layers(name): rule}


def _other_rows(port: Port, wrong: list[np.ndarray]) -> list[np.ndarray] | None:
    """Finds the correct row of the text that equals each wrong row; None if a wrong row equals no correct row."""
    found, allowed = [], port.budgets[port.stage]
    for theirs, right, own in zip(port.theirs, port.rightly, wrong, strict=True):
        theirs, right = by_row(theirs), by_row(right)
        rows = np.arange(len(right))
        near = nearest(theirs[own], right)
        if (np.abs(theirs[own] - right[near]) > allowed).any():
            return None
        rows[own] = near
        found.append(rows)
    return found


def made_in_rows(mistake: Mistake) -> Mistake:
    """Returns a known mistake that is made in the diverging rows only."""

    def ways(port: Port) -> Ways:
        if (wrong := wrong_rows(port)) is None:
            return
        for way, changed in mistake.ways(port):
            rules = changed.rules[len(port.rules) :]
            if rules and changed.weights is port.weights and changed.config is port.config:
                only = f"{way}, only in {rows_said(wrong)}".removeprefix(", ")
                yield only, port.ruling({pattern: in_rows(wrong, rule) for pattern, rule in rules})

    return mistake._replace(changes=ways)


MISTAKES = (
    Mistake("some rows computed differently", "every row of the stage is computed by the same formula", some_rows),
)
