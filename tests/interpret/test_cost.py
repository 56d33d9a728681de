"""A study of a long text reads as many tokens as the time limit allows, depending on the model's size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npformer.interpret.cost import affordable
from npformer.model import Model, Seq2Seq
from tests.support import tiny
from tests.support.seq2seq_models import random_model

BASE = {"n_layers": 12, "d_model": 768, "d_ffn": 3072, "n_heads": 12}


@pytest.mark.parametrize(
    ("sizes", "tokens"),
    [(BASE, 1000), (BASE | {"n_layers": 24}, 500), (BASE | {"n_layers": 48}, 500), (BASE | {"n_layers": 8}, 1500)],
)
def test_a_larger_model_reads_fewer_tokens(sizes: dict[str, int], tokens: int) -> None:
    model = tiny.model()
    large = Model(replace(model.config, **sizes), model.weights)
    assert affordable(large, 1000) == pytest.approx(tokens, rel=0.01)  # 85 million weights, rounded


def test_a_small_model_reads_twice_as_many() -> None:
    assert affordable(tiny.model(), 1000) == 2000


def test_a_decoder_counts() -> None:
    """Encoder and decoder have BERT-base's sizes. The decoder's cross-attention adds a third to its weights."""
    model = random_model()
    assert model.config.decoder is not None
    sizes = replace(model.config, **BASE, decoder=replace(model.config.decoder, n_layers=3, d_ffn=3072, n_heads=12))
    assert affordable(Seq2Seq(sizes, model.weights), 1000) == pytest.approx(1000 * 12 / (12 + 4), rel=0.01)
