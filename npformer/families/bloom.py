"""BLOOM (BigScience Workshop, 2022): ALiBi, a norm after the embeddings, and query, key and value fused as in GPT-NeoX.

BLOOM uses the tanh approximation of GELU, in which Transformers rounds sqrt(2 / pi) to eight digits.
A head for whole texts reads the last token that is not padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npformer.common import checks
from npformer.config import MOST, Config, Positions
from npformer.engine.mechanisms import Alibi
from npformer.families.encoder_table import DECODER_HEADS, decoder_classes
from npformer.families.interleaved import Interleaved

#: Maps older names of fields to current names.
OLDER = {"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}


class Bloom(Interleaved):
    """The family of BLOOM."""

    def config(self, head: str, **fields: Any) -> Config:
        return super().config(head, **{**fields, "d_ffn": 4 * fields["d_model"]})

    def read_config(self, data: Mapping[str, Any], head: str | None) -> Config:
        older = {OLDER[name]: value for name, value in data.items() if name in OLDER and value is not None}
        return super().read_config({**data, **older}, head)

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        return {"max_length": checks.whole("seq_length", data.get("seq_length", 2048), 1, MOST)}

    def write_config(self, config: Config) -> dict[str, Any]:
        return super().write_config(config) | {"seq_length": config.max_length}


BLOOM = Bloom(
    model_type="bloom",
    constants={
        "norm_first": True, "final_norm": True, "causal": True, "pooling": "last", "eps": 1e-5,
        "mechanisms": (Alibi(),), "activation": "gelu_tanh", "positions": Positions("none", skips_masked=True),
    },
    special_tokens={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    single="$A",
    pair="$A $B",
    sizes={"vocab_size": "vocab_size", "d_model": "hidden_size", "n_heads": "n_head", "n_layers": "n_layer"},
    activation="",
    usual_activation="gelu_new",
    eps="layer_norm_epsilon",
    ids={"bos_token_id": 1, "eos_token_id": 2},
    settings={"apply_residual_connection_post_layernorm": False},
    architectures=decoder_classes("Bloom"),
    prefix="transformer.",
    unheard=("scores",),  # in Transformers, scores differ by a constant per query, which softmax cancels
    encoder={
        "embeddings.token": "transformer.word_embeddings",
        "embeddings.norm": "transformer.word_embeddings_layernorm",
        "layers.*.attention_norm": "transformer.h.*.input_layernorm",
        "layers.*.attention.query": "transformer.h.*.self_attention.query_key_value",
        "layers.*.attention.key": "transformer.h.*.self_attention.query_key_value",
        "layers.*.attention.value": "transformer.h.*.self_attention.query_key_value",
        "layers.*.attention.output": "transformer.h.*.self_attention.dense",
        "layers.*.ffn_norm": "transformer.h.*.post_attention_layernorm",
        "layers.*.ffn.hidden": "transformer.h.*.mlp.dense_h_to_4h",
        "layers.*.ffn.output": "transformer.h.*.mlp.dense_4h_to_h",
        "norm": "transformer.ln_f",
    },
    heads=DECODER_HEADS,
    unbiased=frozenset({"causal-lm", "sequence-classification"}),
    stages={
        "transformer.h.*.mlp.gelu_impl": "layers.*.ffn.activation",
        "transformer.h.*": "layers.*.ffn_residual",
    },
    dropped=("layers.*.attention.output", "layers.*.ffn.output"),
    read={"token-classification": "norm"},
    read_rate={"token-classification": 0.1},
)  # fmt: skip
