"""BERT (Devlin et al., 2019). With `is_decoder`, attention is causal, and the head predicts the next token."""

from __future__ import annotations

from npformer.families.encoder_table import READ, SIZES, EncoderTable

#: Maps each group of weights to its module, for the masked-word head and the next-token head.
WORDS = {
    "head.hidden": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head.output": "cls.predictions.decoder",
}


def tables(prefix: str) -> dict[str, str]:
    """Maps each group of weights of BERT's embeddings to its module, under a prefix such as "bert."."""
    return {
        "embeddings.token": f"{prefix}embeddings.word_embeddings",
        "embeddings.position": f"{prefix}embeddings.position_embeddings",
        "embeddings.segment": f"{prefix}embeddings.token_type_embeddings",
        "embeddings.norm": f"{prefix}embeddings.LayerNorm",
    }


def layers(prefix: str) -> dict[str, str]:
    """Maps each group of weights of BERT's layers to its module, under a prefix."""
    layer = f"{prefix}encoder.layer.*"
    return {
        "layers.*.attention.query": f"{layer}.attention.self.query",
        "layers.*.attention.key": f"{layer}.attention.self.key",
        "layers.*.attention.value": f"{layer}.attention.self.value",
        "layers.*.attention.output": f"{layer}.attention.output.dense",
        "layers.*.attention_norm": f"{layer}.attention.output.LayerNorm",
        "layers.*.ffn.hidden": f"{layer}.intermediate.dense",
        "layers.*.ffn.output": f"{layer}.output.dense",
        "layers.*.ffn_norm": f"{layer}.output.LayerNorm",
    }


def stages(prefix: str) -> dict[str, str]:
    """Maps each module without weights of BERT's encoder, under a prefix, to its output stage."""
    return {
        f"{prefix}encoder.layer.*.attention.self": "layers.*.attention.combined",
        f"{prefix}encoder.layer.*.attention": "layers.*.attention_norm",
        f"{prefix}encoder.layer.*.intermediate": "layers.*.ffn.activation",
        f"{prefix}encoder.layer.*": "layers.*.ffn_norm",
        f"{prefix}embeddings": "embeddings.norm",
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
    encoder={**tables("bert."), **layers("bert.")},
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
    stages={**stages("bert."), "bert.pooler": "pooled"},
    read=READ,
)
