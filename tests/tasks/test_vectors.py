"""feature-extraction and sentence-embedding: shapes, windows, and settings of sentence-transformers folders."""

import json

import numpy as np
import pytest

from npformer.checkpoint.convert import convert
from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import Text
from npformer.families import encoders
from npformer.interpret.traces import trace
from npformer.loading import load
from npformer.tasks import pipeline
from npformer.tasks.fill_mask import word_logits
from npformer.tasks.pooling import POOLINGS
from npformer.tasks.sentence_folder import EmbeddingRecipe, read_recipe
from npformer.tasks.task import without_head
from tests.golden.make_tasks import write_sentence_folder
from tests.support import byte_level, sentence_folders, tiny
from tests.support.bits import alike
from tests.support.sentence_folders import write_modules

pytestmark = pytest.mark.numbers

LONG = "the people of paris had ice cream and it was good " * 12


# --- feature-extraction ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["base", "masked-lm", "sequence-classification", "question-answering"])
def test_features_are_the_encoder_s_with_any_head(head):
    model = tiny.model("bert", head)
    features = pipeline("feature-extraction", model)
    base = tiny.model("bert", "base")
    ids = model.tokenizer.encode("ice cream").ids
    array = features("ice cream", return_tensors=True)
    assert array.shape == (1, 4, 32)
    assert array.dtype == np.float32
    # the encoder is drawn before the head, so equal seeds give equal encoders
    if head in ("base", "masked-lm", "question-answering"):
        assert array.shape == base(ids).last_hidden_state.shape
    assert features("ice cream") == array.tolist()
    assert [np.shape(each) for each in features(["ice", "ice cream"])] == [(1, 3, 32), (1, 4, 32)]


def test_features_of_windows_give_each_token_once():
    features = pipeline("feature-extraction", tiny.model("distilbert", "base"), return_tensors=True)
    whole = features(LONG, long="window", stride=20)
    assert whole.shape == (1, whole.n_tokens, 32)
    cut = features(" ".join(LONG.split()[:62]))
    assert np.array_equal(whole[0, :10], cut[0, :10])  # tokens that only the first window contains
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
def test_an_embedding_is_pooled_by_its_folder_s_settings(mode, folder):
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
    # the tolerances allow the rounding of a sum of six rows in float32
    np.testing.assert_allclose(vector, expected[mode], rtol=1e-5, atol=1e-6)


def test_older_settings_of_a_folder_name_each_pooling(folder):
    embedder(folder)
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    assert read_recipe(folder, 32).poolings == ("cls", "mean")
    assert pipeline("sentence-embedding", folder)("ice").shape == (64,)
    (folder / "1_Pooling" / "config.json").write_text("{}")
    assert read_recipe(folder, 32).poolings == ("mean",)


def test_normalized_vectors_have_length_one(folder):
    embed = embedder(folder, normalize=True)
    for vector in embed(["ice", "", LONG], long="window"):
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


def test_an_embedding_heeds_its_folder_s_length_case_and_prompt(folder):
    embed = embedder(folder, max_seq_length=5, do_lower_case=True, prompt="news: ")
    assert (embed.recipe.max_length, embed.recipe.lowercase) == (5, True)
    assert embed.prompt(embed.options) == "news: "
    with pytest.warns(UserWarning, match="cut to"):
        vector = embed("ICE CREAM")
    assert vector.truncated
    assert vector.n_tokens == 6


@pytest.mark.parametrize("form", ["{}/", "./{}", "./{}/"])
def test_the_paths_of_modules_in_other_forms(form, folder, tmp_path):
    embed = embedder(folder, pooling="cls")
    modules = json.loads((folder / "modules.json").read_text())
    for each in modules:
        each["path"] = form.format(each["path"]) if each["path"] else "."
    (folder / "modules.json").write_text(json.dumps(modules))
    other = pipeline(model=folder)
    assert other.recipe == embed.recipe
    assert np.array_equal(other("ice"), embed("ice"))
    assert np.array_equal(pipeline(model=convert(folder, tmp_path / "converted"))("ice"), embed("ice"))


