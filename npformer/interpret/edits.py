"""Changes stages of a forward pass. `patching.py` measures the effect.

    with edit({"layers.2.attention.weights": fn}): model(...)      edit(ablate_head(2, 5))

An edit gets the same array as a trace: a stage of one text, without a batch axis. `traces.py` records the result. A
gradient taken inside `edit` is the gradient of the edited forward pass, so every change that affects the metric needs a
derivative. `Differentiable` is a function with its derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.engine.tape import Differentiable, Edit, Pullback, UnknownDerivative
from npformer.engine.taps import listen
from npformer.interpret import stages as table
from npformer.interpret.text_parts import TextParts, is_input
from npformer.interpret.traces import Trace

Change = Callable[..., np.ndarray] | np.ndarray | list[np.ndarray]


@contextmanager
def edit(*changes: Mapping[str, Change]) -> Iterator[None]:
    """Changes stages of every forward pass that runs inside the `with` block.

    A gradient that is taken inside the block, for example by training, attribution or a `Recording`, is the gradient of
    the edited forward pass. If an array replaces a stage, the gradient of the stage is 0.

    Parameters
    ----------
    *changes : mappings from a stage's name, or a pattern with `*`, to a change
        A change is a function of one text's array (and, with a second argument, of the stage's name), an array, or a
        list with one array for each text. Several changes to one stage are applied in the order given.
        The name may also be a TransformerLens hook or the path of a Hugging Face module.

    Raises
    ------
    NpformerError
        If a change returns an array of the wrong shape, a stage has not fired by the end of the block, or a gradient
        passes through a function without a known derivative (use `Differentiable`).

    Examples
    --------
    >>> with edit({"*.scores": lambda scores: 2 * scores}):
    ...     npformer.tap("layers.0.attention.scores", np.array([1.0, 3.0]))
    array([2., 6.])
    """
    edits = Edits(*changes)
    with listen(edits, first=True):
        yield
    edits.check()


class Edits(Edit):
    """The listener behind `edit`."""

    def __init__(self, *changes: Mapping[str, Change]) -> None:
        for given in changes:
            _check_changes(given)
        self._changes = [
            (pattern, change, _takes_the_name(change)) for each in changes for pattern, change in each.items()
        ]
        self._of: dict[str, list[Change]] = {}  # a stage that has fired -> its changes
        self._used: set[str] = set()  # patterns that have matched a stage
        self._texts = TextParts()

    def change(self, name: str, array: np.ndarray) -> tuple[np.ndarray, Pullback] | None:
        self._texts.hear(name, array)
        if is_input(name):
            return None
        if name not in self._of:
            found = [each for each in self._changes if table.selected(each[0], [name], [*self._of, name])]
            self._used |= {pattern for pattern, *_ in found}
            self._of[name] = [_with_the_name(change, name) if named else change for _, change, named in found]
        if not self._of[name]:
            return None
        first, cut, join = self._texts.split(name, array)
        parts, pullbacks = cut(array), []
        for change in self._of[name]:
            pullbacks.append([_pullback(name, change, part) for part in parts])
            parts = [changed(name, change, first + i, part) for i, part in enumerate(parts)]

        def pullback(grad: np.ndarray) -> np.ndarray:
            grads = cut(grad)
            for each in reversed(pullbacks):
                grads = [back(part) for back, part in zip(each, grads, strict=True)]
            return join(grads)

        return join(parts), pullback

    def check(self) -> None:
        """Raises NpformerError for a name or pattern that matched no stage."""
        for pattern, *_ in self._changes:
            if pattern not in self._used:
                raise NpformerError(table.unknown(pattern, list(self._of)))


def _check_changes(changes: Any) -> None:
    if not isinstance(changes, Mapping):
        raise NpformerError(
            "edit: expected a dict from stages to changes, such as {'layers.0.ffn.output': lambda a: 2 * a}, got "
            f"{shown(changes)}"
        )
    for name, change in changes.items():
        if not callable(change) and not isinstance(change, np.ndarray | list | tuple):
            raise NpformerError(
                f"edit of {name}: expected a function of the stage's array, an array, or a list with an array for each "
                f"text, got {shown(change)}"
            )


def _takes_the_name(change: Change) -> bool:
    """Returns whether a change is a function that takes the stage's name as a second argument."""
    if not callable(change) or isinstance(change, Differentiable):
        return False
    try:
        parameters = signature(change).parameters.values()
    except ValueError:  # raised for a function without a signature, such as some functions written in C
        return False
    needed = [each for each in parameters if each.default is each.empty and each.kind in (0, 1)]  # positional
    return len(needed) == 2


