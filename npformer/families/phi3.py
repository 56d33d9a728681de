"""Phi-3 and Phi-4 (Abdin et al., 2024): Llama's layers with fused weights. Some models rotate only part of each head.

One tensor contains query, key and value in this order, and another tensor contains the gate projection and the up
projection. Models for long texts change the rotary frequencies (`LongRope`, which older files call "su" or "yarn").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.engine.mechanisms import Mechanism, PartialRotary, Rotary, Window
from npformer.families.encoder_table import decoder_classes, usual_length
from npformer.families.llama import Mistral, kin_of_llama
from npformer.families.rope import ORIGINAL, SETTINGS, read_partial_rotary, write_partial_rotary

KINDS = ("default", "longrope", "su", "yarn")


class Phi3(Mistral):
    """The family of Phi-3."""

    kinds: tuple[type[Mechanism], ...] = (Rotary, PartialRotary, Window)
    scalings = ("longrope",)

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        return super().own_fields({"sliding_window": None, **data}, head, n_layers)

    def rotary(self, data: Mapping[str, Any], d_head: int) -> Rotary:
        own: dict[str, Any] = {ORIGINAL: 4096, **data}
        for name in SETTINGS:
            if not isinstance(given := data.get(name), Mapping):
                continue
            kind = given.get("rope_type", given.get("type", "default"))
            if kind not in KINDS:
                supported = ", ".join(map(repr, KINDS))
                raise NpformerError(f"{name}: {shown(kind)} is not supported for phi3 models; supported: {supported}")
            own[name] = {**given, "rope_type": "default" if kind == "default" else "longrope"}
        return read_partial_rotary(own, d_head)

    def write_config(self, config: Config) -> dict[str, Any]:
        rotary = next(each for each in config.mechanisms if isinstance(each, Rotary))
        return super().write_config(config) | write_partial_rotary(rotary, config.d_head)


QKV, GATED = "model.layers.*.self_attn.qkv_proj", "model.layers.*.mlp.gate_up_proj"
PHI3 = kin_of_llama(
    Phi3,
    "phi3",
    decoder_classes("Phi3", answers=False),
    {"eps": 1e-5},
    {
        **{f"layers.*.attention.{name}": QKV for name in ("query", "key", "value")},
        "layers.*.ffn.gate": GATED,
        "layers.*.ffn.up": GATED,
    },
    ids={"bos_token_id": 1, "eos_token_id": 32000, "pad_token_id": 32000},
    usual=usual_length(4096),
    stages={"model.layers.*.mlp.activation_fn": "layers.*.ffn.activation", "model.layers.*": "layers.*.ffn_residual"},
)