def test_the_folder_s_length_replaces_the_tokenizer_s(folder):
    """As in sentence-transformers, max_seq_length replaces model_max_length, and may be larger, up to the positions."""
    text = "ice cream " * 12  # 26 tokens
    whole = embedder(folder)(text)
    assert whole.n_tokens == 26
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 10}))
    assert pipeline("sentence-embedding", folder).max_seq_length == 10
    for length, found in ((40, 40), (1000, 64), (6, 6)):
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
        embed = pipeline("sentence-embedding", folder)
        assert embed.max_seq_length == embed.limit(embed.options) == found
        assert found < 26 or np.array_equal(embed(text), whole)
    embed.max_seq_length = 40  # users may also set max_seq_length
    assert np.array_equal(embed(text), whole)


def test_an_embedding_without_modules_is_the_mean(folder):
    embed = pipeline("sentence-embedding", folder)
    assert embed.recipe == EmbeddingRecipe()
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
    embed = pipeline(model=outer)
    assert (embed.name, embed.recipe.poolings) == ("sentence-embedding", ("cls",))
    assert np.array_equal(embed("ice"), embed.model(embed.model.tokenizer.encode("ice").ids).last_hidden_state[0, 0])
    assert load(outer).folder == outer / "0_Transformer"
    converted = convert(load(outer).folder, tmp_path / "converted")
    assert (converted / "config.json").exists()  # written next to modules.json, as by current sentence-transformers
    flat = pipeline(model=converted)
    assert flat.recipe == embed.recipe
    assert np.array_equal(flat("ice"), embed("ice"))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", "{}", "Transformer, Pooling"),
        ("modules.json", "[]", "Transformer, Pooling"),
        ("modules.json", "[3]", "expected a list of modules"),
        ("modules.json", "{", "expected a list of modules"),
        ("modules.json", '[{"type": "x.Transformer", "path": "../x"}]', "folders next to this file"),
        ("modules.json", '[{"type": "x.Transformer", "path": "./../x"}]', "folders next to this file"),
        ("modules.json", '[{"type": "x.Transformer", "path": ".././x/"}]', "folders next to this file"),
        ("modules.json", '[{"type": "x.Transformer", "path": "/x/"}]', "folders next to this file"),
        ("modules.json", '[{"type": "x.Transformer", "path": "a/b"}]', "folders next to this file"),
        ("modules.json", '[{"type": "x.Dense", "path": ""}]', "Dense is not supported"),
        ("modules.json", '[{"type": "x.Transformer", "path": ""}, {"type": "x.LSTM", "path": ""}]', "LSTM is not supp"),
        ("1_Pooling/config.json", '{"include_prompt": 0}', "include_prompt: expected true or false, got 0"),
        (
            "1_Pooling/config.json",
            '{"embedding_dimension": 31}',
            "embedding_dimension: expected 32, the encoder's, got 31",
        ),
        ("config_sentence_transformers.json", '{"prompts": ["a"]}', "prompts: expected texts by name, got a list"),
        ("config_sentence_transformers.json", '{"prompts": {"a": 1}}', "prompts: expected texts by name"),
        (
            "config_sentence_transformers.json",
            '{"similarity_fn_name": "cos"}',
            "similarity_fn_name: expected one of cosine",
        ),
        (
            "config_sentence_transformers.json",
            '{"truncate_dim": 0}',
            "truncate_dim: expected a whole number of at least 1",
        ),
        (
            "config_sentence_transformers.json",
            '{"truncate_dim": 33}',
            "truncate_dim: expected a whole number from 1 to 32",
        ),
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


@pytest.mark.parametrize("mode", POOLINGS)
def test_a_prompt_s_tokens_may_be_excluded_from_pooling(mode, folder):
    """The prompt's tokens are left out, but the text's tokens keep the weights of their positions after the prompt."""
    write_sentence_folder(folder, 32, pooling="mean", normalize=False, prompt="the news ")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode, "include_prompt": False}))
    embed = pipeline("sentence-embedding", folder)
    rows = embed.model(embed.model.tokenizer.encode("the news ice cream").ids).last_hidden_state[0]
    assert np.array_equal(embed("ice cream"), POOLINGS[mode](rows, 3))
    assert np.array_equal(embed("ice cream", prompt=""), embed("ice cream", prompt_name="query"))
    with pytest.raises(NpformerError, match="the prompt fills all 4 tokens; shorten it"):
        embed("ice", prompt="news " * 3, max_length=4)


