"""The tiny models with golden stages: each family, head and option, with their token ids.

Parameters are random, with a spread that makes each of them matter: biases are not 0, norm weights are not 1, and
attention is neither flat nor one-hot. Only `make.py` uses this; it needs torch and transformers.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

# no width is a multiple of the length of a vector register
SIZES = {"vocab_size": 37, "d_model": 24, "n_heads": 3, "d_ffn": 40, "max_length": 12}
DECODERS = (
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "gpt_neox",
    "opt",
    "phi3",
    "bloom",
    "smollm3",
    "olmo2",
)
SPELLINGS = {
    "distilbert": {"d_model": "dim", "n_heads": "n_heads", "n_layers": "n_layers", "d_ffn": "hidden_dim"},
    "bert": {
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
        "d_ffn": "intermediate_size",
    },
    "gpt2": {"d_model": "n_embd", "n_heads": "n_head", "n_layers": "n_layer", "d_ffn": "n_inner"},
    "bart": {
        "d_model": "d_model",
        "n_heads": "encoder_attention_heads",
        "n_layers": "encoder_layers",
        "d_ffn": "encoder_ffn_dim",
    },
    "t5": {"d_model": "d_model", "n_heads": "num_heads", "n_layers": "num_layers", "d_ffn": "d_ff"},
}
SPELLINGS |= dict.fromkeys(
    (
        *("electra", "roberta", "albert", "mpnet", "modernbert", "deberta-v2", "nomic_bert"),
        *DECODERS[1:],
    ),
    SPELLINGS["bert"],
)
SPELLINGS["bloom"] = {"d_model": "hidden_size", "n_heads": "n_head", "n_layers": "n_layer", "d_ffn": "unused"}
# Masks of adjacent texts of equal length, a text of one token, gaps inside a text, and padding before a text.
SHARED_MASK = ["11111111", "11110000", "11110000", "10000000", "11000000", "10110110", "11100000"]
VARIANT_MASK = {
    "distilbert": ["111111", "001111", "011010"],
    "bert": ["111111", "101111", "110010"],  # its pooler reads the first column, even if it is padding
    "electra": ["111111", "101111", "110010"],
    "roberta": ["111111", "101111", "110010"],
    "albert": ["111111", "101111", "110010"],
    "mpnet": ["1111111111", "0011010000"],  # distances from 8 on share buckets
    "modernbert": ["11111111", "00110100"],
    "deberta-v2": ["1111111111", "0011010000"],
    "nomic_bert": ["11111111", "00110100"],
    **{name: ["111111", "001101", "110000"] for name in DECODERS},
    "deberta-v2-convolution": ["111111", "011010"],
    "bert-causal-lm": ["1111", "0110"],
    "roberta-causal-lm": ["1111", "0110"],
    "t5": ["111111111", "111000000", "100000000"],  # some distances are in the last bucket, which has no upper limit
    "bart": ["11111", "11100", "10000"],  # padding only after a text, because the decoder reads the ids shifted right
}
FEW_HEADS = ("albert", *DECODERS[2:])  # their other heads are compared in tests/oracle
# families with few and small cases
FEW = ("mpnet", "modernbert", "deberta-v2", "nomic_bert", "bart", "t5", *DECODERS)
N_TEXTS = (48, 14)  # number of texts for heads with one answer per text, in families outside and inside FEW


class Case(NamedTuple):
    """One tiny model. `encoder` names the case that stores this model's encoder stages, if it is a different case."""

    family: str
    architecture: str
    options: Mapping[str, Any] = MappingProxyType({})
    encoder: str = ""
    layers: int = 2


