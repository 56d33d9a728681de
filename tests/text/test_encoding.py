"""One path from texts to token ids: all callers get the same ids, and the same warning about truncation."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npformer import Limits, Pair, golden, load, pipeline, trace, view
from npformer.common.errors import NpformerError
from npformer.model import Model
from npformer.text.borders import BLOCK
from npformer.text.encoding import Encoder, read_texts
from npformer.text.safe_tokenizer import SafeTokenizer
from npformer.text.windows import Tokens
from npformer.training.data import LabelledText, encode
from tests.support import tiny

GOLDEN = Path(__file__).parents[1] / "golden" / "tasks" / "tokenizer_ids.json"
CUTS = json.loads(GOLDEN.read_text(encoding="utf-8"))["cuts"]
MODEL = tiny.model("bert")
LONG = "I love ice cream " * 20  # 82 tokens, for a model that reads 64


@pytest.mark.parametrize("kind", ["window", "truncate"])
def test_special_tokens_are_put_around_few_tokens(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many tokens, the library would combine every overflowing part of one text of a pair with every part of the
    other text."""
    model = tiny.model("bert")
    parts: list[int] = []

    def post_process(*encodings: Any) -> Any:
        parts.append(math.prod(1 + len(each.overflowing) for each in encodings))
        return original(*encodings)

    original = model.tokenizer.post_process
    monkeypatch.setitem(model.tokenizer.__dict__, "post_process", post_process)
    Encoder(model).read([Pair("  ice " * 300, "cream ") if kind == "window" else Pair(LONG, LONG), LONG], kind)
    assert parts
    assert max(parts) <= 25


def test_a_long_word_at_the_beginning_is_within_the_limit_once() -> None:
    """The word is tokenized twice, to place special tokens, but its characters count towards the limit only once."""
    model = tiny.model("bert")
    model.limits = Limits(characters=1000)
    for pair in (Pair("x" * 900, "ice " * 90), Pair("ice " * 90, "x" * 900)):
        (read,) = Encoder(model).read([pair], "truncate")
        assert read.truncated


@pytest.mark.parametrize(
    ("given", "stride", "windows"),
    [
        ("ice " * 300, 56, 41),
        (Pair("cream " * 54, "ice " * 300), None, 50),
        (Pair("cream " * 54, "ice " * 8), None, 2),
    ],
)
def test_the_tokens_of_all_windows_are_limited(given: str | Pair, stride: int | None, windows: int) -> None:
    """A long question makes windows narrow and is repeated in each, so even a short text could need gigabytes."""
    model = tiny.model("bert")
    model.limits = Limits(windows=64 * windows)
    [read] = Encoder(model).read([given], "window", "second", None, stride)
    assert len(read.texts) == windows
    model.limits = Limits(windows=64 * windows - 1)
    with pytest.raises(NpformerError, match=f"tokens in the windows of a text: {64 * windows} is more than the limit"):
        Encoder(model).read([given], "window", "second", None, stride)


@pytest.mark.parametrize("text", ["ab" * BLOCK, "ice cream " * BLOCK, " " * 2 * BLOCK, "ice"])
def test_all_tokens_of_a_text_match_the_tokenizer(text: str) -> None:
    model = tiny.model("bert")
    for special in (True, False):
        expected = model.tokenizer.encode(text, add_special_tokens=special)
        found = Encoder(model).tokens(text, special)
        assert (found.ids, found.tokens) == (expected.ids, expected.tokens)
        assert found.special_tokens_mask == expected.special_tokens_mask
    if len(expected) > 100:
        with pytest.raises(NpformerError, match="at most 100 tokens"):
            Encoder(model).tokens(text, most=100)


def by_task(model: Model, given: Any) -> Any:
    with trace() as t:
        pipeline("text-classification", model)(given)
    return t.ids


def by_training(model: Model, given: Any) -> Any:
    text, text_pair = (given, None) if isinstance(given, str) else given
    (example,) = encode(model, "a.tsv", [LabelledText(model.config.labels[0], text, text_pair, 2)])
    return example.text.ids


WAYS: dict[str, Callable[[Model, Any], Any]] = {
    "task": by_task,
    "trace": lambda model, given: trace(model, given, "logits").ids,
    "golden file": lambda model, given: golden.record(model, given, "logits").texts[0].ids,
    "training": by_training,
}


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model("bert")


@pytest.mark.parametrize("text", ["ice cream", Pair("ice", "cream"), LONG, Pair(LONG, "ice"), Pair(LONG, LONG)])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_reads_the_same_ids(way: str, text: Any, model: Model) -> None:
    (expected,) = Encoder(model).read([text])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ids = WAYS[way](model, text)
    assert np.array_equal(ids, expected.texts[0].ids)
    assert len(ids) <= 64
    said = [str(each.message) for each in caught]
    assert len(said) == expected.truncated
    assert all(f": {expected.n_tokens} tokens, cut to 64" in each for each in said)


