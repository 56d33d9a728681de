"""examples/train_gpt.py and examples/ngrams.py: reading books, training, and scores."""

from __future__ import annotations

import math
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import npformer

EXAMPLES = Path(__file__).parents[2] / "examples"
BOOK = """EMMA

By Jane Austen


VOLUME I

CHAPTER I


Emma Woodhouse, handsome,
clever, and _rich_.

She had lived.

CHAPTER II

{}

[End of the volume.]

Chapter 3

A third.

                  * * * * *

CHAPTER IV.

A fourth.

FINIS

A NOTE ON THE TEXT

CHAPTER V

An editor's.
"""
SECOND = "The cat sat on the mat, and the dog sat on the cat. " * 12


@pytest.fixture
def scripts(monkeypatch):
    """Returns the two programs, with the sizes of a tiny model."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import ngrams
    import train_gpt

    sizes = {"VOCABULARY": 280, "WIDTH": 16, "HEADS": 2, "LAYERS": 1, "LONGEST": 16}
    for name, value in sizes.items():
        monkeypatch.setattr(train_gpt, name, value)
    return train_gpt, ngrams


@pytest.fixture
def books(tmp_path):
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "one.txt").write_text(BOOK.format("A second."), encoding="utf-8")
    (folder / "two.txt").write_text(
        BOOK.format(SECOND).replace("I\n\n\nEmma", f"I\n\n{SECOND}\n\nEmma"), encoding="utf-8"
    )
    return folder


def test_a_book_is_its_chapters_a_paragraph_a_line(scripts):
    chapters = scripts[0].chapters(BOOK.format("A second."))
    assert chapters == [
        "Emma Woodhouse, handsome, clever, and rich.\nShe had lived.",
        "A second.",
        "A third.",
        "A fourth.",
    ]


def test_the_last_chapters_of_each_book_are_not_learned(scripts, books):
    found = scripts[0].read_books(books)
    assert [len(part) for part in found] == [2, 2, 4]
    assert found.watched == ["A second.", SECOND.strip()]
    assert found.scored == ["A third.", "A fourth."] * 2


@pytest.mark.parametrize(
    ("text", "said"), [(None, "got none"), ("CHAPTER 1\n\nA.", "that begin like CHAPTER 12, got 1")]
)
def test_a_folder_without_books_is_refused(scripts, tmp_path, text, said):
    if text:
        (tmp_path / "one.txt").write_text(text, encoding="utf-8")
    with pytest.raises(npformer.NpformerError, match=said):
        scripts[0].read_books(tmp_path)


def test_a_training_learns_resumes_and_starts_another(scripts, books, tmp_path, monkeypatch, capsys):
    def run(output, *options):
        given = ["train_gpt", "--text", str(books), "-o", str(tmp_path / output), "--learning-rate", "1e-2", *options]
        monkeypatch.setattr(sys, "argv", given)
        scripts[0].main()
        printed = capsys.readouterr()
        return float(printed.out.split("perplexity ")[1].split()[0]), printed.err

    scored, shown = run("first", "--epochs", "3")
    perplexities = [float(line.split("perplexity ")[1].split()[0]) for line in shown.splitlines()]
    assert len(perplexities) == 4
    assert perplexities[-1] < 0.6 * perplexities[0]
    again, shown = run("first", "--epochs", "3")
    assert (again, shown) == (scored, "")  # nothing was left to do
    model = npformer.load(tmp_path / "first")
    assert model.tokenizer.decode(model.tokenizer.encode("Émile sat.").ids) == "Émile sat."
    _, shown = run("second", "--epochs", "1", "--start", str(tmp_path / "first"))
    assert f"epoch 0  perplexity {perplexities[-1]:.4f}" in shown


def test_ngrams_are_smoothed_by_the_kinds_of_their_neighbours(scripts):
    """Probabilities of pairs equal the formula with counts made here, and add up to 1 after each context."""
    ids = [0, 1, 2, 0, 1, 3, 0, 2, 2, 1, 0, 1, 3, 3, 4]
    model = scripts[1].KneserNey(ids, 2, 6)
    pairs = Counter(pairwise(ids))
    kinds = {b: sum(pair[1] == b for pair in pairs) for b in range(6)}

    def discount(counts):
        ones, twos = (sum(each == n for each in counts) for n in (1, 2))
        return ones / (ones + 2 * twos)

    low, high = discount(kinds.values()), discount(pairs.values())
    single = {b: (max(kinds[b] - low, 0) + low * 5 / 6) / len(pairs) for b in range(6)}
    for b in range(6):
        after = ids[:-1].count(0)
        different = len({pair for pair in pairs if pair[0] == 0})
        expected = (max(pairs[0, b] - high, 0) + high * different * single[b]) / after
        assert model.probability((0, b)) == pytest.approx(expected)
        assert model.probability((5, b)) == pytest.approx(single[b])  # 5 never occurs as a context
    assert math.fsum(model.probability((0, b)) for b in range(6)) == pytest.approx(1)
    assert model.mean_loss(ids) == pytest.approx(-np.mean([math.log(model.probability(p)) for p in pairwise(ids)]))
