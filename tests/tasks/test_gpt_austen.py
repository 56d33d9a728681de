"""The GPT bundled in a source checkout: its size, its perplexity on unseen chapters, and the texts on its card."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import npformer
from npformer import cross_entropy
from npformer.checkpoint.tree import stored
from npformer.cli import main as cli

pytestmark = pytest.mark.numbers

FOLDER = Path(__file__).parents[2] / "weights" / "gpt2-austen"
CARD = (FOLDER / "README.md").read_text(encoding="utf-8")
CONTINUED = re.findall(r"^\| (\w[^|]+) \| …([^|]+)… \|$", CARD, re.MULTILINE)
#: A sentence from the last two chapters of each novel, which were not used for training.
SENTENCES = (
    "Jane Fairfax had already quitted Highbury, and was restored to the comforts of her beloved home.",
    "Let other pens dwell on guilt and misery.",
    "I am sure I do not care about the bread. It is all the same to me what I eat.",
    "Their attention was called towards the others. Mrs Croft was taking leave.",
    "Mr. Bennet missed his second daughter exceedingly; his affection for her drew him oftener from home.",
    "I have burnt all your letters, and will return your picture the first opportunity.",
)


@pytest.fixture(scope="module")
def model() -> npformer.Model:
    return npformer.load("gpt2-austen")


def losses(model: npformer.Model, text: str) -> np.ndarray:
    """Returns -log p of each token of a text, given the tokens before it."""
    ids = np.array(model.tokenizer.encode("<|endoftext|>" + text).ids)
    return cross_entropy(model(ids[:-1]).logits[0], ids[1:], reduction="none")


def test_the_bundled_gpt_has_a_lower_perplexity_than_n_grams(model):
    """On these sentences, the perplexity of the GPT is 43.3, of 3-grams 48.9, of 5-grams 50.6 (examples/ngrams.py)."""
    found = np.concatenate([losses(model, each) for each in SENTENCES])
    assert np.exp(found.mean()) < 45
    shuffled = np.concatenate([losses(model, " ".join(sorted(each.split()))) for each in SENTENCES])
    assert np.exp(shuffled.mean()) > 3 * np.exp(found.mean())


def test_the_bundled_gpt_writes_the_text_on_its_card(model):
    """Greedy generation takes the most likely token at each step."""
    assert len(CONTINUED) >= 4
    for beginning, continued in CONTINUED:
        [[found]] = model.generate(model.tokenizer.encode(beginning).ids, do_sample=False, max_new_tokens=16)
        assert model.tokenizer.decode(found.ids).replace("\n", " ") == continued


def test_any_text_comes_back_from_the_bundled_gpt_s_tokens(model):
    for text in ("Émile\r\n\tsaid:  “日本” 🙂", "<|endoftext|>", *SENTENCES):
        ids = model.tokenizer.encode(text).ids
        assert max(ids) < model.config.vocab_size
        assert model.tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_bundled_gpt_s_size(model, capsys):
    """The folder uses less than 3 MB, and its checksums are valid. Its weights have half precision, and its card
    states their number."""
    assert sum(each.stat().st_size for each in FOLDER.iterdir()) < 3e6
    arrays = stored(dict(model.weights), model.config)
    assert f"{sum(each.size for each in arrays.values()):,} parameters" in CARD
    assert all(np.array_equal(each, each.astype(np.float16)) for each in arrays.values())
    assert cli.main(["info", "--verify", str(FOLDER)]) == 0
    assert "npformer.safetensors" in capsys.readouterr().out
