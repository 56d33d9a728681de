"""ELECTRA (Clark et al., 2020): BERT without a pooler. In some sizes, the tables are narrower than the layers.

The generator has the masked-word head. The discriminator has the replaced-token head, and all other heads use the
discriminator.
"""

from __future__ import annotations

from npformer.families import bert
from npformer.families.encoder_table import READ, SIZES, EncoderTable

#: Maps each group of weights to its module, for the masked-word head and the next-token head.
WORDS = {
    "head.hidden": "generator_predictions.dense",
    "head.norm": "generator_predictions.LayerNorm",
    "head.output": "generator_lm_head",
}

ELECTRA = EncoderTable(
    model_type="electra",
    constants={"pooler": "gelu", "head_activation": "gelu"},
    sizes={**SIZES, "d_embedding": "embedding_size"},
    activation="hidden_act",
    eps="layer_norm_eps",
    token_types="type_vocab_size",
    architectures={
        "ElectraModel": "base",
        "ElectraForSequenceClassification": "sequence-classification",
        "ElectraForTokenClassification": "token-classification",
        "ElectraForQuestionAnswering": "question-answering",
        "ElectraForMaskedLM": "masked-lm",
        "ElectraForMultipleChoice": "multiple-choice",
        "ElectraForCausalLM": "causal-lm",
        "ElectraForPreTraining": "replaced-token",
    },
    ids={"pad_token_id": 0},
    prefix="electra.",
    encoder={
        **bert.tables("electra."),
        "embeddings.project": "electra.embeddings_project",
        **bert.layers("electra."),
    },
    heads={
        "base": {},
        "sequence-classification": {"pooler": "classifier.dense", "head.output": "classifier.out_proj"},
        "token-classification": {"head.output": "classifier"},
        "question-answering": {"head.output": "qa_outputs"},
        "masked-lm": WORDS,
        "causal-lm": WORDS,
        "multiple-choice": {"pooler": "sequence_summary.summary", "head.output": "classifier"},
        "replaced-token": {
            "head.hidden": "discriminator_predictions.dense",
            "head.output": "discriminator_predictions.dense_prediction",
        },
    },
    supported={
        "multiple-choice": {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
    },
    buffers=frozenset({"electra.embeddings.position_ids"}),
    stages={
        **bert.stages("electra."),
        "discriminator_predictions": "logits",
        "classifier": "logits",
        "generator_predictions": "head.norm",
    },
    read={**READ, "sequence-classification": "layers.*.ffn_norm pooled"},
    read_rate={"multiple-choice": 0.1},
)
