"""Errors with models from the hub: each has a clear message and leaves no half-written file in the cache.

The hub is a small server on loopback; every call runs in its own process, with an empty cache. `test_hub_files.py`
reads caches in this process.
"""

import json
import re
import time
from pathlib import Path

import pytest

from npformer.checkpoint.hub import is_hub_id
from npformer.families import write_config
from tests.support import hub_server, tiny
from tests.support.hub_server import CLIENT, PROGRAM, cache, closed_port, loads, python

NAME = "owner/tiny"


def error(env, **call):
    (answer,) = loads(env, call)
    assert "error" in answer, answer
    return answer["error"]


# --- names and permissions -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_unknown_id(hub, env, tmp_path):
    tiny.folder(tmp_path / "runs" / "sentiment")
    unknown = error(env, name="owner/nothing")
    assert unknown.startswith(f"owner/nothing: no such model on {hub.url}; if it is private, log in")
    assert "Bundled models: " in unknown
    path_like = error(env, name=f"{tmp_path}/runs/sentimant")
    assert f"did you mean {tmp_path}/runs/sentiment?" in path_like
    done = python(
        env | {"PWD": str(tmp_path)},
        f"import os; os.chdir({str(tmp_path)!r})\n" + PROGRAM,
        text='[{"name": "runs/sentimant"}]',
    )
    assert "did you mean runs/sentiment?" in done.stdout
    near = error(env, name="distilbert-sts2")
    assert "did you mean distilbert-sst2?" in near


def test_a_wrong_revision(hub, env, folder):
    hub.add(NAME, folder)
    revisions = "v9", "0" * 40
    answers = loads(env, *({"name": NAME, "revision": each} for each in revisions))
    for revision, answer in zip(revisions, answers, strict=True):
        assert answer["error"].startswith(f"{NAME}: no revision '{revision}'; expected a branch, a tag or a commit")


def test_a_revision_that_cannot_be(env, hub):
    calls = [{"name": NAME, "revision": each} for each in ("", "../main", "a b", "/etc", 3)]
    assert all(answer["error"].startswith("revision: expected a branch") for answer in loads(env, *calls))
    assert not hub.requests


@pytest.mark.slow
def test_a_gated_model(hub, env, folder):
    hub.add(NAME, folder, gated=True)
    assert "access is restricted: accept its conditions at" in error(env, name=NAME)
    login = env | {"HF_TOKEN": hub_server.TOKEN}
    assert "your account has no access; request access at" in error(login, name=NAME)
    assert "rejects the token in HF_TOKEN" in error(env | {"HF_TOKEN": "hf_wrong"}, name=NAME)
    hub.repositories[NAME].granted = True
    (answer,) = loads(login, {"name": NAME})
    assert "logits" in answer


@pytest.mark.slow
def test_the_login_is_sent_to_the_hub_and_not_to_its_redirects(hub, env, folder):
    hub.add(NAME, folder, large=5000)
    loads(env | {"HF_TOKEN": hub_server.TOKEN}, {"name": NAME})
    assert hub.cdn_requests
    assert all("authorization" not in headers for _, _, headers in hub.cdn_requests)
    sent = [headers.get("authorization") for _, path, headers in hub.requests if "/resolve/" in path]
    assert set(sent) == {f"Bearer {hub_server.TOKEN}"}