DISTILBERT_HEADS = {
    "sequence-classification": ("DistilBertForSequenceClassification", {"num_labels": 5}),
    "token-classification": ("DistilBertForTokenClassification", {"num_labels": 3}),
    "question-answering": ("DistilBertForQuestionAnswering", {}),
    "masked-lm": ("DistilBertForMaskedLM", {"tie_weights_": True}),
    "masked-lm-untied": ("DistilBertForMaskedLM", {"tie_weights_": False, "tie_word_embeddings": False}),
    "multiple-choice": ("DistilBertForMultipleChoice", {}),
}
BERT_HEADS = {
    "pooler": ("BertModel", {}),
    "sequence-classification": ("BertForSequenceClassification", {"num_labels": 5}),
    "token-classification": ("BertForTokenClassification", {"num_labels": 3}),
    "question-answering": ("BertForQuestionAnswering", {}),
    "masked-lm": ("BertForMaskedLM", {}),
    "next-sentence": ("BertForNextSentencePrediction", {}),
    "multiple-choice": ("BertForMultipleChoice", {}),
}
ELECTRA_HEADS = {
    "sequence-classification": ("ElectraForSequenceClassification", {"num_labels": 5}),
    "token-classification": ("ElectraForTokenClassification", {"num_labels": 3}),
    "question-answering": ("ElectraForQuestionAnswering", {}),
    "masked-lm": ("ElectraForMaskedLM", {}),
    "multiple-choice": ("ElectraForMultipleChoice", {}),
    "replaced-token": ("ElectraForPreTraining", {}),
}
ROBERTA_HEADS = {
    "pooler": ("RobertaModel", {}),
    "sequence-classification": ("RobertaForSequenceClassification", {"num_labels": 5}),
    "token-classification": ("RobertaForTokenClassification", {"num_labels": 3}),
    "question-answering": ("RobertaForQuestionAnswering", {}),
    "masked-lm": ("RobertaForMaskedLM", {}),
    "multiple-choice": ("RobertaForMultipleChoice", {}),
}
AFTER_PADDING = {"max_position_embeddings": SIZES["max_length"] + 2, "layer_norm_eps": 1e-5, "type_vocab_size": 1}
MPNET_HEADS = {
    "sequence-classification": ("MPNetForSequenceClassification", {"num_labels": 5}),
    "token-classification": ("MPNetForTokenClassification", {"num_labels": 3}),
    "question-answering": ("MPNetForQuestionAnswering", {}),
    "masked-lm": ("MPNetForMaskedLM", {}),
    "multiple-choice": ("MPNetForMultipleChoice", {}),
}
MODERNBERT_HEADS = {
    "sequence-classification": ("ModernBertForSequenceClassification", {"num_labels": 5}),
    "token-classification": ("ModernBertForTokenClassification", {"num_labels": 3}),
    "question-answering": ("ModernBertForQuestionAnswering", {}),
    "masked-lm": ("ModernBertForMaskedLM", {}),
    "multiple-choice": ("ModernBertForMultipleChoice", {"classifier_pooling": "mean"}),
}
SMALL = {"vocab_size": 13, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 10}
MPNET = {**SMALL, "max_position_embeddings": SIZES["max_length"] + 2, "layer_norm_eps": 1e-5}
# The second layer is local. With these values of theta the angles differ, although the heads are narrow.
MODERNBERT = {
    **SMALL, "local_attention": 5, "global_rope_theta": 90.0, "local_rope_theta": 30.0, "pad_token_id": 0,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1),
}  # fmt: skip
DEBERTA_HEADS = {
    "sequence-classification": ("DebertaV2ForSequenceClassification", {"num_labels": 5}),
    "token-classification": ("DebertaV2ForTokenClassification", {"num_labels": 3}),
    "question-answering": ("DebertaV2ForQuestionAnswering", {}),
    "masked-lm": ("DebertaV2ForMaskedLM", {}),
    "multiple-choice": ("DebertaV2ForMultipleChoice", {}),
}
DEBERTA = {
    **SMALL,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_buckets": 4,
    "max_relative_positions": 7,
}
NOMIC_BERT = {**SMALL, "rope_parameters": {"rope_type": "default", "rope_theta": 30.0}}
#: Encoders that predict the next token. They cannot share an encoder's stages with cases whose attention is not causal.
CAUSAL = {**SMALL, "is_decoder": True, "max_position_embeddings": 8}
GPT2_HEADS = {
    "causal-lm": ("GPT2LMHeadModel", {}),
    "causal-lm-untied": ("GPT2LMHeadModel", {"tie_word_embeddings": False}),
    "sequence-classification": ("GPT2ForSequenceClassification", {"num_labels": 5}),
    "token-classification": ("GPT2ForTokenClassification", {"num_labels": 3}),
    "question-answering": ("GPT2ForQuestionAnswering", {}),
}
GPT2 = {
    "vocab_size": 13, "n_embd": 8, "n_head": 2, "n_inner": 10,
    **dict.fromkeys(("bos_token_id", "eos_token_id"), 12), "pad_token_id": 0,
}  # fmt: skip
LLAMA_HEADS = {
    "causal-lm": ("LlamaForCausalLM", {}),
    "sequence-classification": ("LlamaForSequenceClassification", {"num_labels": 5}),
    "token-classification": ("LlamaForTokenClassification", {"num_labels": 3}),
    "question-answering": ("LlamaForQuestionAnswering", {}),
}
#: Two query heads share each key head, and heads are wider than d_model / n_heads.
LLAMA = {
    "vocab_size": 13, "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
    "intermediate_size": 12, **dict.fromkeys(("bos_token_id", "eos_token_id"), 12), "pad_token_id": 0,
    "rms_norm_eps": 1e-3, "rope_parameters": {"rope_type": "default", "rope_theta": 30.0},
}  # fmt: skip
#: Every score and logit is near its cap. The first layer has a window, which for EmbeddingGemma extends in both
#: directions.
GEMMA2 = {
    **LLAMA, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 1.5, "query_pre_attn_scalar": 7,
    "sliding_window": 3,
}  # fmt: skip
GEMMA3 = {
    **LLAMA, "use_bidirectional_attention": True, "query_pre_attn_scalar": 7, "sliding_window": 3,
    "sliding_window_pattern": 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 30.0, "factor": 3.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
    },
}  # fmt: skip
GPT_NEOX = {
    "vocab_size": 13, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 12,
    **dict.fromkeys(("bos_token_id", "eos_token_id"), 12), "pad_token_id": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 30.0, "partial_rotary_factor": 0.5},
}  # fmt: skip
#: The architecture of OPT-350M.
OPT = {
    "vocab_size": 13, "hidden_size": 8, "num_attention_heads": 2, "ffn_dim": 12, "word_embed_proj_dim": 6,
    "do_layer_norm_before": False, **dict.fromkeys(("bos_token_id", "eos_token_id"), 12), "pad_token_id": 0,
}  # fmt: skip
PHI3 = {
    **LLAMA, "hidden_size": 16, "sliding_window": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 30.0, "partial_rotary_factor": 0.5},
}  # fmt: skip
#: The second layer has no rotation.
SMOLLM3 = {**LLAMA, "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 3}
OLMO2 = {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 30.0}}
#: Three heads have the two slopes of two heads, and one of the slopes of four heads.
BLOOM = {
    "vocab_size": 13, "hidden_size": 12, "n_head": 3, **dict.fromkeys(("bos_token_id", "eos_token_id"), 12),
    "pad_token_id": 0,
}  # fmt: skip
SCALED = {
    "llama3": {
        "rope_type": "llama3", "rope_theta": 30.0, "factor": 3.0, "low_freq_factor": 1.0, "high_freq_factor": 1.5,
        "original_max_position_embeddings": 8,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 30.0, "factor": 3.0, "original_max_position_embeddings": 12},
    "linear": {"rope_type": "linear", "rope_theta": 30.0, "factor": 3.0},
}  # fmt: skip
END = 2
BART = {
    "vocab_size": 13, "d_model": 6, "encoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_layers": 2,
    "decoder_attention_heads": 3, "decoder_ffn_dim": 10, "eos_token_id": END, "decoder_start_token_id": 4,
}  # fmt: skip
#: T5 1.1, with heads whose width is not d_model / n_heads.
T5 = {
    "vocab_size": 13, "d_model": 6, "num_heads": 2, "d_kv": 4, "d_ff": 8, "num_decoder_layers": 2, "eos_token_id": END,
    "decoder_start_token_id": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6,
    "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
}  # fmt: skip
NARROW = {"embedding_size": 14}
SHARED_LAYERS = {"embedding_size": 6, "hidden_size": 10, "num_attention_heads": 2, "intermediate_size": 14}
CASES = {
    "distilbert-base": Case("distilbert", "DistilBertModel"),
    **{
        f"distilbert-{head}": Case("distilbert", *each, encoder="distilbert-base")
        for head, each in DISTILBERT_HEADS.items()
    },
    "distilbert-relu": Case("distilbert", "DistilBertModel", {"activation": "relu"}, layers=1),
    "distilbert-sinusoidal": Case("distilbert", "DistilBertModel", {"sinusoidal_pos_embds": True}, layers=1),
    "bert-base": Case("bert", "BertModel"),
    **{f"bert-{head}": Case("bert", *each, encoder="bert-base") for head, each in BERT_HEADS.items()},
    "bert-gelu-new": Case("bert", "BertModel", {"hidden_act": "gelu_new"}, layers=1),
    "bert-relu": Case("bert", "BertModel", {"hidden_act": "relu"}, layers=1),
    "bert-silu": Case("bert", "BertModel", {"hidden_act": "silu", "layer_norm_eps": 1e-2}, layers=1),
    "electra-base": Case("electra", "ElectraModel", NARROW),
    **{
        f"electra-{head}": Case("electra", architecture, {**NARROW, **options}, encoder="electra-base")
        for head, (architecture, options) in ELECTRA_HEADS.items()
    },
    "roberta-base": Case("roberta", "RobertaModel", AFTER_PADDING),
    **{
        f"roberta-{head}": Case("roberta", architecture, {**AFTER_PADDING, **options}, encoder="roberta-base")
        for head, (architecture, options) in ROBERTA_HEADS.items()
    },
    "bert-causal-lm": Case("bert", "BertLMHeadModel", CAUSAL, layers=1),
    "roberta-causal-lm": Case(
        "roberta", "RobertaForCausalLM", {**CAUSAL, "max_position_embeddings": 10, "type_vocab_size": 1}, layers=1
    ),
    "albert-base": Case("albert", "AlbertModel", SHARED_LAYERS),
    "albert-sequence-classification": Case(
        "albert", "AlbertForSequenceClassification", {**SHARED_LAYERS, "num_labels": 5}, encoder="albert-base"
    ),
    "mpnet-base": Case("mpnet", "MPNetModel", MPNET),
    **{
        f"mpnet-{head}": Case("mpnet", architecture, {**MPNET, **options}, encoder="mpnet-base")
        for head, (architecture, options) in MPNET_HEADS.items()
    },
    "modernbert-base": Case("modernbert", "ModernBertModel", MODERNBERT),
    **{
        f"modernbert-{head}": Case("modernbert", architecture, {**MODERNBERT, **options}, encoder="modernbert-base")
        for head, (architecture, options) in MODERNBERT_HEADS.items()
    },
    "deberta-v2-base": Case("deberta-v2", "DebertaV2Model", DEBERTA),
    **{
        f"deberta-v2-{head}": Case("deberta-v2", architecture, {**DEBERTA, **options}, encoder="deberta-v2-base")
        for head, (architecture, options) in DEBERTA_HEADS.items()
    },
    "deberta-v2-own-projections": Case(
        "deberta-v2", "DebertaV2Model", {**DEBERTA, "share_att_key": False, "norm_rel_ebd": "none"}, layers=1
    ),
    "deberta-v2-content-to-distance": Case(
        "deberta-v2",
        "DebertaV2Model",
        {**DEBERTA, "pos_att_type": ["c2p"], "share_att_key": False, "position_biased_input": True},
        layers=1,
    ),
    "deberta-v2-distance-to-content": Case(
        "deberta-v2", "DebertaV2Model", {**DEBERTA, "pos_att_type": ["p2c"], "type_vocab_size": 2}, layers=1
    ),
    "deberta-v2-convolution": Case(
        "deberta-v2", "DebertaV2Model", {**DEBERTA, "conv_kernel_size": 3, "conv_act": "gelu"}
    ),
    "nomic_bert-base": Case("nomic_bert", "NomicBertModel", NOMIC_BERT, layers=1),
    "nomic_bert-masked-lm": Case("nomic_bert", "NomicBertForMaskedLM", NOMIC_BERT, encoder="nomic_bert-base", layers=1),
    "bart-question-answering": Case("bart", "BartForQuestionAnswering", BART, layers=1),
    "bart-sequence-classification": Case(
        "bart", "BartForSequenceClassification", {**BART, "num_labels": 5}, encoder="bart-question-answering", layers=1
    ),
    "t5-question-answering": Case("t5", "T5ForQuestionAnswering", T5, layers=1),
    "gpt2-base": Case("gpt2", "GPT2Model", GPT2),
    **{
        f"gpt2-{head}": Case("gpt2", architecture, {**GPT2, **options}, encoder="gpt2-base")
        for head, (architecture, options) in GPT2_HEADS.items()
    },
    "llama-base": Case("llama", "LlamaModel", LLAMA),
    **{
        f"llama-{head}": Case("llama", architecture, {**LLAMA, **options}, encoder="llama-base")
        for head, (architecture, options) in LLAMA_HEADS.items()
    },
    **{
        f"llama-{kind}": Case(
            "llama", "LlamaModel", {**LLAMA, "rope_parameters": each, "attention_bias": True}, layers=1
        )
        for kind, each in SCALED.items()
    },
    "mistral-base": Case("mistral", "MistralModel", {**LLAMA, "sliding_window": 3}, layers=1),
    "qwen2-causal-lm": Case(
        "qwen2",
        "Qwen2ForCausalLM",
        {
            **LLAMA,
            "hidden_size": 16,
            "head_dim": 4,
            "use_sliding_window": True,
            "sliding_window": 3,
            "max_window_layers": 1,
        },
    ),
    "qwen3-causal-lm": Case("qwen3", "Qwen3ForCausalLM", {**LLAMA, "tie_word_embeddings": True}),
    "gemma2-causal-lm": Case("gemma2", "Gemma2ForCausalLM", GEMMA2),
    "gemma3_text-base": Case("gemma3_text", "Gemma3TextModel", GEMMA3),
    "gpt_neox-causal-lm": Case("gpt_neox", "GPTNeoXForCausalLM", GPT_NEOX, layers=1),
    "opt-causal-lm": Case("opt", "OPTForCausalLM", OPT),
    "phi3-base": Case("phi3", "Phi3Model", PHI3, layers=1),
    "smollm3-causal-lm": Case("smollm3", "SmolLM3ForCausalLM", SMOLLM3),
    "olmo2-causal-lm": Case("olmo2", "Olmo2ForCausalLM", OLMO2, layers=1),
    "bloom-causal-lm": Case("bloom", "BloomForCausalLM", BLOOM, layers=1),
    "electra-wide": Case("electra", "ElectraModel", {"embedding_size": SIZES["d_model"]}, layers=1),
}


