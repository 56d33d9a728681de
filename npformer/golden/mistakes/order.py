"""Mistakes in residuals, in the order of a layer's parts, and in the number of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npformer.engine.activations import ACTIVATIONS
from npformer.engine.blocks.output_norm import NAME as OUTPUT_NORM
from npformer.golden.at import At
from npformer.golden.graph import INNER, QKV, parents, stacks
from npformer.golden.mistake import Mistake, Rule, Rules, Steps, Ways, exchanged
from npformer.golden.mistakes.parts.norm import standard
from npformer.golden.port import Port

ATTENTION, FFN = "*.attention_residual", "*.ffn_residual"
BLOCKS = ((ATTENTION, "attention"), (FFN, "ffn"))
INPUTS = {"attention": "input", "ffn": "attention_residual"}  # block -> rows to which its output is added


def other_norm_order(first: bool) -> Callable[[Port], Ways]:
    """Post-norm layers become pre-norm, Y = X + Attention(Normalize(X)), if `first`; else pre-norm become post-norm."""

    def ways(port: Port) -> Ways:
        if port.config.norm_first is not first:
            yield "", port.with_config("layers.*", norm_first=first)
            if first:
                yield "the layers' outputs", _PRE_NORM

    return ways


def _normed_first(rows: str, norm: str) -> Rule:
    """A rule that computes a linear layer from the stage `rows`, normalized by `norm`."""
    return lambda y, at: at.linear(
        at.affine(standard(at(rows), at.config.eps), norm), at.name.partition(f"{at.layer}.")[2]
    )


#: A pre-norm layer with the stage names of a post-norm layer, so that the last stage is the layer's output.
_PRE_NORM: Rules = {
    **dict.fromkeys((f"*.attention.{name}" for name in QKV), _normed_first("input", "attention_norm")),
    "*.attention_norm": lambda y, at: at("attention_residual"),
    **dict.fromkeys((f"*.{name}" for name in INNER), _normed_first("attention_norm", "ffn_norm")),
    "*.ffn_norm": lambda y, at: at("ffn_residual"),
}


def norm_of_block(port: Port) -> Ways:
    """X + Normalize(Block(X)), or Normalize(Block(X)), instead of Normalize(X + Block(X))."""
    if port.config.norm_first:
        return
    blocks = (("attention", "input"), ("ffn", "attention_norm"))

    def steps(block: str, x: str) -> Steps:
        return Steps(
            f"*.{block}_residual",
            f"*.{block}_norm",
            lambda at: at.written(block),
            lambda y, at: at(x) + y,
            lambda y, at: at.affine(standard(y, at.config.eps), f"{block}_norm"),
        )

    pairs = [steps(block, x) for block, x in blocks]
    for each, (block, _) in zip(pairs, blocks, strict=True):
        yield from exchanged(port, ("*",), each, said=f"the block's input is added to the norm, after {block}")
        yield f"the block's input is not added, after {block}", {each.second: each.between}
    yield from exchanged(port, ("*",), *pairs, said="the block's input is added to the norm, after both blocks")
    yield "the block's input is not added, after both blocks", {each.second: each.between for each in pairs}


def norms_before_blocks(port: Port) -> Ways:
    """X + Block(Normalize(X)) instead of X + Normalize(Block(X)), in layers whose blocks read rows without a norm."""
    blocks = [
        block
        for block in INPUTS
        if port.has(f"layers.0.{block}.{OUTPUT_NORM}.weight") and not port.has(f"layers.0.{block}_norm.weight")
    ]
    for some in (blocks, *([block] for block in blocks)) if blocks else ():
        said = f"before {' and '.join({'ffn': 'the FFN'}.get(block, block) for block in some)}"
        moved = {pattern: rule for block in some for pattern, rule in _norm_first(port, block).items()}
        yield said, moved
        unnormed: Rules = {f"*.{block}.{OUTPUT_NORM}": lambda y, at: at.source for block in some}
        yield f"{said}, and the block's output is exported as the norm's stage", {**moved, **unnormed}
    if len(blocks) > 1:
        yield from _as_in_llama(port)


def _as_in_llama(port: Port) -> Ways:
    """Y = X + Attention(X); Z = Y + Normalize'(FFN(Normalize(Y))), where Normalize is the norm after attention."""
    norm, said = f"attention.{OUTPUT_NORM}", "the norm after attention is before the FFN, as its name means in Llama"

    def summed(y: np.ndarray, at: At) -> np.ndarray:
        total: np.ndarray = at("input") + at("attention.output")
        return total

    before = _reading(port, "ffn", lambda at: _normed(at("attention_residual"), at, norm))
    yield said, {f"*.{norm}": lambda y, at: _normed(summed(y, at), at, norm), ATTENTION: summed, **before}
    said += ", and the block's output is exported as the norm's stage"
    yield said, {f"*.{norm}": lambda y, at: at.source, **before}


