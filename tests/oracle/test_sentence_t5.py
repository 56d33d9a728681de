"""Vectors of T5's encoder, as in sentence-t5 and GTR, compared with sentence-transformers in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import sentencepiece
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as m
from transformers import T5Config, T5EncoderModel, T5Tokenizer

from npformer import pipeline
from tests.support.in_double import in_double
from tests.support.scripts import LINES

TEXTS = ["I love ice cream", "not my MUSIC", "what  the news 我爱 😀", "ice " * 30]


def tokenizer(folder: Path) -> T5Tokenizer:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line.replace("\0", "") for line in LINES for _ in range(3)),
        model_prefix=str(folder / "spiece"), vocab_size=900, character_coverage=0.98, hard_vocab_limit=False,
        minloglevel=2, num_threads=1, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
    )  # fmt: skip
    return T5Tokenizer.from_pretrained(folder)


def test_vectors_match_a_sentence_transformer(tmp_path: Path) -> None:
    """The folder has Transformer, Pooling, Dense without bias and Normalize, and a tokenizer from spiece.model."""
    torch.manual_seed(0)
    pieces = tokenizer(tmp_path)
    sizes = {"vocab_size": len(pieces), "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 3}
    model = T5EncoderModel(T5Config(**sizes, relative_attention_max_distance=20))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter.ndim == 1))
    model.save_pretrained(tmp_path / "model")
    pieces.save_pretrained(tmp_path / "model")
    dense = m.Dense(24, 16, bias=False, activation_function=torch.nn.Identity())
    modules = [m.Transformer(str(tmp_path / "model")), m.Pooling(24, "mean"), dense, m.Normalize()]
    made = SentenceTransformer(modules=modules, device="cpu")
    made.save(str(tmp_path / "saved"))
    ours, theirs = pipeline(None, tmp_path / "saved", dtype=np.float64), made.double()
    assert ours.name == "sentence-embedding"
    with in_double():
        np.testing.assert_allclose(ours(TEXTS), theirs.encode(TEXTS), rtol=0, atol=1e-12)
