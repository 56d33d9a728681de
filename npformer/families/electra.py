"""ELECTRA (Clark et al., 2020): BERT without a pooler. In some sizes the tables are narrower than the layers.

The generator has the masked-word head. The discriminator has the replaced-token head, and is the base of other heads.
"""

from __future__ import annotations

from npformer.families.encoder_table import EncoderTable

#: The masked-word head and the next-word head.
WORDS = {
    "head.hidden": "generator_predictions.dense",
    "head.norm": "generator_predictions.LayerNorm",
    "head.output": "generator_lm_head",
}

ELECTRA = EncoderTable(
    model_type="electra",
    constants={"pooler": "gelu", "head_activation": "gelu"},
    sizes={
        "vocab_size": "vocab_size",
        "d_embedding": "embedding_size",
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
        "d_ffn": "intermediate_size",
        "max_length": "max_position_embeddings",
    },
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
        "embeddings.token": "electra.embeddings.word_embeddings",
        "embeddings.position": "electra.embeddings.position_embeddings",
        "embeddings.segment": "electra.embeddings.token_type_embeddings",
        "embeddings.norm": "electra.embeddings.LayerNorm",
        "embeddings.project": "electra.embeddings_project",
        "layers.*.attention.query": "electra.encoder.layer.*.attention.self.query",
        "layers.*.attention.key": "electra.encoder.layer.*.attention.self.key",
        "layers.*.attention.value": "electra.encoder.layer.*.attention.self.value",
        "layers.*.attention.output": "electra.encoder.layer.*.attention.output.dense",
        "layers.*.attention_norm": "electra.encoder.layer.*.attention.output.LayerNorm",
        "layers.*.ffn.hidden": "electra.encoder.layer.*.intermediate.dense",
        "layers.*.ffn.output": "electra.encoder.layer.*.output.dense",
        "layers.*.ffn_norm": "electra.encoder.layer.*.output.LayerNorm",
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
        "electra.encoder.layer.*.attention.self": "layers.*.attention.combined",
        "electra.encoder.layer.*.attention": "layers.*.attention_norm",
        "electra.encoder.layer.*.intermediate": "layers.*.ffn.activation",
        "electra.encoder.layer.*": "layers.*.ffn_norm",
        "electra.embeddings": "embeddings.norm",
        "discriminator_predictions": "logits",
        "classifier": "logits",
        "generator_predictions": "head.norm",
    },
    read={
        "sequence-classification": "layers.*.ffn_norm pooled",
        "multiple-choice": "pooled",
        "token-classification": "layers.*.ffn_norm",
    },
    read_rate={"multiple-choice": 0.1},
)
