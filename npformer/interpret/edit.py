"""Changing a forward pass at its stages, and measuring what the change does.

    with edit({"layers.2.attention.weights": fn}): model(...)      edit(ablate_head(2, 5))
    ablate_heads(model, texts)                                     patch(model, clean, corrupted)

An edit sees what a trace shows: one text's array of the stage, with no batch axis. `trace.py` records the result.
Gradients taken inside are the edited forward's, where the derivative of the change is known (`Differentiable`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np

from npformer.errors import NpformerError
from npformer.interpret import stages as table
from npformer.interpret.trace import TextParts, Trace, is_input, texts_of, trace
from npformer.model import Model
from npformer.tap import listen
from npformer.tape import Edit, Pullback, UnknownDerivative


@dataclass(frozen=True)
class Differentiable:
    """A function of one text's array, and its backward: (array, gradient of the result) -> gradient of the array.

    >>> squared = Differentiable(np.square, lambda array, grad: 2 * array * grad)
    >>> squared(np.array([2.0, 3.0]))
    array([4., 9.])
    """

    function: Callable[[np.ndarray], np.ndarray]
    backward: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def __call__(self, array: np.ndarray) -> np.ndarray:
        return self.function(array)


Change = Callable[[np.ndarray], np.ndarray] | np.ndarray | list[np.ndarray]


@contextmanager
def edit(*changes: Mapping[str, Change]) -> Iterator[None]:
    """Replace stages inside, and take gradients (training, attribution, a `Recording`) of the edited forward.

    Parameters
    ----------
    changes: name of a stage, or pattern -> a function of one text's array, an array, or a list of one a text. Several
        changes of one stage are made one after another, in the order given.

    Raises
    ------
    NpformerError: where a change gives another shape; on leaving, for a name that never fired; and where a gradient
        meets a function whose derivative is not known: that takes a `Differentiable`. Past an array it is 0.

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
        self._changes = [pair for mapping in changes for pair in mapping.items()]
        self._of: dict[str, list[Change]] = {}  # stage that has fired -> what is done to it
        self._texts = TextParts()

    def change(self, name: str, array: np.ndarray) -> tuple[np.ndarray, Pullback] | None:
        self._texts.hear(name, array)
        if is_input(name):
            return None
        if name not in self._of:
            self._of[name] = [change for pattern, change in self._changes if fnmatchcase(name, pattern)]
        if not self._of[name]:
            return None
        first, cut, join = self._texts.split(name, array)
        parts, pullbacks = cut(array), []
        for change in self._of[name]:
            pullbacks.append([_pullback(name, change, part) for part in parts])
            parts = [_changed(name, change, first + i, part) for i, part in enumerate(parts)]

        def pullback(grad: np.ndarray) -> np.ndarray:
            grads = cut(grad)
            for each in reversed(pullbacks):
                grads = [back(part) for back, part in zip(each, grads, strict=True)]
            return join(grads)

        return join(parts), pullback

    def check(self) -> None:
        """Raise NpformerError for a name or pattern that met no stage."""
        table.matching([pattern for pattern, _ in self._changes], list(self._of))


def _changed(name: str, change: Change, number: int, array: np.ndarray) -> np.ndarray:
    """What an edit makes of text `number`'s array, in the array's own type."""
    if callable(change):
        result = np.asarray(change(array.copy()))  # an edit may work in place
    elif isinstance(change, np.ndarray):
        result = change
    elif number < len(change):
        result = np.asarray(change[number])
    else:
        raise NpformerError(f"edit of {name}: there are arrays for {len(change)} texts, and this is text {number}")
    if result.shape != array.shape or result.dtype.kind not in "fiub":
        came = f"{result.dtype} of shape {result.shape}"
        raise NpformerError(f"edit of {name}: expected an array of shape {array.shape}, got {came}")
    return result.astype(array.dtype, copy=False)


