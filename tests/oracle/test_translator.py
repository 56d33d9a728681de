"""A translator trained with npformer runs in Transformers: its files load, and tokens, logits and beams agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import MarianMTModel, PreTrainedTokenizerFast

from npformer.checkpoint.convert import convert
from npformer.loading import load
from npformer.training import initialize
from npformer.training.start import write_model
from npformer.training.translator import companions, learn_tokenizer, translator

PAIRS = [("A dog runs through the snow.", "Ein Hund läuft durch den Schnee."), ("Two men sit.", "Zwei Männer sitzen.")]
TEXTS = ["A dog sits.", "Two men run through the snow!", "Grüße, 你好"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns a translator with random weights, in npformer's form and in Transformers' form."""
    place = tmp_path_factory.mktemp("translator")
    tokenizer = learn_tokenizer([text for pair in PAIRS for text in pair] * 4, 300)
    config = translator(tokenizer.get_vocab_size(), width=32, heads=2, layers=2, ffn=48, longest=64)
    tree = initialize(config, 3, "xavier")
    (place / "own").mkdir()
    write_model(place / "own", companions(tokenizer, 64), config, tree)
    return place / "own", convert(place / "own", place / "torch", to="torch")


def test_transformers_gives_the_same(folders: tuple[Path, Path]) -> None:
    """Ids and targets are equal. Logits of about 1 agree to 1e-5, because the order of float32 sums differs."""
    own, theirs = load(folders[0]), MarianMTModel.from_pretrained(folders[1]).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folders[1])
    for text in TEXTS:
        ids = own.tokenizer.encode(text)
        assert tokenizer(text)["input_ids"] == ids
        given = torch.tensor([ids])
        with torch.no_grad():
            logits = theirs(given, decoder_input_ids=torch.tensor([[1, 5, 9]])).logits[0].numpy()
            beams = theirs.generate(given, max_length=20)[0].tolist()
        assert np.abs(own(ids, decoder_input_ids=[[1, 5, 9]]).logits[0] - logits).max() < 1e-5
        found = own.generate(ids, max_length=20)[0][0].ids.tolist()
        assert beams == [1, *found]
        assert tokenizer.decode(beams, skip_special_tokens=True).strip() == own.tokenizer.decode(found).strip()