def _norm_first(port: Port, block: str) -> Rules:
    """Rules for X + Block(Normalize(X)), in which the norm before the block has the weight of the norm after it."""
    x, norm = INPUTS[block], f"{block}.{OUTPUT_NORM}"
    return {
        **_reading(port, block, lambda at: _normed(at(x), at, norm)),
        f"*.{norm}": lambda y, at: _normed(at(x), at, norm),
        f"*.{block}_residual": lambda y, at: at(x) + at(f"{block}.output"),
    }


def _reading(port: Port, block: str, read: Callable[[At], np.ndarray]) -> Rules:
    """Rules that compute a block's first stages, such as query, key and value, from the rows that `read` returns."""
    of_block, graph = f"{port.stack}layers.0.{block}.", parents(port.config, port.weights)
    first = [name for name, own in graph.items() if name.startswith(of_block) and not own[0].startswith(of_block)]
    return {f"*.{block}.{name.removeprefix(of_block)}": lambda y, at: at.linear(read(at), at.name) for name in first}


AFTER_ATTENTION: Rules = {ATTENTION: lambda y, at: at.written("attention")}
AFTER_FFN: Rules = {FFN: lambda y, at: at.written("ffn")}


def other_residual(port: Port) -> Ways:
    """Adds a stage other than the block's input to the block's output."""
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
        "the embeddings": "layers.0.input",
    }
    for (pattern, block), stages in zip(BLOCKS, (for_attention, for_ffn), strict=True):
        for said, stage in stages.items():
            if stage:
                way = f"{said}, after {block}"
                yield way, {pattern: lambda y, at, stage=stage, block=block: at(stage) + at.written(block)}
    if norm_first:
        rules: Rules = {
            f"*.{block}_residual": lambda y, at, block=block: at(f"{block}_norm") + at.written(block)
            for block in ("attention", "ffn")
        }
        yield "each block's input, normalized, after both blocks", rules


def residual_scaled(port: Port) -> Ways:
    for pattern, block in BLOCKS:
        depth = (port.depth, port.depth**0.5, (2 * port.depth) ** 0.5)
        by_depth = {factor for each in depth for factor in (each, 1 / each)}
        for c in sorted({2.0, 0.5, 0.5**0.5, 2**0.5, 0.9, 0.8, 0.1, *by_depth} - {1.0}):
            rules: dict[str, Rules] = {
                "the input of {}": {pattern: lambda y, at, c=c, block=block: y + (c - 1) * (y - at.written(block))},
                "the output of {}": {pattern: lambda y, at, c=c, block=block: y + (c - 1) * at.written(block)},
                "the sum after {}": {pattern: lambda y, at, c=c: c * y},
            }
            for said, rule in rules.items():
                yield f"{c:.4g} times {said.format(block)}", rule
        yield f"{block} subtracted", {pattern: lambda y, at, block=block: y - 2 * at.written(block)}


