"""Each route's answers, which have the pipeline's bits, and the requests that it refuses."""

from __future__ import annotations

import base64
import gzip
import json

import numpy as np
import pytest

from npformer import Pair

TEXTS = ["I love ice cream", "not my music", "the news"]
LONG = "music " * 100


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.sqrt((vectors * vectors).sum(axis=-1, keepdims=True))


def same(answer: object, expected: np.ndarray) -> None:
    """Checks that the floats in JSON have exactly the same values as the float32 numbers."""
    np.testing.assert_array_equal(np.array(answer), expected.astype(float))


def test_embed(server, alone):
    vectors = np.asarray(alone("sentence-embedding", "encoder")(TEXTS))
    for normalize, expected in ((True, unit(vectors)), (False, vectors)):
        status, answer, _ = server.post("/embed", {"inputs": TEXTS, "normalize": normalize, "model": "encoder"})
        assert status == 200
        same(answer, expected)
        _, one, _ = server.post("/embed", {"inputs": TEXTS[1], "normalize": normalize, "model": "encoder"})
        same(one, expected[1:2])
    _, short, _ = server.post("/embed", {"inputs": TEXTS, "dimensions": 5, "model": "encoder"})
    same(short, unit(vectors[:, :5]))


def test_embed_all(server, alone):
    status, answer, _ = server.post("/embed_all", {"inputs": TEXTS, "model": "encoder"})
    features = alone("feature-extraction", "encoder", return_tensors=True)
    assert status == 200
    assert len(answer) == len(TEXTS)
    for found, text in zip(answer, TEXTS, strict=True):
        same(found, np.asarray(features(text))[0])


def test_embed_all_of_many_rows(server, alone):
    """The text has more rows than fit in one chunk of the answer."""
    text = "music " * 40
    _, answer, _ = server.post("/embed_all", {"inputs": text, "model": "encoder"})
    same(answer, np.asarray(alone("feature-extraction", "encoder", return_tensors=True)(text)))


def test_similarity(server, alone):
    vectors = unit(np.asarray(alone("sentence-embedding", "classifier")(TEXTS)))
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    status, answer, _ = server.post("/similarity", {"inputs": inputs})
    assert status == 200
    same(answer, (vectors[1:] * vectors[0]).sum(axis=1))


def test_predict(server, alone):
    classify = alone("text-classification", "classifier", top_k=None)
    expected = [list(each) for each in classify(TEXTS)]
    assert server.post("/predict", {"inputs": [[text] for text in TEXTS]})[:2] == (200, expected)
    assert server.post("/predict", {"inputs": TEXTS[0]})[:2] == (200, expected[0])
    pair = {"text": TEXTS[0], "text_pair": TEXTS[1]}
    assert server.post("/predict", {"inputs": TEXTS[:2]})[1] == list(classify(pair))
    raw = list(classify(TEXTS[0], function_to_apply="none"))
    assert server.post("/predict", {"inputs": TEXTS[0], "raw_scores": True})[1] == raw


