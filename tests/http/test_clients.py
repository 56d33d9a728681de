"""Common clients: the openai package, huggingface_hub's InferenceClient, and curl."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import openai
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

import npformer
from tests.support import tiny
from tests.support.service import Server

TEXTS = ["I love ice cream", "not my music", "the news"]


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def unit(vectors):
    vectors = np.asarray(vectors)
    return vectors / np.sqrt((vectors * vectors).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("form", [openai.omit, "float"])
def test_openai_embeddings(client, alone, form):
    """The client requests base64 by default, and decodes it."""
    answer = client.embeddings.create(model="encoder", input=TEXTS, encoding_format=form)
    expected = unit(alone("sentence-embedding", "encoder")(TEXTS))
    np.testing.assert_array_equal(np.array([each.embedding for each in answer.data]), expected.astype(float))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens > 0


def test_openai_dimensions(client):
    answer = client.embeddings.create(model="encoder", input="one text", dimensions=6, user="someone")
    assert len(answer.data[0].embedding) == 6


def test_openai_lists_models(client, folders):
    assert [each.id for each in client.models.list()] == list(folders)


def test_openai_errors(client):
    with pytest.raises(openai.NotFoundError, match="unknown name; served models: classifier"):
        client.embeddings.create(model="text-embedding-3-small", input="a")
    with pytest.raises(openai.UnprocessableEntityError, match=r"input\[1\]: expected a text, got a number") as error:
        client.embeddings.create(model="encoder", input=["a", 1])
    assert error.value.type == "invalid_request_error"
    with pytest.raises(openai.APIStatusError, match="expected at most 64 tokens") as error:
        client.embeddings.create(model="encoder", input="music " * 100)
    assert error.value.status_code == 413
    cut = client.embeddings.with_raw_response.create(
        model="encoder", input="music " * 100, extra_body={"truncate": True}
    )
    assert cut.headers["x-truncated-inputs"] == "0"


def test_clients_send_keys(folders):
    with Server(folders["encoder"], NPFORMER_API_KEY="right") as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="right") as client:
            assert client.embeddings.create(model="encoder", input="a").data
            stranger = client.with_options(api_key="wrong")
            with pytest.raises(openai.AuthenticationError, match="the API key is missing or wrong"):
                stranger.embeddings.create(model="encoder", input="a")
        assert InferenceClient(f"{server.url}/embed", token="right").feature_extraction("a").shape == (1, 32)


def test_inference_client_vectors(server, alone):
    client = InferenceClient(model=f"{server.url}/embed")
    expected = unit(alone("sentence-embedding", "classifier")(TEXTS))
    np.testing.assert_array_equal(client.feature_extraction(TEXTS), expected)
    np.testing.assert_array_equal(client.feature_extraction(TEXTS[0], normalize=True, truncate=True), expected[:1])
    whole = InferenceClient(model=f"{server.url}/embed_all").feature_extraction(TEXTS[0])
    np.testing.assert_array_equal(whole, alone("feature-extraction", "classifier", return_tensors=True)(TEXTS[0]))
    with pytest.raises(HfHubHTTPError) as error:
        client.feature_extraction(TEXTS[0], truncation_direction="left")
    assert error.value.response.status_code == 422


def test_inference_client_similarity(server):
    found = InferenceClient(model=f"{server.url}/similarity").sentence_similarity(TEXTS[0], TEXTS)
    assert found[0] == pytest.approx(1)
    assert len(found) == 3


def test_inference_client_labels(server, alone):
    client = InferenceClient(model=f"{server.url}/predict")
    expected = [
        (each["label"], each["score"]) for each in alone("text-classification", "classifier", top_k=2)(TEXTS[0])
    ]
    assert [(each.label, each.score) for each in client.text_classification(TEXTS[0], top_k=2)] == expected


def test_inference_client_tags_answers_words_and_own_labels(tmp_path):
    folders = {
        head: tiny.folder(tmp_path / head, "bert", head)
        for head in ("token-classification", "question-answering", "masked-lm")
    }
    folders["judge"] = tiny.folder(tmp_path / "judge", labels=("contradiction", "entailment"))
    tag, ask, fill, judge = map(
        npformer.pipeline, ("ner", "question-answering", "fill-mask", "zero-shot-classification"), folders.values()
    )
    with Server(*folders.values()) as server:
        paths = ("/tag", "/answer", "/fill", "/zero_shot")
        tagger, answerer, filler, judging = (InferenceClient(model=server.url + path) for path in paths)
        found = tagger.token_classification(TEXTS[0], aggregation_strategy="first")
        expected = tag(TEXTS[0], aggregation_strategy="first")
        assert [(each.entity_group, each.score, each.word) for each in found] == [
            (each["entity_group"], each["score"], each["word"]) for each in expected
        ]
        question = {"question": "what is good", "context": "ice cream is good"}
        assert answerer.question_answering(**question).answer == ask(**question)["answer"]
        more = {"align_to_words": True, "doc_stride": 8, "max_question_len": 9, "max_seq_len": 64}
        best = answerer.question_answering(**question, **more, top_k=2)
        assert [each.answer for each in best] == [each["answer"] for each in ask(**question, top_k=2)]
        words = filler.fill_mask("I love [MASK] cream", targets=["ice", "music"])
        expected = fill("I love [MASK] cream", targets=["ice", "music"])
        assert [(each.token_str, each.sequence) for each in words] == [
            (each["token_str"], each["sequence"]) for each in expected
        ]
        labels = ["music", "ice"]
        scores = judging.zero_shot_classification(TEXTS[0], labels, multi_label=True)
        expected = judge(TEXTS[0], labels, multi_label=True)
        assert [(each.label, each.score) for each in scores] == list(
            zip(expected["labels"], expected["scores"], strict=True)
        )


def test_inference_client_translation(server, alone):
    translate = alone("translation", "translator")
    client = InferenceClient(model=f"{server.url}/translate")
    assert client.translation("dogs").translation_text == translate("dogs")["translation_text"]
    settings = {"max_new_tokens": 4, "num_beams": 2}
    found = client.translation("dogs", generate_parameters=settings, src_lang="eng", tgt_lang="fra").translation_text
    assert found == translate("dogs", to="fra", **settings)["translation_text"]


def test_inference_client_summarization(server, alone):
    summarize = alone("summarization", "summarizer")
    client = InferenceClient(model=f"{server.url}/summarize")
    assert client.summarization("dogs").summary_text == summarize("dogs")["summary_text"]
    settings = {"max_length": 8, "num_beams": 1}
    found = client.summarization("dogs", generate_parameters=settings).summary_text
    assert found == summarize("dogs", **settings)["summary_text"]


def test_inference_client_stream(server, alone):
    client = InferenceClient(model=f"{server.url}/generate")
    translate = alone("translation", "translator", num_beams=1)
    pieces = list(client.text_generation("dogs", stream=True))
    assert len(pieces) > 2
    assert "".join(pieces) == translate("dogs")["translation_text"]
    assert client.text_generation("dogs", max_new_tokens=3) == translate("dogs", max_new_tokens=3)["translation_text"]


def curl(*arguments: str) -> str:
    return subprocess.run(["curl", "-sS", *arguments], capture_output=True, text=True, check=True, timeout=300).stdout


def test_curl(server):
    """By default, curl sends the content type of a form, and waits for permission to send a large body."""
    assert json.loads(curl(f"{server.url}/predict", "-d", '{"inputs": "I love ice cream"}'))[0].keys() == {
        "label",
        "score",
    }
    large = json.dumps({"inputs": ["music " * 50] * 39}).encode()
    done = subprocess.run(
        ["curl", "-sS", "-w", "%{http_code}", "-o", "/dev/null", "-H", "Expect: 100-continue", "--data-binary", "@-",
         f"{server.url}/embed"],
        input=large, capture_output=True, check=True, timeout=300,
    )  # fmt: skip
    assert done.stdout == b"200"
    assert curl("-N", f"{server.url}/generate", "-d", '{"inputs": "dogs", "stream": true}').startswith("data:{")
    assert "npformer" in curl(f"{server.url}/docs")
