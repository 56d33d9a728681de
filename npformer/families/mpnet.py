"""MPNet (Song et al., 2020): BERT's layers with relative biases in addition to absolute positions.

Positions are counted as in RoBERTa, but the padding token's id is always 1. There are no token types.
"""

from __future__ import annotations

from npformer.config import Positions
from npformer.engine.mechanisms import RelativeBias
from npformer.families.encoder_table import READ, SIZES, EncoderTable
from npformer.families.roberta import SPECIAL_TOKENS, WORDS

MPNET = EncoderTable(
    model_type="mpnet",
    # Transformers always uses 32 buckets, and ignores pad_token_id when counting positions.
    constants={
        "pad_id": 1,
        "padding_idx": 1,
        "positions": Positions(first=2, skips_padding=True),
        "mechanisms": (RelativeBias(32),),
        "head_activation": "gelu",
    },
    special_tokens={**SPECIAL_TOKENS, "unk_token": "[UNK]"},
    pair="cls $A sep sep $B sep",
    mask_takes_space=True,
    sizes=SIZES,
    activation="hidden_act",
    eps="layer_norm_eps",
    architectures={
        "MPNetModel": "base",
        "MPNetForSequenceClassification": "sequence-classification",
        "MPNetForTokenClassification": "token-classification",
        "MPNetForQuestionAnswering": "question-answering",
        "MPNetForMaskedLM": "masked-lm",
        "MPNetForMultipleChoice": "multiple-choice",
    },
    prefix="mpnet.",
    encoder={
        "embeddings.token": "mpnet.embeddings.word_embeddings",
        "embeddings.position": "mpnet.embeddings.position_embeddings",
        "embeddings.norm": "mpnet.embeddings.LayerNorm",
        "relative_bias": "mpnet.encoder.relative_attention_bias",
        "layers.*.attention.query": "mpnet.encoder.layer.*.attention.attn.q",
        "layers.*.attention.key": "mpnet.encoder.layer.*.attention.attn.k",
        "layers.*.attention.value": "mpnet.encoder.layer.*.attention.attn.v",
        "layers.*.attention.output": "mpnet.encoder.layer.*.attention.attn.o",
        "layers.*.attention_norm": "mpnet.encoder.layer.*.attention.LayerNorm",
        "layers.*.ffn.hidden": "mpnet.encoder.layer.*.intermediate.dense",
        "layers.*.ffn.output": "mpnet.encoder.layer.*.output.dense",
        "layers.*.ffn_norm": "mpnet.encoder.layer.*.output.LayerNorm",
    },
    heads={
        "base": {"pooler": "mpnet.pooler.dense"},
        "sequence-classification": {"pooler": "classifier.dense", "head.output": "classifier.out_proj"},
        "token-classification": {"head.output": "classifier"},
        "question-answering": {"head.output": "qa_outputs"},
        "masked-lm": WORDS,
        "multiple-choice": {"pooler": "mpnet.pooler.dense", "head.output": "classifier"},
    },
    settings={"relative_attention_num_buckets": 32},
    twins={"lm_head.decoder.bias": "lm_head.bias"},
    lacking=frozenset({"pooler"}),
    buffers=frozenset({"mpnet.embeddings.position_ids"}),
    stages={
        "mpnet.encoder.layer.*.attention": "layers.*.attention_norm",
        "mpnet.encoder.layer.*.intermediate": "layers.*.ffn.activation",
        "mpnet.encoder.layer.*": "layers.*.ffn_norm",
        "mpnet.embeddings": "embeddings.norm",
        "mpnet.pooler": "pooled",
        "classifier": "logits",
        "lm_head": "logits",
    },
    read={**READ, "sequence-classification": "layers.*.ffn_norm pooled"},
)