def _pullback(name: str, change: Change, array: np.ndarray) -> Pullback:
    """From the gradient of what `change` makes of `array` to the gradient of `array`."""
    if not callable(change):  # an array stands in: what was there no longer matters
        return np.zeros_like
    if isinstance(change, Differentiable):
        return lambda grad: change.backward(array, grad.copy())  # it may work in place too

    def unknown(grad: np.ndarray) -> np.ndarray:
        raise UnknownDerivative(
            f"edit of {name}: expected a change whose derivative is known, as a gradient is taken through it, got "
            f"{change!r:.80}; use an array, zero(), scale() and the like, or Differentiable(function, backward)"
        )

    return unknown


# --- what people do to a stage ---------------------------------------------------------------------------------


def ablate_head(layer: int, head: int) -> dict[str, Change]:
    """Leave a head out: what it adds to its layer, its context, is zero."""

    def without(context: np.ndarray) -> np.ndarray:
        if not 0 <= head < len(context):
            raise NpformerError(f"ablate_head: head {head} of layer {layer}; it has heads 0 ... {len(context) - 1}")
        context[head] = 0
        return context

    return {f"layers.{layer}.attention.context": _linear(without)}


def zero(name: str) -> dict[str, Change]:
    """Zeros in place of a stage, or of every stage that a pattern matches."""
    return {name: _linear(np.zeros_like)}


def scale(name: str, factor: float) -> dict[str, Change]:
    """A stage, or every stage that a pattern matches, times a number."""
    return {name: _linear(lambda array: array * factor)}


def _linear(function: Callable[[np.ndarray], np.ndarray]) -> Differentiable:
    """A function that multiplies each element by a number of its own: it does the same to the gradient."""
    return Differentiable(function, lambda array, grad: function(grad))


def mean_ablate(name: str, reference: Trace) -> dict[str, Change]:
    """In place of stages, what they are on average over the tokens of a trace's texts: (T, D) -> its mean row (D,).

    Stages by head (H, T, K) keep a mean a head. Scores and weights (H, T, T) have no such mean: an error.
    """
    changes: dict[str, Change] = {}
    for stage in table.matching(name, list(reference)):
        arrays = reference.texts(stage)
        kind = table.find(stage)
        if kind is not None and kind.shape == "(H, T, T)":
            raise NpformerError(f"mean_ablate: {stage} is a map between tokens, with no mean token; freeze or zero it")
        if arrays[0].ndim > 1:
            mean = np.concatenate(arrays, axis=-2).mean(axis=-2, keepdims=True)
        else:
            mean = np.mean(arrays, axis=0)
        changes[stage] = Differentiable(partial(_broadcast, mean), lambda array, grad: np.zeros_like(grad))
    return changes


def _broadcast(mean: np.ndarray, array: np.ndarray) -> np.ndarray:
    return np.broadcast_to(mean, array.shape)


def from_trace(source: Trace, name: str, positions: int | Sequence[int] | None = None) -> dict[str, Change]:
    """Stages as another trace has them: whole, or at some tokens' positions only (activation patching).

    Text by text; what a trace of one text has goes into every text. A position is a token's row; of weights and scores
    (H, T, T) it is the query's.
    """
    changes: dict[str, Change] = {}
    for stage in table.matching(name, list(source)):
        arrays = source.texts(stage)
        whole = arrays[0] if len(arrays) == 1 else arrays
        changes[stage] = whole if positions is None else _at(stage, arrays, positions)
    return changes


def freeze_attention(source: Trace) -> dict[str, Change]:
    """Every layer's attention weights as another trace has them, whatever the queries and keys say."""
    return from_trace(source, "layers.*.attention.weights")