def build(case: Case) -> Any:
    """The case's model in float32. Parameters with the same name are equal in all models of a family."""
    names = {**SPELLINGS[case.family], "vocab_size": "vocab_size", "max_length": "max_position_embeddings"}
    sizes = {names[name]: size for name, size in {**SIZES, "n_layers": case.layers}.items()}
    config = transformers.AutoConfig.for_model(case.family, **{**sizes, **case.options}, attn_implementation="eager")
    model = getattr(transformers, case.architecture)(config).eval()
    kept = {"position_embeddings.weight"} if case.options.get("sinusoidal_pos_embds") else set()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            name = name.removeprefix(model.base_model_prefix + ".")
            if not any(name.endswith(each) for each in kept):
                parameter.copy_(torch.from_numpy(_random(name, tuple(parameter.shape))))
    return model


def _random(name: str, shape: tuple[int, ...]) -> np.ndarray:
    numbers = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    # names of norms: LayerNorm, layer_norm, GPT-2's ln_1, and BART's layernorm_embedding
    if "orm." in name or re.search(r"\bln_|layernorm_", name):
        numbers = 1 + 0.3 * numbers if name.endswith("weight") else 0.3 * numbers
    elif len(shape) == 1:
        numbers *= 0.3
    elif not re.search(
        r"embeddings\.|word_embeddings\.|embed_tokens\.|embed_in\.|relative_attention_bias\.weight$|^w[tp]e\.|embed_positions\.|^shared\.",
        name,
    ):
        # a linear weight (out, in), or a weight (in, out) of GPT-2's Conv1D
        numbers *= 1.2 / np.sqrt(shape[0 if ".c_" in name else 1])
    return numbers.astype(np.float32)