def left_out(port: Port) -> Ways:
    """Omits a block, with or without its norm."""
    for block, x in (("attention", "input"), ("ffn", "attention_norm")):
        if not port.config.norm_first:
            yield f"{block} and its norm", {f"*.{block}_norm": lambda y, at, x=x: at(x)}
        yield block, {f"*.{block}_residual": lambda y, at, block=block: y - at.written(block)}
    if port.config.decoder:
        yield "attention to the source", {"*.cross_attention_residual": lambda y, at: at("input")}
        if not port.config.norm_first:
            yield "attention to the source and its norm", {"*.cross_attention_norm": lambda y, at: at("input")}


def other_ffn_input(port: Port) -> Ways:
    said = "the sum, not normalized" if port.config.norm_first else "the sum before the norm"
    for way, stage in {
        "the layer's input": "input",
        "attention's output": "attention.output",
        said: "attention_residual",
    }.items():
        yield f"reads {way}", _reading(port, "ffn", lambda at, stage=stage: at(stage))
    if port.config.norm_first:
        yield (
            "its norm reads the layer's input, parallel to attention",
            {"*.ffn_norm": lambda y, at: _normed(at("input"), at, "ffn_norm")},
        )
    parallel: Rules = {
        **_reading(port, "ffn", lambda at: at("input")),
        FFN: lambda y, at: at("input") + at.written("attention") + at.written("ffn"),
    }
    yield "parallel to attention, both added to the layer's input", parallel
    if port.has("layers.0.ffn_norm.weight") and port.config.norm_first:
        # the norm's input is exported under the name of the sum
        parallel = {ATTENTION: lambda y, at: at("input"), FFN: parallel[FFN]}
        yield "parallel to attention, both added to the layer's input, which the FFN's norm reads", parallel


def ffn_first(port: Port) -> Ways:
    """Y = Normalize(X + FFN(X)); Z = Normalize(Y + Attention(Y))."""
    if port.stack == "decoder.":
        return
    if not port.config.norm_first:
        for way, first, second in (
            ("", "ffn_norm", "attention_norm"),
            ("the norms in their usual places", "attention_norm", "ffn_norm"),
        ):
            yield (
                way,
                {
                    "*.input": lambda x, at, first=first: _normed(x + _fed(x, at), at, first),
                    **_reading(port, "ffn", lambda at: at.unchanged_input),
                    "*.ffn_norm": lambda y, at, second=second: _normed(at("attention_residual"), at, second),
                },
            )
    else:
        yield (
            "",
            {
                "*.input": lambda x, at: x + _fed(_normed(x, at, "ffn_norm"), at),
                "*.ffn_residual": lambda y, at: at("attention_residual"),
            },
        )
    yield "stages named by what they compute, not by their place in the layer", _own_names(port)


def _fed(x: np.ndarray, at: At) -> np.ndarray:
    """FFN(x), gated and with a norm of its output if the model has them."""
    is_gated, activation = at.weight("ffn.up") is not None, ACTIVATIONS[at.config.activation]
    activated = activation(at.linear(x, "ffn.gate" if is_gated else "ffn.hidden"))
    read = activated * at.linear(x, "ffn.up") if is_gated else activated
    return _normed(at.linear(read, "ffn.output"), at, f"ffn.{OUTPUT_NORM}")


def _normed(x: np.ndarray, at: At, norm: str) -> np.ndarray:
    """Normalize(x) with the weights of a norm, or x if the model has no such norm."""
    weights = {part: each for part in ("weight", "bias") if (each := at.weight(norm, part)) is not None}
    return at.norm(x, **weights) if weights else x


def _own_names(port: Port) -> Port:
    """A port whose layers apply the FFN first and name stages by their block, so attention has a layer's last stage."""
    fed, out = ("ffn_residual", "attention_residual") if port.config.norm_first else ("ffn_norm", "attention_norm")

    def read(at: At) -> np.ndarray:
        return at(f"layers.{at.layer - 1}.{out}") if at.layer else at.unchanged_input

    rules: dict[str, Any] = {"*.input": lambda x, at: at(fed), FFN: lambda y, at: read(at) + at.written("ffn")}
    if port.config.norm_first and port.has("layers.0.ffn_norm.weight"):
        rules["*.ffn_norm"] = lambda y, at: _normed(read(at), at, "ffn_norm")
    else:
        rules |= _reading(port, "ffn", read)
    last = f"{port.stack}layers.{port.depth - 1}.{fed}"
    return port.ruling(rules).rereading({last: lambda y, at: at(out)}, "*")