def _at(stage: str, arrays: list[np.ndarray], positions: int | Sequence[int]) -> Change:
    if len(arrays) != 1:
        raise NpformerError(f"{stage}: positions are those of one text; this trace has {len(arrays)}")
    rows = [positions] if isinstance(positions, int) else list(positions)

    def patched(array: np.ndarray) -> np.ndarray:
        if array.shape != arrays[0].shape or array.ndim < 2 or not all(0 <= row < array.shape[-2] for row in rows):
            raise NpformerError(f"edit of {stage}: no positions {rows} of {arrays[0].shape} to put into {array.shape}")
        array[..., rows, :] = arrays[0][..., rows, :]
        return array

    def backward(array: np.ndarray, grad: np.ndarray) -> np.ndarray:
        grad[..., rows, :] = 0
        return grad

    return Differentiable(patched, backward)


# --- what the change does --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effects:
    """A table of changes in the label's logit: values (rows, columns), and what the rows and columns are."""

    values: np.ndarray
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype, copy=copy)

    def __str__(self) -> str:
        name = max(map(len, self.rows))
        width = max(7, *(min(len(column), 12) + 1 for column in self.columns))
        each = max(1, (80 - name) // width)
        blocks = []
        for start in range(0, len(self.columns), each):
            shown = slice(start, start + each)
            lines = [" " * name + "".join(f"{column[:12]:>{width}}" for column in self.columns[shown])]
            for row, values in zip(self.rows, self.values, strict=True):
                lines.append(f"{row:<{name}}" + "".join(f"{value:>+{width}.3f}" for value in values[shown]))
            blocks.append("\n".join(lines))
        return "\n\n".join(blocks)


def ablate_heads(model: Model, texts: Any) -> Effects:
    """What each head does for the label: the change in its logit without it, the mean over texts; layers x heads.

    The label of a text is the one the whole model gives it.
    """
    inputs, _, _ = texts_of(model, texts)
    whole = _logits(model, inputs)
    labels = whole.argmax(axis=-1)
    config = model.config
    values = np.zeros((config.n_layers, config.n_heads))
    for layer, head in np.ndindex(*values.shape):
        with edit(ablate_head(layer, head)):
            change = _logits(model, inputs) - whole
        values[layer, head] = np.take_along_axis(change, labels[:, None], axis=1).mean()
    layers = (f"layer {layer}" for layer in range(config.n_layers))
    return Effects(values, tuple(layers), tuple(f"head {head}" for head in range(config.n_heads)))


def patch(model: Model, clean: Any, corrupted: Any, stages: str | Iterable[str] = "layers.*.ffn_norm") -> Effects:
    """Activation patching: what one stage at one position does for the clean text's label; stages x positions.

    The change in that label's logit when the corrupted text runs with the stage, at the position, as the clean text
    has it. Zhang and Nanda, 2024, section 2: the texts have as many tokens, and differ in what matters.
    Raises NpformerError for texts of different lengths, and stages without a row for each token.
    """
    source = trace(model, clean, stages)
    inputs, tokens, _ = texts_of(model, corrupted)
    if len(inputs) != 1 or len(source.ids) != len(inputs[0]) or source.ids.ndim != 1:
        raise NpformerError("patch: expected two single texts of as many tokens; change words for words of one token")
    label = int(_logits(model, texts_of(model, clean)[0])[0].argmax())
    before = _logits(model, inputs)[0, label]
    values = np.zeros((len(source), len(inputs[0])))
    for (row, name), position in ((pair, i) for pair in enumerate(source) for i in range(len(inputs[0]))):
        with edit(from_trace(source, name, position)):
            values[row, position] = _logits(model, inputs)[0, label] - before
    return Effects(values, tuple(source), tuple(tokens[0]))


def _logits(model: Model, inputs: Any) -> np.ndarray:
    """(B, C), of a model with labels for whole texts."""
    if model.config.head not in ("sequence-classification", "next-sentence"):
        raise NpformerError(
            f"a {model.config.head} model gives a text no label; use edit() and measure what you look for"
        )
    return np.stack([answer["logits"] for answer in model.run(inputs)])
