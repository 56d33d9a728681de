"""The feed-forward network: two linear layers with an activation between them, applied to each row separately.

Attention Is All You Need (Vaswani et al., 2017), section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.engine.activations import BACKWARDS
from npformer.engine.blocks.block import Activation, Around, Backward, Block
from npformer.engine.blocks.packed_texts import PackedTexts
from npformer.engine.descriptions import weight_group
from npformer.engine.descriptions.stage import INPUT, Stage
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.direction import Direction
from npformer.engine.functions import Linear, linear, linear_backward
from npformer.engine.tape import Stages
from npformer.engine.taps import spare, tap


@dataclass(frozen=True)
class FeedForward(Block):
    """`feed_forward` as a block of a layer.

    Parameters
    ----------
    activation : function such as `gelu`
    d_ffn : int, number of hidden units, for the shapes of the weights
    bias : bool, the linear layers have a bias
    """

    activation: Activation
    d_ffn: int = 0
    bias: bool = True

    around = Around("Y", "B", "Z", "M", "hook_resid_post", "hook_normalized_resid_post")

    def __call__(self, x: np.ndarray, texts: PackedTexts, **weights: Any) -> np.ndarray:
        return feed_forward(x, self.activation, **weights)

    def backward(self, grad: np.ndarray, stages: Stages, x: np.ndarray, texts: PackedTexts, **weights: Any) -> Backward:
        dx, grads = feed_forward_backward(grad, stages, x, self.activation, **weights)
        return dx, grads, {}

    def pull(self, direction: Direction, at: str, **weights: Any) -> np.ndarray:
        bias = direction.add_bias(f"{at}output", weights["output"])
        return np.array(direction.u @ direction.at(f"{at}output") - bias)

    def groups(self, d_model: int) -> dict[str, Group]:
        inner = weight_group.linear(d_model, self.d_ffn, self.bias)
        return {"hidden": inner, "output": weight_group.linear(self.d_ffn, d_model, self.bias)}

    @property
    def stages(self) -> list[Stage]:
        function, b_1 = f"activations.{self.activation.__name__}", " + b_1" if self.bias else ""
        return [
            Stage("hidden", "(T, F)", f"{{x}} W_1{b_1}", "functions.linear", "mlp.hook_pre", (INPUT,)),
            Stage("activation", "(T, F)", "act(hidden)", function, "mlp.hook_post", ("hidden",)),
            output_stage("activation", self.bias),
        ]


def output_stage(parent: str, bias: bool) -> Stage:
    """The stage with the output of a feed-forward network."""
    formula = f"B = {parent} W_2{' + b_2' if bias else ''}"
    return Stage("output", "(T, D)", formula, "functions.linear", "hook_mlp_out", (parent,), kept=False)


def feed_forward(x: np.ndarray, activation: Activation, hidden: Linear, output: Linear) -> np.ndarray:
    """FFN(x) = act(x W_1 + b_1) W_2 + b_2, (T, D) -> (T, D). Vaswani et al., 2017, section 3.3."""
    h = tap("hidden", linear(x, **hidden))
    h = tap("activation", activation(h, out=spare(h)))
    return tap("output", linear(h, **output))


def feed_forward_backward(
    grad: np.ndarray, stages: Stages, x: np.ndarray, activation: Activation, hidden: Linear, output: Linear
) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
    """Backward of `feed_forward`: dx (T, D) and the gradients of W_1, b_1, W_2, b_2."""
    grad, d_output = linear_backward(stages.through_edit("output", grad), stages["activation"], **output)
    grad = BACKWARDS[activation](stages.through_edit("activation", grad), stages["hidden"])
    grad, d_hidden = linear_backward(stages.through_edit("hidden", grad), x, **hidden)
    return grad, {"hidden": d_hidden, "output": d_output}
