"""Attribution of a label to tokens by gradients: gradient times input, and integrated gradients.

Both differentiate the log-odds of the label (`attribution.Target`) with respect to the output of the embeddings, which
is the input of the first layer. Captum's tutorial on BERT does the same with LayerIntegratedGradients on
`model.bert.embeddings`. The forward and backward passes run with an edit of that stage, `Inputs`. Inside
`npformer.edit`, gradients are those of the edited forward pass. An encoder-decoder with a head for labels reads each
token in the encoder and, one position later, in the decoder. Its arrays of embeddings are (2, T, D), and a token's
score is the sum over both stacks. Only the decoder reads the start token.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from npformer.base_model import packed
from npformer.common.checks import whole
from npformer.common.errors import NpformerError
from npformer.common.progress import with_bar
from npformer.engine.functions import constant_weights
from npformer.engine.runtime.packing import Batch, Text, pack
from npformer.engine.runtime.threads import run_tasks, single_blas_thread
from npformer.engine.tape import Edit, Pullback, Recording, Stages
from npformer.engine.taps import listen, listening
from npformer.engine.transformer import backward, forward, transformer, transformer_backward, unread
from npformer.interpret.attribution import Method, Target, on_tokens, target
from npformer.interpret.cost import affordable
from npformer.interpret.study_inputs import tokens_read
from npformer.model import Model

METHODS = ("gradient", "integrated")
STEPS = 50  # default number of points of the integral
MOST = 4_096  # default limit on the total number of tokens over all points: about 20 s on two cores for BERT-base
LEAST = 8
TOKENS = 1024  # tokens per forward and backward pass; larger batches take more memory and are not faster
FRAME = ("[CLS]", "[SEP]", "<s>", "</s>")  # special tokens around a text, which a baseline keeps
STAND_INS = ("[MASK]", "<mask>", "[PAD]", "<pad>", "<|endoftext|>")


class Inputs(Edit):
    """An edit that replaces stages with `rows`, if given, and stores their gradients."""

    def __init__(self, stages: Sequence[str], rows: np.ndarray | None = None) -> None:
        self.stages = stages
        self._rows = (
            None if rows is None else dict(zip(stages, rows.reshape(len(stages), *rows.shape[-2:]), strict=True))
        )
        self._grads: dict[str, np.ndarray] = {}

    def change(self, name: str, array: np.ndarray) -> tuple[np.ndarray, Pullback] | None:
        if name not in self.stages:
            return None
        return array if self._rows is None else self._rows[name], partial(self._pullback, name)

    def _pullback(self, name: str, grad: np.ndarray) -> np.ndarray:
        self._grads[name] = grad.copy()
        return np.zeros_like(grad) if self._rows is not None else grad

    @property
    def grad(self) -> np.ndarray:
        return _together([self._grads[name] for name in self.stages])


def _together(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Stacks the arrays of two stages, (2, T, D). The array of a single stage keeps its shape (T, D)."""
    return arrays[0] if len(arrays) == 1 else np.stack(arrays)


@dataclass(frozen=True, eq=False)
class Slope:
    """A batch's embeddings, (T, D) or (2, T, D), its targets (B,), and their gradients, shaped like the embeddings."""

    rows: np.ndarray
    values: np.ndarray
    gradient: np.ndarray


def by_gradients(
    model: Model,
    text: Text,
    tokens: Sequence[str],
    label: str | int | None,
    steps: int | None = None,
    methods: Sequence[str] = METHODS,
    progress: bool | None = None,
) -> list[Method]:
    """Computes gradient times input, integrated gradients, or both, for a text with these `tokens`.

    `label` is as in `attribution.target`, and `steps` as in `explained_by_gradients`.
    """
    with single_blas_thread():
        logits = forward(model.weights, model.parts, packed(model.config, [text]), listening())["logits"]
    explained, columns = target(model, label, logits[-1]), tokens_read(model, list(tokens))
    return explained_by_gradients(model, text, explained, tokens, columns, steps, methods, progress)


