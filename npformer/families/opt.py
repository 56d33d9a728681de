"""OPT (Zhang et al., 2022): causal stacks with positions that start at row 2, as in BART.

Norms come before the blocks. Only the model with 350M parameters has norms after the blocks, no final norm, and a token
table that is narrower than the layers. A head for whole texts reads the last token that is not padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npformer.common import checks
from npformer.config import MOST, Config, Positions
from npformer.engine.embeddings import Embeddings
from npformer.engine.layers.stack import Stack
from npformer.engine.norms.layernorm import LayerNorm
from npformer.engine.norms.norm import Norm
from npformer.engine.token_projections import ProjectedStack, ProjectedTokens
from npformer.families.base import LAYER_OUTPUT, read_padding
from npformer.families.building import stack_of
from npformer.families.encoder_table import SIZES, EncoderTable

WIDTH, LENGTH = "word_embed_proj_dim", "max_position_embeddings"


class Opt(EncoderTable):
    """The family of OPT."""

    def read_config(self, data: Mapping[str, Any], head: str | None) -> Config:
        width = data.get("hidden_size") if data.get(WIDTH) is None else data[WIDTH]
        return super().read_config({**data, WIDTH: width}, head)

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        first = checks.boolean("do_layer_norm_before", data.get("do_layer_norm_before", True))
        removed = checks.boolean("_remove_final_layer_norm", data.get("_remove_final_layer_norm", False))
        return {
            "norm_first": first,
            "final_norm": first and not removed,
            "bias": checks.boolean("enable_bias", data.get("enable_bias", True)),
            "padding_idx": read_padding({**self.ids, **data}),
            "max_length": checks.whole(LENGTH, data[LENGTH], 1, MOST),  # does not count the two rows before position 0
        }

    def write_config(self, config: Config) -> dict[str, Any]:
        return super().write_config(config) | {
            "do_layer_norm_before": config.norm_first,
            "_remove_final_layer_norm": config.norm_first and not config.final_norm,
            "enable_bias": config.bias,
            LENGTH: config.max_length,
        }

    def norm(self, config: Config) -> Norm:
        return LayerNorm(config.eps)

    def embeddings(self, config: Config) -> Embeddings:
        return ProjectedTokens(
            first_position=config.positions.first,
            padding_idx=config.padding_idx,
            n_tokens=config.vocab_size,
            n_positions=config.n_positions,
            width=config.table_width,
            projected=bool(config.d_embedding),
        )

    def stack(self, config: Config) -> Stack:
        stack = stack_of(config, self.norm(config))
        return ProjectedStack(stack.layers, stack.norm, table_width=config.table_width) if config.d_embedding else stack


OPT = Opt(
    model_type="opt",
    constants={
        "norm_first": True, "final_norm": True, "causal": True, "pooling": "last", "eps": 1e-5, "activation": "relu",
        "positions": Positions(first=2, skips_masked=True),
    },
    special_tokens={"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"},
    single="bos $A",
    pair="bos $A bos $B",
    sizes={**SIZES, "d_ffn": "ffn_dim", "d_embedding": WIDTH},
    activation="activation_function",
    usual_activation="relu",
    ids={"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1},
    settings={"layer_norm_elementwise_affine": True},
    architectures={
        "OPTModel": "base",
        "OPTForCausalLM": "causal-lm",
        "OPTForSequenceClassification": "sequence-classification",
        "OPTForQuestionAnswering": "question-answering",
    },
    prefix="model.",
    scales_queries=True,
    encoder={
        "embeddings.token": "model.decoder.embed_tokens",
        "embeddings.project": "model.decoder.project_in",
        "embeddings.position": "model.decoder.embed_positions",
        "layers.*.attention_norm": "model.decoder.layers.*.self_attn_layer_norm",
        "layers.*.attention.query": "model.decoder.layers.*.self_attn.q_proj",
        "layers.*.attention.key": "model.decoder.layers.*.self_attn.k_proj",
        "layers.*.attention.value": "model.decoder.layers.*.self_attn.v_proj",
        "layers.*.attention.output": "model.decoder.layers.*.self_attn.out_proj",
        "layers.*.ffn_norm": "model.decoder.layers.*.final_layer_norm",
        "layers.*.ffn.hidden": "model.decoder.layers.*.fc1",
        "layers.*.ffn.output": "model.decoder.layers.*.fc2",
        "norm": "model.decoder.final_layer_norm",
        "project": "model.decoder.project_out",
    },
    heads={
        "base": {},
        "causal-lm": {"head.output": "lm_head"},
        "sequence-classification": {"head.output": "score"},
        "question-answering": {"head.output": "qa_outputs"},
    },
    unbiased=frozenset({"causal-lm", "sequence-classification"}),
    stages={
        "model.decoder.layers.*.activation_fn": "layers.*.ffn.activation",
        "model.decoder.layers.*": LAYER_OUTPUT,
    },
    dropped=("layers.*.attention.output", "layers.*.ffn.output"),
)  # fmt: skip
