"""The gated feed-forward network: each activated unit is multiplied by the output of a second linear layer.

GLU Variants Improve Transformer (Shazeer, 2020), section 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.engine.activations import BACKWARDS
from npformer.engine.blocks.block import Activation, Backward
from npformer.engine.blocks.ffn import FeedForward, output_stage
from npformer.engine.blocks.packed_texts import PackedTexts
from npformer.engine.descriptions.stage import INPUT, Stage
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.functions import Linear, linear, linear_backward, linears
from npformer.engine.tape import Stages
from npformer.engine.taps import spare, tap


class Gated(FeedForward):
    """`gated_feed_forward` as a block of a layer. Parameters as in `FeedForward`."""

    def __call__(self, x: np.ndarray, texts: PackedTexts, **weights: Any) -> np.ndarray:
        return gated_feed_forward(x, self.activation, **weights)

    def backward(self, grad: np.ndarray, stages: Stages, x: np.ndarray, texts: PackedTexts, **weights: Any) -> Backward:
        dx, grads = gated_feed_forward_backward(grad, stages, x, self.activation, **weights)
        return dx, grads, {}

    def groups(self, d_model: int) -> dict[str, Group]:
        groups = super().groups(d_model)
        return {"gate": groups["hidden"], "up": groups["hidden"], "output": groups["output"]}

    @property
    def stages(self) -> list[Stage]:
        hidden, activation, _ = super().stages
        gate = hidden._replace(name="gate")
        formula = "{x} V + c" if self.bias else "{x} V"
        up = Stage("up", "(T, F)", formula, "functions.linear", "mlp.hook_pre_linear", (INPUT,))
        activation = activation._replace(formula="act(gate)", parents=("gate",))
        product = ("(T, F)", "activation * up", "blocks.gated.gated_feed_forward")
        gated = Stage("gated", *product, parents=("activation", "up"))
        return [gate, up, activation, gated, output_stage("gated", self.bias)]


def gated_feed_forward(x: np.ndarray, activation: Activation, gate: Linear, up: Linear, output: Linear) -> np.ndarray:
    """FFN(x) = (act(x W_1 + b_1) * (x V + c)) W_2 + b_2: GeGLU if act is GELU, SwiGLU if it is SiLU.

    `gate` is W_1 and b_1, the layer before the activation, and `up` is V and c. Shazeer, 2020, section 2.
    """
    h, v = linears(x, gate, up)
    h, v = tap("gate", h), tap("up", v)
    h = tap("activation", activation(h, out=spare(h)))
    return tap("output", linear(tap("gated", np.multiply(h, v, out=spare(h))), **output))


def gated_feed_forward_backward(
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    activation: Activation,
    gate: Linear,
    up: Linear,
    output: Linear,
) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
    """Backward of `gated_feed_forward`: dx (T, D) and the gradients of the three linear layers."""
    grad, d_output = linear_backward(stages.through_edit("output", grad), stages["gated"], **output)
    grad = stages.through_edit("gated", grad)
    dh = stages.through_edit("activation", grad * stages["up"])
    dv = stages.through_edit("up", grad * stages["activation"])
    dh = stages.through_edit("gate", BACKWARDS[activation](dh, stages["gate"]))
    dx, d_up = linear_backward(dv, x, **up)
    from_gate, d_gate = linear_backward(dh, x, **gate)
    dx += from_gate
    return dx, {"gate": d_gate, "up": d_up, "output": d_output}
