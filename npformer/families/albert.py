"""ALBERT (Lan et al., 2020): narrow tables with a projection, and layers that share their weights (section 3.1).

Layers are numbered in the order of computation. One or more consecutive layers form a group with its own weights. In
the published models, a single layer runs twelve times or more. AlbertForPreTraining is read with its masked-word head.
head="next-sentence" reads the sentence-order head (0: in order, 1: swapped), for which Transformers has no separate
class.
"""

from __future__ import annotations

from npformer.config import Sharing
from npformer.families import bert
from npformer.families.encoder_table import SIZES, EncoderTable

LAYER = "albert.encoder.albert_layer_groups.*.albert_layers.*"

ALBERT = EncoderTable(
    model_type="albert",
    constants={"sharing": Sharing()},
    special_tokens={
        "unk_token": "<unk>",
        "sep_token": "[SEP]",
        "pad_token": "<pad>",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    },
    sizes={**SIZES, "d_embedding": "embedding_size"},
    activation="hidden_act",
    usual_activation="gelu_new",
    eps="layer_norm_eps",
    token_types="type_vocab_size",
    layer_groups="num_hidden_groups",
    group_layers="inner_group_num",
    always_projected=True,
    architectures={
        "AlbertModel": "base",
        "AlbertForSequenceClassification": "sequence-classification",
        "AlbertForTokenClassification": "token-classification",
        "AlbertForQuestionAnswering": "question-answering",
        "AlbertForMaskedLM": "masked-lm",
        "AlbertForPreTraining": "masked-lm",
        "AlbertForMultipleChoice": "multiple-choice",
    },
    prefix="albert.",
    encoder={
        **bert.tables("albert."),
        "embeddings.project": "albert.encoder.embedding_hidden_mapping_in",
        "layers.*.attention.query": f"{LAYER}.attention.query",
        "layers.*.attention.key": f"{LAYER}.attention.key",
        "layers.*.attention.value": f"{LAYER}.attention.value",
        "layers.*.attention.output": f"{LAYER}.attention.dense",
        "layers.*.attention_norm": f"{LAYER}.attention.LayerNorm",
        "layers.*.ffn.hidden": f"{LAYER}.ffn",
        "layers.*.ffn.output": f"{LAYER}.ffn_output",
        "layers.*.ffn_norm": f"{LAYER}.full_layer_layer_norm",
    },
    heads={
        "base": {"pooler": "albert.pooler"},
        "sequence-classification": {"pooler": "albert.pooler", "head.output": "classifier"},
        "token-classification": {"head.output": "classifier"},
        "question-answering": {"head.output": "qa_outputs"},
        "masked-lm": {
            "head.hidden": "predictions.dense",
            "head.norm": "predictions.LayerNorm",
            "head.output": "predictions.decoder",
        },
        "next-sentence": {"pooler": "albert.pooler", "head.output": "sop_classifier.classifier"},
        "multiple-choice": {"pooler": "albert.pooler", "head.output": "classifier"},
    },
    twins={"predictions.decoder.bias": "predictions.bias"},
    lacking=frozenset({"pooler"}),
    buffers=frozenset({"albert.embeddings.position_ids"}),
    stages={
        f"{LAYER}.attention": "layers.*.attention_norm",
        f"{LAYER}.activation": "layers.*.ffn.activation",
        LAYER: "layers.*.ffn_norm",
        "albert.embeddings": "embeddings.norm",
        "albert.pooler_activation": "pooled",
        "predictions": "logits",
    },
    dropped=("embeddings.norm", "layers.*.attention.output"),
    read={
        "sequence-classification": "pooled",
        "next-sentence": "pooled",
        "multiple-choice": "pooled",
        "token-classification": "layers.*.ffn_norm",
    },
    read_rate=dict.fromkeys(
        ("sequence-classification", "next-sentence", "multiple-choice", "token-classification"), 0.1
    ),
)