def _with_the_name(change: Any, name: str) -> Change:
    return lambda array: change(array, name)


def changed(name: str, change: Change, number: int, array: np.ndarray) -> np.ndarray:
    """Applies a change to the array of text `number`, keeping its dtype."""
    if callable(change):
        returned = change(array.copy())  # a copy, because a user's function may work in place
        if returned is None:
            raise NpformerError(f"edit of {name}: the function returned None; return the changed array")
        result = np.asarray(returned)
    elif isinstance(change, np.ndarray):
        result = change
    elif number < len(change):
        result = np.asarray(change[number])
    else:
        raise NpformerError(f"edit of {name}: expected an array for text {number}, got arrays for {len(change)} texts")
    if result.shape != array.shape or result.dtype.kind not in "fiub":
        came = f"{result.dtype} of shape {result.shape}"
        raise NpformerError(f"edit of {name}: expected an array of shape {array.shape}, got {came}")
    return result.astype(array.dtype, copy=False)


def _pullback(name: str, change: Change, array: np.ndarray) -> Pullback:
    """Returns the function that maps the gradient of `change(array)` to the gradient of `array`."""
    if not callable(change):  # an array that replaces a stage does not depend on the stage
        return np.zeros_like
    if isinstance(change, Differentiable):
        return lambda grad: change.backward(array, grad.copy())  # a copy, because a user's function may work in place

    def unknown(grad: np.ndarray) -> np.ndarray:
        raise UnknownDerivative(
            f"edit of {name}: a gradient passes through this change: expected a known derivative, got "
            f"{change!r:.80}; use an array, zero(), scale() and the like, or Differentiable(function, backward)"
        )

    return unknown


# --- changes to a stage ----------------------------------------------------------------------------------------


def ablate_head(layer: int, head: int) -> dict[str, Change]:
    """Ablates one head: replaces its context with zeros."""
    return without_head(f"layers.{layer}.attention.context", head)


def without_head(stage: str, head: int) -> dict[str, Change]:
    """Ablates one head of a stage such as `decoder.layers.0.cross_attention.context`."""

    def without(context: np.ndarray) -> np.ndarray:
        _check_head(stage, head, len(context))
        context[head] = 0
        return context

    return {stage: _linear(without)}


def _check_head(stage: str, head: int, count: int) -> None:
    if not 0 <= head < count:
        raise NpformerError(f"edit of {stage}: expected a head from 0 to {count - 1}, got {head}")


def scale_head(stage: str, head: int, factor: float) -> dict[str, Change]:
    """Multiplies one head by `factor` in a stage such as `layers.0.attention.context`, (H, T, K)."""

    def scaled(context: np.ndarray) -> np.ndarray:
        _check_head(stage, head, len(context))
        context[head] *= factor
        return context

    return {stage: _linear(scaled)}


def zero(name: str) -> dict[str, Change]:
    """Replaces every stage that matches `name` with zeros."""
    return {name: _linear(np.zeros_like)}


def scale(name: str, factor: float) -> dict[str, Change]:
    """Multiplies every stage that matches `name` by `factor`."""
    return {name: _linear(lambda array: array * factor)}


def add(name: str, vector: np.ndarray) -> dict[str, Change]:
    """Adds a vector (D,) to every row of the stages that match `name` (steering)."""
    return {name: Differentiable(lambda array: array + vector, lambda array, grad: grad)}


def replace_row(name: str, position: int, row: np.ndarray) -> dict[str, Change]:
    """Replaces the row of one token with `row` (D,) in the stages that match `name`."""

    def replaced(array: np.ndarray) -> np.ndarray:
        array[place(name, array.shape, position, None)] = row
        return array

    def backward(array: np.ndarray, grad: np.ndarray) -> np.ndarray:
        grad[place(name, grad.shape, position, None)] = 0
        return grad

    return {name: Differentiable(replaced, backward)}