# --- failures of downloads -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_broken_transfer_is_resumed(hub, env, tmp_path):
    """Old clients notice a broken transfer only on a retry. They receive pieces of 10 MB, so the file is larger."""
    folder = tiny.folder(tmp_path / "large", max_length=90_000)
    hub.add(NAME, folder)
    hub.break_after = [11_000_000]
    answer, *again = loads(env, {"name": NAME}, {"name": NAME})
    if "error" in answer:
        assert "the download of model.safetensors was interrupted" in answer["error"]
        (answer,) = again
    assert Path(answer["folder"], "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert [headers.get("range") for _, _, headers in hub.cdn_requests] == [None, "bytes=10485760-"]


@pytest.mark.slow
def test_a_transfer_that_stays_broken(hub, env, folder):
    hub.add(NAME, folder, large=20_000)
    hub.break_after = [10_000] + [0] * 20
    message = error(env, name=NAME)
    assert "the download of model.safetensors was interrupted" in message
    assert not list(cache(env).glob("models--*/snapshots/*/model.safetensors"))
    assert all(
        path.suffix == ".incomplete" or path.stat().st_size < 20_000 for path in cache(env).glob("models--*/blobs/*")
    )
    hub.break_after = []
    (answer,) = loads(env, {"name": NAME})
    assert Path(answer["folder"], "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_transfer_that_stalls_ends(hub, env, folder):
    """A stalled transfer ends after the client's timeout (HF_HUB_DOWNLOAD_TIMEOUT); the next call fetches the rest."""
    hub.add(NAME, folder, large=20_000)
    hub.stall_after = 10_000
    began = time.monotonic()
    message = error(env | {"HF_HUB_DOWNLOAD_TIMEOUT": "1"}, name=NAME)
    assert time.monotonic() - began < 250
    assert message.startswith(f"{NAME}: the download of model.safetensors was interrupted (")
    assert "timed out" in message
    assert not list(cache(env).glob("models--*/snapshots/*/model.safetensors"))
    hub.stall_after = -1
    (answer,) = loads(env, {"name": NAME})
    assert Path(answer["folder"], "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_hub_that_never_answers(hub, env, folder):
    hub.add(NAME, folder)
    hub.silent = True
    began = time.monotonic()
    message = error(env | {"HF_HUB_ETAG_TIMEOUT": "1"}, name=NAME)
    assert time.monotonic() - began < 250
    assert message.startswith(f"{NAME}: cannot reach {hub.url} (")
    assert "timed out" in message


@pytest.mark.slow
def test_offline_and_not_in_the_cache(hub, env, folder):
    hub.add(NAME, folder)
    asked = error(env, name=NAME, offline=True)
    assert asked.startswith(f"{NAME}: no config.json in the cache {cache(env)} (revision main), and offline=True")
    assert "HF_HUB_OFFLINE is set" in error(env | {"HF_HUB_OFFLINE": "1"}, name=NAME)
    python(env, CLIENT + f"get({NAME!r}, 'config.json')")
    assert error(env, name=NAME, offline=True).startswith(f"{NAME}: no weights in the cache")
    (answer,) = loads(env, {"name": NAME})
    (offline,) = loads(env | {"HF_HUB_OFFLINE": "1"}, {"name": NAME}, network=False)
    assert offline["logits"] == answer["logits"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"HTTPS_PROXY": "socks5://127.0.0.1:9"}, "HTTPS_PROXY: a SOCKS proxy needs the package socksio|cannot reach"),
        ({"https_proxy": "ftp://127.0.0.1"}, "https_proxy: not a valid address|cannot reach"),
        ({"HTTPS_PROXY": "http://127.0.0.1:port"}, "HTTPS_PROXY: not a valid address|cannot reach"),
        ({"HTTPS_PROXY": "http://["}, "HTTPS_PROXY"),
        ({"HF_ENDPOINT": "http://["}, r"HF_ENDPOINT: not a valid address|cannot reach http://\["),
        (
            {"SSL_CERT_FILE": "/nope"},
            "SSL_CERT_FILE: /nope is not a file of certificates .*; correct or unset it|cannot reach",
        ),
    ],
)
def test_unusable_connection_settings_are_named(settings, message, env):
    """No setting causes a traceback or a cache error. Older versions of huggingface_hub ignore some settings."""
    with closed_port() as address:
        own = {name: value for name, value in env.items() if not name.lower().endswith("_proxy")}
        own |= {"HF_ENDPOINT": address.replace("http:", "https:"), "NO_PROXY": "", "no_proxy": ""}
        said = error(own | settings, name=NAME)
    assert re.search(message, said)
    assert "cannot write" not in said