def layer_count(port: Port) -> Ways:
    """Omits a layer or every other layer, or runs a layer twice."""
    end = "ffn_residual" if port.config.norm_first else "ffn_norm"
    for stack, count in stacks(port.config).items():
        of = f" of the {stack[:-1]}" if stack else ""
        order = [count - 1, *range(count - 1)][:16]
        for i in order:
            said = f"the last layer{of} is missing" if i == count - 1 else f"layer {i}{of} is missing"
            yield said, {f"{stack}layers.{i}.{end}": lambda y, at: at("input")}
        if count > 1:
            halved: Rules = {f"{stack}layers.{i}.{end}": lambda y, at: at("input") for i in range(1, count, 2)}
            yield f"every other layer{of} is missing", halved
        if port.config.norm_first and count > 1 and f"{stack}norm.weight" in port.weights:
            yield (
                f"the last layer{of} is missing, and the layer before it ends with the final norm",
                {
                    f"{stack}layers.{count - 2}.{end}": lambda y, at: _normed(y, at, "norm"),
                    f"{stack}layers.{count - 1}.{end}": lambda y, at: at("input"),
                    f"{stack}norm": lambda y, at: at.source,
                },
            )
        if not port.config.norm_first:
            for i in order:
                for stage in ("input", end):  # the port may export the stages of either run
                    yield f"layer {i}{of} runs twice", {f"{stack}layers.{i}.{stage}": lambda x, at: at.layer_on(x)}


def restarted(port: Port) -> Ways:
    """Every layer reads the rows that the first layer reads. If layers share weights, layers seem to be missing."""
    graph = parents(port.config, port.weights)
    for stack, count in stacks(port.config).items():
        first = next(iter(graph.get(f"{stack}layers.0.input", ())), "")
        if count > 1 and first in {*port.given, *port.span}:
            rule: Rules = {f"{stack}layers.*.input": lambda x, at, first=first: at(first) if at.layer else x}
            yield f"every layer{f' of the {stack[:-1]}' if stack else ''} reads {first}", rule


MISTAKES = (
    Mistake(
        "pre-norm instead of post-norm",
        "this model normalizes after each residual sum, not before each block",
        other_norm_order(True),
        reorders=True,
    ),
    Mistake(
        "post-norm instead of pre-norm",
        "this model normalizes before each block, not after each residual sum",
        other_norm_order(False),
        reorders=True,
    ),
    Mistake(
        "norm before a block, not after it",
        "this model normalizes the output of each block, and its blocks read rows without a norm",
        norms_before_blocks,
    ),
    Mistake("norm before the residual sum", "the sum of a block's input and output is normalized", norm_of_block),
    Mistake(
        "residual left out",
        "a block's input must be added to its output",
        {"after attention": AFTER_ATTENTION, "after the FFN": AFTER_FFN, "both": {**AFTER_ATTENTION, **AFTER_FFN}},
    ),
    Mistake("residual from the wrong place", "a block's own input is added to its output", other_residual),
    Mistake("residual scaled", "a block's input and output are added without a factor", residual_scaled),
    Mistake("block left out", "each layer applies attention, then the FFN", left_out),
    Mistake(
        "the FFN reads the wrong stage",
        "the FFN reads the sum of attention and its input, normalized if a norm is between the two blocks",
        other_ffn_input,
    ),
    Mistake("FFN before attention", "each layer applies attention, then the FFN", ffn_first, reorders=True),
    Mistake("wrong number of layers", "each layer of the model runs once", layer_count),
    Mistake("layer reads the wrong rows", "each layer reads the output of the layer before it", restarted),
)
