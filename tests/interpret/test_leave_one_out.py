"""Leaving words out: the log-odds by hand, batches, and groups of words in long texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer.common.errors import NpformerError
from npformer.interpret import attribution
from npformer.interpret.attribution import leave_one_out, without_words
from npformer.interpret.integrated_gradients import by_gradients
from npformer.interpret.study_inputs import texts_of
from npformer.interpret.traces import trace
from npformer.text.inputs import Pair
from tests.support import byte_level, tiny

TEXT = "I love good ice cream"


def odds(model: npformer.Model, text: str) -> float:
    logits = model.run(texts_of(model, text)[0])[0]["logits"].astype(np.float64)
    return float(logits[1] - logits[0])


def test_scores_are_those_of_one_text_at_a_time() -> None:
    model = tiny.model()
    texts = ["love good ice cream", "I good ice cream", "I love ice cream", "I love good cream", "I love good ice"]
    expected = [odds(model, TEXT) - odds(model, text) for text in texts]
    assert leave_one_out(model, TEXT, "POSITIVE").scores.tolist() == expected


@pytest.mark.parametrize(
    ("text", "word", "left"),
    [
        ("It is a truth", "It", "is a truth"),
        ("It is a truth", "is", "It a truth"),
        ("It is a truth", "truth", "It is a"),
        ("  It is", "It", "  is"),
        ("so good, he said", "good", "so, he said"),
        ("one\n two three", "two", "one three"),
        ("(so) hot", "so", "() hot"),
    ],
)
def test_a_word_is_left_out_with_one_space(text: str, word: str, left: str) -> None:
    """The vocabularies of GPT-2 and Llama have tokens that begin with a space, so a leftover space would be a token."""
    first = text.index(word)
    assert without_words(text, first, first + len(word)) == left


def test_the_last_word_of_a_causal_model_is_left_out_as_if_it_were_not_typed(tmp_path: Path) -> None:
    """Each byte is a token, even a space."""
    folder = tiny.folder(tmp_path / "model", "gpt2", "causal-lm", vocab_size=byte_level.N_TOKENS)
    byte_level.tokenizer(ends=False).save(str(folder / "tokenizer.json"))
    model, text = npformer.load(folder), "I love ice"
    whole, shorter = (model.run(texts_of(model, each)[0])[0]["logits"][-1] for each in (text, "I love"))
    found, best = leave_one_out(model, text, None), int(whole.argmax())

    def log_odds(logits: np.ndarray) -> float:
        p = np.exp(logits - logits.max()).astype(np.float64)
        return float(np.log(p[best] / (p.sum() - p[best])))

    # The scores are computed in float64 from the same float32 logits; 1e-5 covers the rounding of exp in float32 here.
    assert found.scores[-1] == pytest.approx(log_odds(whole) - log_odds(shorter), abs=1e-5)


def test_words_of_a_group_are_left_out_together() -> None:
    model = tiny.model()
    found = leave_one_out(model, TEXT, "POSITIVE", group=2)
    expected = [odds(model, TEXT) - odds(model, text) for text in ("good ice cream", "I love cream", "I love good ice")]
    assert found.scores.tolist() == expected
    assert found.words == ["I love", "good ice", "cream"]
    assert found.name == "Leave 2 words out"
    assert "2 adjacent words are left out together" in found.about


def test_no_group_begins_with_punctuation() -> None:
    found = leave_one_out(tiny.model(), "so good, he said. (so) hot!", 0, group=2)
    assert found.words == ["so good,", "he said.", "(so)", "hot!"]


def test_groups_do_not_join_the_texts_of_a_pair() -> None:
    found = leave_one_out(tiny.model("bert"), Pair("I love ice", "so hot"), 0, group=2)
    assert found.words == ["I love", "ice", "so hot"]


def test_a_long_text_has_groups_unless_each_word_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # a tiny model may read twice MOST, 14 tokens; a run reads 7, so two runs are possible, with two groups of words
    monkeypatch.setattr(attribution, "MOST", 7)
    model = tiny.model()
    found = leave_one_out(model, TEXT, 0)
    assert found.words == ["I love good", "ice cream"]
    assert "because the text is long; group=1 leaves out one at a time" in found.about
    assert len(leave_one_out(model, TEXT, 0, group=1).words) == 5


def test_integrated_gradients_of_a_long_text_have_fewer_steps() -> None:
    model = tiny.model(max_length=1024)
    (text,), (tokens,), _ = texts_of(model, " ".join(["ice"] * 510))
    by_default = by_gradients(model, text, tokens, 0, methods=["integrated"])[0]
    assert "averaged over 16 points" in by_default.about
    assert by_default.about.endswith("The text is long: steps=50 is more exact.")
    asked = by_gradients(model, text, tokens, 0, 12, ["integrated"])[0]
    assert "averaged over 12 points" in asked.about
    assert "long" not in asked.about


@pytest.mark.parametrize("group", [0, 1.5, True])
def test_a_group_is_a_whole_number(group: object) -> None:
    with pytest.raises(NpformerError, match="attribution: group: expected a whole number of at least 1"):
        leave_one_out(tiny.model(), TEXT, 0, group=group)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "size", "first"),
    [
        ("unable, so unable", 1, ["u", ",", "so", "u"]),  # [CLS] u ##n ##a ##b ##l ##e , so u ##n ...
        (Pair("so good", "good"), 1, ["so", "good", "good"]),
        ("so good, so good", 2, ["so", "so"]),
    ],
)
def test_words_have_the_number_of_their_first_token(given: Any, size: int, first: list[str]) -> None:
    model = tiny.model()
    found = leave_one_out(model, given, None, group=size)
    tokens = trace(model, given).tokens
    assert [tokens[place] for place in found.places] == first
    assert list(found.places) == sorted(set(found.places))


def test_a_text_of_which_nothing_is_left_has_the_other_measures() -> None:
    given, model = "hot", npformer.load("gpt2-austen")
    with pytest.raises(NpformerError, match="leaving 1 out leaves no token of"):
        npformer.view.attribution(model, given, methods="leave-one-out")
    assert [method.name for method in npformer.view.attribution(model, given).methods] == [
        "Gradient \N{MULTIPLICATION SIGN} input", "Integrated gradients", "Attention roll-out",
    ]  # fmt: skip
    assert "attribution" in [each.kind for each in npformer.view.page(model, given).texts[0]]
