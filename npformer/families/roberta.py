"""RoBERTa (Liu et al., 2019), XLM-RoBERTa (Conneau et al., 2020) and CamemBERT (Martin et al., 2020): BERT's layers.

Positions begin at the row after the padding token's id, and padding tokens are not counted. There is only one token
type, the special tokens are `<s>` and `</s>`, and the classifier has its own dense layer instead of the pooler.
"""

from __future__ import annotations

from npformer.config import Positions
from npformer.families import bert
from npformer.families.base import AS_IN_THE_FILE, PieceOrder
from npformer.families.encoder_table import READ, SIZES, EncoderTable

SPECIAL_TOKENS = {
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}

#: After four special tokens, an id of XLM-RoBERTa is 1 more than the index of the piece in the file. <mask> is the last
#: id.
XLM_PIECES = PieceOrder(
    first=(("cls_token", 0.0), ("pad_token", 0.0), ("sep_token", 0.0), ("unk_token", 0.0)),
    dropped=3,
    last=("mask_token",),
)
#: CamemBERT uses the start and end tokens of the file. The tokens that fairseq adds at the beginning are unused.
CAMEMBERT_PIECES = PieceOrder(
    first=(
        ("<s>NOTUSED", 0.0), ("pad_token", 0.0), ("</s>NOTUSED", 0.0), ("unk_token", 0.0), ("<unk>NOTUSED", -100.0)
    ),
    dropped=1,
    last=("mask_token",),
)  # fmt: skip
#: Maps each group of weights to its module, for the masked-word head and the next-token head.
WORDS = {
    "head.hidden": "lm_head.dense",
    "head.norm": "lm_head.layer_norm",
    "head.output": "lm_head.decoder",
}


def _table(model_type: str, name: str, pieces: PieceOrder = AS_IN_THE_FILE) -> EncoderTable:
    """Creates one of the three families, which differ only in their vocabularies."""
    return EncoderTable(
        model_type=model_type,
        constants={
            "pad_id": 1,
            "padding_idx": 1,
            "positions": Positions(first=2, skips_padding=True),
            "head_activation": "gelu",
        },
        padding="pad_token_id",
        special_tokens=SPECIAL_TOKENS,
        mask_takes_space=model_type == "camembert",  # as in Transformers
        pieces=pieces,
        pair="cls $A sep sep $B sep",
        sizes=SIZES,
        activation="hidden_act",
        eps="layer_norm_eps",
        token_types="type_vocab_size",
        architectures={
            f"{name}Model": "base",
            f"{name}ForSequenceClassification": "sequence-classification",
            f"{name}ForTokenClassification": "token-classification",
            f"{name}ForQuestionAnswering": "question-answering",
            f"{name}ForMaskedLM": "masked-lm",
            f"{name}ForMultipleChoice": "multiple-choice",
            f"{name}ForCausalLM": "causal-lm",
        },
        ids={"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1},
        prefix="roberta.",
        encoder={**bert.tables("roberta."), **bert.layers("roberta.")},
        heads={
            "base": {"pooler": "roberta.pooler.dense"},
            "sequence-classification": {"pooler": "classifier.dense", "head.output": "classifier.out_proj"},
            "token-classification": {"head.output": "classifier"},
            "question-answering": {"head.output": "qa_outputs"},
            "masked-lm": WORDS,
            "causal-lm": WORDS,
            "multiple-choice": {"pooler": "roberta.pooler.dense", "head.output": "classifier"},
        },
        twins={"lm_head.decoder.bias": "lm_head.bias"},
        lacking=frozenset({"pooler"}),
        buffers=frozenset({"roberta.embeddings.position_ids"}),
        stages={
            **bert.stages("roberta."),
            "roberta.pooler": "pooled",
            "classifier": "logits",
            "lm_head": "logits",
        },
        read={**READ, "sequence-classification": "layers.*.ffn_norm pooled"},
    )


ROBERTA = _table("roberta", "Roberta")
XLM_ROBERTA = _table("xlm-roberta", "XLMRoberta", XLM_PIECES)
CAMEMBERT = _table("camembert", "Camembert", CAMEMBERT_PIECES)
