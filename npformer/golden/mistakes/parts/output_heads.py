"""Mistakes that ports make in heads over the vocabulary: in soft caps of logits and in scaled rows."""

from __future__ import annotations

from typing import Any

from npformer.engine.activations import soft_cap
from npformer.golden.mistake import Mistake, Ways

CAPS = (30.0, 50.0, 20.0, 10.0, 100.0)  # common values in models and ports


def _capped_otherwise(port: Any) -> Ways:
    for cap in CAPS:
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


CAPPED_LOGITS = (
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


OUTPUT_SCALE = (
    Mistake(
        "rows before the projection not scaled",
        "the decoder's rows are divided by sqrt(d_model) before they are projected with the token table",
        {
            "": {"head.scaled": lambda y, at: at.source},
            "multiplied by sqrt(d_model)": {"head.scaled": lambda y, at: at.source * at.config.d_model**0.5},
            "divided by d_model": {"head.scaled": lambda y, at: at.source / at.config.d_model},
            "divided by sqrt(d_head)": {"head.scaled": lambda y, at: at.source * at.d_head**-0.5},
        },
    ),
)
