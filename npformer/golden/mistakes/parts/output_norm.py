"""Mistakes that ports make in norms of a block's output."""

from __future__ import annotations

from typing import Any

from npformer.engine.blocks.output_norm import NAME
from npformer.golden.mistake import Mistake, Rules, Steps, Ways, exchanged


def _in_other_places(port: Any) -> Ways:
    """Ways to swap norms, for example because Llama's post_attention_layernorm is the norm before the FFN."""
    for said, one, other in (
        ("of attention's output and the FFN's input", f"attention.{NAME}", "ffn_norm"),
        ("before and after attention", "attention_norm", f"attention.{NAME}"),
        ("before and after the FFN", "ffn_norm", f"ffn.{NAME}"),
    ):
        yield f"norms {said} exchanged", port.exchanging_in_layers(one, other)
    if not port.has("layers.0.ffn_norm.weight"):
        return
    named_as_llama = {f"{layer}ffn_norm": f"{layer}attention.{NAME}" for layer in port.layers}
    yield (
        "the norm of attention's output used before the FFN, as its name means in Llama, and not after attention",
        port.regrouping(named_as_llama).ruling(_left_out("attention")),
    )


def _of_the_sum(port: Any) -> Ways:
    """Normalize(X + Block(X)), with the norm of the output of the block."""

    def steps(block: str, x: str) -> Steps:
        return Steps(
            f"*.{block}.{NAME}",
            f"*.{block}_residual",
            lambda at: at(f"{block}.output"),
            lambda total, at: at.norm(total, weight=at.weight(f"{block}.{NAME}")),
            lambda y, at: at(x) + y,
        )

    attention, ffn = steps("attention", "input"), steps("ffn", "attention_residual")
    yield from exchanged(port, ("*",), attention, ffn)
    yield from exchanged(port, ("*",), attention, said="after attention")
    yield from exchanged(port, ("*",), ffn, said="after the FFN")


def _left_out(*blocks: str) -> Rules:
    return {f"*.{block}.{NAME}": lambda y, at: at.source for block in blocks}


MISTAKES = (
    Mistake(
        "missing norm after a block",
        "each block's output is normalized before it is added",
        {"after attention": _left_out("attention"), "after the FFN": _left_out("ffn"), "both": _left_out("*")},
    ),
    Mistake(
        "norms in the wrong places",
        "post_attention_layernorm normalizes the output of attention, pre_feedforward_layernorm the input of the FFN",
        _in_other_places,
    ),
    Mistake(
        "norm of the sum, not of a block's output",
        "a block's output is normalized before the residual is added",
        _of_the_sum,
    ),
)
