"""GPT-NeoX (Black et al., 2022) and Pythia (Biderman et al., 2023): the attention and FFN of a layer run in parallel.

Part of each head is rotated. Query, key and value are stored in one tensor, interleaved by head. Checkpoints name the
projection to the vocabulary `embed_out`. A head for whole texts reads the last token that is not padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npformer.common import checks
from npformer.config import MOST, Config, Positions
from npformer.engine.activations import ACTIVATIONS
from npformer.engine.blocks import Attention, FeedForward
from npformer.engine.layers.layer import Layer
from npformer.engine.layers.parallel_layer import ParallelLayer
from npformer.engine.layers.stack import Stack
from npformer.engine.mechanisms import PartialRotary, Rotary
from npformer.engine.norms.layernorm import LayerNorm
from npformer.engine.norms.norm import Norm
from npformer.families.building import mechanisms_of
from npformer.families.encoder_table import DECODER_HEADS, SIZES, decoder_classes, usual_length
from npformer.families.interleaved import Interleaved
from npformer.families.rope import longest, read_partial_rotary, write_partial_rotary

END_OF_TEXT = "<|endoftext|>"


class GptNeoX(Interleaved):
    """The family of GPT-NeoX."""

    @property
    def mechanisms(self) -> tuple[type, ...]:
        return PartialRotary, Rotary

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        older = {"rope_theta": data.get("rotary_emb_base", 10_000.0)}
        d_head = data["hidden_size"] // checks.whole("num_attention_heads", data["num_attention_heads"], 1, MOST)
        rotary = read_partial_rotary({**older, **data}, d_head, data.get("rotary_pct", 0.25))
        return {
            "mechanisms": (rotary,),
            **longest(rotary),
            "parallel": checks.boolean("use_parallel_residual", data.get("use_parallel_residual", True)),
            "bias": checks.boolean("attention_bias", data.get("attention_bias", True)),
        }

    def write_config(self, config: Config) -> dict[str, Any]:
        [rotary] = config.mechanisms
        written = write_partial_rotary(rotary, config.d_head)
        return super().write_config(config) | {
            "use_parallel_residual": config.parallel,
            "attention_bias": config.bias,
            "rotary_pct": written["partial_rotary_factor"],
            "rotary_emb_base": rotary.theta,
            **written,
        }

    def stored_elsewhere(self, config: Config) -> frozenset[str]:
        """The names of the masks and frequencies that earlier versions of Transformers stored."""
        names = ("bias", "masked_bias", "rotary_emb.inv_freq")
        stored = (f"gpt_neox.layers.{i}.attention.{name}" for i in range(config.n_layers) for name in names)
        return frozenset(self._written(name, config) for name in stored)

    def _other_module(self, group: str, config: Config) -> str:
        return super()._other_module(group, config) if config.head == "causal-lm" else ""

    def norm(self, config: Config) -> Norm:
        return LayerNorm(config.eps)

    def stack(self, config: Config) -> Stack:
        kind, norm = ParallelLayer if config.parallel else Layer, self.norm(config)
        feed = FeedForward(ACTIVATIONS[config.activation], config.d_ffn)
        layers = []
        for i in range(config.n_layers):
            attention = Attention(config.n_heads, mechanisms_of(config, i), config.bias)
            layers.append(kind((("attention", attention), ("ffn", feed)), norm, norm_first=True))
        return Stack(tuple(layers), norm)


GPT_NEOX = GptNeoX(
    model_type="gpt_neox",
    constants={
        "norm_first": True, "final_norm": True, "causal": True, "pooling": "last", "eps": 1e-5, "tied": False,
        "positions": Positions("none"), "parallel": True, "mechanisms": (PartialRotary(10_000.0, columns=2),),
    },
    special_tokens={"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "unk_token": END_OF_TEXT},
    single="$A",
    pair="$A $B",
    sizes=SIZES,
    activation="hidden_act",
    eps="layer_norm_eps",
    ids={"bos_token_id": 0, "eos_token_id": 2},
    usual=usual_length(2048),
    architectures=decoder_classes("GPTNeoX"),
    prefix="gpt_neox.",
    encoder={
        "embeddings.token": "gpt_neox.embed_in",
        "layers.*.attention_norm": "gpt_neox.layers.*.input_layernorm",
        "layers.*.attention.query": "gpt_neox.layers.*.attention.query_key_value",
        "layers.*.attention.key": "gpt_neox.layers.*.attention.query_key_value",
        "layers.*.attention.value": "gpt_neox.layers.*.attention.query_key_value",
        "layers.*.attention.output": "gpt_neox.layers.*.attention.dense",
        "layers.*.ffn_norm": "gpt_neox.layers.*.post_attention_layernorm",
        "layers.*.ffn.hidden": "gpt_neox.layers.*.mlp.dense_h_to_4h",
        "layers.*.ffn.output": "gpt_neox.layers.*.mlp.dense_4h_to_h",
        "norm": "gpt_neox.final_layer_norm",
    },
    heads={**DECODER_HEADS, "causal-lm": {"head.output": "embed_out"}},
    modules={"head.output": "lm_head"},
    unbiased=frozenset({"causal-lm", "sequence-classification"}),
    reads=frozenset({"rope_parameters", "rope_scaling"}),
    stages={
        "gpt_neox.emb_dropout": "embeddings.sum",
        "gpt_neox.layers.*.mlp.act": "layers.*.ffn.activation",
        "gpt_neox.layers.*": "layers.*.ffn_residual",
    },
    read={"token-classification": "norm"},
    read_rate={"token-classification": 0.1},
)  # fmt: skip
