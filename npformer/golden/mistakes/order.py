"""Mistakes in residuals and in the order of a layer's parts, and of the layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npformer.activations import ACTIVATIONS
from npformer.decoder_layers import decoder_layer
from npformer.encoder_layers import encoder_layer
from npformer.golden.at import At
from npformer.golden.graph import stacks
from npformer.golden.mistakes.activation import standard
from npformer.golden.port import Mistake, Port, Rule, Ways

ATTENTION, FFN = "*.attention_residual", "*.ffn_residual"


def other_norm_order(first: bool) -> Callable[[Port], Ways]:
    """Y = X + Attention(Normalize(X)); Z = Y + FFN(Normalize(Y)), or the reverse."""

    def ways(port: Port) -> Ways:
        if port.config.norm_first is not first:
            yield "", port.with_config("layers.*", norm_first=first)

    return ways


def no_residual(port: Port) -> Ways:
    after_attention: dict[str, Rule] = {ATTENTION: lambda y, at: at("attention.output")}
    after_ffn: dict[str, Rule] = {FFN: lambda y, at: at("ffn.output")}
    yield "after attention", port.ruling(after_attention)
    yield "after the FFN", port.ruling(after_ffn)
    yield "both", port.ruling(after_attention | after_ffn)


def other_residual(port: Port) -> Ways:
    """Adds another stage than the block's input."""
    norm_first = port.config.norm_first
    for_attention = {
        "attention's input, normalized": "attention_norm" if norm_first else "",
        "the embeddings": "layers.0.input",
        "the value": "attention.value",
        "the query": "attention.query",
        "attention's heads": "attention.combined",
        "the sum of the embeddings, before their norm": "embeddings.sum",
    }
    for_ffn = {
        "the layer's input": "input",
        "the sum before the norm": "" if norm_first else "attention_residual",
        "the FFN's input, normalized": "ffn_norm" if norm_first else "",
        "attention's output": "attention.output",
        "the embeddings": for_attention["the embeddings"],
    }
    for pattern, block, stages in ((ATTENTION, "attention", for_attention), (FFN, "ffn", for_ffn)):
        for said, stage in stages.items():
            if stage:
                yield (
                    f"{said}, after {block}",
                    port.ruling({pattern: lambda y, at, stage=stage, block=block: at(stage) + at(f"{block}.output")}),
                )


def residual_scaled(port: Port) -> Ways:
    for pattern, block in ((ATTENTION, "attention"), (FFN, "ffn")):
        for c in (2.0, 0.5, 0.5**0.5, 2**0.5):
            yield (
                f"{c:.4g} times what goes into {block}",
                port.ruling({pattern: lambda y, at, c=c, block=block: y + (c - 1) * (y - at(f"{block}.output"))}),
            )
            yield (
                f"{c:.4g} times what comes out of {block}",
                port.ruling({pattern: lambda y, at, c=c, block=block: y + (c - 1) * at(f"{block}.output")}),
            )
            yield f"{c:.4g} times the sum after {block}", port.ruling({pattern: lambda y, at, c=c: c * y})
        yield f"{block} subtracted", port.ruling({pattern: lambda y, at, block=block: y - 2 * at(f"{block}.output")})


def left_out(port: Port) -> Ways:
    """Leaves a block out and its norm with it, or keeps the norm of the residual alone."""
    for block, x in (("attention", "input"), ("ffn", "attention_norm")):
        if not port.config.norm_first:
            yield f"{block} and its norm", port.ruling({f"*.{block}_norm": lambda y, at, x=x: at(x)})
        yield block, port.ruling({f"*.{block}_residual": lambda y, at, block=block: y - at(f"{block}.output")})
    if port.config.decoder:
        alone: dict[str, Rule] = {"*.cross_attention_residual": lambda y, at: at("input")}
        yield "attention to the source", port.ruling(alone)
        if not port.config.norm_first:
            with_norm: dict[str, Rule] = {"*.cross_attention_norm": lambda y, at: at("input")}
            yield "attention to the source and its norm", port.ruling(with_norm)


