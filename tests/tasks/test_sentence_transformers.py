"""Methods named as in sentence-transformers return its answers and accept its keywords.

`golden/make_sentence_transformers.py` made the golden answers. Both sides compute in float32, so numbers may differ by
1e-5 of their size.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from npformer import NpformerError, Pair, pipeline
from npformer.tasks.sentence_folder import NEWER, OLDER
from tests.golden.make_sentence_transformers import CASES, FILE, as_lists, write_folder
from tests.golden.make_tasks import same
from tests.support import tiny

TEXTS = ["I love ice cream", "not my music"]


@pytest.mark.numbers
@pytest.mark.filterwarnings("ignore:input 3")
@pytest.mark.parametrize("name", CASES)
def test_methods_answer_like_sentence_transformers(name, tmp_path):
    model = pipeline(model=write_folder(tmp_path / "m", name))
    for (method, arguments, options), golden in zip(
        CASES[name]["calls"], json.loads(FILE.read_text())[name], strict=True
    ):
        assert same(as_lists(getattr(model, method)(*arguments, **options)), golden), (method, options)


# --- vectors ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    return pipeline(model=write_folder(tmp_path / "m", "SentenceTransformer"))


def test_encode_takes_every_iterable_of_texts(model):
    """For a generator, `encode` returns an array, although the task itself returns a generator."""
    vectors = model.encode(TEXTS)
    assert type(vectors[0, 0]) is np.float32
    for several in (tuple(TEXTS), np.array(TEXTS), iter(TEXTS), dict.fromkeys(TEXTS).keys()):
        assert np.array_equal(model.encode(several), vectors)
    assert np.array_equal(model.encode(TEXTS[0]), vectors[0])
    assert model.encode([]).shape == (0, 8)
    assert np.array_equal(model.encode(sentences=TEXTS), vectors)  # the older name of the argument
    for odd in ([3], 3, None):
        with pytest.raises(NpformerError, match=r"expected a text, got (int|None)"):
            model.encode(odd)
    with pytest.raises(NpformerError, match="'sentences' is not known"):
        model.encode(TEXTS, sentences=TEXTS)


def test_a_prompt_of_the_task_holds_for_encode_unless_another_is_given(model, tmp_path):
    news = pipeline(model=model.model.folder, prompt="the news: ")
    assert np.array_equal(news.encode(TEXTS), model.encode(TEXTS, prompt="the news: "))
    for name in ("query", "document"):
        named = getattr(news, f"encode_{name}")
        assert np.array_equal(named(TEXTS), model.encode(TEXTS, prompt_name=name))
        assert np.array_equal(named(TEXTS, prompt="a "), model.encode(TEXTS, prompt="a "))
        assert np.array_equal(named(TEXTS, "web"), model.encode(TEXTS, "web"))
    with pytest.raises(NpformerError, match="prompt_name: 'wep' is not known; did you mean 'web'"):
        model.encode_query(TEXTS, prompt_name="wep")


def test_keywords_of_encode_that_change_nothing(model, capsys):
    plain = model.encode(TEXTS)
    keywords = {
        "batch_size": 64, "show_progress_bar": None, "output_value": "sentence_embedding", "precision": "float32",
        "convert_to_numpy": True, "convert_to_tensor": False, "device": "cpu", "pool": None, "chunk_size": None,
    }  # fmt: skip
    assert np.array_equal(model.encode(TEXTS, **keywords), plain)
    assert np.array_equal(pipeline(model=model.model.folder, **keywords)(TEXTS), plain)
    assert capsys.readouterr().err == ""
    assert np.array_equal(model.encode(TEXTS, show_progress_bar=True), plain)
    assert "2 texts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keyword", "value", "message"),
    [
        ("convert_to_tensor", True, r"True is not supported; answers are NumPy arrays; torch\.from_numpy"),
        ("convert_to_numpy", False, r"False is not supported; answers are NumPy arrays; torch\.from_numpy"),
        (
            "precision",
            "ubinary",
            r"'ubinary' is not supported; vectors have the model's dtype; np\.packbits\(vectors > 0, axis=-1",
        ),
        ("precision", "int8", "'int8' is not supported; .*the scale of 'int8' depends on all vectors"),
        (
            "output_value",
            "token_embeddings",
            "'token_embeddings' is not supported; pipeline.'feature-extraction', model, return_",
        ),
        ("output_value", None, "None is not supported; pipeline.'feature-extraction'"),
        ("device", "cuda", "'cuda' is not supported; everything runs on the CPU"),
        ("device", ["cuda:0", "cuda:1"], "a list is not supported; everything runs on the CPU"),
        ("pool", {"input": 1}, "a dict is not supported; threads= sets the number of cores"),
        ("backend", "onnx", "'onnx' is not supported; everything runs on NumPy; leave it out"),
        ("cache_folder", "here", "'here' is not supported; set HF_HUB_CACHE in the environment"),
        ("show_progress_bar", "yes", "expected true or false, got 'yes'"),
    ],
)
def test_keywords_of_encode_that_would_change_something(keyword, value, message, model):
    with pytest.raises(NpformerError, match=f"^{keyword}: {message}"):
        model.encode(TEXTS, **{keyword: value})


def test_the_length_of_a_text_may_be_set(model):
    assert model.max_seq_length == 20
    model.max_seq_length = 4
    with pytest.warns(UserWarning, match="input 0: 6 tokens, cut to 4"):
        assert np.array_equal(model.encode("I love ice cream", prompt=""), model.encode("I love", prompt=""))
    model.max_seq_length = 64  # the limit of the encoder, which is above the limit in the folder
    assert not model.encode("ice " * 40).truncated
    for length in (2, 65, "4", None):
        with pytest.raises(NpformerError, match="max_seq_length: expected a whole number from 3 to 64"):
            model.max_seq_length = length


def test_prompts_and_the_tokenizer_are_at_hand(model):
    assert model.prompts == {"query": "the news: ", "document": "", "web": "at "}
    assert model.tokenizer is model.model.tokenizer


def test_the_dimension_of_vectors(model):
    short = pipeline(model=model.model.folder, truncate_dim=3)
    for each, width in ((model, 8), (short, 3)):
        assert each.get_embedding_dimension() == each.get_sentence_embedding_dimension() == width
        assert each.encode("ice").shape == (width,)
    sparse = pipeline("sparse-embedding", tiny.model("bert", "masked-lm"))
    assert sparse.get_embedding_dimension() == sparse.model.config.vocab_size


@pytest.mark.parametrize(
    ("kind", "name", "value"), [("SentenceTransformer", "truncate_dim", 5), ("SparseEncoder", "max_active_dims", 2)]
)
def test_a_size_of_none_means_the_task_s_or_else_the_folder_s(kind, name, value, tmp_path):
    folder = write_folder(tmp_path / "m", kind)
    text = "I love ice cream"
    expected = pipeline(model=folder).encode(text, **{name: value})
    np.testing.assert_array_equal(pipeline(model=folder, **{name: value}).encode(text, **{name: None}), expected)
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), name: value}))
    for given in ({}, {name: None}):
        task = pipeline(model=folder, **given)
        np.testing.assert_array_equal(task.encode(text), expected)
        np.testing.assert_array_equal(task.encode(text, **{name: None}), expected)


# --- sparse vectors --------------------------------------------------------------------------------------------------


@pytest.fixture
def sparse(tmp_path):
    return pipeline(model=write_folder(tmp_path / "m", "SparseEncoder"))


def test_sparse_vectors_are_arrays_with_their_zeros(sparse):
    vectors = sparse.encode(TEXTS, max_active_dims=5)
    assert vectors.shape == (2, sparse.model.config.vocab_size)
    for vector, answer in zip(vectors, sparse(TEXTS, max_active_dims=5), strict=True):
        assert np.array_equal(vector[answer["indices"]], answer["values"])
        assert np.count_nonzero(vector) == 5
        assert sorted(sparse.decode(vector)) == sorted(zip(answer["tokens"], answer["values"].tolist(), strict=True))
    assert sparse.encode([]).shape == (0, vectors.shape[1])
    keywords = {"convert_to_sparse_tensor": False, "convert_to_tensor": False, "save_to_cpu": True}
    assert np.array_equal(sparse.encode(TEXTS, max_active_dims=5, **keywords), vectors)
    assert sparse.decode(np.zeros(9)) == []
    assert sparse.decode(vectors)[1] == sparse.decode(vectors[1])
    assert sparse.sparsity(vectors) == {"active_dims": 5.0, "sparsity_ratio": 1 - 5 / vectors.shape[1]}
    with pytest.raises(NpformerError, match="convert_to_sparse_tensor: True is not supported; answers are NumPy"):
        sparse.encode(TEXTS, convert_to_sparse_tensor=True)
    with pytest.raises(NpformerError, match="top_k: expected a whole number of at least 1, got 0"):
        sparse.decode(vectors, top_k=0)


def test_decode_and_sparsity_take_vectors_alone(sparse):
    """Weights below 0 come after positive weights, as in sentence-transformers."""
    vector = np.zeros(sparse.width)
    vector[[3, 5, 7]] = -1, 2, 0.5
    names = [sparse.model.tokenizer.id_to_token(i) for i in (5, 7, 3)]
    assert sparse.decode(vector) == list(zip(names, (2.0, 0.5, -1.0), strict=True))
    for odd in (sparse("ice"), 3, np.zeros((1, 2, 3)), ["ice"]):
        for function in (sparse.decode, sparse.sparsity):
            with pytest.raises(
                NpformerError, match=r"^embeddings: expected vectors \(V,\) or \(N, V\) from encode, got "
            ):
                function(odd)
    assert sparse.decode(np.zeros((0, 5))) == []
    with pytest.raises(NpformerError, match=r"^sparsity: expected at least one vector"):
        sparse.sparsity(np.zeros((0, 5)))


def test_sparse_vectors_are_compared_by_dot_product_by_default(sparse):
    vectors = sparse.encode(TEXTS)
    np.testing.assert_allclose(sparse.similarity(vectors, vectors), vectors @ vectors.T, rtol=1e-6)
    described = sparse.model.folder / "config_sentence_transformers.json"
    described.write_text(json.dumps(json.loads(described.read_text()) | {"similarity_fn_name": "cosine"}))
    cosine = pipeline(model=sparse.model.folder)
    assert (sparse.similarity_fn_name, cosine.similarity_fn_name) == ("dot", "cosine")
    np.testing.assert_allclose(np.diag(cosine.similarity(vectors, vectors)), 1, rtol=1e-6)


# --- rerankers -------------------------------------------------------------------------------------------------------

QUERY = "what is good"
PAIRS = [(QUERY, text) for text in TEXTS]


@pytest.fixture
def reranker(tmp_path):
    return pipeline(model=write_folder(tmp_path / "m", "CrossEncoder"))


def test_a_query_with_a_text_is_a_tuple_a_list_or_a_pair(reranker):
    """A tuple or list of two texts is one query with its text."""
    expected = reranker([Pair(*each) for each in PAIRS])
    scores = reranker.predict(PAIRS)
    assert scores.dtype == np.float32
    assert [each["score"] for each in expected] == scores.tolist()
    arrays = np.array(PAIRS), np.array(PAIRS, object)  # like two columns of a table
    for several in (PAIRS, [list(each) for each in PAIRS], tuple(PAIRS), *arrays):
        assert reranker(several) == expected
        assert np.array_equal(reranker.predict(several), scores)
    assert np.array_equal(reranker.predict(iter(PAIRS)), scores)
    assert list(reranker(iter(PAIRS))) == expected
    for one in (PAIRS[0], list(PAIRS[0]), np.array(PAIRS[0]), Pair(*PAIRS[0]), {"text": QUERY, "text_pair": TEXTS[0]}):
        assert reranker(one) == expected[0]
        assert reranker.predict(one) == scores[0]
        assert type(reranker.predict(one)) is np.float32
    assert reranker.predict([]).shape == (0,)
    for odd in ([(QUERY,)], [(QUERY, "a", "b")], [(QUERY, 3)], [QUERY, "a", "b"]):
        with pytest.raises(NpformerError, match=r"input 0: expected .*npformer\.Pair"):
            reranker.predict(odd)


def test_ranked_texts_name_their_places(reranker):
    """Texts with equal scores keep their order."""
    texts = [*TEXTS, "", TEXTS[0]]
    ranked = reranker.rank(QUERY, iter(texts), return_documents=True)
    scores = reranker.predict([(QUERY, text) for text in texts]).tolist()
    order = sorted(range(4), key=lambda i: -scores[i])
    assert ranked == [{"corpus_id": i, "score": scores[i], "text": texts[i]} for i in order]
    for odd in ("one text", None, 3):
        with pytest.raises(NpformerError, match=r"^documents: expected a list of texts, got "):
            reranker.rank(QUERY, odd)
    assert reranker.rank(QUERY, texts, top_k=2) == [{"corpus_id": i, "score": scores[i]} for i in order[:2]]
    assert reranker.rank(QUERY, []) == []
    for keyword, value in (("top_k", 0), ("return_documents", "yes")):
        with pytest.raises(NpformerError, match=f"{keyword}: expected"):
            reranker.rank(QUERY, texts, **{keyword: value})


class Sigmoid:
    """Replaces torch's class, because these tests run without torch."""


