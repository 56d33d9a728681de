"""Runs the learner's whole model, which classifies a text, learns from a few texts, and generates a text.

Each run takes the learner's module, and starts only if all functions that it needs are right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.common.extras import REPOSITORY
from npformer.engine.functions import softmax
from npformer.interpret.study_inputs import read_inputs
from npformer.learn.chapters.answer import tiny_classifier
from npformer.learn.contents import Function
from npformer.loading import installed_from, load
from npformer.model import Model

TEXT = "I love ice cream"
CLASSIFIER, WRITER = "distilbert-sst2", "gpt2-austen"
PROMPT = "It is a truth universally acknowledged"
WORDS, NO_END = 24, -1  # number of tokens to write, and an id that no token has, so that no token ends the text
STEPS, RATE, DECAY = 30, 0.05, 0.01
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
    """Compares the learner's answer to TEXT with npformer's answer, both with the weights of the bundled classifier."""
    model = load(CLASSIFIER)
    [text] = read_inputs(model, TEXT).texts
    shares = softmax(np.asarray(classified(module, model, text.ids), np.float64))
    right = softmax(model.run([text])[0]["logits"].astype(np.float64))
    best = int(shares.argmax())
    answer = f"{model.config.labels[best]}, {shares[best]:.2%}"
    if shares.shape == right.shape and np.allclose(shares, right, atol=NEAR):
        return WholeRun("classify", True, f'Your file answers "{TEXT}" with {CLASSIFIER}: {answer}.')
    expected = f"{model.config.labels[right.argmax()]}, {right.max():.2%}"
    return WholeRun("classify", False, f'Your file answers "{TEXT}" with {CLASSIFIER}: {answer}; expected {expected}.')


def classified(module: Any, model: Model, ids: np.ndarray) -> np.ndarray:
    """Returns the logits of the learner's classifier for the ids of a text, with the weights of a model."""
    config, weights = model.config, model.weights
    sizes = (np.arange(len(ids)), True, config.n_heads, module.gelu, config.eps)
    x = module.distilbert(ids, *sizes, weights["embeddings"], weights["layers"])
    logits: np.ndarray = module.classify(x, weights["pooler"], weights["head"])["logits"]
    return logits


def learn(module: Any) -> WholeRun:
    """Trains a small model with the learner's gradients, to classify texts by whether they contain word 3."""
    ids = np.array([[1, 3, 2, 0], [0, 2, 4, 1], [3, 0, 5, 5], [4, 1, 1, 2], [2, 2, 3, 0], [1, 4, 0, 2]])
    module.gelu = _named("gelu", module.gelu)
    weights = tiny_classifier(7, labels=2, n_layers=1)
    _, losses = module.train(weights, ids, (ids == 3).any(axis=-1).astype(int), 2, STEPS, RATE, DECAY)
    fell = losses[-1] < losses[0] / 4
    about = f"the loss of six texts falls from {losses[0]:.3f} to {losses[-1]:.3f} in {STEPS} steps"
    return WholeRun("learn", bool(fell), f"Your file {'learns' if fell else 'does not learn'}: {about}.")


def _named(name: str, function: Function) -> Function:
    """Gives a function, possibly a lambda, the name that the lookup of its backward function uses."""

    def named(x: np.ndarray) -> np.ndarray:
        answer: np.ndarray = function(x)
        return answer

    named.__name__ = name
    return named


def write(module: Any) -> WholeRun:
    """Generates a text with the learner's model and the weights of the GPT in a checkout."""
    try:
        model = _writer()
    except NpformerError:
        missing = f"`git clone {REPOSITORY}`, and run the check in that folder, with your folder as --folder"
        return WholeRun("write", None, f"Your file could write now, but {WRITER} is only in the checkout: {missing}.")
    [text] = read_inputs(model, PROMPT).texts
    config = model.config

    def step(ids: np.ndarray, past: Any) -> Any:
        return module.gpt2_step(ids, past, config.n_heads, module.gelu_tanh, config.eps, **model.weights)

    past = module.no_past(config.n_layers, config.n_heads, config.d_head)
    written = module.sample(step, text.ids, past, NO_END, WORDS, 0.8, 0.9, np.random.default_rng(4))
    said = " ".join((PROMPT + model.tokenizer.decode(written)).split())
    return WholeRun("write", True, f"Your file writes with {WRITER}: {said} ...")


def _writer() -> Model:
    """Loads the GPT of the checkout that npformer was installed from, or that contains the working directory."""
    folder = installed_from() / "weights" / WRITER
    return load(folder if folder.is_dir() else WRITER)


#: Number of a chapter -> the run that becomes possible after this chapter.
RUNS: dict[int, Callable[[Any], WholeRun]] = {4: classify, 5: learn, 6: write}
#: Number of a chapter -> the chapters with the functions that the chapter's run needs.
NEEDS = {4: (1, 2, 3, 4), 5: (1, 2, 3, 4, 5), 6: (1, 2, 3, 6)}
