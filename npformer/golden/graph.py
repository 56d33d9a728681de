"""The graph of a model's stages: which stages each one is computed from.

A model with a decoder has two stacks. Their stages begin with the stack's name, "encoder." or "decoder.", and all of a
decoder's layers attend twice, to themselves and to the encoder's output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from npformer.config import Config
from npformer.transformer import POOLED_HEADS

QKV, SCORED = ("query", "key", "value"), ("query_heads", "key_heads", "distance_scores")
CROSS = "cross_attention"
STACKS = ("encoder.", "decoder.")
_STAGE = re.compile(r"(encoder\.|decoder\.|)(?:layers\.(\d+)\.)?(.*)")

Parents = dict[str, tuple[str, ...]]


# --- names -----------------------------------------------------------------------------------------------------------


def parted(stage: str) -> tuple[str, int, str]:
    """Returns the stack of a stage ("" without a decoder), its layer (-1: none) and the rest of its name.

    >>> parted("decoder.layers.3.cross_attention.scores"), parted("logits")
    (('decoder.', 3, 'cross_attention.scores'), ('', -1, 'logits'))
    """
    found = _STAGE.fullmatch(stage)
    assert found is not None
    return found[1], -1 if found[2] is None else int(found[2]), found[3]


def matches(stage: str, pattern: str) -> bool:
    """Tells whether a pattern means a stage: by its name, or in either stack, where each attention is attention.

    >>> matches("decoder.layers.0.cross_attention.scores", "*.attention.scores")
    True
    >>> matches("decoder.layers.0.cross_attention.scores", "decoder.*.attention.scores")
    False
    """
    if fnmatchcase(stage, pattern) or not stage.startswith(STACKS):
        return fnmatchcase(stage, pattern)
    return fnmatchcase(stage.partition(".")[2].replace(CROSS, "attention"), pattern)


def stacks(config: Config) -> dict[str, int]:
    """Returns the names of a model's stacks, as its stages begin with them -> the number of layers."""
    if config.decoder:
        return dict(zip(STACKS, (config.n_layers, config.decoder.n_layers), strict=True))
    return {"": config.n_layers}


# --- parents ---------------------------------------------------------------------------------------------------------


def parents(config: Config, weights: Mapping[str, Any]) -> Parents:
    """Returns each stage -> the stages it is computed from; `layers.*.input` is what a layer reads."""
    of: Parents = {}
    x = ""
    for stack, count in stacks(config).items():
        x = _stack(of, config, weights, stack, count, x)
    return of | _head(config, weights, x)


def _stack(of: Parents, config: Config, weights: Mapping[str, Any], stack: str, count: int, source: str) -> str:
    """Adds a stack's stages, of which a decoder's read the source; returns the last."""
    at = f"{stack}embeddings"
    last = next(name for name in ("project", "norm", "sum") if name == "sum" or f"{at}.{name}.weight" in weights)
    of |= {
        f"{at}.sum": (f"{at}.token", f"{at}.position", f"{at}.segment"),
        f"{at}.norm": (f"{at}.sum",),
        f"{at}.project": (f"{at}.norm",),
    }
    x = embedded = f"{at}.{last}"
    for i in range(count):
        here = f"{stack}layers.{i}."
        of[f"{here}input"] = (x,)
        of |= _layer(config, weights, here, source)
        x = here + ("ffn_residual" if config.norm_first else "ffn_norm")
        if i == 0 and config.convolution:
            of |= {
                "convolution.hidden": (embedded,),
                "convolution.activation": ("convolution.hidden",),
                "convolution_residual": (x, "convolution.activation"),
                "convolution_norm": ("convolution_residual",),
            }
            x = "convolution_norm"
    if f"{stack}norm.weight" in weights:
        of[f"{stack}norm"], x = (x,), f"{stack}norm"
    return x


def _layer(config: Config, weights: Mapping[str, Any], here: str, source: str) -> Parents:
    """The stages of a layer: its blocks one after another, each of which adds to what the one before has made."""
    x, of = f"{here}input", Parents()
    for block in ("attention", CROSS, "ffn") if source else ("attention", "ffn"):
        at, norm, total = (f"{here}{block}{end}" for end in ("", "_norm", "_residual"))
        first = config.norm_first
        read = norm if first and (block != "attention" or f"{norm}.weight" in weights) else x
        if block == "ffn":
            of |= _ffn(at, read, f"{at}.gate.weight" in weights)
        else:
            of |= _attention(config, at, read, source if block == CROSS else read)
        of |= {total: (x, f"{at}.output"), norm: (x if first else total,)}
        x = total if first else norm
    return of


def _attention(config: Config, at: str, read: str, source: str) -> Parents:
    turned = "_rotated" if config.rotary_theta else ""
    scored = SCORED[: 3 if config.n_distances and config.distance_forms else 2]
    return {
        f"{at}.query": (read,),
        f"{at}.key": (source,),
        f"{at}.value": (source,),
        **{f"{at}.{name}_rotated": (f"{at}.{name}",) for name in QKV[:2] if turned},
        **{f"{at}.{name}_heads": (f"{at}.{name}{turned}",) for name in QKV[:2]},
        f"{at}.value_heads": (f"{at}.value",),
        f"{at}.distance_scores": (f"{at}.query_heads", f"{at}.key_heads"),
        f"{at}.scores": tuple(f"{at}.{name}" for name in scored),
        f"{at}.weights": (f"{at}.scores",),
        f"{at}.context": (f"{at}.weights", f"{at}.value_heads"),
        f"{at}.combined": (f"{at}.context",),
        f"{at}.output": (f"{at}.combined",),
    }


def _ffn(at: str, read: str, gated: bool) -> Parents:
    return {
        f"{at}.hidden": (read,),
        **({f"{at}.gate": (read,), f"{at}.gated": (f"{at}.activation", f"{at}.gate")} if gated else {}),
        f"{at}.activation": (f"{at}.hidden",),
        f"{at}.output": (f"{at}.gated" if gated else f"{at}.activation",),
    }


def _head(config: Config, weights: Mapping[str, Any], x: str) -> Parents:
    """The stages above the last stack, whose last stage is x."""
    of: Parents = {"pooler": (x,), "pooled": ("pooler",), "head.hidden": (x,), "head.activation": ("head.hidden",)}
    of["head.norm"] = ("head.activation",)
    if config.head in POOLED_HEADS and "pooler.weight" not in weights and "head.hidden.weight" in weights:
        of |= {"pooled": (x,), "head.hidden": ("pooled",)}
    read = "pooled" if "pooler.weight" in weights and config.head not in ("base", "masked-lm") else x
    if "head.hidden.weight" in weights:
        read = "head.norm" if "head.norm.weight" in weights else "head.activation"
    of |= dict.fromkeys(("logits", "start_logits", "end_logits"), (read,))
    return of | {f"{name}probabilities": (f"{name}logits",) for name in ("", "start_", "end_")}


def span(of: Mapping[str, tuple[str, ...]], stage: str, given: Sequence[str] | Mapping[str, Any]) -> frozenset[str]:
    """Returns the stages between the given ones and `stage`, which is among them."""
    found, waiting = set(), [stage]
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting += [each for each in of.get(name, ()) if each not in given and each not in found]
    return frozenset(found)