def test_rerank(server, alone):
    """Scores are probabilities, as in text-embeddings-inference, even if the checkpoint's own scores are logits."""
    rank = alone("text-ranking", "ranker")
    pairs = [Pair("what is good", text) for text in TEXTS]
    scores = [rank(pair, function_to_apply="sigmoid")["score"] for pair in pairs]
    order = sorted(range(3), key=lambda i: -scores[i])
    expected = [{"index": i, "score": scores[i]} for i in order]
    assert server.post("/rerank", {"query": "what is good", "texts": TEXTS})[:2] == (200, expected)
    _, shown, _ = server.post("/rerank", {"query": "what is good", "texts": TEXTS, "return_text": True})
    assert [each["text"] for each in shown] == [TEXTS[i] for i in order]
    _, raw, _ = server.post("/rerank", {"query": "what is good", "texts": TEXTS, "raw_scores": True})
    assert raw == [{"index": i, "score": rank(pairs[i])["score"]} for i in order]
    empty = Pair("what is good", "")
    _, found, _ = server.post("/rerank", {"query": empty.text, "texts": [""]})
    assert found == [{"index": 0, "score": rank(empty, function_to_apply="sigmoid")["score"]}]
    documents = [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]
    body = {"query": "what is good", "documents": documents, "top_n": 2, "return_documents": True, "model": "ranker"}
    _, ranked, _ = server.post("/v1/rerank", body)
    assert ranked["results"] == [
        {"index": i, "relevance_score": scores[i], "document": {"text": TEXTS[i]}} for i in order[:2]
    ]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank_takes_the_bodies_of_cohere_s_and_jina_s_clients(path, server, alone):
    """Cohere's fields are model, top_n and max_tokens_per_doc; Jina's is return_documents. For vLLM's clients, a top_n
    of 0 means all documents."""
    rank = alone("text-ranking", "ranker", function_to_apply="sigmoid")
    scores = [rank(Pair("what is good", text))["score"] for text in TEXTS]
    order = sorted(range(3), key=lambda i: -scores[i])
    body = {"model": "ranker", "query": "what is good", "documents": TEXTS}
    status, answer, _ = server.post(path, body)
    assert (status, answer["model"], answer["meta"]["api_version"]["version"]) == (200, "ranker", "2")
    assert answer["results"] == [{"index": i, "relevance_score": scores[i]} for i in order]
    assert answer["usage"]["total_tokens"] > 0
    assert len({server.post(path, body)[1]["id"] for _ in range(2)}) == 2
    more = {"top_n": 0, "rank_fields": ["text"], "max_chunks_per_doc": 10, "priority": 0}
    assert server.post(path, {**body, **more})[1]["results"] == answer["results"]
    shown = {"top_n": 1, "return_documents": True, "documents": [{"text": each, "title": "x"} for each in TEXTS]}
    best = {"index": order[0], "relevance_score": scores[order[0]], "document": {"text": TEXTS[order[0]]}}
    assert server.post(path, {**body, **shown})[1]["results"] == [best]
    status, answer, _ = server.post(path, {**body, "texts": TEXTS})
    assert status == 422
    assert "texts: unknown field" in str(answer)


def test_documents_are_truncated_to_a_number_of_tokens(server, alone):
    """max_tokens_per_doc limits only the document's tokens. Documents too long for the model are truncated, too."""
    rank = alone("text-ranking", "ranker", function_to_apply="sigmoid")
    documents = ["ice cream in paris", "music", "the news " * 300]
    body = {"query": "what is good", "documents": documents, "return_documents": True}
    _, answer, _ = server.post("/rerank", {**body, "max_tokens_per_doc": 2})
    found = {each["index"]: each["relevance_score"] for each in answer["results"]}
    for i, text in enumerate(["ice cream", "music", "the news"]):
        assert found[i] == rank(Pair("what is good", text))["score"]
    assert {each["index"]: each["document"]["text"] for each in answer["results"]} == dict(enumerate(documents))
    assert server.post("/rerank", body)[0] == 413
    status, answer, headers = server.post("/rerank", {**body, "max_tokens_per_doc": 4096})
    assert (status, headers["x-truncated-inputs"]) == (200, "2")
    assert server.post("/rerank", {**body, "max_tokens_per_doc": 0})[0] == 422


def test_v1_embeddings(server, alone):
    task = alone("sentence-embedding", "encoder")
    vectors = unit(np.asarray(task(TEXTS)))
    status, answer, _ = server.post("/v1/embeddings", {"input": TEXTS, "model": "encoder"})
    assert (status, answer["object"], answer["model"]) == (200, "list", "encoder")
    same([each["embedding"] for each in answer["data"]], vectors)
    assert [(each["index"], each["object"]) for each in answer["data"]] == [(i, "embedding") for i in range(3)]
    count = int(task(TEXTS).n_tokens.sum())
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    body = {"input": TEXTS, "model": "encoder", "encoding_format": "base64", "dimensions": 4}
    _, packed, _ = server.post("/v1/embeddings", body)
    found = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in packed["data"]]
    np.testing.assert_array_equal(found, unit(np.asarray(task(TEXTS))[:, :4]))


