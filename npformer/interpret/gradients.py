"""Which tokens a label rests on, by gradients: gradient times input, and integrated gradients.

Both differentiate the number that leaving a word out compares (`attribution.Target`) by the embeddings' output, the
input of the first layer (after its norm, where there is one). That is the place Captum's tutorial on BERT takes, with
LayerIntegratedGradients on `model.bert.embeddings`. They run the model's one forward and backward, on an edit that
puts rows of its own in place of that stage and keeps the gradient that comes back to it. Inside `npformer.edit` they
are the edited forward's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from npformer.checks import whole
from npformer.errors import NpformerError
from npformer.interpret.attribution import Method, Target, on_tokens, target
from npformer.model import Model
from npformer.runtime.batch import Batch, Text, pack
from npformer.runtime.threads import run_tasks, single_blas_thread
from npformer.tap import listen, listening
from npformer.tape import Edit, Pullback, Recording, Stages
from npformer.transformer import backward, embedded, forward

TOKENS = 1024  # of a forward and its backward: more would only take more memory
FRAME = ("[CLS]", "[SEP]", "<s>", "</s>")  # tokens that stand around every text, and around none
STAND_INS = ("[MASK]", "<mask>", "[PAD]", "<pad>")


class Inputs(Edit):
    """Puts `rows`, if any, in place of the stage that is differentiated by; `grad` is the gradient that comes back."""

    def __init__(self, stage: str, rows: np.ndarray | None = None) -> None:
        self.stage, self.rows = stage, rows
        self.grad = np.zeros(0)

    def change(self, name: str, array: np.ndarray) -> tuple[np.ndarray, Pullback] | None:
        if name != self.stage:
            return None
        return array if self.rows is None else self.rows, self._pullback

    def _pullback(self, grad: np.ndarray) -> np.ndarray:
        self.grad = grad.copy()
        return np.zeros_like(grad) if self.rows is not None else grad


@dataclass(frozen=True, eq=False)
class Slope:
    """At some texts: the embeddings (T, D), the target (B,), and its gradient by the embeddings (T, D)."""

    rows: np.ndarray
    values: np.ndarray
    gradient: np.ndarray


def by_gradients(model: Model, text: Text, tokens: Sequence[str], label: str | int | None, steps: int) -> list[Method]:
    """Gradient times input, and integrated gradients, of a text (L,) with these `tokens`.

    label: as in `attribution.target`. steps: at how many places the integral's gradient is taken.
    """
    whole("attribution: steps", steps, 1)
    with single_blas_thread():
        logits = forward(model.weights, model.config, pack([text]), listening())["logits"]
        explained = target(model.config, label, logits[0])
        here = slope(model, [text], explained)
        return [gradient_times_input(here, explained, tokens), integrated(model, text, here, explained, tokens, steps)]


def slope(model: Model, texts: Sequence[Text], explained: Target, rows: np.ndarray | None = None) -> Slope:
    """What the model makes of `texts`, or of `rows` (T, D) in place of their embeddings, and the gradient there."""
    inputs, batch = Inputs(_stage(model), rows), pack(texts)
    logits, stages = _recorded(model, batch, inputs)
    backward({"logits": explained.gradient(logits)}, stages, model.weights, model.config, batch)
    return Slope(stages[inputs.stage], explained.of(logits), inputs.grad)


def _recorded(model: Model, batch: Batch, inputs: Inputs) -> tuple[np.ndarray, Stages]:
    """The logits of a forward, and its stages; inside `npformer.edit` every one whole, as an edit expects them."""
    recording, whole = Recording(), listening()
    with listen(inputs), listen(recording):
        logits = forward(model.weights, model.config, batch, whole)["logits"]
    return logits, recording.stages


def _stage(model: Model) -> str:
    """The embeddings' output."""
    return embedded(model.weights["embeddings"])


def gradient_times_input(here: Slope, explained: Target, tokens: Sequence[str]) -> Method:
    """score_i = x_i . dF/dx_i, x_i the embedding of token i: to first order, what F loses when x_i becomes 0.

    Simonyan, Vedaldi and Zisserman 2014, "Deep Inside Convolutional Networks", has the gradient; Shrikumar,
    Greenside and Kundaje 2017, "Learning Important Features Through Propagating Activation Differences", its product
    with the input. The scores do not add up to F: far from x the model bends.
    """
    scores = np.einsum("td,td->t", here.rows, here.gradient, dtype=np.float64)
    about = f"The gradient of {explained.what} ({here.values[0]:z.4f}) by each token's embedding, times the embedding:"
    about += f" to first order, what the embedding adds. The scores sum to {scores.sum():z.4f}."
    return on_tokens("Gradient \N{MULTIPLICATION SIGN} input", about, tokens, scores, signed=True)


def integrated(model: Model, text: Text, here: Slope, explained: Target, tokens: Sequence[str], steps: int) -> Method:
    """score_i = (x_i - x'_i) . integral over a in 0..1 of dF/dx_i at x' + a (x - x'), from a baseline x' to x.

    Sundararajan, Taly and Yan 2017, "Axiomatic Attribution for Deep Networks", section 3. The scores add up to
    F(x) - F(x') (completeness), less what the sum over `steps` places misses of the integral; `about` says how much.
    The places are the middles of equal parts: finer rules gain nothing where a ReLU makes the gradient jump.
    """
    baseline, named = _baseline(model, text, here, tokens)
    way = here.rows - baseline
    places = [baseline + (step + 0.5) / steps * way for step in range(steps)]
    size = max(1, TOKENS // len(text))
    cuts = [places[first : first + size] for first in range(0, steps, size)]
    tasks = [partial(slope, model, [text] * len(cut), explained, np.concatenate(cut)) for cut in cuts]
    slopes = run_tasks(tasks, 1 if listening() else model.threads)
    mean = np.concatenate([each.gradient for each in slopes]).reshape(steps, *way.shape).mean(0)
    scores = np.einsum("td,td->t", way, mean, dtype=np.float64)
    start, end, total = slope(model, [text], explained, baseline).values[0], here.values[0], scores.sum()
    about = f"The gradient of {explained.what} by each token's embedding, averaged over {steps} places on the way from"
    about += f" {named}, times the way. The scores sum to {total:z.4f}; {explained.what} went from {start:z.4f} to"
    about += f" {end:z.4f}, by {end - start:z.4f}: the sum is off by {abs(total - (end - start)):.1g}."
    return on_tokens("Integrated gradients", about, tokens, scores, signed=True)


def _baseline(model: Model, text: Text, here: Slope, tokens: Sequence[str]) -> tuple[np.ndarray, str]:
    """The embeddings of a text that says nothing, (L, D), and what it is called.

    [MASK] at every place, in the same positions and segments, [CLS] and [SEP] kept: the model was trained to read
    [MASK] as a word that it does not know, whereas [PAD], which Captum's tutorial has, was hidden from it. Without
    [MASK] it is [PAD]; without either, zeros, which the paper names for texts.
    """
    try:
        numbers = {name: model.tokenizer.token_to_id(name) for name in STAND_INS}
    except NpformerError:  # token ids need no tokenizer
        numbers = {}
    name = next((name for name, number in numbers.items() if number is not None), None)
    if name is None:
        return np.zeros_like(here.rows), "zeros"
    kept = np.isin(tokens, FRAME)
    ids = np.where(kept, text.ids, numbers[name])
    _, stages = _recorded(model, pack([Text(ids, text.segments, text.positions)]), Inputs(_stage(model)))
    return stages[_stage(model)], f"a text of {name}"