Sigmoid.__module__ = "torch.nn.modules.activation"


def test_an_activation_is_torch_s_sigmoid_or_identity(reranker):
    raw, scores = (reranker.predict(PAIRS, function_to_apply=each) for each in ("none", "sigmoid"))
    assert np.array_equal(reranker.predict(PAIRS), raw)  # the folder's setting
    for activation in (Sigmoid, Sigmoid(), "torch.nn.Sigmoid", "torch.nn.modules.activation.Sigmoid"):
        assert np.array_equal(reranker.predict(PAIRS, activation_fn=activation), scores)
        assert np.array_equal(pipeline(model=reranker.model.folder, activation_fn=activation).predict(PAIRS), scores)
    keywords = {
        "activation_fn": None,
        "apply_softmax": True,
        "convert_to_numpy": True,
        "batch_size": 2,
        "device": "cpu",
    }
    assert np.array_equal(reranker.predict(PAIRS, **keywords), raw)
    assert np.array_equal(pipeline(model=reranker.model.folder, **keywords).predict(PAIRS), raw)
    for odd in ("Sigmoid", np.tanh, type, 3):
        with pytest.raises(
            NpformerError, match=r"activation_fn: expected torch's Identity or Sigmoid, got .* pass function"
        ):
            reranker.predict(PAIRS, activation_fn=odd)
    with pytest.raises(
        NpformerError, match="activation_fn: conflicts with function_to_apply=; pass only one of the two"
    ):
        reranker.predict(PAIRS, activation_fn=Sigmoid, function_to_apply="none")
    with pytest.raises(NpformerError, match="convert_to_tensor: True is not supported; answers are NumPy arrays"):
        reranker.predict(PAIRS, convert_to_tensor=True)


def test_a_cross_encoder_s_folder_names_its_task(tmp_path):
    """A cross-encoder with one label reranks. With several labels it classifies pairs, and reranking raises an
    error that says so.
    """
    assert pipeline(model=write_folder(tmp_path / "one", "CrossEncoder")).name == "text-ranking"
    for field in (OLDER, NEWER):  # fields of config.json in earlier versions
        for labels, task in ((("SCORE",), "text-ranking"), (("yes", "no"), "text-classification")):
            older = tiny.folder(tmp_path / f"{field} {task}", "bert", labels=labels)
            assert pipeline(model=older).name == "text-classification"
            config = json.loads((older / "config.json").read_text())
            (older / "config.json").write_text(json.dumps({**config, field: None}))
            assert pipeline(model=older).name == task
    several = write_folder(tmp_path / "three", "CrossEncoder", labels=("contradiction", "neutral", "entailment"))
    assert pipeline(model=several).name == "text-classification"
    with pytest.raises(NpformerError, match=r"one label, got 3; pipeline\('text-classification', model, top_k"):
        pipeline("text-ranking", several)
