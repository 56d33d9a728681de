"""Limits the number of tokens that a study of a long text reads, so that the study ends within a minute."""

from __future__ import annotations

from npformer.base_model import BaseModel

BERT_BASE = 85_000_000  # weights in the layers of BERT-base


def affordable(model: BaseModel, tokens: float) -> int:
    """Returns how many tokens a model reads in the time that BERT-base needs for `tokens`: half to twice as many.

    A token costs two operations per weight. The factor is at most 2, because small models spend much of their time on
    other work.
    """
    config, decoder = model.config, model.config.decoder
    weights = config.n_layers * (4 * config.d_model + 2 * config.d_ffn) * config.d_model
    if decoder:
        weights += decoder.n_layers * (8 * config.d_model + 2 * decoder.d_ffn) * config.d_model
    return max(1, int(tokens * min(2.0, max(0.5, BERT_BASE / weights))))
