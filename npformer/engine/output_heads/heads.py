"""Heads as parts of a model. `tasks/` turns their answers into results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npformer.engine.activations import gelu
from npformer.engine.blocks.block import Activation
from npformer.engine.descriptions import weight_group
from npformer.engine.descriptions.stage import Stage
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.direction import Direction
from npformer.engine.norms.norm import Norm
from npformer.engine.output_heads.formulas import (
    classify,
    classify_backward,
    classify_stage,
    hidden_pull,
    pool,
    pool_backward,
    pool_stages,
    pooled_stage,
    replaced_tokens,
    replaced_tokens_backward,
    spans,
    spans_backward,
    spans_stages,
    transform,
    transform_backward,
    transform_stages,
)
from npformer.engine.output_heads.output_scale import OutputScale
from npformer.engine.tape import Stages
from npformer.engine.taps import tap

Answers = dict[str, np.ndarray]
Weights = Mapping[str, Any]  # weights of the whole model
Gradients = tuple[np.ndarray | None, np.ndarray | None, dict[str, Any]]  # dx, dread, gradients of the weights


@dataclass(frozen=True)
class Pooler:
    """Applies `pool` to the rows that a head reads, before its last layer.

    Parameters
    ----------
    activation : function such as `tanh`
    """

    activation: Activation

    output: ClassVar[str] = "pooled"

    def groups(self, d_model: int) -> dict[str, Group]:
        return {"pooler": weight_group.linear(d_model, d_model)}

    def __call__(self, read: np.ndarray, weights: Weights) -> np.ndarray:
        return pool(read, self.activation, **weights["pooler"])

    def backward(
        self, grad: np.ndarray, stages: Stages, read: np.ndarray, weights: Weights
    ) -> tuple[np.ndarray, dict[str, Any]]:
        grad, d_pooler = pool_backward(grad, stages, read, self.activation, **weights["pooler"])
        return grad, {"pooler": d_pooler}

    def pull(self, direction: Direction, weights: Weights) -> None:
        """Pulls a direction in the output back to the input."""
        direction.gate("pooler", "pooled")
        direction.linear("pooler", weights["pooler"])

    def stages(self, x: str) -> list[Stage]:
        return pool_stages(x)


@dataclass(frozen=True)
class Transform:
    """Applies `transform` to the rows that a head reads, before its last layer.

    Parameters
    ----------
    activation : function such as `gelu`
    norm : Norm
    of_texts : bool, the head reads one row per text, not every row
    width : int, width of the output, for the shapes of the weights
    bias : bool, the linear layer has a bias
    """

    activation: Activation
    norm: Norm
    of_texts: bool = False
    width: int = 0
    bias: bool = True

    output: ClassVar[str] = "head.norm"

    def groups(self, d_model: int) -> dict[str, Group]:
        hidden = weight_group.linear(d_model, self.width, self.bias)
        return {"head.hidden": hidden, "head.norm": self.norm.group(self.width)}

    def __call__(self, read: np.ndarray, weights: Weights) -> np.ndarray:
        rows, head = tap("pooled", read) if self.of_texts else read, weights["head"]
        return transform(rows, self.activation, head["hidden"], head["norm"], normalize=self.norm)

    def backward(
        self, grad: np.ndarray, stages: Stages, read: np.ndarray, weights: Weights
    ) -> tuple[np.ndarray, dict[str, Any]]:
        rows, head = stages["pooled"] if self.of_texts else read, weights["head"]
        layers = head["hidden"], head["norm"]
        grad, d_head = transform_backward(grad, stages, rows, self.activation, *layers, normalize=self.norm)
        return stages.through_edit("pooled", grad) if self.of_texts else grad, {"head": d_head}

    def pull(self, direction: Direction, weights: Weights) -> None:
        """Pulls a direction in the output back to the input."""
        self.norm.pull(direction, "head.norm", "head.activation", **weights["head"]["norm"])
        hidden_pull(direction, weights["head"]["hidden"])

    def stages(self, x: str) -> list[Stage]:
        found = [pooled_stage(x)] if self.of_texts else []
        return [*found, *transform_stages("pooled" if self.of_texts else x, self.activation, self.norm)]


@dataclass(frozen=True)
class Head(ABC):
    """The base class of heads, which compute answers from the rows of the last layer.

    Parameters
    ----------
    below : Pooler, Transform or OutputScale before the linear layer of the head, optional
    of_texts : bool, the head reads one row per text, not every row
    means : bool, the row of a text is the mean of its rows
    n_outputs : int, columns of the linear layer, for the shapes of the weights
    bias : bool, the linear layer has a bias
    """

    below: Pooler | Transform | OutputScale | None = None
    of_texts: bool = False
    means: bool = False
    n_outputs: int = 0
    bias: bool = True

    def groups(self, d_model: int) -> dict[str, Group]:
        """The groups of weights, by name."""
        below = {} if self.below is None else self.below.groups(d_model)
        width = self.below.width if isinstance(self.below, Transform) else d_model
        return {**below, "head.output": weight_group.linear(width, self.n_outputs, self.bias)}

    def __call__(self, x: np.ndarray, read: np.ndarray, weights: Weights) -> Answers:
        """Returns the answers by name, given the last layer's rows x (T, D) and a row of each text, read (B, D)."""
        return self._answer(self.input(read if self.of_texts else x, weights), **weights["head"])

    def backward(
        self, grads: Mapping[str, np.ndarray], stages: Stages, x: np.ndarray, read: np.ndarray, weights: Weights
    ) -> Gradients:
        """Backward of `__call__`: dx (T, D) or None, dread (B, D) or None, and the gradients of the weights.

        The gradient of rows that the head does not read is None.
        """
        rows, more = read if self.of_texts else x, dict[str, Any]()
        read_last = rows if self.below is None else stages[self.below.output]
        grad, d_head = self._answer_backward(grads, stages, read_last, **weights["head"])
        if self.below is not None:
            grad, more = self.below.backward(grad, stages, rows, weights)
        tree = {"head": {}, **more}
        tree["head"] = tree["head"] | d_head
        return (None, grad, tree) if self.of_texts else (grad, None, tree)

    def input(self, rows: np.ndarray, weights: Weights) -> np.ndarray:
        """The input of the head's linear layer, given rows (..., D)."""
        return rows if self.below is None else self.below(rows, weights)

    def pull(self, direction: Direction, weights: Weights) -> None:
        """Pulls a direction in the input of the head's linear layer back to the rows that the head reads."""
        if self.below is not None:
            self.below.pull(direction, weights)

    def stages(self, x: str, weights: Weights) -> list[Stage]:
        """The stages in order of computation. x: the stage with the rows that the head reads."""
        found = [] if self.below is None else self.below.stages(x)
        return [*found, *self._stages(found[-1].name if found else x)]

    def finish(self, logits: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Returns the logits, given the output of the head's linear layer. May write the result to `out`."""
        return logits

    def gain(self, stages: Mapping[str, np.ndarray], place: tuple[int, ...]) -> float:
        """The ratio of a logit to the linear layer's output, treated as a constant. place: the index of the logit."""
        return 1.0

    @abstractmethod
    def _answer(self, rows: np.ndarray, **head: Any) -> Answers:
        """Computes the answers from `rows`, the input of the head's linear layer."""

    @abstractmethod
    def _answer_backward(
        self, grads: Mapping[str, np.ndarray], stages: Stages, rows: np.ndarray, **head: Any
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Backward of `_answer`: drows and the gradients of the head's weights."""

    @abstractmethod
    def _stages(self, x: str) -> list[Stage]:
        """The stages of `_answer`."""


class Logits(Head):
    """A head that computes `classify`: logits of labels for each text or token, or logits of the vocabulary."""

    def _answer(self, rows: np.ndarray, **head: Any) -> Answers:
        return {"logits": classify(rows, head["output"])}

    def _answer_backward(
        self, grads: Mapping[str, np.ndarray], stages: Stages, rows: np.ndarray, **head: Any
    ) -> tuple[np.ndarray, dict[str, Any]]:
        return classify_backward(grads["logits"], stages, rows, head["output"])

    def _stages(self, x: str) -> list[Stage]:
        return [classify_stage(x)]


class Spans(Head):
    """A head that computes `spans`: the logits of the start and the end of an answer."""

    def _answer(self, rows: np.ndarray, **head: Any) -> Answers:
        start, end = spans(rows, head["output"])
        return {"start_logits": start, "end_logits": end}

    def _answer_backward(
        self, grads: Mapping[str, np.ndarray], stages: Stages, rows: np.ndarray, **head: Any
    ) -> tuple[np.ndarray, dict[str, Any]]:
        return spans_backward(grads["start_logits"], grads["end_logits"], stages, rows, head["output"])

    def _stages(self, x: str) -> list[Stage]:
        return spans_stages(x)


@dataclass(frozen=True)
class ReplacedTokens(Head):
    """A head that computes `replaced_tokens`, with the activation of the layers."""

    activation: Activation = gelu

    def groups(self, d_model: int) -> dict[str, Group]:
        return {"head.hidden": weight_group.linear(d_model, d_model), **super().groups(d_model)}

    def pull(self, direction: Direction, weights: Weights) -> None:
        hidden_pull(direction, weights["head"]["hidden"])

    def _answer(self, rows: np.ndarray, **head: Any) -> Answers:
        return {"logits": replaced_tokens(rows, self.activation, **head)}

    def _answer_backward(
        self, grads: Mapping[str, np.ndarray], stages: Stages, rows: np.ndarray, **head: Any
    ) -> tuple[np.ndarray, dict[str, Any]]:
        return replaced_tokens_backward(grads["logits"], stages, rows, self.activation, **head)

    def _stages(self, x: str) -> list[Stage]:
        return [*transform_stages(x, self.activation, None), classify_stage("head.activation")]


@dataclass(frozen=True)
class HiddenStates:
    """The answers of a model without a head: the last layer, and the pooler's output if the weights include a pooler.

    Parameters
    ----------
    pooler : Pooler, optional
    """

    pooler: Pooler | None = None

    of_texts: ClassVar[bool] = False
    means: ClassVar[bool] = False

    def groups(self, d_model: int) -> dict[str, Group]:
        """The groups of weights, by name. A file may lack the weights of the pooler."""
        return {} if self.pooler is None else self.pooler.groups(d_model)

    def __call__(self, x: np.ndarray, read: np.ndarray, weights: Weights) -> Answers:
        answers = {"last_hidden_state": x}
        if self.pooler is not None and "pooler" in weights:
            answers["pooler_output"] = self.pooler(read, weights)
        return answers

    def backward(
        self, grads: Mapping[str, np.ndarray], stages: Stages, x: np.ndarray, read: np.ndarray, weights: Weights
    ) -> Gradients:
        """Backward of `__call__`: dx (T, D), dread (B, D) or None, and the gradients of the weights."""
        dx = grads["last_hidden_state"].copy() if "last_hidden_state" in grads else np.zeros_like(x)
        if self.pooler is None or "pooler_output" not in grads:
            return dx, None, {}
        d_read, tree = self.pooler.backward(grads["pooler_output"], stages, read, weights)
        return dx, d_read, tree

    def input(self, rows: np.ndarray, weights: Weights) -> np.ndarray:
        return rows

    def stages(self, x: str, weights: Weights) -> list[Stage]:
        return [] if self.pooler is None or "pooler" not in weights else self.pooler.stages(x)