def test_tokenize(server, alone):
    tokenizer = alone("sentence-embedding", "encoder").model.tokenizer
    _, (tokens,), _ = server.post("/tokenize", {"inputs": "ice cream", "model": "encoder"})
    assert [each["id"] for each in tokens] == tokenizer.encode("ice cream").ids
    assert tokens[0] == {"id": tokens[0]["id"], "text": "[CLS]", "special": True, "start": None, "stop": None}
    assert tokens[2] == {"id": tokens[2]["id"], "text": "cream", "special": False, "start": 4, "stop": 9}
    _, (bare,), _ = server.post("/tokenize", {"inputs": "ice cream", "add_special_tokens": False, "model": "encoder"})
    assert [each["text"] for each in bare] == ["ice", "cream"]
    _, (source,), _ = server.post("/tokenize", {"inputs": "dog", "model": "translator"})
    assert [each["text"] for each in source] == ["d", "o", "g", "</s>"]


@pytest.mark.parametrize("special", [True, False])
def test_tokens_of_a_long_text_match_the_tokenizer(server, alone, special):
    """The text is tokenized in several blocks and contains the string of a special token."""
    text = "ice [SEP] cream é, " * 1500
    expected = alone("sentence-embedding", "encoder").model.tokenizer.encode(text, add_special_tokens=special)
    _, (tokens,), _ = server.post("/tokenize", {"inputs": text, "add_special_tokens": special, "model": "encoder"})
    assert [each["id"] for each in tokens] == expected.ids
    assert [each["text"] for each in tokens] == expected.tokens
    assert [each["special"] for each in tokens] == [bool(each) for each in expected.special_tokens_mask]
    places = [(each["start"], each["stop"]) for each in tokens if not each["special"]]
    assert places == [at for at, mask in zip(expected.offsets, expected.special_tokens_mask, strict=True) if not mask]


def test_translate(server, alone):
    translate = alone("translation", "translator")
    expected = [dict(each) for each in translate(["dogs", "news"])]
    assert server.post("/translate", {"inputs": ["dogs", "news"]})[:2] == (200, expected)
    assert server.post("/translate", {"inputs": "dogs"})[:2] == (200, expected[:1])
    settings = {"num_beams": 3, "num_return_sequences": 1, "max_new_tokens": 7}
    del settings["num_return_sequences"]
    found = server.post("/translate", {"inputs": "news", "parameters": {**settings, "tgt_lang": "fra"}})
    assert found[:2] == (200, [dict(translate("news", to="fra", **settings))])


def test_summarize(server, alone):
    """The settings of the model's task apply, unless the request has its own."""
    summarize = alone("summarization", "summarizer")
    expected = [dict(each) for each in summarize(["dogs", "the news"])]
    assert server.post("/summarize", {"inputs": ["dogs", "the news"]})[:2] == (200, expected)
    settings = {"max_length": 9, "min_length": 5, "num_beams": 3}
    found = server.post("/summarize", {"inputs": "dogs", "parameters": settings})
    assert found[:2] == (200, [dict(summarize("dogs", **settings))])
    greedy = {"generated_text": summarize("dogs", num_beams=1)["summary_text"]}
    assert server.post("/generate", {"inputs": "dogs", "model": "summarizer"})[:2] == (200, greedy)


def test_text2text(server, alone):
    settings = {"max_length": 9, "do_sample": True, "seed": 2, "min_p": 0.1}
    expected = [dict(alone("text2text-generation", "rewriter")("dogs", **settings))]
    assert server.post("/text2text", {"inputs": "dogs", "parameters": settings})[:2] == (200, expected)


def test_translate_by_sampling_draws_as_the_request_alone_would(server, alone):
    settings = {"do_sample": True, "seed": 7, "num_beams": 1}
    expected = [dict(each) for each in alone("translation", "translator")(["dogs"] * 4, **settings)]
    assert server.post("/translate", {"inputs": ["dogs"] * 4, "parameters": settings})[:2] == (200, expected)


def events(content: str) -> list[dict]:
    assert content.endswith("\n\n")
    return [json.loads(line.removeprefix("data:")) for line in content.split("\n\n")[:-1]]


