"""DistilBERT: from token ids to the logits of its heads. Sanh et al., 2019, DistilBERT; Devlin et al., 2019, BERT.

DistilBERT has half as many layers as BERT, and no token types or pooler (Sanh et al., section 3). Its classifier has a
linear layer with ReLU, named pooler in the weights, before the output layer. Positions are a table, learned or with the
sinusoids of 2017. mask is (..., 1, 1, L), True for tokens and False for padding, or True without padding. From the ids
of a text to the index of its label, with DistilBERT-base's sizes:

    x = distilbert(ids, np.arange(len(ids)), True, 12, gelu, 1e-12, weights["embeddings"], weights["layers"])
    logits = classify(x, weights["pooler"], weights["head"])["logits"]
    label = logits.argmax()
"""

from npformer.plain.formulas import embedding, encoder_layer, layer_norm, linear, relu
from npformer.plain.heads import classify_tokens, find_answer, hidden_states, predict_words


def embed(ids, positions, eps, token, position, norm):
    """LayerNorm(token + position): ids (..., L), positions (L,) -> (..., L, D). Devlin et al., 2019, figure 2."""
    total = embedding(ids, **token) + embedding(positions, **position)
    return layer_norm(total, **norm, eps=eps)


def distilbert(ids, positions, mask, n_heads, activation, eps, embeddings, layers):
    """The hidden states of the last layer: `embed`, then each layer. ids (..., L), positions (L,) -> (..., L, D)."""
    x = embed(ids, positions, eps, **embeddings)
    for layer in layers:
        x = encoder_layer(x, mask, n_heads, activation, eps, **layer)
    return x


def classify(x, pooler, head):
    """Logits of a text's labels from the hidden state x_0 of its first token, x (..., L, D) -> {"logits": (..., C)}.

    relu(x_0 W + b) with the pooler, as in the released checkpoints, then the output layer of Devlin et al., 2019,
    section 4.1.
    """
    pooled = relu(linear(x[..., 0, :], **pooler))
    logits = linear(pooled, **head["output"])
    return {"logits": logits}


MODEL = distilbert
HEADS = {
    "base": hidden_states,
    "sequence-classification": classify,
    "multiple-choice": classify,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
    "masked-lm": predict_words,
}
