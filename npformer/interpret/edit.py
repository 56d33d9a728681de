"""Changes stages of a forward pass, and measures the effect on the label.

    with edit({"layers.2.attention.weights": fn}): model(...)      edit(ablate_head(2, 5))
    ablate_heads(model, texts)                                     patch(model, clean, corrupted)

An edit gets the array that a trace shows: a stage of one text, without a batch axis. `trace.py` records the result.
A gradient taken inside `edit` is the gradient of the edited forward. It needs the derivative of every change on its
way; `Differentiable` states one.
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
    """A change whose derivative is known: `function(array)`, and `backward(array, grad)`, the gradient of the array.

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
    """Changes stages of every forward that runs inside the `with` block.

    A gradient that is taken inside (training, attribution, a `Recording`) is the gradient of the edited forward.

    Parameters
    ----------
    *changes : mappings from a stage's name, or a pattern with `*`, to a change
        A change is a function of one text's array, an array, or a list with one array for each text. Several changes
        of one stage are made one after another, in the order given.

    Raises
    ------
    NpformerError
        If a change gives another shape, or a name has not fired by the end of the block. Also if a gradient passes
        through a function whose derivative is unknown: give a `Differentiable`. The gradient of a stage that an array
        replaces is 0.

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
        """Raises NpformerError for a name or pattern that matched no stage."""
        table.matching([pattern for pattern, _ in self._changes], list(self._of))


def _changed(name: str, change: Change, number: int, array: np.ndarray) -> np.ndarray:
    """Applies a change to the array of text `number`, and keeps the array's dtype."""
    if callable(change):
        result = np.asarray(change(array.copy()))  # a user's function may work in place
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
    """Returns the function that maps the gradient of `change(array)` to the gradient of `array`."""
    if not callable(change):  # the stage's own values have no effect once an array replaces them
        return np.zeros_like
    if isinstance(change, Differentiable):
        return lambda grad: change.backward(array, grad.copy())  # a user's function may work in place

    def unknown(grad: np.ndarray) -> np.ndarray:
        raise UnknownDerivative(
            f"edit of {name}: expected a change whose derivative is known, as a gradient is taken through it, got "
            f"{change!r:.80}; use an array, zero(), scale() and the like, or Differentiable(function, backward)"
        )

    return unknown


# --- changes of a stage ----------------------------------------------------------------------------------------


def ablate_head(layer: int, head: int) -> dict[str, Change]:
    """Leaves one head out: sets its context, its contribution to the layer, to zero."""

    def without(context: np.ndarray) -> np.ndarray:
        if not 0 <= head < len(context):
            raise NpformerError(f"ablate_head: head {head} of layer {layer}; it has heads 0 ... {len(context) - 1}")
        context[head] = 0
        return context

    return {f"layers.{layer}.attention.context": _linear(without)}


def zero(name: str) -> dict[str, Change]:
    """Replaces every stage that matches `name` by zeros."""
    return {name: _linear(np.zeros_like)}


def scale(name: str, factor: float) -> dict[str, Change]:
    """Multiplies every stage that matches `name` by `factor`."""
    return {name: _linear(lambda array: array * factor)}


def _linear(function: Callable[[np.ndarray], np.ndarray]) -> Differentiable:
    """Wraps a function y = c * x, with constant c for each element: its gradient is dx = c * dy, the same function."""
    return Differentiable(function, lambda array, grad: function(grad))


def mean_ablate(name: str, reference: Trace) -> dict[str, Change]:
    """Replaces every row of the stages that match `name` by their mean row over all tokens of the trace `reference`.

    A stage (T, D) has one mean row (D,), a stage (H, T, K) one for each head. Raises NpformerError for scores and
    weights (H, T, T), whose rows have a different length in each text.
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
    """Replaces the stages that match `name` by those of the trace `source`: activation patching.

    `positions` limits the change to the rows of these tokens; in scores and weights (H, T, T) a row is a query. Text i
    of the trace goes into text i of the forward; a trace of one text goes into every text.
    """
    changes: dict[str, Change] = {}
    for stage in table.matching(name, list(source)):
        arrays = source.texts(stage)
        whole = arrays[0] if len(arrays) == 1 else arrays
        changes[stage] = whole if positions is None else _at(stage, arrays, positions)
    return changes


def freeze_attention(source: Trace) -> dict[str, Change]:
    """Replaces the attention weights of every layer by those of the trace `source`."""
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


# --- effects on the label --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effects:
    """A table of changes in the label's logit: `values` (rows, columns), and the names of the rows and columns."""

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
    """Measures the effect of each attention head on the label, by leaving out one head at a time.

    Parameters
    ----------
    model : Model that gives a text a label
    texts : str, Pair, token ids, or a list of these

    Returns
    -------
    Effects
        `values` (layers, heads): the change in the label's logit, averaged over the texts. The label of a text is the
        answer of the unchanged model.

    Raises
    ------
    NpformerError
        If the model gives texts no labels.

    References
    ----------
    Michel, Levy and Neubig, 2019, "Are Sixteen Heads Really Better than One?", section 3.2, has the ablation.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> ablate_heads(model, "I love ice cream").values.shape
    (6, 12)
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
    """Measures what one stage at one token contributes to the label, by activation patching.

    The corrupted text runs with the stage, at that token, taken from the run on the clean text.

    Parameters
    ----------
    model : Model that gives a text a label
    clean, corrupted : str, Pair or token ids
        Two texts of equally many tokens that differ in the words under study.
    stages : name of a stage, pattern, or several; each has one row for each token

    Returns
    -------
    Effects
        `values` (stages, tokens): the change in the logit of the clean text's label.

    Raises
    ------
    NpformerError
        If the texts have different numbers of tokens, a stage has no row for each token, or the model gives texts no
        labels.

    References
    ----------
    Zhang and Nanda, 2024, "Towards Best Practices of Activation Patching in Language Models", section 2.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> print(patch(model, "I love ice cream", "I hate ice cream", "layers.[34].ffn_norm"))
                       [CLS]      i   hate    ice  cream  [SEP]
    layers.3.ffn_norm +0.001 +1.289 +3.901 +0.644 +1.075 +1.793
    layers.4.ffn_norm +0.382 +0.728 +1.802 +0.917 +0.617 +0.611
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
    """Runs a model with labels for whole texts: the logits (B, C)."""
    if model.config.head not in ("sequence-classification", "next-sentence"):
        raise NpformerError(
            f"a {model.config.head} model gives a text no label; use edit() and measure what you look for"
        )
    return np.stack([answer["logits"] for answer in model.run(inputs)])
