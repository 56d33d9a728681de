"""text-ranking: the score of a query and a text, with the activation that the checkpoint stores."""

from __future__ import annotations

import json

import numpy as np
import pytest

from npformer import NpformerError, Pair, pipeline
from npformer.checkpoint.modules import MODULES
from npformer.cli.main import main
from npformer.tasks.sentence_folder import DESCRIPTION
from npformer.tasks.text_ranking import OLDER
from tests.support import tiny
from tests.support.sentence_folders import write_modules

IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"
QUERY = "what is good"
TEXTS = ["ice cream", "not my music", "she was in Paris", ""]
PAIRS = [Pair(QUERY, text) for text in TEXTS]


def folder(path, **stored):
    made = tiny.folder(path, "bert", labels=("SCORE",), seed=3)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, **stored}))
    return made


def cross_encoder(path, stored=None, **described):
    """Writes a folder as version 6 of sentence-transformers does."""
    made = folder(path, **(stored or {}))
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    return write_modules(made, [], kind, **{"model_type": "CrossEncoder", "prompts": {}, **described})


def logits(model):
    """Returns the model's logits for the tokenizer's ids of each pair, even if the second text is empty."""
    encodings = [model.tokenizer.encode(*pair) for pair in PAIRS]
    return [model([each.ids], token_type_ids=[each.type_ids]).logits[0, 0] for each in encodings]


