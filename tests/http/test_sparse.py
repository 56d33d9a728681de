"""/embed_sparse, with the answers of text-embeddings-inference, called with the openai package's client and curl."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import openai
import pytest

from npformer import pipeline
from tests.support import tiny
from tests.support.sentence_folders import write_modules, write_splade, write_token_heads
from tests.support.service import Server

TEXTS = ["I love ice cream", "not my music", "the news"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    return {
        "splade": write_splade(tiny.folder(home / "splade", "bert", "masked-lm"), {"pooling_strategy": "sum"}),
        "words": tiny.folder(home / "words", "distilbert", "masked-lm"),
        "heads": write_token_heads(tiny.folder(home / "heads", "bert", "base"), np.linspace(-1, 1, 33)[None]),
        "encoder": write_modules(
            tiny.folder(home / "encoder", "bert", "base"), [("a.Pooling", {}, {})], prompts={"news": "news: "}
        ),
    }


@pytest.fixture(scope="module")
def server(folders):
    with Server(*folders.values()) as running:
        yield running


def expected(folder):
    answers = pipeline("sparse-embedding", folder)(TEXTS)
    return [
        [{"index": int(i), "value": float(v)} for i, v in zip(each["indices"], each["values"], strict=True)]
        for each in answers
    ]


def test_a_client_gets_the_bits_of_the_pipeline_alone_and_in_a_batch(server, folders):
    with openai.OpenAI(base_url=server.url, api_key="any", max_retries=0) as client:
        for name in ("splade", "words", "heads"):
            found = client.post("/embed_sparse", body={"inputs": TEXTS, "model": name}, cast_to=object)
            assert found == expected(folders[name])
            one = client.post("/embed_sparse", body={"inputs": TEXTS[1], "model": name}, cast_to=object)
            assert one == found[1:2]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/embed_sparse", {"inputs": "a", "model": "encoder"}, 424, "this route needs a masked-language model, such as SPLADE; "),
        ("/embed", {"inputs": "a", "model": "splade"}, 424, "this route needs an encoder that makes dense vectors; "),
        ("/embed_sparse", {"inputs": ["a", "music " * 100]}, 413, "inputs[1]: expected at most 64 tokens, got 102; "),
    ],
)  # fmt: skip
def test_unanswerable_requests_are_refused(server, path, body, status, message):
    client = openai.OpenAI(base_url=server.url, api_key="any", max_retries=0)
    with client, pytest.raises(openai.APIStatusError) as error:
        client.post(path, body=body, cast_to=object)
    assert error.value.status_code == status
    assert error.value.response.json()["error"].startswith(message)


def test_a_prompt_by_its_name(server, folders):
    body = {"inputs": "ice", "model": "encoder", "normalize": False}
    _, found, _ = server.post("/embed", {**body, "prompt_name": "news"})
    assert found == [pipeline("sentence-embedding", folders["encoder"])("news: ice").tolist()]
    assert server.post("/embed", body)[1] != found
    status, answer, _ = server.post("/embed", {**body, "prompt_name": "newz"})
    assert (status, answer["error"].split("?")[0]) == (422, "prompt_name: 'newz' is not known; did you mean 'news'")
    plain = server.post("/embed_sparse", {"inputs": "ice"})[1]
    assert server.post("/embed_sparse", {"inputs": "ice", "prompt_name": "query"})[1] == plain


def test_curl_and_the_root(server, folders):
    for path in ("/embed_sparse", "/"):
        body = json.dumps({"inputs": TEXTS, "truncate": True})
        command = ["curl", "-sS", server.url + path, "-H", "content-type: application/json", "-d", body]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        assert json.loads(done.stdout) == expected(folders["splade"])


def test_the_service_describes_each_model(server):
    _, info, _ = server.get("/info")
    assert info["models"][0]["model_type"] == {"embedding": {"pooling": "splade"}}
    assert [each["tasks"] for each in info["models"]] == [
        ["sparse-embedding", "feature-extraction", "fill-mask"],
        ["sentence-embedding", "feature-extraction", "fill-mask", "sparse-embedding"],
        ["sentence-embedding", "feature-extraction", "sparse-embedding"],
        ["sentence-embedding", "feature-extraction"],
    ]