def test_a_view_shows_the_words_that_the_model_reads(model: Model) -> None:
    with pytest.warns(UserWarning, match="input 0: 82 tokens, cut to 64"):
        shown = view.attribution(model, LONG)
    read = LONG.split()[:62]
    assert shown.methods[0].words == read
    for each in shown.methods[1:]:  # the other methods score tokens, not words
        assert each.words == ["[CLS]", *(word.lower() for word in read), "[SEP]"]


def test_token_ids_are_never_cut(model: Model) -> None:
    ids = list(range(5, 75))
    text, other = read_texts(model, [ids, np.array(ids[:3])])
    assert (text.texts[0].ids.tolist(), other.texts[0].ids.tolist()) == (ids, ids[:3])
    assert not text.truncated
    with pytest.raises(ValueError, match="expected at most 64 tokens, got 70"):
        trace(model, ids)


def test_one_warning_names_the_first_truncated_text_and_counts_all(model: Model) -> None:
    with pytest.warns(UserWarning, match=r"^input 1: 82 tokens, cut to 64; 2 of 3 texts were cut$"):
        trace(model, ["ice", LONG, LONG], "logits")


WORDS = st.lists(st.sampled_from(["ice", "cream", "love", "unloved", "éclairs", "antidisestablishment"]), max_size=50)


@settings(max_examples=60, deadline=None)
@given(first=WORDS, second=WORDS, limit=st.integers(16, 40))
def test_a_shortened_text_ends_at_the_end_of_a_word(first: list[str], second: list[str], limit: int) -> None:
    encoder = Encoder(MODEL, limit)
    text = Pair(" ".join(first), " ".join(second))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        short = encoder.shortened(text)
    (whole,), (read,) = encoder.read([text]), encoder.read([short])
    assert not read.truncated
    assert (short == text) == (not whole.truncated)
    for one, other in zip(short, text, strict=True):
        assert other.startswith(one)
        assert other.split()[: len(one.split())] == one.split() or len(one.split()) == 1  # a long word


def kept(model: Model, one: int, other: int, limit: int) -> tuple[int, int]:
    """Returns the numbers of tokens kept from two texts of these lengths."""
    (read,) = Encoder(model).read([Pair("ice " * one, "cream " * other)], limit=limit)
    sources = read.pieces[0].sequence_ids
    return sources.count(0), sources.count(1)


def test_pairs_are_cut_as_transformers_cuts_them(model: Model) -> None:
    """Compares with golden counts of transformers, for all lengths below 8 and all limits that cut them."""
    assert len(CUTS) > 300
    for one, other, limit, *expected in CUTS:
        assert kept(model, one, other, limit) == tuple(expected), (one, other, limit)


