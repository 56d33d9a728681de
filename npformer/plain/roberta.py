"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT with different positions. Liu et al., 2019, RoBERTa.

These models differ from BERT in one line: positions are counted from the padding token's id, and padding is not
counted. The activation of the pooler is the same as in BERT, and a text classifier has its own pooler.
"""

from npformer.plain.bert import bert
from npformer.plain.heads import classify_first, classify_tokens, find_answer, pooled_states, predict_words


def padded_positions(ids, pad_id):
    """Row pad_id + 1 for the first token, pad_id + 2 for the next, and pad_id for padding, (..., L) -> (..., L).

    >>> padded_positions(np.array([0, 7, 9, 2, 1, 1]), pad_id=1).tolist()
    [2, 3, 4, 5, 1, 1]
    """
    counted = ids != pad_id
    return pad_id + counted.cumsum(axis=-1) * counted


def roberta(ids, positions, token_type_ids, mask, n_heads, activation, eps, embeddings, layers):
    """The rows of the last layer, (..., L, D). positions: as from `padded_positions`."""
    return bert(ids, positions, token_type_ids, mask, n_heads, activation, eps, embeddings, layers)


MODEL = roberta
HEADS = {
    "base": pooled_states,
    "sequence-classification": classify_first,
    "multiple-choice": classify_first,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
    "masked-lm": predict_words,
    "causal-lm": predict_words,
}