def test_generate_streams_the_translation_piece_by_piece(server, alone):
    translate = alone("translation", "translator")
    status, content, headers = server.post("/generate", {"inputs": "dogs", "stream": True})
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    *pieces, last = events(content)
    assert [each["token"]["text"] for each in pieces] == list(translate.tokens("dogs"))
    assert last["generated_text"] == translate("dogs", num_beams=1)["translation_text"]
    assert [each["index"] for each in [*pieces, last]] == list(range(1, len(pieces) + 2))
    _, whole, _ = server.post("/generate", {"inputs": "dogs"})
    assert whole == {"generated_text": last["generated_text"]}


def test_generate_of_a_translation_takes_parameters_that_change_nothing(server, alone):
    given = {"details": False, "watermark": False, "best_of": 1, "return_full_text": False, "stop": []}
    status, answer, _ = server.post("/generate", {"inputs": "dogs", "parameters": given})
    expected = alone("translation", "translator")("dogs", num_beams=1)["translation_text"]
    assert (status, answer) == (200, {"generated_text": expected})
    for more in ({"details": True}, {"stop": ["a"]}, {"return_full_text": True}, {"best_of": 2}):
        status, answer, _ = server.post("/generate", {"inputs": "dogs", "parameters": more})
        [name] = more
        assert (status, answer["error"].startswith(f"parameters.{name}: unsupported: ")) == (422, True)
        assert len(answer["error"]) < 80


def test_an_error_of_a_stream_has_its_status(server):
    status, answer, _ = server.post("/generate", {"inputs": " ", "stream": True})
    assert (status, answer["error"]) == (422, "inputs: the text is empty")


def test_the_root_serves_the_first_model_s_route(server):
    assert server.post("/", {"inputs": "a"})[1] == server.post("/predict", {"inputs": "a"})[1]


# --- too long, too many, missing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/embed", {"inputs": ["a", LONG]}, "inputs[1]"),
        ("/embed", {"inputs": LONG}, "inputs"),
        ("/embed_all", {"inputs": ["a", LONG]}, "inputs[1]"),
        ("/predict", {"inputs": [["a"], [LONG]]}, "inputs[1]"),
        ("/v1/embeddings", {"input": ["a", LONG]}, "input[1]"),
        ("/rerank", {"query": "a", "texts": ["b", LONG]}, "texts[1]"),
        ("/v1/rerank", {"query": "a", "documents": ["b", LONG]}, "documents[1]"),
        ("/translate", {"inputs": ["a", LONG * 5]}, "inputs[1]"),
        ("/generate", {"inputs": LONG * 5}, "inputs"),
        ("/generate", {"inputs": LONG * 5, "stream": True}, "inputs"),
    ],
)
def test_a_text_that_is_too_long_is_refused_or_truncated_visibly(server, path, body, place):
    status, answer, _ = server.post(path, body)
    message = answer["error"]["message"] if path.startswith("/v1") else answer["error"]
    assert status == 413
    assert message.startswith(f"{place}: ")
    assert "expected at most" in message
    assert "music" not in message
    status, _, headers = server.post(path, {**body, "truncate": True})
    assert status == 200
    assert headers["x-truncated-inputs"] == ("1" if "[" in place else "0")


def test_a_truncated_text_gives_the_pipeline_s_answer(server, alone):
    with pytest.warns(UserWarning, match="cut to 64"):
        expected = alone("sentence-embedding", "encoder")(LONG)
    body = {"inputs": LONG, "truncate": True, "normalize": False, "model": "encoder"}
    same(server.post("/embed", body)[1][0], np.asarray(expected))


def test_limits_of_texts_and_bytes(server):
    status, answer, _ = server.post("/embed", {"inputs": ["a"] * 41})
    assert (status, answer["error"]) == (413, "inputs: expected at most 40 texts in a request, got 41")
    status, answer, _ = server.post("/tokenize", {"inputs": ["a"] * 41})
    assert status == 413
    status, answer, _ = server.post("/embed", b" " * 100_001)
    assert (status, answer["error"]) == (413, "body: expected at most 100000 bytes, got more")
    repeated = {"query": "music " * 1000, "truncate": True}
    assert server.post("/rerank", {**repeated, "texts": ["a"] * 16})[0] == 200
    for path, where in (("/rerank", "texts"), ("/v1/rerank", "documents")):
        status, answer, _ = server.post(path, {**repeated, where: ["a"] * 17})
        message = answer["error"] if path == "/rerank" else answer["error"]["message"]
        assert status == 413
        assert message.startswith(f"{where}: expected at most 100000 characters, counting a query with each text")
        assert message.endswith("got 102017")


