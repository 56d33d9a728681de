"""BERT (Devlin et al., 2019). With `is_decoder`, attention is causal, and the head predicts the next token."""

from __future__ import annotations

from npformer.families.encoder_table import SIZES, EncoderTable

#: The masked-word head and the next-word head.
WORDS = {
    "head.hidden": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head.output": "cls.predictions.decoder",
}

BERT = EncoderTable(
    model_type="bert",
    sizes=SIZES,
    activation="hidden_act",
    eps="layer_norm_eps",
    token_types="type_vocab_size",
    architectures={
        "BertModel": "base",
        "BertForSequenceClassification": "sequence-classification",
        "BertForTokenClassification": "token-classification",
        "BertForQuestionAnswering": "question-answering",
        "BertForMaskedLM": "masked-lm",
        "BertForPreTraining": "masked-lm",
        "BertForNextSentencePrediction": "next-sentence",
        "BertForMultipleChoice": "multiple-choice",
        "BertLMHeadModel": "causal-lm",
    },
    ids={"pad_token_id": 0},
    prefix="bert.",
    encoder={
        "embeddings.token": "bert.embeddings.word_embeddings",
        "embeddings.position": "bert.embeddings.position_embeddings",
        "embeddings.segment": "bert.embeddings.token_type_embeddings",
        "embeddings.norm": "bert.embeddings.LayerNorm",
        "layers.*.attention.query": "bert.encoder.layer.*.attention.self.query",
        "layers.*.attention.key": "bert.encoder.layer.*.attention.self.key",
        "layers.*.attention.value": "bert.encoder.layer.*.attention.self.value",
        "layers.*.attention.output": "bert.encoder.layer.*.attention.output.dense",
        "layers.*.attention_norm": "bert.encoder.layer.*.attention.output.LayerNorm",
        "layers.*.ffn.hidden": "bert.encoder.layer.*.intermediate.dense",
        "layers.*.ffn.output": "bert.encoder.layer.*.output.dense",
        "layers.*.ffn_norm": "bert.encoder.layer.*.output.LayerNorm",
    },
    heads={
        "base": {"pooler": "bert.pooler.dense"},
        "sequence-classification": {"pooler": "bert.pooler.dense", "head.output": "classifier"},
        "token-classification": {"head.output": "classifier"},
        "question-answering": {"head.output": "qa_outputs"},
        "masked-lm": WORDS,
        "causal-lm": WORDS,
        "next-sentence": {"pooler": "bert.pooler.dense", "head.output": "cls.seq_relationship"},
        "multiple-choice": {"pooler": "bert.pooler.dense", "head.output": "classifier"},
    },
    twins={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    lacking=frozenset({"pooler"}),
    buffers=frozenset({"bert.embeddings.position_ids"}),
    stages={
        "bert.encoder.layer.*.attention.self": "layers.*.attention.combined",
        "bert.encoder.layer.*.attention": "layers.*.attention_norm",
        "bert.encoder.layer.*.intermediate": "layers.*.ffn.activation",
        "bert.encoder.layer.*": "layers.*.ffn_norm",
        "bert.embeddings": "embeddings.norm",
        "bert.pooler": "pooled",
    },
    read={
        "sequence-classification": "pooled",
        "multiple-choice": "pooled",
        "token-classification": "layers.*.ffn_norm",
    },
)
