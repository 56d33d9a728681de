"""The formulas of heads: answers from the rows of the last layer, and probabilities from logits."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.engine.activations import BACKWARDS
from npformer.engine.blocks.block import Activation
from npformer.engine.descriptions.stage import Stage
from npformer.engine.direction import Direction
from npformer.engine.functions import Linear, linear, linear_backward, softmax
from npformer.engine.norms.layernorm import LAYER_NORM
from npformer.engine.norms.norm import Norm
from npformer.engine.runtime.packing import split_rows
from npformer.engine.tape import Stages
from npformer.engine.taps import scope, spare, tap


def pool(first: np.ndarray, activation: Activation, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """act(x W + b) of one row x of each text, (B, D) -> (B, D). act is tanh in BERT and relu in DistilBERT.

    The row belongs to the first token of the text or, in BART, to the last end token.
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
    """The stage of the row that a head for whole texts reads, computed from stage x."""
    formula = "act(pooler)" if x == "pooler" else "Z[0], or the mean of Z"
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
    formula = f"{x or 'features'} W + b"
    return Stage("logits", "(C,) or (T,) or (T, C)", formula, "functions.linear", parents=(x,), kept=False)


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
    """The stages of `transform` for the rows in stage x. Without a norm, the last stage is omitted."""
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
    """For each token, the logit that it is a replacement: act(x W + b) w + c, (T, D) -> (T,). Clark et al., 2020, 2."""
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


def probabilities(logits: np.ndarray, function: str = "softmax") -> np.ndarray:
    """Applies softmax over the last axis, sigmoid, or no function ("none") to logits (..., C)."""
    if function == "softmax":
        return tap("probabilities", softmax(logits))
    if function == "sigmoid":
        e = np.exp(-np.abs(logits))
        return tap("probabilities", np.where(logits >= 0, 1 / (1 + e), e / (1 + e)))
    return logits


def probabilities_stage(answer: str = "", function: str = "softmax") -> Stage:
    """answer: "start_" or "end_" in extractive question answering."""
    shape = "(T,)" if answer else "(C,) or (T,) or (T, C)"
    made_by = "functions.softmax" if function == "softmax" else "output_heads.probabilities"
    logits = f"{answer}logits"
    return Stage(f"{answer}probabilities", shape, f"{function}({logits})", made_by, parents=(logits,), kept=False)


def project(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """Logits over the vocabulary: x E^T + b, (T, D) -> (T, V). Vaswani et al., 2017, section 3.4."""
    return tap("logits", linear(x, weight, bias))
