"""Heads: first the formulas that compute answers from the last layer, then the heads as parts of a model.

`tasks/` turns these answers into results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npformer import weight_group
from npformer.activations import BACKWARDS, gelu
from npformer.blocks.block import Activation
from npformer.direction import Direction
from npformer.functions import linear, linear_backward
from npformer.multi_head import Linear
from npformer.norms import LAYER_NORM, Norm
from npformer.output_scale import OutputScale
from npformer.runtime.packing import split_rows
from npformer.stage import Stage
from npformer.tape import Stages
from npformer.taps import scope, spare, tap
from npformer.weight_group import Group


def pool(first: np.ndarray, activation: Activation, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """act(x W + b) of one row x of each text, (B, D) -> (B, D). act is tanh in BERT and relu in DistilBERT.

    The row is that of the text's first token, or in BART that of its last end token.
    """
    dense = tap("pooler", linear(first, weight, bias))
    return tap("pooled", activation(dense, out=spare(dense)))


def pool_backward(
    grad: np.ndarray,
    stages: Stages,
    first: np.ndarray,
    activation: Activation,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Backward of `pool`: dfirst (B, D) and the gradients of W and b."""
    grad = BACKWARDS[activation](stages.through_edit("pooled", grad), stages["pooler"])
    return linear_backward(stages.through_edit("pooler", grad), first, weight, bias)


def pool_stages(x: str) -> list[Stage]:
    """The stages of `pool` for the rows in stage x."""
    return [Stage("pooler", "(D,)", "Z[0] W + b", "functions.linear", parents=(x,)), pooled_stage("pooler")]


def pooled_stage(x: str) -> Stage:
    """The stage with the one row of a text that the head reads, computed from stage x."""
    formula = "act(pooler); without a pooler, Z[0] or the mean of Z"
    return Stage("pooled", "(D,)", formula, "output_heads.pool", "pooler.hook_pooler_out", (x,))


def classify(pooled: np.ndarray, output: Linear) -> np.ndarray:
    """The logits x W + b of labels or tokens, from a pooled row or each token's row, (..., D) -> (..., C)."""
    return tap("logits", linear(pooled, **output))


def classify_backward(
    grad: np.ndarray, stages: Stages, pooled: np.ndarray, output: Linear
) -> tuple[np.ndarray, dict[str, Any]]:
    """Backward of `classify`: dpooled (..., D) and the gradients of W and b."""
    grad, d_output = linear_backward(stages.through_edit("logits", grad), pooled, **output)
    return grad, {"output": d_output}


def classify_stage(x: str) -> Stage:
    """The stage of `classify` for the rows in stage x."""
    return Stage("logits", "(C,) or (T,) or (T, C)", "features W + b", "functions.linear", parents=(x,), kept=False)


def spans(x: np.ndarray, output: Linear) -> tuple[np.ndarray, np.ndarray]:
    """The logits of each token as the start and as the end of an answer: (T, D) -> (T,), (T,). BERT, section 4.2."""
    start, end = np.moveaxis(linear(x, **output), -1, 0)
    return tap("start_logits", start), tap("end_logits", end)


def spans_backward(
    start: np.ndarray, end: np.ndarray, stages: Stages, x: np.ndarray, output: Linear
) -> tuple[np.ndarray, dict[str, Any]]:
    """Backward of `spans`: dx (T, D), dW and db. start, end: the gradients of the two columns of x W + b."""
    grad = np.stack([stages.through_edit("start_logits", start), stages.through_edit("end_logits", end)], axis=-1)
    grad, d_output = linear_backward(grad, x, **output)
    return grad, {"output": d_output}


def spans_stages(x: str) -> list[Stage]:
    """The stages of `spans` for the rows in stage x."""
    return [
        Stage(f"{name}_logits", "(T,)", f"Z W + b, column {column}", "output_heads.spans", parents=(x,), kept=False)
        for column, name in enumerate(("start", "end"))
    ]