@pytest.mark.parametrize(
    ("stored", "function"),
    [
        ({}, "sigmoid"),
        ({OLDER: None}, "sigmoid"),
        ({OLDER: "torch.nn.modules.activation.Sigmoid"}, "sigmoid"),
        ({OLDER: "torch.nn.modules.linear.Identity"}, "none"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.1.0"}}, "none"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
        ({"sentence_transformers": {"version": "5.1.0"}, OLDER: "torch.nn.modules.linear.Identity"}, "none"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Identity"}, OLDER: "torch.nn.Sigmoid"}, "none"),
    ],
)
def test_the_checkpoint_chooses_how_logits_become_scores(stored, function, tmp_path):
    """If a checkpoint stores the activation in both forms, the newer form is used, as in sentence-transformers."""
    rank = pipeline("text-ranking", folder(tmp_path / "model", **stored))
    raw = np.array(logits(rank.model))
    expected = raw if function == "none" else 1 / (1 + np.exp(-raw.astype(np.float64)))
    np.testing.assert_allclose([each["score"] for each in rank(PAIRS)], expected, rtol=1e-6)
    other = {"none": "sigmoid", "sigmoid": "none"}[function]
    assert rank(PAIRS[0], function_to_apply=other) != rank(PAIRS[0])
    assert pipeline("text-ranking", rank.model.folder, function_to_apply="none")(PAIRS[0])["score"] == raw[0]


@pytest.mark.parametrize("activation", ["torch.nn.modules.activation.Tanh", "mine.Sigmoid", 3, ["torch.nn.Identity"]])
def test_another_activation_is_refused_unless_one_is_given(activation, tmp_path):
    for name, stored in ((OLDER, activation), ("sentence_transformers", {"activation_fn": activation})):
        made = folder(tmp_path / name, **{name: stored})
        where = OLDER if name == OLDER else "sentence_transformers.activation_fn"
        with pytest.raises(NpformerError, match=rf"config\.json: {where}: expected torch's Identity or Sigmoid, got "):
            pipeline("text-ranking", made)
        assert pipeline("text-ranking", made, function_to_apply="none")(PAIRS[0])["score"]
    made = cross_encoder(tmp_path / "newer", activation_fn=activation)
    with pytest.raises(
        NpformerError, match=rf"{DESCRIPTION}: activation_fn: expected torch's Identity or Sigmoid, got "
    ):
        pipeline("text-ranking", made)


@pytest.mark.parametrize(
    ("stored", "described", "function"),
    [
        ({}, {"activation_fn": IDENTITY}, "none"),
        ({}, {"activation_fn": SIGMOID}, "sigmoid"),
        ({}, {"activation_fn": None}, "sigmoid"),
        ({}, {}, "sigmoid"),
        ({OLDER: IDENTITY}, {"activation_fn": SIGMOID}, "sigmoid"),
        ({OLDER: IDENTITY}, {"activation_fn": None}, "none"),
        ({"sentence_transformers": {"activation_fn": SIGMOID}}, {"activation_fn": IDENTITY}, "none"),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, {}, "none"),
        ({}, {"activation_fn": IDENTITY, "model_type": "SentenceTransformer"}, "sigmoid"),
    ],
)
def test_the_newer_file_precedes_config_json(stored, described, function, tmp_path):
    made = cross_encoder(tmp_path / "model", stored, **described)
    assert pipeline("text-ranking", made)(PAIRS) == pipeline("text-ranking", made, function_to_apply=function)(PAIRS)


def test_the_newer_file_counts_only_with_a_list_of_modules(tmp_path):
    made = cross_encoder(tmp_path / "model", activation_fn=IDENTITY)
    assert pipeline("text-ranking", made).options.function_to_apply == "none"
    (made / MODULES).unlink()
    assert pipeline("text-ranking", made).options.function_to_apply == "sigmoid"


def test_the_command_and_a_converted_folder_keep_the_activation(tmp_path, capsys):
    made = cross_encoder(tmp_path / "model", activation_fn=IDENTITY)
    expected = pipeline("text-ranking", made)(PAIRS[0])["score"]
    assert expected < 0  # no sigmoid
    (tmp_path / "texts").write_text(TEXTS[0])
    assert main(["convert", str(made), str(tmp_path / "converted")]) == 0
    for model in (made, tmp_path / "converted"):
        capsys.readouterr()
        assert main(["rerank", "--model", str(model), QUERY, str(tmp_path / "texts"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["score"] == expected


def test_a_default_prompt_precedes_each_query(tmp_path):
    made = cross_encoder(tmp_path / "model", prompts={"ask": "ice "}, default_prompt_name="ask")
    plain = cross_encoder(tmp_path / "plain", prompts={"ask": "ice "})
    prompted = [Pair(f"ice {QUERY}", text) for text in TEXTS]
    assert pipeline("text-ranking", made)(PAIRS) == pipeline("text-ranking", plain)(prompted)
    cross_encoder(tmp_path / "model", default_prompt_name="ask")
    with pytest.raises(
        NpformerError, match=r"config_sentence_transformers\.json: default_prompt_name: 'ask' is not one"
    ):
        pipeline("text-ranking", made)


def test_vectors_of_a_cross_encoder_are_means_without_its_prompt(tmp_path):
    """sentence-transformers can also load a cross-encoder's folder as a SentenceTransformer."""
    made = cross_encoder(tmp_path / "model", prompts={"ask": "ice "}, default_prompt_name="ask")
    plain = folder(tmp_path / "plain")
    expected = pipeline("sentence-embedding", plain)(TEXTS)
    np.testing.assert_array_equal(pipeline("sentence-embedding", made)(TEXTS), expected)


def test_a_score_is_that_of_text_classification():
    """For a model with one label, both tasks return the same bits. A mapping is also read as a pair."""
    model = tiny.model("bert", labels=("SCORE",))
    rank, classify = pipeline("rerank", model), pipeline("text-classification", model)
    assert [each["score"] for each in rank(PAIRS[:3])] == [each["score"] for each in classify(PAIRS[:3])]
    assert rank({"text": QUERY, "text_pair": TEXTS[0]}) == rank(PAIRS[0])


def test_a_text_alone_and_other_models_are_refused():
    rank = pipeline("text-ranking", tiny.model("bert", labels=("SCORE",)))
    for alone in ("ice", {"text": "ice"}, {"text": "ice", "text_pair": None}):
        with pytest.raises(NpformerError, match=r"expected npformer\.Pair\(query, text\), got one text"):
            rank(alone)
    with pytest.raises(NpformerError, match="text_pair: expected a text, got None"):
        rank(Pair("ice", None))
    with pytest.raises(NpformerError, match="text-ranking: expected a model with one label, got 2"):
        pipeline("text-ranking", tiny.model())
    with pytest.raises(NpformerError, match="function_to_apply: expected one of sigmoid, none"):
        pipeline("text-ranking", tiny.model(labels=("SCORE",)), function_to_apply="softmax")


def test_a_cross_encoder_has_the_length_and_case_of_its_folder(tmp_path):
    """The sentence_bert_config.json of a saved `CrossEncoder` replaces the tokenizer's maximum and lowercases texts."""
    pair = Pair("What is good", "ICE CREAM " * 12)
    made = cross_encoder(tmp_path / "m")
    tokenizer = {"do_lower_case": False, "model_max_length": 10}
    (made / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (made / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 60, "do_lower_case": True}))
    rank = pipeline("text-ranking", made)
    assert rank.max_seq_length == 60
    assert rank(pair) == rank(Pair(*map(str.lower, pair)))
    assert rank(pair) == pipeline("text-ranking", folder(tmp_path / "plain"))(pair)
    rank.max_seq_length = 12
    with pytest.warns(UserWarning, match="input 0: 30 tokens, cut to 12"):
        rank(pair)