def test_a_prompt_is_given_or_named(folder):
    embed = embedder(folder, prompt="news: ")
    plain = embed("ice", prompt="")
    assert np.array_equal(embed("ice"), embed("ice", prompt_name="news"))
    assert np.array_equal(embed("ice"), embed("news: ice", prompt=""))
    assert np.array_equal(pipeline("sentence-embedding", folder, prompt_name="document")("ice"), plain)
    assert not np.array_equal(embed("ice"), plain)
    with pytest.raises(NpformerError, match="prompt_name: 'newz' is not known; did you mean 'news'"):
        embed("ice", prompt_name="newz")
    with pytest.raises(NpformerError, match=r"prompt_name: conflicts with prompt=; pass only one of the two"):
        embed("ice", prompt="a", prompt_name="news")
    with pytest.raises(NpformerError, match="prompt: expected a text"):
        embed("ice", prompt=3)


def test_vectors_are_shortened_and_normalized(folder):
    embed = embedder(folder, normalize=True)
    whole = embed(["ice", "news"])
    short = embed(["ice", "news"], truncate_dim=7)
    assert np.array_equal(short, whole[:, :7])
    both = embed(["ice", "news"], truncate_dim=7, normalize_embeddings=True)
    np.testing.assert_allclose(both, short / np.linalg.norm(short, axis=1, keepdims=True), rtol=1e-6)
    assert pipeline("sentence-embedding", folder, truncate_dim=7)([]).shape == (0, 7)
    with pytest.raises(NpformerError, match="truncate_dim: expected a whole number from 1 to 32, got 33"):
        embed("ice", truncate_dim=33)


RANDOM = np.random.default_rng(0)
DENSE = {"in_features": 32, "out_features": 5, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}
WEIGHTS = {"linear.weight": RANDOM.random((5, 32), np.float32), "linear.bias": RANDOM.random(5, np.float32)}
NORM = {"norm.weight": RANDOM.random(5, np.float32), "norm.bias": RANDOM.random(5, np.float32)}


def test_dense_and_layer_norm_follow_the_pooling(folder):
    """Vectors have the same bits alone and together, also after conversion. The modules' weights are part of a run's
    identity."""
    modules = [("a.Pooling", {}, {}), ("b.Dense", DENSE, WEIGHTS), ("c.LayerNorm", {"dimension": 5}, NORM)]
    write_modules(folder, [*modules, ("d.Dropout", {"dropout": 0.1}, {})])
    embed = pipeline(None, folder)
    texts = ["ice cream", "", "not my music"]
    together = embed(texts)
    assert together.shape == (3, 5)
    rows = embed.model(embed.model.tokenizer.encode("ice cream").ids).last_hidden_state[0]
    y = np.tanh(rows.mean(axis=0) @ WEIGHTS["linear.weight"].T + WEIGHTS["linear.bias"])
    y = (y - y.mean()) / np.sqrt(y.var() + 1e-5) * NORM["norm.weight"] + NORM["norm.bias"]
    np.testing.assert_allclose(together[0], y, rtol=1e-5, atol=1e-6)
    converted = pipeline(None, convert(folder, folder.parent / "converted"))
    for text, vector in zip(texts, together, strict=True):
        assert np.array_equal(embed(text), vector)
        assert np.array_equal(converted(text), vector)
    assert embed.module_sums.keys() == {"2_Dense", "3_LayerNorm"}