def _linear(function: Callable[[np.ndarray], np.ndarray]) -> Differentiable:
    """Wraps a function y = c * x with constant elements c. The backward pass dx = c * dy is the same function."""
    return Differentiable(function, lambda array, grad: function(grad))


def mean_ablate(name: str, reference: Trace) -> dict[str, Change]:
    """Replaces every row of the stages that match `name` with the mean row over all tokens of the trace `reference`.

    A stage (T, D) has a single mean row (D,), and a stage (H, T, K) has one mean row per head. Raises NpformerError for
    scores and weights (H, T, T), because the rows of these stages vary in length between texts.
    """
    changes: dict[str, Change] = {}
    for stage in table.matching(name, list(reference), reference.fired):
        arrays = reference.texts(stage)
        kind = table.find(stage)
        if kind is not None and kind.shape == "(H, T, T)":
            raise NpformerError(f"mean_ablate: {stage}: scores and weights have no mean row; use from_trace or zero")
        if arrays[0].ndim > 1:
            mean = np.concatenate(arrays, axis=-2).mean(axis=-2, keepdims=True)
        else:
            mean = np.mean(arrays, axis=0)
        changes[stage] = Differentiable(partial(_broadcast, mean), lambda array, grad: np.zeros_like(grad))
    return changes


def _broadcast(mean: np.ndarray, array: np.ndarray) -> np.ndarray:
    return np.broadcast_to(mean, array.shape)


def from_trace(
    source: Trace,
    name: str,
    positions: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
) -> dict[str, Change]:
    """Replaces the stages that match `name` with the stages of the trace `source` (activation patching).

    `positions` limits the change to the rows of these tokens. In scores and weights (H, T, T), the rows belong to
    queries. `heads` limits the change to these heads. Text i of the trace replaces text i of the forward pass. A trace
    of one text is used for every text of the forward pass.
    """
    changes: dict[str, Change] = {}
    for stage in table.matching(name, list(source), source.fired):
        arrays = source.texts(stage)
        whole = arrays[0] if len(arrays) == 1 else arrays
        changes[stage] = whole if positions is None and heads is None else _at(stage, arrays, positions, heads)
    return changes


def freeze_attention(source: Trace) -> dict[str, Change]:
    """Replaces the attention weights of every layer with the weights of the trace `source`."""
    return from_trace(source, "layers.*.attention.weights")


Numbers = int | Sequence[int] | None


def _at(stage: str, arrays: list[np.ndarray], positions: Numbers, heads: Numbers) -> Change:
    if len(arrays) != 1:
        raise NpformerError(f"{stage}: positions: expected a trace of one text, got {len(arrays)}")
    (source,) = arrays

    def patched(array: np.ndarray) -> np.ndarray:
        if array.shape != source.shape:
            rows = f"positions {positions}" if heads is None else f"heads {heads}"
            raise NpformerError(f"edit of {stage}: cannot copy {rows} from {source.shape} to {array.shape}")
        here = place(stage, array.shape, positions, heads)
        array[here] = source[here]
        return array

    def backward(array: np.ndarray, grad: np.ndarray) -> np.ndarray:
        grad[place(stage, grad.shape, positions, heads)] = 0
        return grad

    return Differentiable(patched, backward)


def place(stage: str, shape: tuple[int, ...], positions: Numbers, heads: Numbers) -> np.ndarray:
    """Returns a mask of these positions and heads in a stage (T, ...) or (H, T, ...). None selects all."""
    mask = np.ones(shape[:-1], bool)
    for name, wanted, axis in (("positions", positions, -1), ("heads", heads, 0)):
        if wanted is None:
            continue
        rows = np.atleast_1d(wanted).tolist()
        if mask.ndim < (1 if axis else 2) or not all(row in range(mask.shape[axis]) for row in rows):
            raise NpformerError(f"edit of {stage}: no {name} {rows} in shape {shape}")
        chosen = np.isin(np.arange(mask.shape[axis]), rows)
        mask &= chosen if axis else chosen[:, None]
    return mask
