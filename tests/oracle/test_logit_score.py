"""Rerankers like Qwen3-Reranker, compared with sentence-transformers' CrossEncoder in float64."""

from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers import CrossEncoder
from torch import nn

from npformer import Pair, pipeline
from tests.support import reranker
from tests.support.in_double import in_double

#: Texts with spaces at the ends, with markup and a special token, an empty text, and texts that are truncated.
PAIRS = [
    ("what is good", " ice cream \n"),
    ("what is {{ good }}", f"not <b>my</b> music & 我爱 {reranker.byte_level.STOP} 😀"),
    ("", ""),
    ("what is good", "ice " * 150),
    ("what " * 150, "ice cream"),
]


@pytest.mark.filterwarnings("ignore:input 3")  # the warning that an input is truncated
@pytest.mark.parametrize("false_id", [reranker.NO, None])
@pytest.mark.parametrize("prompts", [{}, {"default_prompt_name": "query"}])
def test_scores_match_a_cross_encoder(false_id, prompts, tmp_path):
    """Scores agree to 1e-6, because CrossEncoder.predict returns float32 scores; logits are below 20."""
    folder = reranker.write(tmp_path / "model", false_id, **prompts)
    theirs, ours = CrossEncoder(str(folder), device="cpu").double(), pipeline(None, folder, dtype=np.float64)
    assert ours.name == "text-ranking"
    with in_double():
        for call in ({}, {"prompt": "Find a dessert"}, {"activation_fn": nn.Identity()}):
            expected = theirs.predict(PAIRS, batch_size=1, **call)
            np.testing.assert_allclose(ours.predict(PAIRS, **call), expected, rtol=2e-7, atol=1e-6)
        together = theirs.predict(PAIRS, activation_fn=nn.Identity())
    given = ours([Pair(*each) for each in PAIRS], function_to_apply="none")
    np.testing.assert_allclose([each["score"] for each in given], together, rtol=2e-7, atol=1e-6)
