"""Nomic BERT (Nussbaum et al., 2024): BERT with rotary embeddings, gated feed-forward networks and no biases in layers.

Checkpoints on the hub and Transformers 5 use two different formats of config.json and of tensor names. Transformers 5
writes config.json in its own format, but the tensors with the names used on the hub. Code from the hub is never run.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.config import MOST, Config, Positions
from npformer.engine.layers.stack import Stack
from npformer.engine.mechanisms import Rotary
from npformer.families.base import read_padding, reject_other
from npformer.families.building import stack_of
from npformer.families.encoder_table import SIZES, EncoderTable
from npformer.families.rope import check_even_heads

#: Maps fields of Transformers to fields on the hub, which are named as in GPT-2.
HUB = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
}
#: Required values in the hub's format. The code on the hub has other defaults.
EXPECTED = {
    "activation_function": "swiglu",
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_fraction": 1.0,
}
#: Supported values of optional fields. Fields for experts are first, because models with experts also differ in other
#: fields, and the error must name the experts.
SUPPORTED = {
    "moe_every_n_layers": 0,
    "num_experts": 0,
    "prenorm": False,
    "parallel_block": False,
    "parallel_block_tied_norm": False,
    "use_rms_norm": False,
    "causal": False,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
}
PRETRAINING = "NomicBertForPreTraining"  # class of checkpoints on the hub with a masked-word head
OLDER = "bert."  # prefix of tensor names in checkpoints of this class


class NomicBert(EncoderTable):
    """The family of Nomic BERT, which reads config.json in both formats."""

    def read_config(self, data: Mapping[str, Any], head: str | None) -> Config:
        reject_other(data, SUPPORTED)
        if "n_embd" in data and "hidden_size" not in data:
            for name, value in EXPECTED.items():
                if data.get(name) != value:
                    raise NpformerError(
                        f"{name}: {checks.shown(data.get(name))} is not supported; supported: {value!r}"
                    )
            data = _as_transformers(data)
        return super().read_config(data, head)

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        width, n_heads = data["hidden_size"], data["num_attention_heads"]
        check_even_heads(data)
        if data.get("head_dim") is not None and data["head_dim"] != width // n_heads:
            given = checks.shown(data["head_dim"])
            raise NpformerError(
                f"head_dim: expected {width // n_heads}, which is hidden_size / num_attention_heads, got {given}"
            )
        pad = read_padding({"pad_token_id": 0, **data})
        return {"pad_id": pad, "padding_idx": pad, "mechanisms": (Rotary(_theta(data)),)}

    def write_config(self, config: Config) -> dict[str, Any]:
        return super().write_config(config) | {
            "pad_token_id": config.pad_id,
            "rope_parameters": {"rope_type": "default", "rope_theta": config.mechanisms[0].theta},
        }

    def stack(self, config: Config) -> Stack:
        return stack_of(config, self.norm(config), bias=False)

    def named_head(self, data: Mapping[str, Any]) -> str | None:
        return "masked-lm" if data.get("architectures") == [PRETRAINING] else super().named_head(data)

    def optional(self, config: Config) -> frozenset[str]:
        return super().optional(config) | {"head.hidden.bias", "head.output.bias"}  # missing on the hub

    def current(self, name: str, known: Container[str]) -> str:
        return super().current(name.removeprefix(OLDER), known)


def _as_transformers(data: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a config.json from the format of the hub to the format of Transformers."""
    renamed = {ours: data[theirs] for ours, theirs in HUB.items() if data.get(theirs) is not None}
    width, rows = checks.whole("n_embd", data["n_embd"], 1, MOST), data.get("vocab_size")
    multiple = checks.whole("pad_vocab_size_multiple", data.get("pad_vocab_size_multiple", 1), 1, MOST)
    if rows is not None:  # the table has a multiple of `multiple` rows
        renamed["vocab_size"] = -(-checks.whole("vocab_size", rows, 1, MOST) // multiple) * multiple
    rope = {"rope_type": "default", "rope_theta": data.get("rotary_emb_base", 10_000.0)}
    defaults = {"pad_token_id": None, "layer_norm_eps": 1e-5, "intermediate_size": 4 * width}
    return {**defaults, **data, "hidden_act": "silu", "rope_parameters": rope, **renamed}


def _theta(data: Mapping[str, Any]) -> float:
    """The base of the rotary embeddings."""
    rope = data.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        raise NpformerError(f"rope_parameters: expected an object, got {checks.shown(rope)}")
    for name, supported in (("rope_type", "default"), ("partial_rotary_factor", 1.0)):
        if rope.get(name, supported) != supported:
            given = checks.shown(rope[name])
            raise NpformerError(f"rope_parameters: {name}: {given} is not supported; supported: {supported!r}")
    return float(checks.positive("rope_theta", rope.get("rope_theta", 1000.0)))


LAYER, TRANSFORMERS = "nomic_bert.encoder.layers.*", "nomic_bert.layers.*"
NOMIC_BERT = NomicBert(
    model_type="nomic_bert",
    reads=frozenset({"auto_map", "rope_parameters"}),
    constants={
        "positions": Positions("none"),
        "mechanisms": (Rotary(1000.0),),
        "gated": True,
        "pad_id": 0,
        "padding_idx": 0,
    },
    sizes=SIZES,
    activation="hidden_act",
    usual_activation="silu",
    eps="layer_norm_eps",
    token_types="type_vocab_size",
    architectures={
        "NomicBertModel": "base",
        "NomicBertForSequenceClassification": "sequence-classification",
        "NomicBertForTokenClassification": "token-classification",
        "NomicBertForMaskedLM": "masked-lm",
    },
    prefix="nomic_bert.",
    encoder={
        "embeddings.token": "nomic_bert.embeddings.word_embeddings",
        "embeddings.segment": "nomic_bert.embeddings.token_type_embeddings",
        "embeddings.norm": "nomic_bert.emb_ln",
        "layers.*.attention.query": f"{LAYER}.attn.Wqkv",
        "layers.*.attention.key": f"{LAYER}.attn.Wqkv",
        "layers.*.attention.value": f"{LAYER}.attn.Wqkv",
        "layers.*.attention.output": f"{LAYER}.attn.out_proj",
        "layers.*.attention_norm": f"{LAYER}.norm1",
        "layers.*.ffn.gate": f"{LAYER}.mlp.fc12",
        "layers.*.ffn.up": f"{LAYER}.mlp.fc11",
        "layers.*.ffn.output": f"{LAYER}.mlp.fc2",
        "layers.*.ffn_norm": f"{LAYER}.norm2",
    },
    modules={
        "embeddings.norm": "nomic_bert.embeddings.LayerNorm",
        "layers.*.attention.query": f"{TRANSFORMERS}.self_attn.q_proj",
        "layers.*.attention.key": f"{TRANSFORMERS}.self_attn.k_proj",
        "layers.*.attention.value": f"{TRANSFORMERS}.self_attn.v_proj",
        "layers.*.attention.output": f"{TRANSFORMERS}.self_attn.o_proj",
        "layers.*.attention_norm": f"{TRANSFORMERS}.post_attention_layernorm",
        "layers.*.ffn.gate": f"{TRANSFORMERS}.mlp.gate_proj",
        "layers.*.ffn.up": f"{TRANSFORMERS}.mlp.up_proj",
        "layers.*.ffn.output": f"{TRANSFORMERS}.mlp.down_proj",
        "layers.*.ffn_norm": f"{TRANSFORMERS}.post_mlp_layernorm",
    },
    heads={
        "base": {},
        "sequence-classification": {"pooler": "nomic_bert.pooler.dense", "head.output": "classifier"},
        "token-classification": {"head.output": "classifier"},
        "masked-lm": {
            "head.hidden": "cls.predictions.transform.dense",
            "head.norm": "cls.predictions.transform.layer_norm",
            "head.output": "cls.predictions.decoder",
        },
    },
    twins={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    stages={
        f"{TRANSFORMERS}.mlp.act_fn": "layers.*.ffn.activation",
        TRANSFORMERS: "layers.*.ffn_norm",
        "nomic_bert.embeddings": "embeddings.norm",
        "nomic_bert.pooler": "pooled",
    },
    read={"sequence-classification": "pooled", "token-classification": "layers.*.ffn_norm"},
)
