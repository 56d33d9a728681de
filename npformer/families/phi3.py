"""Phi-3 and Phi-4 (Abdin et al., 2024): Llama's layers with fused weights. In some models part of each head is rotated.

One tensor has query, key and value in this order, and another has the gate projection and the up projection. Rotary
embeddings for long texts ("longrope", also called "su" and "yarn") are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.families.llama import Mistral, classes, kin_of_llama
from npformer.families.rope import SETTINGS, read_partial_rotary, write_partial_rotary
from npformer.mechanisms import Mechanism, PartialRotary, Rotary, Window


class Phi3(Mistral):
    """The family of Phi-3."""

    kinds: tuple[type[Mechanism], ...] = (Rotary, PartialRotary, Window)
    scaled = False

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        return super().own_fields({"sliding_window": None, **data}, head, n_layers)

    def rotary(self, data: Mapping[str, Any], d_head: int) -> Rotary:
        for name in SETTINGS:
            given = data.get(name)
            kind = given.get("rope_type", given.get("type", "default")) if isinstance(given, Mapping) else "default"
            if kind != "default":
                raise NpformerError(f"{name}: {shown(kind)} is not supported for phi3 models; supported: 'default'")
        return read_partial_rotary(data, d_head)

    def write_config(self, config: Config) -> dict[str, Any]:
        rotary = next(each for each in config.mechanisms if isinstance(each, Rotary))
        return super().write_config(config) | write_partial_rotary(rotary, config.d_head)


QKV, GATED = "model.layers.*.self_attn.qkv_proj", "model.layers.*.mlp.gate_up_proj"
PHI3 = kin_of_llama(
    Phi3,
    "phi3",
    {name: head for name, head in classes("Phi3").items() if head != "question-answering"},
    {"eps": 1e-5},
    {
        **{f"layers.*.attention.{name}": QKV for name in ("query", "key", "value")},
        "layers.*.ffn.hidden": GATED,
        "layers.*.ffn.gate": GATED,
    },
    ids={"bos_token_id": 1, "eos_token_id": 32000, "pad_token_id": 32000},
    stages={"model.layers.*.mlp.activation_fn": "layers.*.ffn.activation", "model.layers.*": "layers.*.ffn_residual"},
)