def test_a_compressed_body_is_refused(server):
    body = gzip.compress(b'{"inputs": "a"}')
    status, answer, _ = server.post("/embed", body, content_encoding="gzip")
    assert (status, answer["error"]) == (
        415,
        "body: expected no Content-Encoding; compressed bodies are not supported",
    )
    assert server.post("/embed", b'{"inputs": "a"}', content_encoding="identity")[0] == 200


def test_an_unknown_model_is_404_with_the_known_names(server):
    for path, body in (("/embed", {"inputs": "a"}), ("/tokenize", {"inputs": "a"})):
        status, answer, _ = server.post(path, {**body, "model": "no-such-model"})
        assert status == 404
        known = "classifier, ranker, encoder, translator, summarizer, rewriter"
        assert answer["error"] == f"model: unknown name; served models: {known}"


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/embed", {"inputs": "a"}, "translator"),
        ("/predict", {"inputs": "a"}, "encoder"),
        ("/rerank", {"query": "a", "texts": ["b"]}, "classifier"),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, "encoder"),
        ("/translate", {"inputs": "a"}, "classifier"),
        ("/generate", {"inputs": "a"}, "classifier"),
        ("/embed_sparse", {"inputs": "a"}, "encoder"),
    ],
)
def test_an_unsupported_task_is_424_with_the_model_s_tasks(server, path, body, model):
    status, answer, _ = server.post(path, {**body, "model": model})
    message = answer["error"]["message"] if path.startswith("/v1") else answer["error"]
    assert status == 424
    assert f"; {model} has " in message


def test_other_paths_and_methods(server):
    assert server.get("/nothing")[:2] == (
        404,
        {"error": "unknown route; see /docs", "error_type": "Validation"},
    )
    assert server.post("/embed/", {"inputs": "a"})[0] == 404
    for path, allowed in (("/embed", {"POST"}), ("/generate", {"POST"})):
        status, _, headers = server.get(path)
        assert (status, set(headers["allow"].split(", "))) == (405, allowed)
    for path in ("/health", "/docs", "/info"):
        status, _, headers = server.post(path, b"{}")
        assert (status, set(headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
    status, answer, _ = server.post("/v1/embeddings", b"{")
    assert status == 422
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["code"] == 422


# --- routes about the service ----------------------------------------------------------------------------------


def test_pages(server, folders):
    assert server.get("/health")[:2] == (200, {"status": "ok"})
    _, info, _ = server.get("/info")
    assert (info["model_id"], info["model_dtype"], info["max_client_batch_size"]) == ("classifier", "float32", 40)
    assert [each["model_id"] for each in info["models"]] == list(folders)
    assert [list(each["model_type"]) for each in info["models"]] == [
        ["classifier"],
        ["reranker"],
        ["embedding"],
        ["translation"],
        ["summarization"],
        ["text2text-generation"],
    ]
    _, models, _ = server.get("/v1/models")
    assert [each["id"] for each in models["data"]] == list(folders)
    _, described, _ = server.get("/openapi.json")
    _, page, _ = server.get("/docs")
    assert server.get("/")[1] == page
    for path in described["paths"]:
        assert f" {path}</h2>" in page
    assert "http" not in page.replace("http-equiv", "")  # the page loads nothing from other servers


def test_metrics(server):
    server.post("/embed", {"inputs": TEXTS})
    server.post("/embed", b"{")
    _, text, _ = server.get("/metrics")
    for line in ('requests_total{route="/embed",status="200"}', 'status="422"', "npformer_batch_tokens_bucket"):
        assert line in text


def test_the_log_has_no_text_and_no_traceback(server):
    server.post("/embed", {"inputs": ["a secret text", 3]})
    server.post("/a-secret-path", {"inputs": "a secret text"})
    assert "secret" not in server.log
    assert "Traceback" not in server.log