@settings(max_examples=50, deadline=None)
@given(one=st.integers(1, 60), other=st.integers(1, 60), room=st.integers(1, 61))
def test_both_texts_are_cut_to_the_same_length_and_the_longer_one_has_the_odd_token(
    one: int, other: int, room: int
) -> None:
    first, second = kept(MODEL, one, other, room + 3)
    assert first + second == min(one + other, room)
    if first + second == room:
        shorter, longer = (first, second) if one <= other else (second, first)
        assert shorter == min(one, other, room // 2) <= longer


def test_the_second_of_two_equally_long_texts_is_read_in_windows(model: Model) -> None:
    """The longer text, or the second of two equally long texts, is divided into windows. Each window also contains all
    of the other text."""
    (read,) = Encoder(model).read([Pair("ice " * 30, "cream " * 32)], "window", limit=40)
    assert [each.sequence_ids.count(0) for each in read.pieces] == [30] * len(read.pieces)
    (read,) = Encoder(model).read([Pair("ice " * 32, "cream " * 32)], "window", limit=40)
    assert [each.sequence_ids.count(0) for each in read.pieces] == [32] * len(read.pieces)
    assert len(read.pieces) > 1
    (read,) = Encoder(model).read([Pair("ice " * 32, "cream " * 30)], "window", limit=40)
    assert [each.sequence_ids.count(1) for each in read.pieces] == [30] * len(read.pieces)


def test_a_warning_names_the_line_of_a_truncated_text(model: Model, tmp_path: Path) -> None:
    rows = [LabelledText(model.config.labels[0], text, None, line) for line, text in enumerate(["ice", LONG, LONG], 2)]
    with pytest.warns(UserWarning, match=r"a\.tsv:3: 82 tokens, cut to 64; 2 of 3 texts were cut$"):
        encode(model, tmp_path / "a.tsv", rows)


def test_the_characters_of_words_are_looked_up_in_one_table_for_all():
    """An earlier version searched all tokens for each word, which took time quadratic in the length of the window."""
    words, sources = np.repeat(np.arange(400, dtype=np.int32), 2), np.repeat([0, 1], 400).astype(np.int32)
    places = np.stack([np.arange(800), np.arange(800) + 1], axis=-1).astype(np.int32)
    tokens = Tokens(np.zeros(800, np.int64), np.array([""] * 800, object), places, words, sources, sources.astype(int))
    assert [tokens.word_to_chars(word, word // 200) for word in range(400)] == [(2 * i, 2 * i + 2) for i in range(400)]
    table = tokens._spans
    assert table is not None
    assert len(table) == 400
    assert tokens.word_to_chars(3) == (6, 8)
    assert tokens._spans is table
    assert (tokens.word_to_chars(3, 1), tokens.word_to_chars(-1), tokens.word_to_chars(400)) == (None, None, None)
    assert tokens[2:6].word_to_chars(1) == (2, 4)


def test_a_text_that_the_tokenizer_refuses_does_not_affect_the_others(monkeypatch):
    """The pipeline has two threads, so the library gets all texts at once."""
    classify = pipeline("text-classification", "distilbert-sst2", threads=2)
    alone = [classify(text) for text in ("ice", "cream")]

    def refused(tokenizer, texts):
        raise NpformerError("too long")

    monkeypatch.setattr(SafeTokenizer, "encode_batch", refused, raising=False)
    assert classify(["ice", "cream"]) == alone


LEFT = {"truncation_side": "left"}


def of_left(tmp_path: Path, model_type: str, head: str, settings: Mapping[str, Any] = LEFT) -> Any:
    folder = tiny.folder(tmp_path / "left", model_type, head)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return load(folder)


@pytest.mark.parametrize("times", [1, 200], ids=["at once", "in blocks"])
def test_truncation_on_the_left_keeps_the_end_of_each_text(times: int, tmp_path: Path) -> None:
    """The expected tokens are those of the tokenizers library with `direction="left"`, as in transformers."""
    model = of_left(tmp_path, "bert", "sequence-classification")
    text, other = "good music for the people . " * 20 * times, "I love ice cream " * 9
    for texts, cut in ((text, "longest"), (Pair(text, other), "longest"), (Pair(other, text), "second")):
        library = tiny.tokenizer()
        library.enable_truncation(48, strategy=f"{cut}_first" if cut == "longest" else f"only_{cut}", direction="left")
        expected = library.encode(*([texts] if isinstance(texts, str) else texts))
        (read,) = Encoder(model).read([texts], cut=cut, limit=48)
        assert read.texts[0].ids.tolist() == expected.ids
        assert read.pieces[0].offsets == expected.offsets
        assert read.n_tokens == len(Encoder(model)._whole(texts, special=True))
        assert read.truncated


def test_a_text_shortened_on_the_left_begins_with_a_word(tmp_path: Path) -> None:
    model = of_left(tmp_path, "bert", "sequence-classification")
    with pytest.warns(UserWarning, match="82 tokens, cut to 64"):
        assert Encoder(model).shortened(LONG) == "ice cream " + "I love ice cream " * 15
    with pytest.warns(UserWarning, match="cut to 64"):
        assert Encoder(model).shortened("zzzz " * 20) == "zzzz " * 15  # 62 tokens fit: 15.5 words
    with pytest.warns(UserWarning, match="cut to 64"):
        assert Encoder(model).shortened("z" * 80) == "z" * 62
    with pytest.warns(UserWarning, match="cut to 64"):
        assert Encoder(model).shortened(Pair("ice", LONG)) == Pair("ice", "I love ice cream " * 15)


def test_the_side_in_tokenizer_json_counts_if_the_settings_name_none(tmp_path: Path) -> None:
    """save_pretrained of transformers' tokenizer writes the truncation side only to tokenizer.json."""
    folder = tiny.folder(tmp_path / "model", "bert", "sequence-classification")
    library = tiny.tokenizer()
    library.enable_truncation(9, direction="left")
    library.save(str(folder / "tokenizer.json"))
    (read,) = Encoder(load(folder)).read(["I love ice cream like you"], limit=5)
    assert read.pieces[0].tokens == ["[CLS]", "cream", "like", "you", "[SEP]"]
    (folder / "tokenizer_config.json").write_text(json.dumps({"truncation_side": "right"}))
    (read,) = Encoder(load(folder)).read(["I love ice cream like you"], limit=5)
    assert read.pieces[0].tokens == ["[CLS]", "i", "love", "ice", "[SEP]"]


def test_an_error_says_which_tokens_truncation_would_read(tmp_path: Path) -> None:
    model = of_left(tmp_path, "bert", "sequence-classification")
    with pytest.raises(NpformerError, match="long='truncate' reads the last 64"):
        Encoder(model).read([LONG], "error")
    with pytest.raises(NpformerError, match=r"truncation_side: expected .* got 'middle'"):
        Encoder(of_left(tmp_path, "bert", "sequence-classification", {"truncation_side": "middle"}))


def test_a_text_above_the_limit_is_refused_if_its_end_is_read(tmp_path: Path) -> None:
    of_left(tmp_path, "bert", "sequence-classification")
    model = load(tmp_path / "left", limits=Limits(characters=40_000))
    with pytest.raises(NpformerError, match="characters of a text"):
        Encoder(model).read(["good music for the people . " * 2000])
