"""The translation models of Marian (Junczys-Dowmunt et al., 2018), as in Hugging Face's MarianMTModel.

`bart.py` has the same layers with the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from npformer.config import LABELLED, Config, Decoder, Positions
from npformer.families.base import (
    ACTIVATIONS,
    Source,
    first,
    read_activation,
    read_fields,
    read_ids,
    read_labels,
    reject_other,
    write_labels,
)
from npformer.families.vaswani import Transformer

#: For each field of npformer, the field of config.json and its default. The default is ... if the field is required,
#: or if `Marian.ids` has its default.
FIELDS = {
    "vocab_size": ("vocab_size", ...),
    "d_model": ("d_model", ...),
    "n_heads": ("encoder_attention_heads", ...),
    "n_layers": ("encoder_layers", ...),
    "d_ffn": ("encoder_ffn_dim", ...),
    "max_length": ("max_position_embeddings", 1024),
    "scale_embedding": ("scale_embedding", False),
    "shared": ("share_encoder_decoder_embeddings", True),
    "tied": ("tie_word_embeddings", True),
    "pad_id": ("pad_token_id", ...),
}
DECODER_FIELDS = {
    "n_heads": ("decoder_attention_heads", ...),
    "n_layers": ("decoder_layers", ...),
    "d_ffn": ("decoder_ffn_dim", ...),
    "start_id": ("decoder_start_token_id", ...),
}

#: Maps each group of weights in a layer to its module in the layer.
LAYER = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "ffn.hidden": "fc1",
    "ffn.output": "fc2",
    "ffn_norm": "final_layer_norm",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Marian(Transformer):
    """The family of Marian, and the base of families with the same tensor names."""

    ids: Mapping[str, int]  # default id of each field of config.json
    always: Mapping[str, Any] = field(default_factory=dict)  # supported values of older fields
    scales_outside: bool = False  # Transformers' embedding module does not multiply by sqrt(d_model)

    def completed(self, config: Config) -> tuple[str, ...]:
        """The stages that Transformers completes outside a module: it scales the module's output or adds a bias."""
        tokens = ("embeddings.token",) if self.scales_outside and config.scale_embedding else ()
        return (*tokens, "logits") if config.head == "translation" else tokens

    def read_config(self, data: Mapping[str, Any], head: str | None) -> Config:
        if head is None:
            named = self.head_of(data)
            head = "translation" if named == "base" else named
        reject_other(data, self.always)
        data = {**self.ids, **data}
        decoder = read_fields(DECODER_FIELDS, data, self.model_type)
        fields = read_fields(FIELDS, data, self.model_type)
        return self.config(
            head,
            **fields,
            labels=read_labels(head, data),
            problem_type=data.get("problem_type") if head in LABELLED else None,
            padding_idx=fields["pad_id"],
            activation=read_activation("activation_function", data),
            decoder=Decoder(
                **decoder,
                vocab_size=data.get("decoder_vocab_size") or fields["vocab_size"],
                end_ids=read_ids("eos_token_id", data["eos_token_id"]),
            ),
        )

    def write_config(self, config: Config) -> dict[str, Any]:
        stack: Decoder | Config = config.decoder or config
        data = {theirs: getattr(config, ours) for ours, (theirs, _) in FIELDS.items()}
        data |= {theirs: getattr(stack, ours) for ours, (theirs, _) in DECODER_FIELDS.items()}
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture(config)],
            **data,
            "decoder_vocab_size": stack.vocab_size,
            "activation_function": first(ACTIVATIONS, config.activation),
            "is_encoder_decoder": bool(config.decoder),
            "eos_token_id": list(stack.end_ids) if len(stack.end_ids) != 1 else stack.end_ids[0],
            **write_labels(config),
            **({"problem_type": config.problem_type} if config.problem_type else {}),
        }

    def sources(self, config: Config, arrays: Mapping[str, tuple[str, str]], head: str) -> dict[str, Source]:
        shared = ("model.shared.weight",) if config.shared else ()
        found = {}
        for ours, (group, array) in arrays.items():
            side, _, rest = group.partition(".")
            if group == "head.output":
                found[ours] = Source(("lm_head.weight",))
                if array == "bias":
                    found[ours] = Source(("final_logits_bias",), leading=True)
            elif rest == "embeddings.token":
                names = (f"model.{side}.embed_tokens.weight",)
                # Transformers stores tied tables once, under the name "shared", and other tables separately.
                both = shared + names if config.tied else names + shared
                found[ours] = Source(both if side == "encoder" else names)
            elif rest == "embeddings.position":
                found[ours] = Source((f"model.{side}.embed_positions.weight",))
            elif rest == "embeddings.norm":
                found[ours] = Source((f"model.{side}.layernorm_embedding.{array}",))
            else:
                _, n, within = rest.split(".", 2)
                found[ours] = Source((f"model.{side}.layers.{n}.{LAYER[within]}.{array}",))
        return found


MARIAN = Marian(
    model_type="marian",
    architectures={"MarianMTModel": "translation"},
    constants={"eps": 1e-5, "positions": Positions("sinusoidal-halves")},
    ids={"pad_token_id": 58100, "decoder_start_token_id": 58100, "eos_token_id": 0},
    always={"normalize_before": False, "normalize_embedding": False, "static_position_embeddings": True},
    ends_sources=True,
    tokenizer_pieces=True,
    scales_outside=True,
)
