"""The gated feed-forward network: each hidden unit is multiplied by the output of a second linear layer.

GLU Variants Improve Transformer (Shazeer, 2020), section 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.activations import ACTIVATIONS, BACKWARDS
from npformer.blocks import activation_mistakes
from npformer.blocks.block import Activation, Backward, Linear
from npformer.blocks.ffn import FeedForward, output_stage
from npformer.blocks.rows import Rows
from npformer.descriptions.mistake import Mistake, Rule, Rules, Ways
from npformer.descriptions.stage import INPUT, Stage
from npformer.descriptions.weight_group import Group
from npformer.functions import linear, linear_backward, linears
from npformer.tape import Stages
from npformer.taps import spare, tap


class Gated(FeedForward):
    """`gated_feed_forward` as a block of a layer. Parameters as in `FeedForward`."""

    def __call__(self, x: np.ndarray, rows: Rows, **weights: Any) -> np.ndarray:
        return gated_feed_forward(x, self.activation, **weights)

    def backward(self, grad: np.ndarray, stages: Stages, x: np.ndarray, rows: Rows, **weights: Any) -> Backward:
        dx, grads = gated_feed_forward_backward(grad, stages, x, self.activation, **weights)
        return dx, grads, {}

    def groups(self, d_model: int) -> dict[str, Group]:
        groups = super().groups(d_model)
        return {"hidden": groups["hidden"], "gate": groups["hidden"], "output": groups["output"]}

    @property
    def stages(self) -> list[Stage]:
        hidden, activation, _ = super().stages
        formula = "{x} V + c" if self.bias else "{x} V"
        gate = Stage("gate", "(T, F)", formula, "functions.linear", "mlp.hook_pre_linear", (INPUT,))
        product = ("(T, F)", "activation * gate", "blocks.gated.gated_feed_forward")
        gated = Stage("gated", *product, parents=("activation", "gate"))
        return [hidden, gate, activation, gated, output_stage("gated", self.bias)]


def gated_feed_forward(
    x: np.ndarray, activation: Activation, hidden: Linear, gate: Linear, output: Linear
) -> np.ndarray:
    """FFN(x) = (act(x W_1 + b_1) * (x V + c)) W_2 + b_2: GeGLU if act is GELU, SwiGLU if it is SiLU.

    Parameters
    ----------
    x : (T, D) array
    activation : function such as `gelu`
    hidden, gate, output : linear layers as in `feed_forward`, with weights W_1 (D, F), V (D, F) and W_2 (F, D)

    Returns
    -------
    (T, D) array

    References
    ----------
    Shazeer, 2020, GLU Variants Improve Transformer, section 2.

    Examples
    --------
    >>> identity, doubled = {"weight": np.eye(2)}, {"weight": 2 * np.eye(2)}
    >>> gated_feed_forward(np.array([[-1.0, 3.0]]), npformer.relu, hidden=identity, gate=doubled, output=identity)
    array([[ 0., 18.]])
    """
    h, v = linears(x, hidden, gate)
    h, v = tap("hidden", h), tap("gate", v)
    h = tap("activation", activation(h, out=spare(h)))
    return tap("output", linear(tap("gated", np.multiply(h, v, out=spare(h))), **output))


def gated_feed_forward_backward(
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    activation: Activation,
    hidden: Linear,
    gate: Linear,
    output: Linear,
) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
    """Backward of `gated_feed_forward`: dx (T, D) and the gradients of the three linear layers."""
    grad, d_output = linear_backward(stages.through_edit("output", grad), stages["gated"], **output)
    grad = stages.through_edit("gated", grad)
    dh = stages.through_edit("activation", grad * stages["gate"])
    dv = stages.through_edit("gate", grad * stages["activation"])
    dh = stages.through_edit("hidden", BACKWARDS[activation](dh, stages["hidden"]))
    dx, d_gate = linear_backward(dv, x, **gate)
    from_hidden, d_hidden = linear_backward(dh, x, **hidden)
    dx += from_hidden
    return dx, {"hidden": d_hidden, "gate": d_gate, "output": d_output}


# --- mistakes --------------------------------------------------------------------------------------------------------


def _swapped(port: Any) -> Ways:
    pairs = [(f"{layer}ffn.gate", f"{layer}ffn.hidden") for layer in port.layers]
    yield "", port.regrouping(dict([*pairs, *(pair[::-1] for pair in pairs)]))
    yield (
        "the gate is activated",
        {
            "*.ffn.activation": lambda y, at: ACTIVATIONS[at.config.activation](at("ffn.gate")),
            "*.ffn.gated": lambda y, at: at("ffn.activation") * at("ffn.hidden"),
        },
    )


def _renamed(port: Any) -> Ways:
    """Exports hidden and gate under each other's names, but reads each correctly."""

    def made_by(group: str) -> Rule:
        return lambda y, at: at.linear(at.source, group)

    exported: Rules = {"*.ffn.hidden": made_by("ffn.gate"), "*.ffn.gate": made_by("ffn.hidden")}
    read: Rules = {f"*.{group}": made_by(group) for group in ("ffn.hidden", "ffn.gate")}
    yield "ffn.hidden and ffn.gate exchanged", port.ruling(exported).rereading(read, "*.ffn.activation", "*.ffn.gated")


def _of_product(y: np.ndarray, at: Any) -> np.ndarray:
    product = at("ffn.hidden") * at("ffn.gate")
    made: np.ndarray = ACTIVATIONS[at.config.activation](product)
    return made


_OF_BOTH: Rules = {"*.ffn.activation": _of_product, "*.ffn.gated": lambda y, at: at("ffn.activation")}
Gated.mistakes = (
    *activation_mistakes.MISTAKES,
    Mistake(
        "stages under wrong names",
        "ffn.hidden is the product with gate_proj, which is activated; ffn.gate is the product with up_proj",
        _renamed,
    ),
    Mistake(
        "gate and hidden swapped",
        "the activation applies to gate_proj, or to the first half of a fused layer; up_proj or the second half is not"
        " activated",
        _swapped,
    ),
    Mistake(
        "gate left out",
        "the activation is multiplied by the gate",
        {
            "left out": {"*.ffn.gated": lambda y, at: at("ffn.activation")},
            "added, not multiplied": {"*.ffn.gated": lambda y, at: at("ffn.activation") + at("ffn.gate")},
        },
    ),
    Mistake(
        "activation of the product with the gate",
        "the activation applies to one factor, act(x W_1) * (x V), not to the product",
        {"": {"*.ffn.gated": _of_product}, "exported as both": _OF_BOTH},
    ),
)
