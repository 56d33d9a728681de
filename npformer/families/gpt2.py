"""GPT-2 (Radford et al., 2019): a causal pre-norm stack that predicts the next token.

The linear layers are Conv1D with weights (in, out), and query, key and value are stored in one tensor. A head for whole
texts reads the last token that is not padding, which is the only token that attends to the whole text.
GPT2DoubleHeadsModel is read with its next-token head, and head="multiple-choice" reads its other head. Without
`mc_token_ids`, Transformers computes the multiple-choice head from the last column, even if it is padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npformer.common import checks
from npformer.config import MOST, Config
from npformer.families.encoder_table import DECODER_HEADS, EncoderTable

END_OF_TEXT = "<|endoftext|>"


class Gpt2(EncoderTable):
    """The family of GPT-2. The masks that earlier versions of Transformers stored in each layer are ignored."""

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        inner = data.get("n_inner")
        return {"d_ffn": 4 * data["n_embd"] if inner is None else checks.whole("n_inner", inner, 1, MOST)}

    def write_config(self, config: Config) -> dict[str, Any]:
        return super().write_config(config) | {"n_inner": config.d_ffn}

    def stored_elsewhere(self, config: Config) -> frozenset[str]:
        masks = (f"transformer.h.{i}.attn.{name}" for i in range(config.n_layers) for name in ("bias", "masked_bias"))
        return super().stored_elsewhere(config) | {self._written(name, config) for name in masks}


GPT2 = Gpt2(
    model_type="gpt2",
    constants={
        "norm_first": True, "final_norm": True, "causal": True, "pooling": "last", "eps": 1e-5,
        "activation": "gelu_tanh",
    },
    special_tokens={"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "unk_token": END_OF_TEXT},
    single="$A",
    pair="$A $B",
    sizes={
        "vocab_size": "vocab_size",
        "d_model": "n_embd",
        "n_heads": "n_head",
        "n_layers": "n_layer",
        "max_length": "n_positions",
    },
    activation="activation_function",
    usual_activation="gelu_new",
    eps="layer_norm_epsilon",
    architectures={
        "GPT2Model": "base",
        "GPT2LMHeadModel": "causal-lm",
        "GPT2DoubleHeadsModel": "causal-lm",
        "GPT2ForSequenceClassification": "sequence-classification",
        "GPT2ForTokenClassification": "token-classification",
        "GPT2ForQuestionAnswering": "question-answering",
    },
    prefix="transformer.",
    encoder={
        "embeddings.token": "transformer.wte",
        "embeddings.position": "transformer.wpe",
        "layers.*.attention_norm": "transformer.h.*.ln_1",
        "layers.*.attention.query": "transformer.h.*.attn.c_attn",
        "layers.*.attention.key": "transformer.h.*.attn.c_attn",
        "layers.*.attention.value": "transformer.h.*.attn.c_attn",
        "layers.*.attention.output": "transformer.h.*.attn.c_proj",
        "layers.*.ffn_norm": "transformer.h.*.ln_2",
        "layers.*.ffn.hidden": "transformer.h.*.mlp.c_fc",
        "layers.*.ffn.output": "transformer.h.*.mlp.c_proj",
        "norm": "transformer.ln_f",
    },
    in_out=("c_attn", "c_proj", "c_fc"),
    heads={**DECODER_HEADS, "multiple-choice": {"head.output": "multiple_choice_head.summary"}},
    supported={
        "multiple-choice": {
            "summary_type": "cls_index", "summary_use_proj": True, "summary_proj_to_labels": True,
            "summary_activation": None,
        },
    },
    unbiased=frozenset({"causal-lm", "sequence-classification"}),
    settings={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    stages={
        "transformer.drop": "embeddings.sum",
        "transformer.h.*.mlp.act": "layers.*.ffn.activation",
        "transformer.h.*": "layers.*.ffn_residual",
    },
    read={"token-classification": "norm", "multiple-choice": "norm"},
    read_rate={"multiple-choice": 0.1},
)  # fmt: skip
