"""Inputs of the views: tokens, weights, traces and models are converted to one form, with clear errors."""

from __future__ import annotations

import base64
import re
import zlib
from typing import Any

import numpy as np
import pytest

from npformer import view
from npformer.common.errors import NpformerError
from npformer.interpret.stacks import stacks
from npformer.interpret.traces import trace
from npformer.text.inputs import Pair
from npformer.text.words import merge_pieces, printable, text_words, word_spans, word_text
from npformer.view.pack import ALWAYS_FITS, BUDGET, Packed, pack_decimals, pack_floats, pack_weights, size
from tests.browser.arrays import PAIR, WORDS, encoder_decoder, head_stages, weights
from tests.support import tiny


def test_titles_are_the_words_without_special_tokens() -> None:
    pair = view.heads(weights(1, 2, len(PAIR), len(PAIR)), tokens=PAIR, token_type_ids=(0, 0, 0, 0, 1, 1, 1, 1, 1))
    assert pair.title == "Attention heads: time flies / fruit flies likely"
    only = view.heads(weights(1, 2, 2, 2), tokens=["<pad>", "</s>"])
    assert only.title == "Attention heads: <pad> </s>"  # special tokens are shown because there are no others


# --- packing ---------------------------------------------------------------------------------------------------------


def unpack(block: Packed) -> np.ndarray:
    """Reads the arrays as assets/core.js does in the browser."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(block.text)), np.uint8)
    kind = np.dtype("<" + block.kind)
    values = planes.reshape(kind.itemsize, -1).T.copy().view(kind).ravel()
    if block.kind != "u2":
        return values.reshape(block.shape)
    heads, queries, keys = block.shape
    return values.reshape(heads, keys, queries).swapaxes(1, 2)


@pytest.mark.parametrize("decimals", [2, 3, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_stored_decimals_are_the_weights_as_python_prints_them(decimals: int, dtype: type) -> None:
    array = weights(1, 3, 6, 9, dtype=dtype)
    array[0, 0] = 0
    array[0, 0, 0] = 1
    stored = unpack(pack_decimals("w", array, decimals))
    printed = [f"{unit / 10**decimals:.{decimals}f}" for unit in stored.ravel().tolist()]
    assert printed == [f"{value:.{decimals}f}" for value in array.ravel().tolist()]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_stored_bit_for_bit(dtype: type) -> None:
    array = np.array([[0.0, -0.0, np.inf, -np.inf, 1e-30], [1 / 3, -2.5, 65504, 6e-8, 1]]).astype(dtype)
    stored = unpack(pack_floats("x", array))
    assert stored.dtype == (np.float64 if dtype == np.float64 else np.float32)
    np.testing.assert_array_equal(stored, array)
    np.testing.assert_array_equal(np.signbit(stored), np.signbit(array))


def test_any_weights_of_144_heads_at_128_tokens_fit() -> None:
    for sharp, decimals in ((0.0, 4), (1.0, 2), (3.0, 3)):
        layers = [weights(layer, 12, 128, 128, sharp=sharp) for layer in range(12)]
        assert sum(layer.size for layer in layers) == ALWAYS_FITS
        blocks = pack_weights([str(n) for n in range(12)], layers)
        assert blocks[0].decimals == decimals
        assert size(blocks) <= BUDGET
        page = view.heads(layers, tokens=["w"] * 128).html()
        assert len(page.encode()) < 1_500_000


def test_longer_texts_keep_three_decimals() -> None:
    blocks = pack_weights(["0"], [weights(0, 40, 256, 256, sharp=1.0)])
    assert blocks[0].decimals == 3
    assert size(blocks) > BUDGET


# --- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["[CLS]", "un", "##do", "##able", "!", "[SEP]"], ["[CLS]", "undoable", "!", "[SEP]"]),
        (["▁Hel", "lo", "▁wor", "ld", ".", "</s>"], ["Hello", "world.", "</s>"]),
        (["<s>", "Hello", "Ġwor", "ld", "</s>"], ["<s>", "Hello", "world", "</s>"]),
        (["##a", "##", "b"], ["##a", "##", "b"]),  # the first piece starts a word; "##" alone continues no word
    ],
)
def test_pieces_make_words(tokens: list[str], words: list[str]) -> None:
    assert [word_text(tokens[first:end]) for first, end in word_spans(tokens)] == words


def test_merging_sums_to_a_word_and_averages_from_it() -> None:
    array = weights(2, 4, len(PAIR), len(PAIR), dtype=np.float64)
    spans = word_spans(PAIR)
    merged = merge_pieces(array, spans, spans)
    assert merged.shape == (4, 8, 8)
    np.testing.assert_allclose(merged.sum(axis=-1), 1, rtol=1e-15)  # after merging, rows still sum to 1
    np.testing.assert_array_equal(merged[:, 0, 0], array[:, 0, 0])
    np.testing.assert_allclose(merged[:, 6, 6], array[:, 6:8, 6:8].sum(axis=(1, 2)) / 2, rtol=1e-15)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I love it.", ["I", "love", "it", "."]),
        ("  don't  stop!? ", ["don't", "stop", "!", "?"]),
        ("(well-made)", ["(", "well-made", ")"]),
        ("我爱 ice 冰ab", ["我", "爱", "ice", "冰", "ab"]),
        ("مرحبا، بك", ["مرحبا", "،", "بك"]),
        ("क्या बात", ["क्या", "बात"]),
        ("...", [".", ".", "."]),
        (" \n\t", []),
    ],
)
def test_a_text_is_cut_into_words(text: str, words: list[str]) -> None:
    assert [text[first:end] for first, end in text_words(text)] == words


def test_printable_text_has_no_control_characters() -> None:
    assert printable("a\x1b[2J\x00\x9b\u202e\ud800b") == "a\ufffd[2J\ufffd\ufffd\ufffd\ufffdb"
    assert printable("é 我 👩\u200d🚀 \u05e9") == "é 我 👩\u200d🚀 \u05e9"


# --- sources ---------------------------------------------------------------------------------------------------------


def same(one: view.HeadView, other: view.HeadView) -> bool:
    (a,), (b,) = one.stacks, other.stacks
    return a.queries == b.queries and all(np.array_equal(x, y) for x, y in zip(a.layers, b.layers, strict=True))


def test_a_model_a_trace_and_arrays_are_the_same_view() -> None:
    model, pair = tiny.model("bert"), Pair("I love ice", "it is hot")
    t = trace(model, pair)
    whole = view.heads(model, pair)
    assert whole.stacks[0].queries.tokens == tuple(t.tokens)
    assert whole.stacks[0].queries.token_type_ids == tuple(t.token_type_ids)
    assert same(whole, view.heads(t))
    layers = list(t.select("layers.*.attention.weights").values())
    assert same(whole, view.heads(layers, tokens=t.tokens, token_type_ids=t.token_type_ids))
    assert same(whole, view.heads(np.stack(layers), tokens=t.tokens, token_type_ids=t.token_type_ids))
    assert same(
        whole, view.heads(tuple(layer[None] for layer in layers), tokens=t.tokens, token_type_ids=t.token_type_ids)
    )
    assert same(whole, view.heads(dict(t), tokens=t.tokens, token_type_ids=t.token_type_ids))


def test_one_layer_one_head_and_a_part_of_the_layers() -> None:
    array = weights(3, 7, 7)
    assert view.heads(array, tokens=WORDS).stacks[0].heads == 1
    assert view.heads(array[None], tokens=WORDS).stacks[0].layers[0].shape == (1, 7, 7)
    part = {name: a for name, a in head_stages(1, layers=4).items() if "layers.3" in name or "layers.1" in name}
    shown = view.heads(part, tokens=WORDS, layer=3)
    assert shown.stacks[0].numbers == (1, 3)
    assert shown.layer == 1
    assert view.heads(part, tokens=WORDS, layer=-1).layer == 1


def test_given_scores_have_a_scale_with_signs_only_if_one_is_negative() -> None:
    zeros = [0.0] * len(WORDS)
    scores = {"positive": [0.5, *zeros[1:]], "negative": [-0.5, *zeros[1:]]}
    methods = view.attribution(A, tokens=WORDS, scores=scores).methods
    assert [each.signed for each in methods if each.name in scores] == [False, True]


def test_an_encoder_decoder_has_three_stacks() -> None:
    source, target = ("die", "zeit", "</s>"), ("time", "</s>")
    found = stacks(encoder_decoder(source, target), target, source)
    assert [(s.title, s.queries.tokens, s.keys.tokens) for s in found] == [
        ("Encoder self-attention", source, source),
        ("Decoder self-attention", target, target),
        ("Cross-attention", target, source),
    ]
    (cross,) = stacks(weights(1, 4, 2, 3), target, source)
    assert cross.title == "Cross-attention"


def test_an_encoder_decoder_is_viewed_whole() -> None:
    from tests.support.seq2seq_models import random_model

    model, source, target = random_model(), list("abcd"), ["<s>", "x", "y"]
    with trace() as t:
        model([3, 4, 5, 6], decoder_input_ids=[0, 7, 8])
    for make in (view.heads, view.model, view.neurons, view.stages):
        shown = make(t, tokens=target, key_tokens=source)
        assert "Cross-attention" in shown.html() or shown.kind == "stages"
    parts = view.neurons(t, tokens=target, key_tokens=source).parts
    assert [part.title for part in parts] == ["Encoder self-attention", "Decoder self-attention", "Cross-attention"]
    steps = {step["name"]: step for step in view.stages(t, tokens=target, key_tokens=source)._meta()["steps"]}
    for name, rows, columns in (
        ("encoder.layers.1.attention.scores", "keys", "keys"),
        ("decoder.layers.0.attention.scores", "queries", "queries"),
        ("decoder.layers.1.cross_attention.weights", "queries", "keys"),
        ("decoder.layers.1.cross_attention.key_heads", "keys", None),
        ("decoder.layers.1.cross_attention.output", "queries", None),
    ):
        assert (steps[name]["rows"].get("tokens"), steps[name]["columns"].get("tokens")) == (rows, columns)
    sections = list(dict.fromkeys(step["section"] for step in steps.values()))
    assert sections == [
        "Encoder embeddings", "Encoder layer 0", "Encoder layer 1",
        "Decoder embeddings", "Decoder layer 0", "Decoder layer 1", "Head",
    ]  # fmt: skip


A = weights(4, 2, 3, 7, 7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: view.heads(A), "the arrays have no tokens; pass tokens="),
        (
            lambda: view.heads(A, tokens="time"),
            "tokens: expected the tokens of one text, a list of strings (trace each text on its own)",
        ),
        (
            lambda: view.heads(A, tokens=WORDS[:5]),
            r"layer 0: expected weights (heads, 5, 5) for these tokens, got (3, 7, 7)",
        ),
        (
            lambda: view.heads(A, tokens=WORDS, token_type_ids=[0, 1]),
            "token_type_ids: expected one for each of 7 tokens, got 2",
        ),
        (lambda: view.heads(A * 5, tokens=WORDS), "expected weights between 0 and 1"),
        (lambda: view.heads(A * np.nan, tokens=WORDS), "expected weights between 0 and 1, got nan"),
        (lambda: view.heads((A * 9).astype(int), tokens=WORDS), "expected floating-point weights, got int64"),
        (lambda: view.heads([], tokens=WORDS), "the weights of at least one layer"),
        (lambda: view.heads(A, tokens=WORDS, layer=2), "layer=2: expected one of 0, 1"),
        (lambda: view.heads(A, tokens=WORDS, heads=[3]), "head=3: expected one of 0, 1, 2"),
        (lambda: view.heads(A, tokens=WORDS, layer="x"), "layer=x: expected one of 0, 1"),
        (lambda: view.heads(A, tokens=WORDS, heads="all"), "heads='all': expected a list of heads; omit it"),
        (lambda: view.heads(A, tokens=WORDS, heads=1), "heads=1: expected a list of heads; for one head use heads=[1]"),
        (lambda: view.heads(A, "a text", tokens=WORDS), "a text needs a model"),
        (lambda: view.heads(tiny.model()), "expected a model and a text"),
        (lambda: view.heads({"layers.0.ffn.output": A}, tokens=WORDS), "expected a stage layers.N.attention.weights"),
        (lambda: view.heads(trace(tiny.model(), ["I", "love it"])), "trace each text on its own"),
        (lambda: view.neurons(A, tokens=WORDS), "got plain arrays"),
        (lambda: view.neurons({"layers.0.attention.weights": A[0]}, tokens=WORDS), "layers.N.attention.query_heads"),
        (lambda: view.neurons(head_stages(1), tokens=WORDS, token=7), "token=7: expected one of 0, 1, 2, 3, 4, 5, 6"),
        (lambda: view.neurons(head_stages(1), tokens=WORDS[:3]), "query_heads: expected (3, 3, 8) for these tokens"),
        (lambda: view.stages(A, tokens=WORDS), "got plain arrays"),
        (lambda: view.stages({}, tokens=WORDS), "at least one stage, got none"),
        (lambda: view.stages(trace(tiny.model(), "I"), labels=["one"]), "labels: expected 2, one per logit, got 1"),
        (lambda: view.attribution(A, tokens=WORDS, label="POSITIVE"), "label= needs a text classifier"),
        (lambda: view.attribution(A, tokens=WORDS, scores={"mine": [1.0]}), "scores 'mine': expected 7 finite numbers"),
        (lambda: view.attribution(tiny.model(), "I love it", label="GOOD"), "expected one of NEGATIVE, POSITIVE"),
        (lambda: view.attribution(tiny.model(), "  "), "expected a text with at least one word"),
    ],
)
def test_errors_name_the_expected_and_the_given_value(call: Any, message: str) -> None:
    with pytest.raises(NpformerError, match=re.escape(message)):
        call()
