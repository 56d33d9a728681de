"""Heads: functions from the hidden states of the last layer, x (..., L, D), to a dict of answers by name.

A model has one head. A pooler applies a linear layer and an activation to one row of each text. head["output"] is a
linear layer (D, C) for C labels, or (D, V) for the tokens of the vocabulary.
"""

import numpy as np

from npformer.plain.formulas import layer_norm, linear


def hidden_states(x):
    """The hidden states themselves, (..., L, D)."""
    return {"last_hidden_state": x}


def pooled_states(x, pooler_activation, pooler):
    """The hidden states, and act(x_0 W + b) of each text's first row x_0, (..., D). Devlin et al., 2019, section 3."""
    pooled = pooler_activation(linear(x[..., 0, :], **pooler))
    return {"last_hidden_state": x, "pooler_output": pooled}


def classify_first(x, pooler_activation, pooler, head):
    """Logits of a text's labels from its first row, (..., C). Devlin et al., 2019, section 4.1."""
    pooled = pooler_activation(linear(x[..., 0, :], **pooler))
    logits = linear(pooled, **head["output"])
    return {"logits": logits}


def classify_last(x, ids, pad_id, head):
    """Logits of a text's labels from the row of its last token that is not padding, (..., C)."""
    last = ((ids != pad_id) * np.arange(ids.shape[-1])).max(axis=-1)
    row = np.take_along_axis(x, last[..., None, None], axis=-2)[..., 0, :]
    logits = linear(row, **head["output"])
    return {"logits": logits}


def classify_tokens(x, head):
    """Logits of the labels of every token, (..., L, C). Devlin et al., 2019, section 5.3."""
    logits = linear(x, **head["output"])
    return {"logits": logits}


def find_answer(x, head):
    """Logits of every token as the start and as the end of an answer, (..., L). Devlin et al., 2019, section 4.2."""
    start_logits, end_logits = np.moveaxis(linear(x, **head["output"]), -1, 0)
    return {"start_logits": start_logits, "end_logits": end_logits}


def predict_words(x, head_activation, eps, head):
    """Logits of the vocabulary's tokens at each position: LayerNorm(act(x W + b)) E^T + c, (..., L, V).

    The weight of the output layer is E^T, (D, V), where E is usually the token table (V, D). Devlin et al., 2019,
    section 3.1.
    """
    activated = head_activation(linear(x, **head["hidden"]))
    y = layer_norm(activated, **head["norm"], eps=eps)
    logits = linear(y, **head["output"])
    return {"logits": logits}


def predict_next(x, head):
    """Logits of the token after each token: x E^T, (..., L, V). Radford et al., 2018, section 3.1.

    The weight of the output layer is E^T, (D, V): in tied models, the transposed token table (V, D).
    """
    logits = linear(x, **head["output"])
    return {"logits": logits}


def translate(x, source, scale_output, head):
    """Logits of the token after each target token, (..., L, V), and the encoder's hidden states, (..., S, D).

    Vaswani et al., 2017, section 3.4. scale_output is 1 / sqrt(D) in T5 models in which the projection is the token
    table, and 1 in other models.
    """
    scaled = scale_output * x
    logits = linear(scaled, **head["output"])
    return {"logits": logits, "encoder_last_hidden_state": source}


def classify_end(x, ids, end_id, pooler_activation, pooler, head):
    """Logits of a text's labels from the row of its last end token, (..., C). Lewis et al., 2020, section 3.1."""
    last = ((ids == end_id) * np.arange(ids.shape[-1])).max(axis=-1)
    row = np.take_along_axis(x, last[..., None, None], axis=-2)[..., 0, :]
    pooled = pooler_activation(linear(row, **pooler))
    logits = linear(pooled, **head["output"])
    return {"logits": logits}
