"""sparse-embedding: the weighted words of a text, with the settings of the model's folder."""

from __future__ import annotations

import numpy as np
import pytest

from npformer import NpformerError, load, pipeline
from npformer.checkpoint import convert
from npformer.tasks.pooling import splade
from npformer.tasks.word_weights import ROWS
from tests.support import tiny
from tests.support.sentence_folders import write_splade, write_token_heads

pytestmark = pytest.mark.numbers

TEXTS = ["I love ice cream", "", "not my music " * 8, "the news"]
LONG = "the people of paris had ice cream and it was good " * 60


def dense(embed, answer):
    found = np.zeros(embed.model.config.vocab_size, np.float32)
    found[answer["indices"]] = answer["values"]
    return found


def folder(path, **config):
    described = {
        name: config.pop(name) for name in ("max_active_dims", "prompts", "default_prompt_name") if name in config
    }
    return write_splade(tiny.folder(path, "bert", "masked-lm"), config, **described)


@pytest.mark.parametrize(
    ("config", "strategy", "twice"),
    [
        (None, "max", False),
        ({}, "max", False),
        ({"pooling_strategy": "sum", "activation_function": "relu", "word_embedding_dimension": None}, "sum", False),
        ({"pooling_strategy": "max", "activation_function": "log1p_relu"}, "max", True),
    ],
)
def test_a_vector_follows_the_folder_s_settings(config, strategy, twice, tmp_path):
    """Special tokens, too, contribute words, as in sentence-transformers."""
    made = tiny.folder(tmp_path / "m", "bert", "masked-lm") if config is None else folder(tmp_path / "m", **config)
    embed = pipeline("sparse-embedding" if config is None else None, made)
    model = load(made)
    for text, answer in zip(TEXTS, embed(TEXTS), strict=True):
        expected = splade(model(model.tokenizer.encode(text).ids).logits[0], strategy, twice)
        np.testing.assert_allclose(dense(embed, answer), expected, rtol=1e-6, atol=1e-6)
        assert (answer["values"] > 0).all()
        assert answer["tokens"] == [model.tokenizer.id_to_token(each) for each in answer["indices"].tolist()]


def test_the_largest_weights_are_kept(tmp_path):
    made = folder(tmp_path / "m", max_active_dims=5)
    embed = pipeline(None, made)
    whole = pipeline(None, made, max_active_dims=1000)(TEXTS[0])
    answer = embed(TEXTS[0])
    assert len(answer["indices"]) == 5
    assert sorted(answer["values"]) == sorted(whole["values"])[-5:]
    assert (np.diff(answer["indices"]) > 0).all()
    assert len(embed(TEXTS[0], max_active_dims=3)["indices"]) == 3
    with pytest.raises(NpformerError, match="max_active_dims: expected a whole number of at least 1, got 0"):
        embed(TEXTS[0], max_active_dims=0)


@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_a_long_text_has_the_same_bits_in_any_batch(strategy, tmp_path):
    """The head reads the rows of a long text in parts. Where windows of a text overlap, each token counts once."""
    made = write_splade(
        tiny.folder(tmp_path / "m", "bert", "masked-lm", max_length=3 * ROWS), {"pooling_strategy": strategy}
    )
    embed = pipeline(None, made)
    for options in ({}, {"long": "window", "max_length": 40}):
        together = embed([*TEXTS, LONG, *TEXTS], **options)
        for text, answer in zip([*TEXTS, LONG, *TEXTS], together, strict=True):
            assert np.array_equal(dense(embed, embed(text, **options)), dense(embed, answer))
    assert embed(LONG).n_tokens > 2 * ROWS


