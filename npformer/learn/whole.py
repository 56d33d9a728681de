"""Runs the learner's whole model: it classifies a text, learns from a few texts, and generates a text.

Each run gets the learner's module. It starts only if all functions that it needs are right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.common.extras import REPOSITORY
from npformer.functions import softmax
from npformer.interpret.study_inputs import read_inputs
from npformer.learn.chapters.whole_gradient import tiny_weights
from npformer.loading import installed_from, load
from npformer.model import Model

TEXT = "I love ice cream"
CLASSIFIER, WRITER = "distilbert-sst2", "gpt2-austen"
PROMPT = "It is a truth universally acknowledged"
WORDS = 24
STEPS, RATE = 30, 0.5
NEAR = 1e-3  # tolerance for probabilities; float32 rounding in six layers changes them by less than 1e-5


@dataclass(frozen=True)
class WholeRun:
    """The result of a run of the whole model.

    Parameters
    ----------
    name : "classify", "learn" or "write"
    ok : bool, whether the result is right; None if the model could not be run
    text : str, one sentence
    """

    name: str
    ok: bool | None
    text: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def classify(module: Any) -> WholeRun:
    """Compares the learner's answer to TEXT with npformer's, both with the bundled classifier's weights."""
    model = load(CLASSIFIER)
    [text] = read_inputs(model, TEXT).texts
    shares = softmax(np.asarray(module.classify(text.ids, model.config.n_heads, model.weights), np.float64))
    right = softmax(model.run([text])[0]["logits"].astype(np.float64))
    best = int(shares.argmax())
    answer = f"{model.config.labels[best]}, {shares[best]:.2%}"
    if shares.shape == right.shape and np.allclose(shares, right, atol=NEAR):
        return WholeRun("classify", True, f'Your file answers "{TEXT}" with {CLASSIFIER}: {answer}.')
    expected = f"{model.config.labels[right.argmax()]}, {right.max():.2%}"
    return WholeRun("classify", False, f'Your file answers "{TEXT}" with {CLASSIFIER}: {answer}; expected {expected}.')


def learn(module: Any) -> WholeRun:
    """Runs gradient descent with the learner's gradients, to classify texts by whether they contain word 3."""
    texts = [np.array(ids) for ids in ([1, 3, 2], [0, 2, 4], [3, 0], [4, 1, 1], [2, 2, 3, 0], [1, 4, 0, 2])]
    weights, losses = tiny_weights(7, labels=2), []
    for _ in range(STEPS):
        total = 0.0
        for ids in texts:
            loss, grads = module.loss_and_gradients(ids, int(3 in ids), 2, weights)
            total += float(loss)
            weights = _descended(weights, grads, RATE / len(texts))
        losses.append(total / len(texts))
    fell = losses[-1] < losses[0] / 4
    about = f"the loss of six texts falls from {losses[0]:.3f} to {losses[-1]:.3f} in {STEPS} rounds"
    return WholeRun("learn", fell, f"Your file learns: {about}." if fell else f"Your file does not learn: {about}.")


def _descended(weights: Any, grads: Any, rate: float) -> Any:
    """Returns weights - rate * grads."""
    if isinstance(weights, dict):
        return {name: _descended(each, grads[name], rate) for name, each in weights.items()}
    return (weights - rate * np.asarray(grads)).astype(weights.dtype)


def write(module: Any) -> WholeRun:
    """Generates a text with the learner's model and the weights of the GPT in a checkout."""
    try:
        model = _writer()
    except NpformerError:
        missing = f"`git clone {REPOSITORY}`, and run the check in that folder, with your folder as --folder"
        return WholeRun("write", None, f"Your file could write now, but {WRITER} is only in the checkout: {missing}.")
    [text] = read_inputs(model, PROMPT).texts
    ids, caches, draws, written = text.ids, None, np.random.default_rng(4), list[int]()
    for _ in range(WORDS):
        logits, caches = module.decoder_step(ids, model.config.n_heads, model.weights, caches)
        written.append(int(module.sample(logits, 0.8, 0.9, float(draws.random()))))
        ids = np.array(written[-1:])
    said = " ".join((PROMPT + model.tokenizer.decode(written)).split())
    return WholeRun("write", True, f"Your file writes with {WRITER}: {said} ...")


def _writer() -> Model:
    """Loads the GPT of the checkout that npformer was installed from, or that contains the working directory."""
    folder = installed_from() / "weights" / WRITER
    return load(folder if folder.is_dir() else WRITER)


#: Number of a chapter -> the run that becomes possible after it.
RUNS: dict[int, Callable[[Any], WholeRun]] = {4: classify, 5: learn, 6: write}
#: Number of a chapter -> the chapters with the functions of its run.
NEEDS = {4: (1, 2, 3, 4), 5: (1, 2, 5), 6: (1, 2, 3, 6)}