@pytest.mark.parametrize(
    ("changed", "tensors", "message"),
    [
        ({"in_features": 31}, WEIGHTS, "2_Dense/config.json: in_features: expected 32, the previous module's width"),
        ({"out_features": 0}, WEIGHTS, "2_Dense/config.json: out_features: expected a whole number"),
        ({"out_features": 6}, WEIGHTS, r"model.safetensors: linear.weight: expected floating point \(6, 32\), got"),
        ({"activation_function": "os.system"}, WEIGHTS, "activation_function: expected one of torch's Tanh, .*'os.system'"),
        ({"module_input_name": "token_embeddings"}, WEIGHTS, "module_input_name: expected one of None, sentence_embedding"),
        ({"bias": False}, WEIGHTS, "expected linear.weight, got linear.bias, linear.weight"),
        ({}, {}, "2_Dense: no weights; looked for model.safetensors, pytorch_model.bin"),
        ({}, {**WEIGHTS, "linear.bias": np.full(5, np.nan, np.float32)}, "linear.bias: contains a number that is not finite"),
    ],
)  # fmt: skip
def test_a_dense_module_that_makes_no_sense_is_refused(changed, tensors, message, folder):
    write_modules(folder, [("a.Pooling", {}, {}), ("b.Dense", {**DENSE, **changed}, tensors)])
    with pytest.raises(NpformerError, match=message):
        pipeline(None, folder)


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan", None])
def test_similarity_is_the_folder_s(name, folder):
    write_modules(folder, [("a.Pooling", {}, {})], similarity_fn_name=name)
    embed = pipeline(None, folder)
    a, b = RANDOM.random((3, 32)), RANDOM.random((2, 32))
    expected = {
        "dot": a @ b.T,
        "euclidean": -np.linalg.norm(a[:, None] - b, axis=-1),
        "manhattan": -np.abs(a[:, None] - b).sum(axis=-1),
    }
    cosine = (a @ b.T) / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)
    np.testing.assert_allclose(embed.similarity(a, b), expected.get(name, cosine), rtol=1e-12)
    assert embed.similarity(a[0], b).shape == (1, 2)
    assert embed.similarity(a, b[:0]).shape == (3, 0)
    with pytest.raises(NpformerError, match=r"similarity: expected vectors .*, got \(3, 32\) and \(2, 31\)"):
        embed.similarity(a, b[:, 1:])


def test_a_module_s_folder_is_no_link(folder, tmp_path):
    write_sentence_folder(folder, 32, pooling="mean", normalize=False)
    (folder / "1_Pooling").rename(tmp_path / "elsewhere")
    (folder / "1_Pooling").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        NpformerError, match=r"1_Pooling: is a link, and links are not followed; replace it with the folder"
    ):
        read_recipe(folder, 32)


HEADS = ("sequence-classification", "masked-lm", "causal-lm")


@pytest.mark.parametrize(
    ("family", "head"),
    [(name, head) for name, each in encoders().items() for head in HEADS if head in each.architectures.values()],
)
def test_a_model_without_its_head_has_the_last_layer_of_the_whole(family: str, head: str) -> None:
    """The last layer's output includes everything below the head, such as relative biases and a last norm. The head
    computes its logits from this output."""
    model = tiny.model(family, head)
    text = Text(np.array([2, 30, 41, 52, 3]))
    whole = dict(trace(model, text))
    last = next(
        whole[name] for name in ("project", "norm", f"layers.{model.config.n_layers - 1}.ffn_norm") if name in whole
    )
    model.__dict__["tokenizer"] = None  # the tokenizer is not needed
    states = without_head(model).run([text])[0]["last_hidden_state"]
    assert alike(states, last)
    if head == "masked-lm":
        assert alike(word_logits(model, states[1:3], "row"), whole["logits"][1:3])


def test_a_decoder_gives_the_last_hidden_state_of_the_token_that_ends_a_text(tmp_path):
    prompt = "Instruct: Find passages\nQuery:"
    embed = pipeline(None, sentence_folders.decoder(tmp_path / "model", prompt))
    texts = ["", "ice cream", f"the {byte_level.END} news 我爱"]
    ids = [embed.model.tokenizer.encode(prompt + each).ids for each in texts]
    assert all(each[-1] == 256 + 3 for each in ids)  # END
    last = np.stack([embed.model([each]).last_hidden_state[0, -1] for each in ids])
    expected = last / np.linalg.norm(last, axis=1, keepdims=True)
    np.testing.assert_allclose(embed.encode_query(texts), expected, rtol=0, atol=1e-6)
    assert np.array_equal(embed.encode_query(texts[1]), embed.encode_query(texts)[1])
    assert np.abs(embed.encode_query(texts) - embed.encode_document(texts)).max() > 0.1