def explained_by_gradients(
    model: Any,
    text: Any,
    explained: Target,
    tokens: Sequence[str],
    columns: Sequence[str],
    steps: int | None = None,
    methods: Sequence[str] = METHODS,
    progress: bool | None = None,
) -> list[Method]:
    """Like `by_gradients`, but with a given target. For a translation, `text` is a pair, and only its source is scored.

    The integral is a sum over `steps` points, by default STEPS, or fewer for a long text. `columns` are the tokens that
    the model reads, with a decoder's start token.
    """
    fewer = max(LEAST, min(STEPS, affordable(model, MOST) // _length(text)))
    points = fewer if steps is None else whole("attribution: steps", steps, 1)
    with single_blas_thread():
        here, found = slope(model, [text], explained), []
        if "gradient" in methods:
            found.append(gradient_times_input(here, explained, columns))
        if "integrated" in methods:
            found.append(integrated(model, text, here, explained, tokens, columns, points, progress))
            if steps is None and points < STEPS:
                about = f"{found[-1].about} The text is long: steps={STEPS} is more exact."
                found[-1] = replace(found[-1], about=about)
        return found


def _length(text: Any) -> int:
    return sum(map(len, text)) if isinstance(text, tuple) else len(text)


def slope(model: Any, texts: Sequence[Any], explained: Target, rows: np.ndarray | None = None) -> Slope:
    """Computes the targets of `texts` and their gradients at the texts' embeddings or, if given, at `rows`."""
    inputs, batches = Inputs(_stages(model), rows), _batches(model, texts)
    logits, stages = _recorded(model, batches, inputs)
    asked = explained.rows(batches[-1].lengths)
    grad = np.zeros_like(logits)
    grad[asked] = explained.gradient(logits[asked])
    back: Any = transformer_backward if len(batches) > 1 else backward
    with constant_weights():
        back({"logits": grad}, stages, model.weights, model.parts, *batches)
    return Slope(_embeddings(stages, inputs), explained.of(logits[asked]), inputs.grad)


def _value(model: Any, text: Any, explained: Target, rows: np.ndarray) -> float:
    """Computes the target of a text with these embeddings, without a backward pass."""
    batches = _batches(model, [text])
    logits, _ = _recorded(model, batches, Inputs(_stages(model), rows))
    return float(explained.of(logits[explained.rows(batches[-1].lengths)])[0])


def _batches(model: Any, texts: Sequence[Any]) -> list[Batch]:
    """Returns a batch of the texts. For a translation model, returns a batch of sources and one of targets."""
    if model.config.head == "translation":
        return [pack(side) for side in zip(*texts, strict=True)]
    return [packed(model.config, texts)]


def _recorded(model: Any, batches: Sequence[Batch], inputs: Inputs) -> tuple[np.ndarray, Stages]:
    """Runs a forward pass, and returns its logits and stages. Keeps all rows if there are listeners, such as edits."""
    recording, whole = Recording(unread(model.weights, model.parts)), listening()
    with listen(inputs), listen(recording):
        if len(batches) > 1:
            return transformer(model.weights, model.parts, *batches)["logits"], recording.stages
        logits = forward(model.weights, model.parts, batches[0], all_rows=whole)["logits"]
    return logits, recording.stages


def _stages(model: Any) -> list[str]:
    """Returns the stages that the embeddings output: the encoder's, and the decoder's if it reads the same text."""
    output = model.parts.embeddings.output
    if not model.config.decoder:
        return [output]
    stacks = ("encoder",) if model.config.head == "translation" else ("encoder", "decoder")
    return [f"{stack}.{output}" for stack in stacks]


def _embeddings(stages: Stages, inputs: Inputs) -> np.ndarray:
    return _together([stages[name] for name in inputs.stages])


def _by_token(rows: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Returns rows . gradient for each token, summed over the stacks. A decoder reads a token one position later."""
    scores = np.einsum("...d,...d->...", rows, gradient, dtype=np.float64)
    if scores.ndim == 1:
        return scores
    of_encoder, of_decoder = scores
    total = np.zeros(len(of_encoder) + 1)
    total[1:] += of_encoder
    total[:-1] += of_decoder
    return total


def gradient_times_input(here: Slope, explained: Target, tokens: Sequence[str]) -> Method:
    """score_i = x_i . dF/dx_i for the embedding x_i of token i: to first order, the decrease in F when x_i becomes 0.

    The scores do not add up to F, which is not linear. Simonyan, Vedaldi and Zisserman, 2014, "Deep Inside
    Convolutional Networks", propose the gradient; Shrikumar, Greenside and Kundaje, 2017, "Learning Important Features
    Through Propagating Activation Differences", its product with the input.
    """
    scores = _by_token(here.rows, here.gradient)
    about = f"The gradient of {explained.what} ({here.values[0]:z.4f}) with respect to each token's embedding, times"
    about += f" the embedding: its contribution to first order. The scores sum to {scores.sum():z.4f}."
    name = "Gradient \N{MULTIPLICATION SIGN} input"
    return on_tokens(name, about, tokens, scores, signed=True, unit=f"{name.lower()} of {explained.what}")


def integrated(
    model: Any,
    text: Any,
    here: Slope,
    explained: Target,
    tokens: Sequence[str],
    columns: Sequence[str],
    steps: int,
    progress: bool | None = None,
) -> Method:
    """score_i = (x_i - x'_i) . integral over a in 0..1 of dF/dx_i at x' + a (x - x'), from a baseline x' to x.

    The scores sum to F(x) - F(x') (completeness), up to the error of the sum over `steps` points, which `about` states.
    The points are the midpoints of equal intervals, because higher-order rules are no more accurate where the gradient
    of a ReLU jumps. `columns` are the tokens that the model reads. Sundararajan, Taly and Yan, 2017, "Axiomatic
    Attribution for Deep Networks", section 3.
    """
    baseline, named = _baseline(model, text, here, tokens)
    way = here.rows - baseline
    places = [baseline + (step + 0.5) / steps * way for step in range(steps)]
    size = max(1, TOKENS // _length(text))
    cuts = [places[first : first + size] for first in range(0, steps, size)]
    threads = 1 if listening() else model.threads
    tasks = [partial(slope, model, [text] * len(cut), explained, np.concatenate(cut, axis=-2)) for cut in cuts]
    groups = (tasks[first : first + 2 * threads] for first in range(0, len(tasks), 2 * threads))
    gradients = (each for group in groups for done in run_tasks(group, threads) for each in _of_each(done, way))
    mean = sum(with_bar(gradients, steps, "steps", shown=progress)) / steps
    scores = _by_token(way, mean)
    start, end, total = _value(model, text, explained, baseline), here.values[0], scores.sum()
    about = f"The gradient of {explained.what} with respect to each token's embedding, averaged over {steps} points on"
    about += f" the path from {named}, times the step. The scores sum to {total:z.4f}; {explained.what} changed from"
    about += f" {start:z.4f} to {end:z.4f}, by {end - start:z.4f}; the sum is off by {abs(total - (end - start)):.1g}."
    unit = f"integrated gradients of {explained.what}"
    return on_tokens("Integrated gradients", about, columns, scores, signed=True, unit=unit)


def _of_each(found: Slope, way: np.ndarray) -> np.ndarray:
    """Splits the gradients of a batch of copies of a text into one array per copy.

    The arrays have the shape of `way`, a difference of two embeddings of the text. They are in float64, because the
    caller sums them.
    """
    apart = found.gradient.reshape(*way.shape[:-2], -1, *way.shape[-2:])  # (copies, L, D), or (2, copies, L, D)
    return np.moveaxis(apart, -3, 0).astype(np.float64)


def _baseline(model: Any, text: Any, here: Slope, tokens: Sequence[str]) -> tuple[np.ndarray, str]:
    """Returns the embeddings of an uninformative text, (L, D), and a name for it.

    The text has [MASK] for all tokens except [CLS] and [SEP], with the same positions and token types. The model was
    trained to read [MASK] as an unknown word, whereas [PAD], used in Captum's tutorial, was masked in training. If the
    tokenizer has no [MASK], the text has [PAD] (<|endoftext|> for GPT-2). If the tokenizer has neither, the embeddings
    are zeros, which the paper suggests for text models.
    """
    translates = isinstance(text, tuple)
    read, numbers = text[0] if translates else text, dict[str, Any]()
    if translates:
        numbers = {"<pad>": model.config.pad_id}
    else:
        with suppress(NpformerError):  # raised for a model without a tokenizer, which takes token ids
            numbers = {name: model.tokenizer.token_to_id(name) for name in STAND_INS}
    name = next((name for name, number in numbers.items() if number is not None), None)
    if name is None:
        return np.zeros_like(here.rows), "zeros"
    # End tokens are kept too, because a decoder's classification head reads the row of an end token.
    kept = np.isin(tokens, FRAME) | np.isin(read.ids, model.config.decoder.end_ids)
    blank = Text(np.where(kept, read.ids, numbers[name]), read.token_type_ids, read.positions)
    inputs = Inputs(_stages(model))
    _, stages = _recorded(model, _batches(model, [(blank, text[1]) if translates else blank]), inputs)
    return _embeddings(stages, inputs), f"a text of {name}"