def other_ffn_input(port: Port) -> Ways:
    stages = {"the layer's input": "input", "attention's output": "attention.output"}
    if not port.config.norm_first:
        stages["the sum before the norm"] = "attention_residual"
    else:
        stages["the sum, not normalized"] = "attention_residual"
    for said, stage in stages.items():
        yield (
            f"reads {said}",
            port.ruling({"*.ffn.hidden": lambda y, at, stage=stage: at.linear(at(stage), "ffn.hidden")}),
        )
    side_by_side: dict[str, Rule] = {"*.ffn.hidden": lambda y, at: at.linear(at("input"), "ffn.hidden")}
    added: dict[str, Rule] = {FFN: lambda y, at: at("input") + at("attention.output") + at("ffn.output")}
    yield "beside attention, both added to the layer's input", port.ruling(side_by_side | added)


def ffn_first(port: Port) -> Ways:
    """Y = Normalize(X + FFN(X)); Z = Normalize(Y + Attention(Y))."""
    if port.config.norm_first or port.stack == "decoder.":
        return
    act, eps = ACTIVATIONS[port.config.activation], port.config.eps

    def fed(x: np.ndarray, at: At) -> np.ndarray:
        return x + at.linear(act(at.linear(x, "ffn.hidden")), "ffn.output")

    for way, first, second in (
        ("", "ffn_norm", "attention_norm"),
        ("the norms in their places", "attention_norm", "ffn_norm"),
    ):
        rules: dict[str, Rule] = {
            "*.input": lambda x, at, first=first: at.affine(standard(fed(x, at), eps), first),
            "*.ffn.hidden": lambda y, at: at.linear(at.unchanged_input, "ffn.hidden"),
            "*.ffn_norm": lambda y, at, second=second: at.affine(standard(at("attention_residual"), eps), second),
        }
        yield way, port.ruling(rules)


def layer_count(port: Port) -> Ways:
    """Leaves a layer out, or runs one again."""
    end = "ffn_residual" if port.config.norm_first else "ffn_norm"
    for stack, count in stacks(port.config).items():
        of = f" of the {stack[:-1]}" if stack else ""
        for i in [count - 1, *range(count - 1)][:16]:
            said = f"the last{of} is missing" if i == count - 1 else f"layer {i}{of} is missing"
            yield said, port.ruling({f"{stack}layers.{i}.{end}": lambda y, at: at("input")})
        if count > 1:
            half: dict[str, Rule] = {f"{stack}layers.{i}.{end}": lambda y, at: at("input") for i in range(1, count, 2)}
            yield f"every other{of} is missing", port.ruling(half)
        if not port.config.norm_first:
            for i in [count - 1, *range(count - 1)][:16]:
                here = f"{stack}layers.{i}."
                for stage in (f"{here}input", here + end):  # its stages are those of the second run, or the first
                    yield f"layer {i}{of} runs twice", port.ruling({stage: lambda x, at: again(port, x, at)})


def again(port: Port, x: np.ndarray, at: At) -> np.ndarray:
    """Runs a whole layer on x, unheard."""
    config, lengths = port.config, np.array([len(x)])
    shared: dict[str, Any] = {"activation": ACTIVATIONS[config.activation], "eps": config.eps, **at.layer_weights()}
    if at.stack == "decoder.":
        source, heads = at.encoded, config.decoder.n_heads
        return at.unheard(lambda: decoder_layer(x, lengths, source, np.array([len(source)]), heads, **shared))
    return at.unheard(lambda: encoder_layer(x, lengths, config.n_heads, **shared))


MISTAKES = (
    Mistake(
        "pre-norm for post-norm",
        "this model normalizes after each residual sum, not before each block",
        other_norm_order(True),
        reorders=True,
    ),
    Mistake(
        "post-norm for pre-norm",
        "this model normalizes before each block, not after each residual sum",
        other_norm_order(False),
        reorders=True,
    ),
    Mistake("residual left out", "a block's input is added to its output", no_residual),
    Mistake(
        "residual from the wrong place", "what is added to a block's output is that block's own input", other_residual
    ),
    Mistake("residual scaled", "a block's input and output are added as they are", residual_scaled),
    Mistake("block left out", "each layer is attention and then the FFN", left_out),
    Mistake("the FFN reads another stage", "it reads what attention and its norm have made", other_ffn_input),
    Mistake("FFN before attention", "each layer is attention and then the FFN", ffn_first, reorders=True),
    Mistake("another number of layers", "each layer of the model runs once", layer_count),
)
