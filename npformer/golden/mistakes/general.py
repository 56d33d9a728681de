"""Findings for a stage that no known mistake explains: relations between its values and the correct ones.

These findings are tried late, and checked like known mistakes: the values must agree with the other program's within
the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from npformer.engine.activations import soft_cap
from npformer.engine.functions import log_softmax, softmax
from npformer.golden.at import At
from npformer.golden.budget import largest_error
from npformer.golden.graph import QKV, made_from, parents, parted
from npformer.golden.mistake import Mistake, Ways
from npformer.golden.mistakes.maps import said_of_map
from npformer.golden.mistakes.nearest import nearest
from npformer.golden.mistakes.parts.ffn import sigmoid
from npformer.golden.port import Port

RATES = (0.1, 0.2, 0.5, 0.05, 0.15, 0.25, 0.3, 0.4)


def dropout(port: Port) -> Ways:
    """Some values are 0, and all others are 1 / (1 - rate) times the correct ones."""
    last = port.stage.rpartition(".")[2].removeprefix("cross_")
    block = {"attention_residual": "attention", "ffn_residual": "ffn"}.get(last)
    for rate in RATES:

        def rule(y: np.ndarray, at: At, rate: float = rate) -> np.ndarray:
            dropped = at.written(block) if block else y
            theirs = port.theirs[at.text]
            whole = (slice(None),) * y.ndim if y.shape == theirs.shape else tuple(slice(size) for size in theirs.shape)
            rest, scaled = y - dropped, dropped / (1 - rate)
            kept = np.ones(y.shape, bool)
            kept[whole] = np.abs(theirs - rest[whole] - scaled[whole]) <= np.abs(theirs - rest[whole])
            able = dropped[whole] != 0  # a value that is 0 anyway does not show whether it was dropped
            if not rate / 4 < 1 - kept[whole][able].mean() < 4 * rate:
                raise ValueError("the number of zeros does not fit dropout")
            return rest + scaled * kept

        yield f"rate {rate:g}", {port.stage: rule}


def other_stage(port: Port) -> Ways:
    """The stage has another stage's values."""
    stack, layer, _ = parted(port.stage)
    prefix = f"{stack}layers.{layer}." if layer >= 0 else ""
    near = (prefix, f"{stack}embeddings.")
    after = {port.stage, *made_from(parents(port.config, port.weights), port.stage)}
    names = [name for name in port.known if name not in after and (name.startswith(near) or not prefix)]
    for name in names:
        yield f"it is {name}", {port.stage: lambda y, at, name=name: at(name)}
    for name in names_of(port):
        yield f"it is {name}", {port.stage: lambda y, at, name=name: port.truth[name][at.text]}
    group = "head.output" if port.stage == "logits" and "head.output" not in port.known else port.stage
    if (
        f"{group}.weight" in port.weights
        and port.weights[f"{group}.weight"].ndim == 2
        and not parted(group)[2].startswith("embeddings")
    ):
        for name in names:
            yield (f"it is computed from {name}", {port.stage: lambda y, at, name=name: at.linear(at(name), group)})


def names_of(port: Port) -> list[str]:
    """Returns the stages with correct values that match the port's stage far better than the stage's own values."""
    own = largest_error(port.theirs, port.truth[port.stage])
    return [
        name
        for name, arrays in port.truth.items()
        if name != port.stage
        and [a.shape for a in arrays] == [a.shape for a in port.theirs]
        and largest_error(port.theirs, arrays) <= min(own / 10, port.budgets[name])
    ]


def said_of(found: Mapping[str, list[str]]) -> str:
    """Describes which stage each exported stage really contains, for example the next layer's."""
    steps = {parted(stage)[1] - parted(names[0])[1] for stage, names in found.items()}
    pairs = [f"{stage} is {' or '.join(names[:2])}" for stage, names in found.items()]
    said = f"{', '.join(pairs[:4])}{', ...' if len(pairs) > 4 else ''}"
    return f"the layers' numbers are off by {abs(steps.pop())}: {said}" if steps in ({1}, {-1}) else said


SHIFTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "each row is the next row": lambda y: np.roll(y, -1, axis=0),
    "each row is the previous row": lambda y: np.roll(y, 1, axis=0),
    "rows from the last to the first": lambda y: y[::-1],
}


def permuted(port: Port) -> Ways:
    """Columns, rows or heads of the stage are in the wrong order."""
    for said, moved in SHIFTS.items() if port.theirs[0].ndim == 2 else ():
        yield said, {port.stage: lambda y, at, moved=moved: moved(y)}
    axes = {"rows": 0, "columns": -1} if port.theirs[0].ndim == 2 else {"heads": 0} if port.theirs[0].ndim == 3 else {}
    if port.theirs[0].ndim == 1 and len({len(array) for array in port.theirs}) == 1:
        axes = {"columns": -1}
    for said, axis in axes.items():
        if said != "rows" or len(port.theirs) == 1:
            order = _order(port, axis)
            if order is not None:
                yield (
                    f"{said} {said_of_map(order, head_width_in(port))}",
                    {port.stage: lambda y, at, o=order, axis=axis: np.take(y, o, axis)},
                )


def head_width_in(port: Port) -> int:
    """The number of columns of each head in the stage; 0 if the columns are not split into heads."""
    return port.d_head if parted(port.stage)[2].endswith((*QKV, "combined", "_rotated")) else 0


def _order(port: Port, axis: int) -> np.ndarray | None:
    """Finds the correct row or column nearest to each row or column of the port; None unless this permutes them."""
    theirs, ours = (
        np.concatenate([np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1) for array in arrays], axis=1)
        for arrays in (port.theirs, port.rightly)
    )
    if len(theirs) > 4096:
        return None
    order = nearest(theirs, ours)
    moved = not np.array_equal(order, np.arange(len(order)))
    return order if moved and len(set(order.tolist())) == len(order) else None


#: Functions of a row or of single values that a port may apply by mistake.
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "softmax": softmax,
    "log softmax": log_softmax,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "exp": np.exp,
    "log": np.log,
    "the absolute value": np.abs,
    "ReLU": lambda y: np.maximum(y, 0),
    "the square": np.square,
    "the row divided by its norm": lambda y: y / np.linalg.norm(y, axis=-1, keepdims=True),
    "the row minus its mean": lambda y: y - y.mean(-1, keepdims=True),
    "the row minus its mean, divided by its standard deviation": lambda y: (
        (y - y.mean(-1, keepdims=True)) / y.std(-1, keepdims=True)
    ),
    **{f"{c} tanh(x / {c})": partial(soft_cap, cap=float(c)) for c in (5, 10, 15, 20, 30, 50, 100)},
}


def function_of(port: Port) -> Ways:
    """A function is applied to the stage, or to the scores that it depends on."""
    for said, function in FUNCTIONS.items():
        yield said, {port.stage: lambda y, at, f=function: f(y)}
        if "tanh" in said:
            yield f"{said}, of the scores", {"*.attention.scores": lambda y, at, f=function: f(y)}


def flat(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays]).astype(np.float64)


RENAMED = Mistake(
    "stages under wrong names", "every value is correct, but some stages have the names of other stages", {}
)
MISTAKES = (
    Mistake("dropout left on", "some values are 0 and the others are larger, as in training; call eval()", dropout),
    Mistake("values of another stage", "the formula reads or returns the wrong stage", other_stage),
    Mistake("an extra function", "the formula's result is used unchanged, without an additional function", function_of),
    Mistake("in the wrong order", "the values are correct but in the wrong order", permuted),
)
