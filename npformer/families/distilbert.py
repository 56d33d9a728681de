"""DistilBERT (Sanh et al., 2019): BERT without token types. The base model has no pooler."""

from __future__ import annotations

from npformer.families.encoder_table import READ, EncoderTable

DISTILBERT = EncoderTable(
    model_type="distilbert",
    constants={"pooler": "relu"},
    sizes={
        "vocab_size": "vocab_size",
        "d_model": "dim",
        "n_heads": "n_heads",
        "n_layers": "n_layers",
        "d_ffn": "hidden_dim",
        "max_length": "max_position_embeddings",
    },
    activation="activation",
    architectures={
        "DistilBertModel": "base",
        "DistilBertForSequenceClassification": "sequence-classification",
        "DistilBertForTokenClassification": "token-classification",
        "DistilBertForQuestionAnswering": "question-answering",
        "DistilBertForMaskedLM": "masked-lm",
        "DistilBertForMultipleChoice": "multiple-choice",
    },
    prefix="distilbert.",
    encoder={
        "embeddings.token": "distilbert.embeddings.word_embeddings",
        "embeddings.position": "distilbert.embeddings.position_embeddings",
        "embeddings.norm": "distilbert.embeddings.LayerNorm",
        "layers.*.attention.query": "distilbert.transformer.layer.*.attention.q_lin",
        "layers.*.attention.key": "distilbert.transformer.layer.*.attention.k_lin",
        "layers.*.attention.value": "distilbert.transformer.layer.*.attention.v_lin",
        "layers.*.attention.output": "distilbert.transformer.layer.*.attention.out_lin",
        "layers.*.attention_norm": "distilbert.transformer.layer.*.sa_layer_norm",
        "layers.*.ffn.hidden": "distilbert.transformer.layer.*.ffn.lin1",
        "layers.*.ffn.output": "distilbert.transformer.layer.*.ffn.lin2",
        "layers.*.ffn_norm": "distilbert.transformer.layer.*.output_layer_norm",
    },
    heads={
        "base": {},
        "sequence-classification": {"pooler": "pre_classifier", "head.output": "classifier"},
        "token-classification": {"head.output": "classifier"},
        "question-answering": {"head.output": "qa_outputs"},
        "masked-lm": {
            "head.hidden": "vocab_transform",
            "head.norm": "vocab_layer_norm",
            "head.output": "vocab_projector",
        },
        "multiple-choice": {"pooler": "pre_classifier", "head.output": "classifier"},
    },
    buffers=frozenset({"distilbert.embeddings.position_ids"}),
    stages={
        "distilbert.transformer.layer.*.ffn.activation": "layers.*.ffn.activation",
        "distilbert.transformer.layer.*.ffn": "layers.*.ffn.output",
        "distilbert.transformer.layer.*": "layers.*.ffn_norm",
        "distilbert.embeddings": "embeddings.norm",
    },
    dropped=("embeddings.norm", "layers.*.ffn.output"),
    read={**READ, "question-answering": "layers.*.ffn_norm"},
    read_rate={"sequence-classification": 0.2, "multiple-choice": 0.2},
)