def mean_rows(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The mean of the rows of each text, (T, D), (B,) -> (B, D)."""
    return np.stack([rows.sum(axis=0) / len(rows) for rows in split_rows(x, lengths)])


def mean_rows_backward(grad: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Backward of `mean_rows`: each row gets its text's gradient divided by the text's length, (B, D) -> (T, D)."""
    return np.repeat(grad / lengths[:, None].astype(grad.dtype), lengths, axis=0)


def transform(
    x: np.ndarray,
    activation: Activation,
    hidden: Linear,
    norm: Linear,
    normalize: Norm = LAYER_NORM,
) -> np.ndarray:
    """Normalize(act(x W + b)), (..., D) -> (..., E): the layer before the logits of a masked language model.

    The logits are Normalize(act(x W + b)) E^T + c, where E is the table of token embeddings. Devlin et al., 2019,
    section 3.1. All heads of ModernBERT have this layer.
    """
    with scope("head"):
        h = tap("hidden", linear(x, **hidden))
        h = tap("activation", activation(h, out=spare(h)))
        return tap("norm", normalize(h, out=spare(h), **norm))


def transform_backward(
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    activation: Activation,
    hidden: Linear,
    norm: Linear,
    normalize: Norm = LAYER_NORM,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Backward of `transform`: dx (..., D) and the gradients of W, b and the norm."""
    stages = stages.within("head")
    grad, d_norm = normalize.backward(stages.through_edit("norm", grad), stages["activation"], **norm)
    grad = BACKWARDS[activation](stages.through_edit("activation", grad), stages["hidden"])
    grad, d_hidden = linear_backward(stages.through_edit("hidden", grad), x, **hidden)
    return grad, {"hidden": d_hidden, "norm": d_norm}


def transform_stages(x: str, activation: Activation, norm: Norm | None) -> list[Stage]:
    """The stages of `transform` for the rows in stage x. Without a norm, those of `replaced_tokens` up to act."""
    function = f"activations.{activation.__name__}"
    found = [
        Stage("head.hidden", "(T, E)", "Z W + b", "functions.linear", parents=(x,)),
        Stage("head.activation", "(T, E)", "act(hidden)", function, parents=("head.hidden",)),
    ]
    hook = "mlm_head.ln.hook_normalized"
    if norm is None:
        return found
    return [*found, norm.stage("head.norm", "activation", "head.activation", shape="(T, E)", hook=hook)]


def hidden_pull(direction: Direction, hidden: Linear) -> None:
    """Pulls a direction in act(x W + b) back to x. hidden: W and b."""
    direction.gate("head.hidden", "head.activation")
    direction.linear("head.hidden", hidden)


def replaced_tokens(x: np.ndarray, activation: Activation, hidden: Linear, output: Linear) -> np.ndarray:
    """The logit that each token is a replacement: act(x W + b) w + c, (T, D) -> (T,). Clark et al., 2020, section 2."""
    with scope("head"):
        h = tap("hidden", linear(x, **hidden))
        h = tap("activation", activation(h, out=spare(h)))
    return tap("logits", linear(h, **output)[..., 0])


def replaced_tokens_backward(
    grad: np.ndarray, stages: Stages, x: np.ndarray, activation: Activation, hidden: Linear, output: Linear
) -> tuple[np.ndarray, dict[str, Any]]:
    """Backward of `replaced_tokens`: dx (T, D) and the gradients of W, b, w and c."""
    grad, below = stages.through_edit("logits", grad)[..., None], stages.within("head")
    grad, d_output = linear_backward(grad, below["activation"], **output)
    grad = BACKWARDS[activation](below.through_edit("activation", grad), below["hidden"])
    grad, d_hidden = linear_backward(below.through_edit("hidden", grad), x, **hidden)
    return grad, {"hidden": d_hidden, "output": d_output}


# --- parts of a model ------------------------------------------------------------------------------------------------

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
        """The answers by name, from the rows x (T, D) of the last layer and the row `read` (B, D) of each text."""
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
        """The input of the head's linear layer, from rows (..., D)."""
        return rows if self.below is None else self.below(rows, weights)

    def pull(self, direction: Direction, weights: Weights) -> None:
        """Pulls a direction in the input of the head's linear layer back to the rows that the head reads."""
        if self.below is not None:
            self.below.pull(direction, weights)

    def stages(self, x: str, weights: Weights) -> list[Stage]:
        """The stages in firing order. x: the stage with the rows that the head reads."""
        found = [] if self.below is None else self.below.stages(x)
        return [*found, *self._stages(found[-1].name if found else x)]

    def finish(self, logits: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The logits, from the output of the head's linear layer. `out` may be used for the result."""
        return logits

    def gain(self, stages: Mapping[str, np.ndarray], place: tuple[int, ...]) -> float:
        """The ratio of a logit to the linear layer's output, treated as a constant. place: the index of the logit."""
        return 1.0

    @abstractmethod
    def _answer(self, rows: np.ndarray, **head: Any) -> Answers:
        """The answers, from the input of the head's linear layer."""

    @abstractmethod
    def _answer_backward(
        self, grads: Mapping[str, np.ndarray], stages: Stages, rows: np.ndarray, **head: Any
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Backward of `_answer`: drows and the gradients of the head's weights."""

    @abstractmethod
    def _stages(self, x: str) -> list[Stage]:
        """The stages of `_answer`."""


class Logits(Head):
    """A head that computes `classify`: logits of labels for each text or token, or of the vocabulary."""

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
    """A model without a head: its answers are the last layer, and the pooler's output if the weights include a pooler.

    Parameters
    ----------
    pooler : Pooler, optional
    """

    pooler: Pooler | None = None

    of_texts: ClassVar[bool] = False
    means: ClassVar[bool] = False

    def groups(self, d_model: int) -> dict[str, Group]:
        """The groups of weights, by name. A file may lack the pooler's weights."""
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
