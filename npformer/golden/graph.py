"""The graph of a model's stages: for each stage, the stages from which it is computed.

A model with a decoder has two stacks. The names of their stages begin with the name of the stack, "encoder." or
"decoder.". Each layer of the decoder has two attention blocks: self-attention, and attention to the encoder's output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from npformer.config import Config
from npformer.interpret.stages import of_weights

QKV = ("query", "key", "value")
INNER = ("ffn.hidden", "ffn.gate", "ffn.up")  # the first linear layer of an FFN, or the first two of a gated one
CROSS = "cross_attention"
HEAD = ("pool", "head.", "logits", "start_", "end_", "probabilities")  # prefixes of the names of a head's stages
STACKS = ("encoder.", "decoder.")
_STAGE = re.compile(r"(encoder\.|decoder\.|)(?:layers\.(\d+)\.)?(.*)")

Parents = dict[str, tuple[str, ...]]


# --- names -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 12)
def parted(stage: str) -> tuple[str, int, str]:
    """Returns the stack of a stage ("" without a decoder), its layer (-1 outside the layers) and the rest of its name.

    >>> parted("decoder.layers.3.cross_attention.scores"), parted("logits")
    (('decoder.', 3, 'cross_attention.scores'), ('', -1, 'logits'))
    """
    found = _STAGE.fullmatch(stage)
    assert found is not None
    return found[1], -1 if found[2] is None else int(found[2]), found[3]


@lru_cache(maxsize=1 << 14)
def matches(stage: str, pattern: str) -> bool:
    """Returns whether a pattern matches a stage by its full name, or by its name within a stack.

    Within a stack, a pattern for attention also matches cross-attention.

    >>> matches("decoder.layers.0.cross_attention.scores", "*.attention.scores")
    True
    >>> matches("decoder.layers.0.cross_attention.scores", "decoder.*.attention.scores")
    False
    """
    if fnmatchcase(stage, pattern) or not stage.startswith(STACKS):
        return fnmatchcase(stage, pattern)
    return fnmatchcase(stage.partition(".")[2].replace(CROSS, "attention"), pattern)


def block_of(stage: str) -> tuple[str, int, bool] | None:
    """The stack and layer of a stage, and whether it belongs to cross-attention; None outside the layers."""
    stack, layer, rest = parted(stage)
    return (stack, layer, rest.startswith(CROSS)) if layer >= 0 else None


def stacks(config: Config) -> dict[str, int]:
    """Maps the prefix of each stack's stages to the stack's number of layers."""
    if config.decoder:
        return dict(zip(STACKS, (config.n_layers, config.decoder.n_layers), strict=True))
    return {"": config.n_layers}


def heads_of(config: Config, stack: str) -> int:
    """Returns the number of attention heads in a stack."""
    return config.decoder.n_heads if stack == "decoder." else config.n_heads


def head_width(config: Config, stack: str) -> int:
    """Returns the width of an attention head in a stack."""
    return config.head_width or config.d_model // heads_of(config, stack)


# --- parents ---------------------------------------------------------------------------------------------------------


def parents(config: Config, weights: Iterable[str]) -> Parents:
    """Maps each stage of a model with these weights to the stages from which it is computed, in order.

    The first stages of a layer have the parent `layers.*.input`. The parent of that input is the stage that the layer
    reads.
    """
    of: Parents = {}
    for stage in of_weights(config, frozenset(weights)).values():
        stack, layer, _ = parted(stage.name)
        here, made_from = f"{stack}layers.{layer}.", list(stage.parents)
        for i, parent in enumerate(made_from):
            if layer >= 0 and parent.startswith(stack) and not parent.startswith(here):
                of[f"{here}input"], made_from[i] = (parent,), f"{here}input"
        of[stage.name] = tuple(made_from)
    return of


def made_from(of: Mapping[str, tuple[str, ...]], stage: str) -> set[str]:
    """Returns the stages that are computed from this one."""
    after = {stage}
    for name, own in of.items():
        if after.intersection(own):
            after.add(name)
    return after - {stage}


def span(of: Mapping[str, tuple[str, ...]], stage: str, given: Sequence[str] | Mapping[str, Any]) -> frozenset[str]:
    """Returns the stages to compute from the given ones for `stage`, including `stage` itself."""
    found, waiting = set(), [stage]
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting += [each for each in of.get(name, ()) if each not in given and each not in found]
    return frozenset(found)