def test_a_prompt_is_prepended_to_each_text(tmp_path):
    made = folder(tmp_path / "m", prompts={"q": "news: "}, default_prompt_name="q")
    plain = pipeline("sparse-embedding", tiny.folder(tmp_path / "plain", "bert", "masked-lm"))
    embed = pipeline(None, made)
    assert np.array_equal(dense(embed, embed("ice")), dense(plain, plain("news: ice")))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"pooling_strategy": "mean"}, "1_SpladePooling/config.json: pooling_strategy: expected one of max, sum, got 'mean'"),
        ({"activation_function": "gelu"}, "activation_function: expected one of relu, log1p_relu, got 'gelu'"),
        ({"activation_function": ["relu"]}, "activation_function: expected one of relu, log1p_relu, got a list"),
        ({"max_active_dims": 1.5}, "config_sentence_transformers.json: max_active_dims: expected a whole number"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(config, message, tmp_path):
    with pytest.raises(NpformerError, match=message):
        pipeline(None, folder(tmp_path / "m", **config))


def test_dense_vectors_of_such_a_folder_are_refused(tmp_path):
    with pytest.raises(NpformerError, match=r"its vectors are sparse; use pipeline\('sparse-embedding'\)"):
        pipeline("sentence-embedding", folder(tmp_path / "m"))
    with pytest.raises(NpformerError, match="sparse-embedding: expected a masked-lm model, got a base model"):
        pipeline("sparse-embedding", tiny.model("bert", "base"))


# --- a head on tokens ------------------------------------------------------------------------------------------------

LAYER = np.random.default_rng(3).standard_normal((1, 33)).astype(np.float32)
LAYER[0, -1] = 11.0  # with this bias, about half of the weights are positive


def token_heads(path, family="bert", **layers):
    return write_token_heads(tiny.folder(path, family, "base"), **{"sparse": LAYER, **layers})


def test_each_word_has_the_largest_weight_of_its_tokens(tmp_path):
    """Compares with FlagEmbedding's `lexical_weights` as a loop over tokens. Words are repeated, and one is unknown."""
    embed = pipeline("sparse-embedding", token_heads(tmp_path / "m"), dtype=np.float64)
    encoder, weight, bias = load(embed.model.folder, dtype=np.float64), LAYER[0, :-1], LAYER[0, -1]
    texts = ["I love ice cream", "", "the news the music ა the news"]
    special = [encoder.tokenizer.token_to_id(f"[{name}]") for name in ("CLS", "SEP", "PAD", "UNK")]
    assert special[3] in encoder.tokenizer.encode(texts[2]).ids
    for text, answer in zip(texts, embed(texts), strict=True):
        ids = encoder.tokenizer.encode(text).ids
        expected = {}
        for each, row in zip(ids, encoder(ids).last_hidden_state[0], strict=True):
            value = row @ weight + bias
            if value > 0 and each not in special:
                expected[each] = max(value, expected.get(each, 0.0))
        assert answer["indices"].tolist() == sorted(expected)
        np.testing.assert_allclose(answer["values"], [expected[each] for each in sorted(expected)], rtol=1e-12)
        assert answer["tokens"] == [encoder.tokenizer.id_to_token(each) for each in sorted(expected)]
    counts = [len(each["indices"]) for each in embed(texts)]
    assert counts[0] > 1
    assert 0 < counts[2] < len(encoder.tokenizer.encode(texts[2]).ids) - 3


def test_a_head_on_tokens_gives_the_same_bits_in_any_batch(tmp_path):
    embed = pipeline("sparse-embedding", token_heads(tmp_path / "m"))
    for options in ({}, {"long": "window", "max_length": 16, "max_active_dims": 3}):
        for text, answer in zip(TEXTS, embed(TEXTS, **options), strict=True):
            assert np.array_equal(dense(embed, embed(text, **options)), dense(embed, answer))


def test_such_a_folder_also_has_dense_vectors_of_the_first_token(tmp_path):
    made = token_heads(tmp_path / "m")
    rows = load(made)(load(made).tokenizer.encode(TEXTS[0]).ids).last_hidden_state[0]
    np.testing.assert_allclose(pipeline(None, made)(TEXTS[0]), rows[0] / np.sqrt((rows[0] ** 2).sum()), rtol=1e-5)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (LAYER[:, 1:], r"sparse_linear.pt: weight: expected floating point \(1, 32\), got \(1, 31\)"),
        (np.full_like(LAYER, np.nan), "sparse_linear.pt: weight: contains a number that is not finite"),
        (LAYER.astype(np.int64), "sparse_linear.pt: weight: expected floating point"),
    ],
)
def test_a_head_on_tokens_that_does_not_fit_is_refused(layer, message, tmp_path):
    with pytest.raises(NpformerError, match=message):
        pipeline("sparse-embedding", token_heads(tmp_path / "m", sparse=layer))


def test_a_converted_folder_keeps_its_heads_on_tokens(tmp_path):
    made = token_heads(tmp_path / "m", colbert=np.ones((4, 33), np.float32))
    there = convert(made, tmp_path / "there", to="npformer")
    first, second = (pipeline("sparse-embedding", each)(TEXTS[0]) for each in (made, there))
    assert np.array_equal(first["values"], second["values"])
    assert (there / "colbert_linear.pt").exists()
