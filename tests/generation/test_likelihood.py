"""Perplexity: sums by hand, windows and errors. `tests/oracle/test_perplexity.py` compares it with Transformers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import npformer
from npformer.cli.main import main
from npformer.common.errors import NpformerError
from npformer.common.limits import Limits
from npformer.generation.likelihood import Perplexity, windows
from tests.support import tiny, writers

TEXT = "The other day I was in the café — 京都. " * 4


def test_a_texts_probability_is_that_of_its_tokens() -> None:
    """If a text fits in one window, its log probability is the sum of its tokens' log probabilities."""
    model = writers.model(max_length=128)
    ids = np.array(model.tokenizer.encode(TEXT[:80]).ids)
    logits = model(ids).logits[0, :-1].astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    found = npformer.perplexity(model, TEXT[:80])
    assert found.log_probability == pytest.approx(logs[np.arange(len(ids) - 1), ids[1:]].sum(), rel=1e-6)
    assert (found.tokens, found.words, found.bytes) == (len(ids) - 1, len(TEXT[:80].split()), len(TEXT[:80].encode()))


def test_figures_are_means_over_tokens_words_and_bytes() -> None:
    found = Perplexity(-6 * math.log(2), tokens=2, words=3, bytes=6)
    assert [found.perplexity, found.word_perplexity, found.byte_perplexity, found.bits_per_byte] == pytest.approx(
        [8, 4, 2, 1]
    )
    assert float(found) == found.perplexity
    assert Perplexity(-1e6, 1, 1, 1).perplexity == math.inf


@pytest.mark.parametrize("length", [2, 7, 8, 9, 29])
@pytest.mark.parametrize("step", [1, 3, 7])
def test_windows_predict_every_token_after_the_first_once(length: int, step: int) -> None:
    counted: list[int] = []
    for first, end, count in windows(length, 8, step):
        assert end - first <= 8
        assert end - count > first  # each counted token has a token before it
        counted += range(end - count, end)
    assert counted == list(range(1, length))


def test_a_text_beyond_the_limit_of_characters_is_read_in_blocks() -> None:
    model = writers.model()
    text = "the day " * 2600
    whole = npformer.perplexity(model, text, 63)
    model.limits = replace(Limits(), characters=17_000)
    assert npformer.perplexity(model, text, 63) == whole


def test_texts_without_a_perplexity_are_errors() -> None:
    model = writers.model()
    with pytest.raises(NpformerError, match="expected a causal-lm model, got a masked-lm"):
        npformer.perplexity(tiny.model("bert", "masked-lm"), "a")
    with pytest.raises(NpformerError, match="perplexity: expected a Model, got 'a'; "):
        npformer.perplexity("a", "a")  # type: ignore[arg-type]
    with pytest.raises(NpformerError, match="the model's positions: expected a whole number of at least 2, got 1"):
        npformer.perplexity(writers.model(max_length=1), TEXT)
    for text in ("", "a"):
        with pytest.raises(NpformerError, match="a text of at least two tokens, with at least one"):
            npformer.perplexity(model, text)
    with pytest.raises(NpformerError, match=r"stride: .* 1 to 63"):
        npformer.perplexity(model, TEXT, 64)
    with pytest.raises(NpformerError, match=r"max_length: .* 2 to 64"):
        npformer.perplexity(model, TEXT, max_length=65)


def test_the_command_measures_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = writers.folder(tmp_path / "m"), tmp_path / "a.txt"
    file.write_text(TEXT, encoding="utf-8")
    assert main(["evaluate", "-m", str(folder), "--text", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = npformer.perplexity(npformer.load(folder), TEXT)
    assert (found["perplexity"], found["tokens"]) == (expected.perplexity, expected.tokens)
    assert main(["evaluate", "-m", str(folder), "--text", str(file), "--stride", "32"]) == 0
    assert capsys.readouterr().out.split() == str(expected).split()
    assert main(["evaluate", "--text", str(file)]) == 1
    assert "expected a causal-lm model, got a sequence-classification" in capsys.readouterr().err
    assert main(["evaluate", "-m", str(folder), "--text", str(file), "--data", str(file)]) == 1
    assert "give --data, or --source and --reference, or --text" in capsys.readouterr().err
