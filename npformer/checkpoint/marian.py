"""Where Hugging Face's MarianMTModel keeps our groups of weights: one table. The tree is in `transformer.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npformer.checkpoint import transformer
from npformer.checkpoint.storage import Array
from npformer.checkpoint.transformer import HEAD, Source
from npformer.checkpoint.tree import Tree
from npformer.transformer_config import TransformerConfig

#: Our group inside of a layer -> their module inside of one.
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


def to_tree(flat: Mapping[str, Array], config: TransformerConfig, dtype: Any) -> Tree:
    """A Marian checkpoint's tensors as our tree: linear weights transposed, all in `dtype`, all read-only."""
    return transformer.read(flat, sources(config), config, dtype)


def to_torch(tree: Tree, config: TransformerConfig) -> dict[str, Array]:
    """Our tree as Marian's tensors: the inverse of `to_tree`."""
    flat = transformer.write(tree, sources(config), config)
    if "final_logits_bias" in flat:
        flat["final_logits_bias"] = flat["final_logits_bias"][None]
    return flat


def sources(config: TransformerConfig) -> dict[str, Source]:
    """Our name of every array -> where it is."""
    shared = ("model.shared.weight",) if config.shared else ()
    found = {
        f"{HEAD}.weight": Source(("lm_head.weight",), transposed=True),
        f"{HEAD}.bias": Source(("final_logits_bias",)),
    }
    for ours, each in transformer.parameters(config).items():
        side, _, rest = each.group.partition(".")
        if rest == "embeddings.token":
            names = (f"model.{side}.embed_tokens.weight",)
            # Transformers lets one table stand for all where they are tied, and each for itself where they are not.
            both = shared + names if config.tied else names + shared
            found[ours] = Source(both if side == "encoder" else names)
        elif rest == "embeddings.position":
            found[ours] = Source((f"model.{side}.embed_positions.weight",))
        elif rest.startswith("layers."):
            _, n, group = rest.split(".", 2)
            name = f"model.{side}.layers.{n}.{LAYER[group]}.{each.name}"
            found[ours] = Source((name,), transposed=each.transposed)
    return found
