"""feature-extraction and sentence-embedding: shapes, windows, and what a sentence-transformers folder may say."""

import json

import numpy as np
import pytest

from npformer.errors import NpformerError
from npformer.pooling import POOLINGS
from npformer.tasks import pipeline
from npformer.tasks.sentence_folder import Recipe, read_recipe
from tests.golden.make_tasks import write_sentence_folder
from tests.support import tiny

pytestmark = pytest.mark.numbers

LONG = "the people of paris had ice cream and it was good " * 12


# --- feature-extraction ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["base", "masked-lm", "sequence-classification", "question-answering"])
def test_features_are_the_encoder_s_whatever_the_head(head):
    model = tiny.model("bert", head)
    features = pipeline("feature-extraction", model)
    base = tiny.model("bert", "base")
    ids = model.tokenizer.encode("ice cream").ids
    array = features("ice cream", return_tensors=True)
    assert array.shape == (1, 4, 32)
    assert array.dtype == np.float32
    if head in ("base", "masked-lm", "question-answering"):  # the same seed makes the same encoder up to here
        assert array.shape == base(ids).last_hidden_state.shape
    assert features("ice cream") == array.tolist()
    assert [np.shape(each) for each in features(["ice", "ice cream"])] == [(1, 3, 32), (1, 4, 32)]


def test_features_of_windows_give_each_token_once():
    features = pipeline("feature-extraction", tiny.model("distilbert", "base"), return_tensors=True)
    whole = features(LONG, long="window", stride=20)
    assert whole.shape == (1, whole.n_tokens, 32)
    cut = features(" ".join(LONG.split()[:62]))
    assert np.array_equal(whole[0, :10], cut[0, :10])  # the first window's own tokens
    assert np.array_equal(whole[0, 0], cut[0, 0])


def test_feature_extraction_refuses():
    with pytest.raises(NpformerError, match="return_tensors: expected true or false"):
        pipeline("feature-extraction", tiny.model("bert", "base"), return_tensors="pt")


# --- sentence-embedding ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    return tiny.folder(tmp_path / "model", "bert", "base")


def embedder(folder, **settings):
    write_sentence_folder(folder, 32, **({"pooling": "mean", "normalize": False} | settings))
    return pipeline("sentence-embedding", folder)


@pytest.mark.parametrize("mode", POOLINGS)
def test_an_embedding_is_pooled_as_its_folder_says(mode, folder):
    embed = embedder(folder, pooling=mode)
    rows = embed.model(embed.model.tokenizer.encode("i love ice cream").ids).last_hidden_state[0].astype(np.float64)
    ramp = np.arange(1, len(rows) + 1)[:, None]
    expected = {
        "cls": rows[0],
        "max": rows.max(axis=0),
        "mean": rows.mean(axis=0),
        "mean_sqrt_len_tokens": rows.sum(axis=0) / np.sqrt(len(rows)),
        "weightedmean": (rows * ramp).sum(axis=0) / ramp.sum(),
        "lasttoken": rows[-1],
    }
    vector = embed("i love ice cream")
    assert vector.dtype == np.float32
    np.testing.assert_allclose(vector, expected[mode], rtol=1e-5, atol=1e-6)  # a sum of six in float32


def test_older_settings_of_a_folder_name_each_pooling(folder):
    embedder(folder)
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    assert read_recipe(folder).poolings == ("cls", "mean")
    assert pipeline("sentence-embedding", folder)("ice").shape == (64,)
    (folder / "1_Pooling" / "config.json").write_text("{}")
    assert read_recipe(folder).poolings == ("mean",)


def test_normalised_vectors_have_length_one(folder):
    embed = embedder(folder, normalize=True)
    for vector in embed(["ice", "", LONG], long="window"):
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


def test_an_embedding_heeds_its_folder_s_length_case_and_prompt(folder):
    embed = embedder(folder, max_seq_length=5, do_lower_case=True, prompt="news: ")
    assert embed.recipe == Recipe(("mean",), max_length=5, lowercase=True, prompt="news: ")
    with pytest.warns(UserWarning, match="cut to"):
        vector = embed("ICE CREAM")
    assert vector.truncated
    assert vector.n_tokens == 6


def test_an_embedding_without_modules_is_the_mean(folder):
    embed = pipeline("sentence-embedding", folder)
    assert embed.recipe == Recipe()
    rows = embed.model(embed.model.tokenizer.encode("ice").ids).last_hidden_state[0]
    assert np.array_equal(embed("ice"), rows.mean(axis=0))


def test_an_older_sentence_transformers_folder_has_its_encoder_inside(tmp_path):
    outer = tmp_path / "sentence"
    tiny.folder(outer / "0_Transformer", "bert", "base")
    write_sentence_folder(outer, 32, pooling="cls", normalize=False)
    modules = json.loads((outer / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (outer / "modules.json").write_text(json.dumps(modules))
    (outer / "sentence_bert_config.json").rename(outer / "0_Transformer" / "sentence_bert_config.json")
    embed = pipeline("sentence-embedding", outer)
    assert embed.recipe.poolings == ("cls",)
    assert np.array_equal(embed("ice"), embed.model(embed.model.tokenizer.encode("ice").ids).last_hidden_state[0, 0])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", "{}", "Transformer, Pooling"),
        ("modules.json", "[]", "Transformer, Pooling"),
        ("modules.json", "[3]", "expected a list of modules"),
        ("modules.json", "{", "expected a list of modules"),
        ("modules.json", '[{"type": "x.Transformer", "path": "../x"}]', "folders beside it"),
        ("modules.json", '[{"type": "x.Dense", "path": ""}]', "Dense is not supported"),
        ("1_Pooling/config.json", '{"pooling_mode": "meen"}', "did you mean 'mean'"),
        ("1_Pooling/config.json", '{"pooling_mode": 3}', "expected a name or a list of names"),
        ("1_Pooling/config.json", "[]", "1_Pooling/config.json"),
        ("sentence_bert_config.json", '{"max_seq_length": 2}', "max_seq_length: expected a whole number of at least 3"),
        ("sentence_bert_config.json", '{"max_seq_length": "x"}', "max_seq_length"),
        ("config_sentence_transformers.json", '{"default_prompt_name": "q"}', "default_prompt_name: 'q'"),
    ],
)
def test_sentence_transformers_folders_that_make_no_sense_are_refused(file, content, message, folder):
    write_sentence_folder(folder, 32, pooling="mean", normalize=False)
    (folder / file).write_text(content)
    with pytest.raises(NpformerError, match=message):
        pipeline("sentence-embedding", folder)


def test_a_prompt_outside_of_the_pooling_is_refused(folder):
    write_sentence_folder(folder, 32, pooling="mean", normalize=False, prompt="news: ")
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean", "include_prompt": false}')
    with pytest.raises(NpformerError, match="include_prompt"):
        pipeline("sentence-embedding", folder)


def test_a_module_s_folder_is_no_link(folder, tmp_path):
    write_sentence_folder(folder, 32, pooling="mean", normalize=False)
    (folder / "1_Pooling").rename(tmp_path / "elsewhere")
    (folder / "1_Pooling").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NpformerError, match=r"1_Pooling: a link, which is not followed; put the folder itself there"):
        read_recipe(folder)
