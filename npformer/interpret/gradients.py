"""Gradients of a metric with respect to every stage of a forward pass: `trace(..., grads=metric)`.

The backward pass is the same as in training, but computes no gradients of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npformer.base_model import BaseModel
from npformer.common.errors import NpformerError
from npformer.config import POOLED_HEADS
from npformer.engine.functions import constant_weights
from npformer.engine.tape import Recording
from npformer.engine.taps import listen
from npformer.engine.transformer import unread
from npformer.interpret.metric import metric_of

Gradients = Mapping[str, list[np.ndarray]]  # stage -> its gradients, an array for each run of texts of equal length


def differentiate(
    model: BaseModel, inputs: Sequence[Any], metric: Any, position: int | None
) -> tuple[list[dict[str, np.ndarray]], Gradients]:
    """Runs a model, and returns each text's answers and the gradients of its metric.

    If `metric` is True, the metric is the logit of the model's answer. A text's stages do not affect the metrics of
    other texts, so the gradient of the sum of all metrics contains the gradient of each metric. Inside `npformer.edit`,
    the gradients are those of the edited forward pass, with respect to the edited stages.
    """
    wanted = None if metric is True else metric
    recording = Recording(unread(model.weights, model.parts), keep_gradients=True)
    with listen(recording):
        answers = model.run(inputs)
    found = []
    for text, each in zip(inputs, answers, strict=True):
        slopes = metric_of(model, wanted, position, each, text, "grads").gradient(each)
        found.append({name: _fitting(name, slopes.get(name), array) for name, array in each.items()})
        if odd := sorted(slopes.keys() - each.keys()):
            raise NpformerError(f"grads: expected gradients of the answers {', '.join(each)}, got one of {odd[0]!r}")
    grads = {name: _joined(model.config.head, name, [each[name] for each in found]) for name in answers[0]}
    with constant_weights(), model.cores(1):
        model.backward(grads, recording.stages, inputs)
    return answers, recording.gradients


def _fitting(name: str, grad: np.ndarray | None, answer: np.ndarray) -> np.ndarray:
    """Returns a gradient in the dtype of its answer, or zeros if the gradient is None."""
    if grad is None:
        return np.zeros_like(answer)
    if grad.shape != answer.shape:
        raise NpformerError(f"grads: gradient of {name}: expected shape {answer.shape}, got {grad.shape}")
    return grad.astype(answer.dtype)


def _joined(head: str, name: str, arrays: list[np.ndarray]) -> np.ndarray:
    """Packs the answers of several texts as the forward pass does: one row per text or per token."""
    of_text = name == "pooler_output" or (name == "logits" and head in POOLED_HEADS)
    return np.stack(arrays) if of_text else np.concatenate(arrays)