def inputs(name: str, case: Case) -> dict[str, np.ndarray]:
    """A case's token ids, mask and, if the model has them, token types, as the model takes them."""
    random = np.random.default_rng(zlib.crc32((case.encoder or name).encode()))
    if reads_texts(case):
        shortest = 2 if case.family == "bart" else 1
        mask = (np.arange(9) < random.integers(shortest, 10, N_TEXTS[case.family in FEW])[:, None]).astype(np.int64)
    else:
        few = case.layers == 1 or case.family in (*FEW, *FEW_HEADS)
        pictures = VARIANT_MASK.get(name, VARIANT_MASK[case.family]) if few else SHARED_MASK
        mask = np.array([[int(each) for each in picture] for picture in pictures])
    given = {
        "input_ids": random.integers(0, case.options.get("vocab_size", SIZES["vocab_size"]), mask.shape),
        "attention_mask": mask,
    }
    if case.family in DECODERS:  # these heads find padding by its id, at any position
        given["input_ids"][(mask == 0) | (np.arange(mask.shape[1]) == 5)] = case.options["pad_token_id"]
    if case.family == "bart":  # the head reads the last end token, and all texts must have equally many end tokens
        ids = given["input_ids"]
        ids[ids == END] += 1
        ids[:, 0] = ids[np.arange(len(ids)), mask.sum(axis=1) - 1] = END
    if case.family not in ("distilbert", *FEW) or case.family == "nomic_bert" or case.options.get("type_vocab_size"):
        given["token_type_ids"] = random.integers(0, case.options.get("type_vocab_size", 2), mask.shape)
    if case.architecture.endswith("MultipleChoice"):
        given = {key: array.reshape(-1, 2, mask.shape[1]) for key, array in given.items()}
    return given


def reads_texts(case: Case) -> bool:
    """Whether the head gives one answer per text. Its error is measured on many texts, because a single answer has only
    a few numbers."""
    ends = ("SequenceClassification", "NextSentencePrediction", "MultipleChoice")
    return case.architecture.endswith(ends) or (
        case.architecture in ("BertModel", "RobertaModel") and bool(case.encoder)
    )


def keeps(case: Case, stage: str) -> bool:
    """Whether a stage is stored with this case. A shared encoder's stages are stored with the case that has no head."""
    if not reads_texts(case) and stage in ("pooler", "pooled"):
        return False
    return not (
        case.encoder and (stage == "norm" or stage.startswith(("embeddings.", "layers.", "encoder.", "decoder.")))
    )
