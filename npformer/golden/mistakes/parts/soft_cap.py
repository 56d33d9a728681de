"""Mistakes that ports make in soft caps of scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.engine.activations import soft_cap
from npformer.engine.mechanisms.soft_cap import UNCAPPED_SCORES, SoftCap
from npformer.golden.mistake import Mistake, Ways

CAPS = (50.0, 30.0, 20.0, 100.0)  # common values in models and ports
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
    yield "before the scale", {SCORES: lambda y, at: _unscaled_first(at, own)}


def _unscaled_first(at: Any, cap: float) -> np.ndarray:
    return soft_cap(at(f"attention.{UNCAPPED_SCORES}") / at.scale, cap) * at.scale


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
