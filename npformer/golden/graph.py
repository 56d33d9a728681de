"""The graph of a model's stages: which stages each one is computed from. `port.py` and `diagnose.py` read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npformer.config import Config
from npformer.transformer import POOLED_HEADS

QKV, SCORED = ("query", "key", "value"), ("query_heads", "key_heads", "distance_scores")


def parents(config: Config, weights: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Returns each stage -> the stages it is computed from; `layers.*.input` is what a layer reads."""
    last = next(name for name in ("project", "norm", "sum") if name == "sum" or f"embeddings.{name}.weight" in weights)
    of = {
        "embeddings.sum": ("embeddings.token", "embeddings.position", "embeddings.segment"),
        "embeddings.norm": ("embeddings.sum",),
        "embeddings.project": ("embeddings.norm",),
    }
    x, first = f"embeddings.{last}", config.norm_first
    for i in range(config.n_layers):
        turned = "_rotated" if config.rotary_theta else ""
        normed = first and f"layers.{i}.attention_norm.weight" in weights
        gated = f"layers.{i}.ffn.gate.weight" in weights
        before_ffn = ("ffn_norm" if first else "attention_norm",)
        parts: dict[str, tuple[str, ...]] = {
            **dict.fromkeys((f"attention.{name}" for name in QKV), ("attention_norm" if normed else "input",)),
            **{f"attention.{name}_rotated": (f"attention.{name}",) for name in QKV[:2] if turned},
            **{f"attention.{name}_heads": (f"attention.{name}{turned}",) for name in QKV[:2]},
            "attention.value_heads": ("attention.value",),
            "attention.distance_scores": ("attention.query_heads", "attention.key_heads"),
            "attention.scores": tuple(f"attention.{name}" for name in SCORED[: 3 if config.n_distances else 2]),
            "attention.weights": ("attention.scores",),
            "attention.context": ("attention.weights", "attention.value_heads"),
            "attention.combined": ("attention.context",),
            "attention.output": ("attention.combined",),
            "attention_residual": ("input", "attention.output"),
            "attention_norm": ("input" if first else "attention_residual",),
            "ffn.hidden": before_ffn,
            **({"ffn.gate": before_ffn, "ffn.gated": ("ffn.activation", "ffn.gate")} if gated else {}),
            "ffn.activation": ("ffn.hidden",),
            "ffn.output": ("ffn.gated" if gated else "ffn.activation",),
            "ffn_residual": ("attention_residual" if first else "attention_norm", "ffn.output"),
            "ffn_norm": ("attention_residual" if first else "ffn_residual",),
        }
        here = f"layers.{i}."
        of[f"{here}input"] = (x,)
        of |= {here + name: tuple(here + each for each in made_from) for name, made_from in parts.items()}
        x = here + ("ffn_residual" if first else "ffn_norm")
    if "norm.weight" in weights:
        of["norm"], x = (x,), "norm"
    of |= {"pooler": (x,), "pooled": ("pooler",), "head.hidden": (x,), "head.activation": ("head.hidden",)}
    of["head.norm"] = ("head.activation",)
    if config.head in POOLED_HEADS and "pooler.weight" not in weights and "head.hidden.weight" in weights:
        of |= {"pooled": (x,), "head.hidden": ("pooled",)}
    read = "pooled" if "pooler.weight" in weights and config.head not in ("base", "masked-lm") else x
    read = "head.norm" if "head.hidden.weight" in weights else read
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
