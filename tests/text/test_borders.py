"""Long texts are tokenized in blocks, with the same tokens as the whole text. Texts above the limit are truncated or
refused.
"""

from __future__ import annotations

import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from npformer import Limits, Pair, pipeline, trace
from npformer.common.errors import NpformerError
from npformer.model import Model
from npformer.text import borders, encoding
from npformer.text.borders import Borders
from npformer.text.encoding import Encoder
from tests.support import tiny

WORDS = ("ice", "cream", "unloved", "a1", "\u00e9clairs", "e\u0301\u0323", "\u6211\u7231\u51b0", "\u4eac", "\ufb01", "\ufdfa", "\u00a8", "\ufe70", "\u017fs", "\u0130I",
         "[MASK]", "[SEP]", "x" * 120, "a,b", "...", "\u200b", "\0", "\u0301", "\uac01\u11a8", "\U0001f600", "'s", "1st", "[[", "$--", "]\u0301")  # fmt: skip
SPACES = (" ", " ", " ", "  ", "\n", "\t ", "\u3000", "")
TEXTS = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(SPACES)), max_size=60).map(
    lambda each: "".join(word + space for word, space in each)
)


def bytes_in_words() -> Tokenizer:
    """Returns a byte-level BPE like GPT-2's that first applies NFKC."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        WORDS * 9, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    return made


def roberta() -> Tokenizer:
    """Returns the tokenizer of `bytes_in_words` with special tokens. Each run of its post-processor shifts offsets."""
    made = bytes_in_words()
    made.add_special_tokens(["<s>", "</s>"])
    end, start = (("</s>", made.token_to_id("</s>")), ("<s>", made.token_to_id("<s>")))
    made.post_processor = processors.RobertaProcessing(end, start, trim_offsets=True, add_prefix_space=True)
    return made


def bert(lowercase: bool) -> Tokenizer:
    made = tiny.tokenizer(lowercase)
    made.add_special_tokens([AddedToken("[MASK]", lstrip=True, rstrip=True)])
    return made


def encoder(tokenizer: Any, limit: int = 20, **limits: int) -> Encoder:
    made = Encoder(tiny.model("bert"), limit)
    made.tokenizer, made.limits, made.threads = tokenizer, Limits(**limits), 1
    return made


KINDS = {"bert": lambda: bert(True), "cased": lambda: bert(False), "bytes": bytes_in_words, "roberta": roberta}
NAMES = ("ids", "tokens", "offsets", "word_ids", "type_ids", "special_tokens_mask", "sequence_ids")


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_is_read_in_blocks_gives_the_tokens_of_the_whole(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, in_blocks = (encoder(KINDS[kind]()) for _ in range(2))
    assert in_blocks.borders.at_spaces

    @settings(max_examples=50, deadline=None)
    @given(first=TEXTS, second=TEXTS, cut=st.sampled_from(["longest", "first", "second"]), block=st.integers(1, 30))
    def alike(first: str, second: str, cut: str, block: int) -> None:
        for text in (first, Pair(first, second or "a")):
            (expected,) = whole.attempt([text], "truncate", cut, None, None)
            with monkeypatch.context() as patch:
                patch.setattr(borders, "BLOCK", block)
                patch.setattr(encoding, "BLOCK", block)
                (found,) = in_blocks.attempt([text], "truncate", cut, None, None)
            if isinstance(expected, NpformerError) or isinstance(found, NpformerError):
                assert str(expected) == str(found)
                continue
            assert (found.n_tokens, found.truncated) == (expected.n_tokens, expected.truncated)
            for one, other in zip(found.pieces, expected.pieces, strict=True):
                for name in NAMES:
                    assert getattr(one, name) == getattr(other, name)

    alike()


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_text_has_the_tokens_of_the_tokenizers_library(kind: str) -> None:
    """The library truncates before it adds special tokens, and shifts offsets only once."""
    made, tokenizer = encoder(KINDS[kind]()), KINDS[kind]()
    tokenizer.enable_truncation(20, strategy="only_first")

    @settings(max_examples=50, deadline=None)
    @given(first=TEXTS, second=st.sampled_from(["", "ice", " ice cream"]))
    def alike(first: str, second: str) -> None:
        (found,) = made.read([Pair(first, second) if second else first], "truncate", "first")
        expected = tokenizer.encode(first, second or None)
        for name in NAMES:
            assert getattr(found.pieces[0], name) == getattr(expected, name)

    alike()


@pytest.mark.parametrize("kind", KINDS)
def test_windows_that_are_read_in_blocks_match_the_tokenizers_library(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tokenizer, cut = encoder(KINDS[kind]()), KINDS[kind](), KINDS[kind]()

    @settings(max_examples=50, deadline=None)
    @given(
        first=TEXTS,
        second=st.sampled_from(["", "ice", "e\u0301 1st"]),
        stride=st.integers(0, 5),
        block=st.integers(1, 30),
    )
    def alike(first: str, second: str, stride: int, block: int) -> None:
        text = Pair(first, second) if second else first
        with monkeypatch.context() as patch:
            patch.setattr(borders, "BLOCK", block)
            patch.setattr(encoding, "BLOCK", block)
            (found,) = made.read([text], "window", "first", None, stride)
        whole = tokenizer.encode(*text) if second else tokenizer.encode(text)
        cut.enable_truncation(20, stride=stride, strategy="only_first")
        piece = cut.encode(*text) if second else cut.encode(text)
        expected = [piece, *piece.overflowing]
        assert found.n_tokens == len(whole)
        for one, other in zip(found.pieces, expected, strict=True):
            for name in set(NAMES) - {"word_ids", "offsets"}:  # compared below
                assert getattr(one, name) == getattr(other, name)
            # The library treats a window's first token as the text's first token, and keeps the space before it.
            odd = one.sequence_ids.index(0) if kind in ("bytes", "roberta") and other is not expected[0] else -1
            assert [each for i, each in enumerate(one.offsets) if i != odd] == [
                each for i, each in enumerate(other.offsets) if i != odd
            ]
            for i in range(len(one)):
                word, theirs, source = one.token_to_word(i), other.token_to_word(i), one.sequence_ids[i]
                assert (word is None) == (theirs is None)
                if word is not None and (odd < 0 or theirs != other.token_to_word(odd) or source):
                    assert one.word_to_chars(word, source) == other.word_to_chars(theirs, source)
        if not second:
            assert sum(each.stop - each.start for each in found.rows()) == len(whole)

    alike()


def test_blocks_cover_a_text_and_end_at_borders() -> None:
    found = Borders(bert(True))
    text = "ice cream \u6211\u7231\u51b0 " * 5000
    blocks = list(found.blocks(text))
    assert "".join(text[first:end] for first, end in blocks) == text
    assert 2 < len(blocks) < 9
    assert max(end - first for first, end in blocks) <= borders.BLOCK
    assert list(found.blocks("x" * 50_000)) == [(0, 50_000)]
    assert len(list(found.blocks("[" * 50_000))) == 4
    assert list(found.blocks("")) == []


@pytest.mark.parametrize(
    "part",
    [
        {"normalizer": normalizers.Replace(Regex("e i"), "x")},
        {"normalizer": normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])},
        {"pre_tokenizer": pre_tokenizers.Metaspace()},
        {"pre_tokenizer": pre_tokenizers.ByteLevel(use_regex=False)},
        {"pre_tokenizer": pre_tokenizers.Split(Regex(r"\S+ \S+"), "isolated")},
    ],
)
def test_texts_are_not_split_if_a_part_may_read_across_spaces(part: dict[str, Any]) -> None:
    tokenizer = bert(True)
    for name, value in part.items():
        setattr(tokenizer, name, value)
    assert not Borders(tokenizer).at_spaces
    for token in ("ice cream", "\u51b0\u4eac", AddedToken("ice", rstrip=True)):
        tokenizer = bert(True)
        tokenizer.add_tokens([token])
        assert not Borders(tokenizer).at_spaces
    assert not Borders(object()).at_spaces
    tokenizer = bert(True)
    tokenizer.add_tokens(["<|end|>"])  # this token must not be cut between its punctuation marks
    assert (Borders(tokenizer).at_spaces, Borders(tokenizer).at_marks) == (True, False)


# --- the limit of characters -----------------------------------------------------------------------------------------


def test_a_text_over_the_limit_is_cut_or_refused() -> None:
    made = encoder(bert(True), characters=20_000)
    long, short = "ice cream " * 3000, "ice cream " * 1000
    (cut,), (expected,) = made.read([long]), made.read([short])
    assert cut.texts[0].ids.tolist() == expected.texts[0].ids.tolist()
    assert cut.truncated
    assert cut.n_tokens == 2 + 4000  # only characters up to the last safe split point are read and counted
    for how in ("error", "window"):
        with pytest.raises(
            NpformerError, match=r"characters of a text: 30000 is more than the limit `characters` of 20000"
        ):
            made.read([long], how)
        with pytest.raises(NpformerError, match="30000 is more than"):
            made.read(["ice", long], how)
    for unbroken in ("x" * 30_000, "ice " + "x" * 30_000):
        with pytest.raises(NpformerError, match="limit `characters`"):
            made.read([unbroken])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(made.shortened(long).split()) == 18


def test_every_way_to_read_a_text_has_the_limit(tmp_path: Path) -> None:
    model = Model(
        tiny.config(), tiny.weights(tiny.config()), tiny.folder(tmp_path / "model"), limits=Limits(characters=99)
    )
    classify = pipeline("text-classification", model)
    texts = ["ice", "x" * 100, "cream"]
    with pytest.raises(
        NpformerError, match="input 1: characters of a text: 100 is more than the limit `characters` of 99"
    ):
        classify(texts)
    with pytest.raises(NpformerError, match=r"npformer.Limits\(characters=N\)"):
        trace(model, "x" * 100)
    assert classify("ice " * 24)["label"] in model.config.labels


@pytest.mark.slow
def test_a_long_text_takes_little_memory() -> None:
    """Only Python's memory is measured. The library itself needs the memory of one block, as measured by hand."""
    made = encoder(bert(True))
    peaks = []
    for count in (20_000, 80_000):
        text = "ice cream " * count
        tracemalloc.start()
        made.read([text])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 10**6
    tracemalloc.start()
    (found,) = made.read([text], "window")
    # memory for the arrays, and for the lists of one block
    assert tracemalloc.get_traced_memory()[1] < 200 * found.n_tokens + 10**7
    tracemalloc.stop()
    assert isinstance(made.read(["ice"])[0].texts[0].ids, np.ndarray)