def test_an_unreachable_hub_is_an_error(env):
    with closed_port() as address:
        message = error(env | {"HF_ENDPOINT": address}, name=NAME)
    assert message.startswith(f"{NAME}: cannot reach {address} (")
    assert "check the connection, and HF_ENDPOINT" in message
    assert "cannot reach" in error(env | {"HF_ENDPOINT": "hub.example"}, name=NAME)


@pytest.mark.slow
def test_a_server_that_answers_garbage(hub, env, folder):
    hub.add(NAME, folder)
    hub.page = b"<html>Please log in to the hotel's network</html>"
    assert "does not respond like a Hugging Face hub" in error(env, name=NAME)
    hub.page = b""
    hub.commit_header = "../../../../somewhere"
    assert "does not respond like a Hugging Face hub" in error(env, name=NAME)
    hub.commit_header = ""
    hub.status = 503
    assert f"{hub.url} answered 503" in error(env, name=NAME)
    hub.status = 0
    hub.answer = b"\x00\x01garbage\r\n\r\n"
    assert "cannot reach" in error(env, name=NAME)
    assert not list(cache(env).glob("models--*/snapshots/*/*"))


CONFIG = json.dumps(write_config(tiny.config())).encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"README.md": b"x"}, "no config.json on the hub"),
        ({"modules.json": b"[]"}, "no config.json on the hub"),
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"}, f"{NAME}: an adapter, not a model; merge"),
        (
            {"modules.json": b'[{"type": "m.Transformer", "path": "0_Transformer"}]'},
            "no 0_Transformer/config.json on the hub",
        ),
        ({"config.json": CONFIG, "tf_model.h5": b"x"}, "no weights on the hub in a supported format; looked for"),
        (
            {"config.json": CONFIG, "model.safetensors.index.json": b'{"weight_map": {"a": "one.safetensors"}}'},
            "one.safetensors is named in the index of the weights, but is not on the hub",
        ),
        (
            {"config.json": CONFIG, "model.safetensors.index.json": b'{"weight_map": {"a": "../x.safetensors"}}'},
            "expected names of .safetensors files in the same folder, got",
        ),
        ({"config.json": b"<html>", "model.safetensors": b"x"}, "config.json: not JSON"),
        (
            {"config.json": b'{"model_type": "gopher"}', "model.safetensors": b"x"},
            f"{NAME}: model_type: expected one of",
        ),
    ],
)
def test_a_repository_that_is_no_model(hub, env, files, message):
    hub.add(NAME, files)
    assert message in error(env, name=NAME)
    assert "model.safetensors" not in hub.asked("GET")


def test_a_cache_that_cannot_be_written(hub, env, folder, tmp_path):
    hub.add(NAME, folder)
    (tmp_path / "file").write_text("in the way")
    message = error(env | {"HF_HOME": str(tmp_path / "file")}, name=NAME)
    assert message.startswith(f"{NAME}: cannot write to the cache: Not a directory: {tmp_path / 'file'}")


@pytest.mark.slow
def test_a_disk_that_is_full(hub, env, folder):
    """A limit on file sizes simulates a full disk: the same writes fail."""
    hub.add(NAME, folder)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
    done = python(env, limit + PROGRAM, text=json.dumps([{"name": NAME}]))
    assert done.returncode == 0, done.stderr
    message = json.loads(done.stdout)["error"]
    assert message.startswith(f"{NAME}: cannot write to the cache: File too large: {cache(env)}")
    assert not list(cache(env).glob("models--*/snapshots/*/*.safetensors"))


def test_ids():
    valid = ("gpt2", "owner/name", "bert-base-uncased", "a.b/c_d-e.f", "_x/y")
    invalid = (
        "",
        "a/b/c",
        "/a",
        "a/",
        "./a",
        "-a",
        "a--b",
        "a..b",
        "a b",
        "a.git",
        "a/" + "b" * 97,
        "ä/b",
        "a\\b",
        "a\n",
    )
    assert [name for name in valid + invalid if is_hub_id(name)] == list(valid)
