"""Mistakes that ports make in soft caps, of scores and of logits."""

from __future__ import annotations

from typing import Any

from npformer.engine.activations import soft_cap
from npformer.engine.mechanisms.soft_cap import UNCAPPED_SCORES, SoftCap
from npformer.golden.mistake import Mistake, Ways

CAPS = (50.0, 30.0, 20.0, 100.0)  # common values in models and ports
CAPS_OF_LOGITS = (30.0, 50.0, 20.0, 10.0, 100.0)
SCORES = "*.attention.scores"


def _other_caps(port: Any) -> Ways:
    own = next(each.cap for kind in port.config.layer_kinds for each in kind if isinstance(each, SoftCap))
    for cap in CAPS:
        if cap != own:
            yield (
                f"{cap:g} for {own:g}",
                {SCORES: lambda y, at, cap=cap: soft_cap(at(f"attention.{UNCAPPED_SCORES}"), cap)},
            )
    yield "clipped, not capped by tanh", {SCORES: lambda y, at: at(f"attention.{UNCAPPED_SCORES}").clip(-own, own)}
    yield "tanh without its factor", {SCORES: lambda y, at: y / own}
    yield (
        "before the scale",
        {SCORES: lambda y, at: soft_cap(at(f"attention.{UNCAPPED_SCORES}") / at.scale, own) * at.scale},
    )


MISTAKES = (
    Mistake(
        "soft cap of scores left out",
        "the scores are cap * tanh(q k^T * scale / cap); cap is attn_logit_softcapping in config.json",
        {"": {SCORES: lambda y, at: at(f"attention.{UNCAPPED_SCORES}")}},
    ),
    Mistake(
        "wrong soft cap of scores",
        "the scores are cap * tanh(q k^T * scale / cap); cap is attn_logit_softcapping in config.json",
        _other_caps,
    ),
)


def _capped_otherwise(port: Any) -> Ways:
    for cap in CAPS_OF_LOGITS:
        if cap != port.config.logit_cap:
            yield (
                f"{cap:g} instead of {port.config.logit_cap:g}",
                {"logits": lambda y, at, cap=cap: soft_cap(at.source, cap)},
            )
    yield (
        "clipped, not capped by tanh",
        {"logits": lambda y, at: at.source.clip(-at.config.logit_cap, at.config.logit_cap)},
    )
    yield "tanh without its factor", {"logits": lambda y, at: y / at.config.logit_cap}


OF_LOGITS = (
    Mistake(
        "soft cap of logits left out",
        "the logits over the vocabulary are cap * tanh(x / cap); cap is final_logit_softcapping in config.json",
        {"": {"logits": lambda y, at: at.source}},
    ),
    Mistake(
        "wrong soft cap of logits",
        "the logits over the vocabulary are cap * tanh(x / cap); cap is final_logit_softcapping in config.json",
        _capped_otherwise,
    ),
)
