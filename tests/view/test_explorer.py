"""The explorer's server returns the engine's values, and answers only its own page."""

from __future__ import annotations

import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import npformer
from npformer import Model, NpformerError, Pair, view
from npformer.families import FAMILIES, encoders
from npformer.interpret.answer import outcome_of
from npformer.interpret.edits import add, edit, replace_row, scale, scale_head, without_head, zero
from npformer.interpret.study_inputs import read_inputs
from npformer.view.explorer.change_part import change_view
from npformer.view.explorer.changes import ChangeWord, words_changed
from npformer.view.explorer.parts import PARTS, Parts
from npformer.view.explorer.server import BODY, CONNECTIONS
from npformer.view.explorer.state import CHARACTERS, read_state
from tests.support import tiny
from tests.support.explorer_client import Client, state

TEXT, OTHER = "I love good ice cream", "the movie is not good news"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return npformer.load(tiny.folder(tmp_path_factory.mktemp("models") / "model", "bert"))


@pytest.fixture(scope="module")
def client(model: Model) -> Iterator[Client]:
    with view.explore({"tiny": model}, TEXT) as explorer:
        yield Client(explorer)


def outcomes(model: Any, text: Any, *edits: Any) -> list[list[Any]]:
    """Returns the outcomes of the engine, which runs without the explorer."""
    with edit(*edits):
        (inputs,) = read_inputs(model, text).inputs
        found = outcome_of(model, inputs, model.run([inputs])[0])
    assert found is not None
    return [list(each) for each in found.outcomes]


def shown(part: dict[str, Any]) -> list[list[Any]]:
    return [each[:2] for each in part["answer"]["outcomes"]]


# --- values ----------------------------------------------------------------------------------------------------------


def test_every_view_is_that_of_the_page(client: Client, model: Model) -> None:
    """The data of each view is the data that `view.page` writes, except the layer and head that the page opens on."""
    found = client.parts(state(TEXT), "answer", "reasons", *KINDS)
    page = view.page(model, TEXT, layer=0)
    expected = page.html()
    assert shown(found["answer"]) == outcomes(model, TEXT)
    assert found["reasons"]["answer"] == json.loads(json.dumps(page._answers()[0]))
    for kind, each in zip(KINDS, page.texts[0], strict=True):
        got = found[kind]["view"]
        assert got["subtitle"] == TEXT
        assert {name: value for name, value in got.items() if name != "arrays"} == json.loads(
            json.dumps({"kind": kind, "heading": each.heading, "subtitle": TEXT, "title": f"{each.heading}: {TEXT}"}
                       | each._meta())
        )  # fmt: skip
        assert set(got["arrays"]) == {block.name for block in each._blocks()}
        assert all(data in expected for data in found[kind]["arrays"].values())


KINDS = ("heads", "model", "neurons", "stages", "attribution", "logit", "lens", "ablation")

#: Name -> a change as the page sends it, and the equivalent edit of the engine.
EDITS: dict[str, tuple[dict[str, Any], Any]] = {
    "without a head": (
        {"kind": "head", "attention": "layers.1.attention", "head": 2}, lambda m: without_head("layers.1.attention.context", 2),
    ),
    "half a head": (
        {"kind": "head", "attention": "layers.0.attention", "head": 1, "factor": 0.5},
        lambda m: scale_head("layers.0.attention.context", 1, 0.5),
    ),
    "without attention": ({"kind": "stage", "stage": "layers.0.attention.output"}, lambda m: zero("layers.0.attention.output")),
    "twice a network": (
        {"kind": "stage", "stage": "layers.1.ffn.output", "factor": 2}, lambda m: scale("layers.1.ffn.output", 2.0),
    ),
    "a row": (
        {"kind": "patch", "stage": "layers.0.ffn_norm", "position": 3},
        lambda m: replace_row("layers.0.ffn_norm", 3, npformer.trace(m, OTHER)["layers.0.ffn_norm"][3]),
    ),
    "a direction": (
        {"kind": "direction", "stage": "layers.0.ffn_norm", "factor": -1.5},
        lambda m: add("layers.0.ffn_norm", -1.5 * (mean(m, OTHER) - mean(m, TEXT))),
    ),
}  # fmt: skip
WORDS: dict[str, tuple[dict[str, Any], str]] = {
    "masked": ({"kind": "word", "at": 2, "word": "good"}, "I love [MASK] ice cream"),
    "deleted": ({"kind": "word", "at": 2, "word": "good", "to": ""}, "I love ice cream"),
    "replaced": ({"kind": "word", "at": 1, "word": "love", "to": "like"}, "I like good ice cream"),
}


@pytest.mark.parametrize(("at", "left"), [(0, "b  c\n\nd "), (1, "a  c\n\nd "), (2, "a b\n\nd "), (3, "a b  c ")])
def test_a_deleted_word_takes_one_gap_with_it(at: int, left: str) -> None:
    """The rest of the text stays as it was typed."""
    assert words_changed("a b  c\n\nd ", [ChangeWord(at, "abcd"[at], "")], "") == left


def mean(model: Any, text: str) -> np.ndarray:
    return npformer.trace(model, text)["layers.0.ffn_norm"].mean(axis=0)


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_gives_the_numbers_of_the_engine(name: str, client: Client, model: Model) -> None:
    sent, ours = EDITS[name]
    found = client.parts(state(TEXT, OTHER, edits=[sent]), "answer", "attribution")
    assert shown(found["answer"]) == outcomes(model, TEXT, ours(model)) != outcomes(model, TEXT)
    assert [list(each) for each in found["answer"]["before"]] == outcomes(model, TEXT)
    with edit(ours(model)):
        expected = view.attribution(model, TEXT)._meta()
    assert found["attribution"]["view"].items() >= json.loads(json.dumps(expected)).items()


@pytest.mark.parametrize("name", WORDS)
def test_a_changed_word_gives_the_answer_to_the_changed_text(name: str, client: Client, model: Model) -> None:
    sent, text = WORDS[name]
    found = client.parts(state(TEXT, edits=[sent]), "answer", "heads")
    assert shown(found["answer"]) == outcomes(model, text)
    assert found["heads"]["view"]["subtitle"] == TEXT


CHOICES = st.lists(st.tuples(st.sampled_from([*EDITS, *WORDS]), st.integers(0, 9)), min_size=1, max_size=10)


@given(steps=CHOICES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_edits_and_undos_in_any_order_leave_the_engine_s_numbers(
    steps: list[tuple[str, int]], client: Client, model: Model
) -> None:
    """A step makes an edit, or undoes one, as a click on its chip does."""
    made: list[str] = []
    for name, at in steps:
        if made and at < 3:
            made.pop(at % len(made))
        elif name not in made and {name, *made} & WORDS.keys() != {"masked", "deleted"}:
            made.append(name)
        part = client.parts(state(TEXT, OTHER, edits=[{**EDITS, **WORDS}[each][0] for each in made]), "answer")
    words = [each for each in made if each in WORDS]
    text = TEXT
    for each in words:
        text = text.replace(WORDS[each][0]["word"], {"masked": "[MASK]", "deleted": "", "replaced": "like"}[each])
    edits = [EDITS[each][1](model) for each in made if each in EDITS]
    assert shown(part["answer"]) == outcomes(model, text.replace("  ", " "), *edits)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_a_state_as_python_runs_and_prints_its_answer(kind: str, tmp_path: Any, capsys: pytest.CaptureFixture) -> None:
    head = "sequence-classification" if kind == "bert" else "causal-lm"
    folder = tiny.folder(tmp_path / "model", kind, head)
    loaded = npformer.load(folder)
    last = [name for name in npformer.trace(loaded, TEXT) if name.startswith("layers.0.")][-1]
    edits = [
        EDITS["half a head"][0], EDITS["without a head"][0], EDITS["twice a network"][0],
        EDITS["a row"][0] | {"stage": last}, EDITS["a direction"][0] | {"stage": last}, WORDS["replaced"][0],
    ]  # fmt: skip
    parts = Parts({str(folder): loaded})
    asked = read_state(state(TEXT, OTHER, edits=edits))
    names: dict[str, Any] = {}
    exec(parts.part(asked, "python")["text"], names)
    expected = parts.seen(asked).trace
    np.testing.assert_array_equal(names["trace"]["logits"], expected["logits"])
    assert not np.array_equal(expected["logits"], npformer.trace(loaded, TEXT)["logits"])
    assert capsys.readouterr().out


def test_the_saved_page_is_the_page_of_the_changed_model(client: Client, model: Model) -> None:
    sent, ours = EDITS["without a head"]
    asked = client.request(state(TEXT, edits=[sent]))
    status, saved = client.post({**asked}, "save")
    with edit(ours(model)):
        assert (status, saved) == (200, view.page(model, TEXT).html())


def test_a_pair_and_what_can_be_changed(client: Client, model: Model) -> None:
    found = client.parts(state([TEXT, OTHER], "no"), "answer", "change")
    assert shown(found["answer"]) == outcomes(model, Pair(TEXT, OTHER))
    changes = found["change"]["view"]
    assert [(row["attention"], row["heads"]) for row in changes["rows"]] == [
        ("layers.0.attention", 4), ("layers.1.attention", 4),
    ]  # fmt: skip
    assert changes["rows"][1]["ffn"] == "layers.1.ffn.output"
    assert [each["stage"] for each in changes["layers"]] == ["layers.0.ffn_norm", "layers.1.ffn_norm"]
    assert changes["others"] == ["[CLS]", "no", "[SEP]"]


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"marian", "bart", "t5", "mt5", "transformer"}))
def test_every_family_has_heads_blocks_and_rows_to_change(family: str) -> None:
    """The grid's stages exist, so a click on any cell makes an edit. Translators are tested in the browser."""
    made = tiny.model(family, "base") if family in encoders() else tiny.model(family, "causal-lm")
    recorded = npformer.trace(made, [5, 6, 7, 8])
    found = change_view(made, recorded, recorded, "text")
    stages = [each for row in found["rows"] for each in (row["whole"], row["ffn"])] + [
        each["stage"] for each in found["layers"]
    ]
    assert len(stages) == 6
    with edit(*map(zero, stages), *(without_head(f"{row['attention']}.context", 0) for row in found["rows"])):
        npformer.trace(made, [5, 6, 7, 8])


def test_a_part_that_a_model_does_not_have_says_why(tmp_path: Any) -> None:
    parts = Parts({"m": npformer.load(tiny.folder(tmp_path / "model", "bert", "masked-lm"))})
    assert "masked word" in parts.part(read_state(state("I love ice cream")), "lens")["error"]
    assert parts.part(read_state(state("I love ice cream")), "answer")["answer"] is None
    assert parts.part(read_state(state("I love [MASK] cream")), "answer")["answer"]["about"] == "masked word"


# --- attacks ---------------------------------------------------------------------------------------------------------


def test_only_the_own_page_is_answered(client: Client) -> None:
    body = client.request(state(TEXT), "answer")
    own = f"127.0.0.1:{client.port}"
    assert client.post(body)[0] == 200
    assert client.post(body, Origin=f"http://localhost:{client.port}")[0] == 200
    for headers in (
        {"Host": "evil.example"}, {"Host": f"evil.example:{client.port}"}, {"Host": "127.0.0.1"}, {"Host": ""},
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": f"https://{own}"}, {"Origin": ""},
        {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"},
    ):  # fmt: skip
        status, reply = client.post(body, **headers)
        assert (status, list(reply)) == (403, ["error"]), headers
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):  # need no preflight
        assert client.post(body, Content_Type=kind)[0] == 415
    preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    status, _, headers = client.send("OPTIONS", f"/{client.token}/parts", None, preflight)
    assert status == 501
    assert not [name for name in headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "path", ["/", "", "//", "/wrong/", "/wrong/parts", "/{token}", "/{start}/", "/{token}x/", "/{token}/../", "/%00/"]
)
def test_without_the_token_nothing_is_told(path: str, client: Client) -> None:
    path = path.format(token=client.token, start=client.token[:-1])
    for method in ("GET", "POST"):
        status, body, _ = client.send(method, path or "*", b"{}", {"Content-Type": "application/json"})
        assert status in (403, 404)
        assert client.token.encode() not in body
        assert b"tiny" not in body


def test_the_page_may_only_ask_its_own_server(client: Client) -> None:
    status, body, headers = client.send("GET", f"/{client.token}/")
    page = body.decode()
    assert status == 200
    assert headers["Referrer-Policy"] == "no-referrer"  # a link to another site must not reveal the token
    assert headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in page
    assert "connect-src 'self'" in page
    assert client.token not in page
    assert page.count("<script") == page.count("</script>")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"{", 400), (b"[1]", 400), (b"\xff\xfe", 400), (b"[" * 100_000, 400), (b'{"page": NaN}', 400),
        (b'{"parts": ["answer"]}', 400), (b'{"parts": [{}], "state": {}}', 400), (b" " * (BODY + 1), 413),
        (b'{"number": 1e400}', 400),
    ],
)  # fmt: skip
def test_bytes_that_are_no_request_are_refused(body: bytes, status: int, client: Client) -> None:
    found, reply = client.post(body)
    assert (found, list(reply)) == (status, ["error"])
    assert "Traceback" not in reply["error"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "state: expected texts, edits and options, got None"),
        ({"text": []}, "state: expected texts, edits and options, got 'text'"),
        ({"texts": []}, "state.texts: expected one or two texts, got a list"),
        ({"texts": [["a", "b", "c"]]}, r"state.texts[0]: expected a list of one or two strings"),
        ({"texts": [[1]]}, r"state.texts[0]: expected a list of one or two strings"),
        ({"texts": [["a" * (CHARACTERS + 1)]]}, "expected at most 20,000 characters, got 20,001"),
        (state("a", edits=[{}]), "state.edits[0]: expected a change with a kind"),
        (state("a", edits=[{"kind": "head"}]), "state.edits[0].attention: missing"),
        (state("a", edits=[{"kind": "head", "attention": "*", "head": 0}]), "expected an attention block, got '*'"),
        (state("a", edits=[{"kind": "stage", "stage": "layers.*.ffn"}]), "expected the name of a stage"),
        (state("a", edits=[{"kind": "stage", "stage": "a", "factor": 1e9}]), "expected a number from -100 to 100"),
        (state("a", edits=[{"kind": "stage", "stage": "a", "factor": "2"}]), "factor: expected float, got '2'"),
        (state("a", edits=[{"kind": "stage", "stage": "a", "x": 2}]), "unknown field of stage"),
        (state("a", model=1), "state.options.model: expected a model from 0 to 0, got 1"),
        (state("a", model=True), "state.options.model"),
    ],
)
def test_a_wrong_state_is_an_error_that_says_where(wrong: Any, message: str) -> None:
    with pytest.raises(NpformerError) as caught:
        read_state(wrong)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (state("a", edits=[{"kind": "head", "attention": "layers.9.attention", "head": 0}]), "layers.9.attention"),
        (state("a", edits=[{"kind": "head", "attention": "layers.0.attention", "head": 9}]), "expected a head from 0 to 3"),
        (state("a", edits=[{"kind": "patch", "stage": "layers.0.ffn_norm", "position": 1}]), "needs a second text"),
        (state("a", "b", edits=[{"kind": "patch", "stage": "layers.0.ffn_norm", "position": 9}]), "has no token 9"),
        (state("a", edits=[{"kind": "word", "at": 0, "word": "b"}]), "word 0: expected 'b', got 'a'"),
    ],
)  # fmt: skip
def test_a_change_that_the_model_does_not_have_is_an_error_on_the_page(
    asked: dict[str, Any], message: str, client: Client
) -> None:
    assert message in client.parts(asked, "answer")["answer"]["error"]


@pytest.mark.parametrize("text", ["", " ", "\x00\x1b[2J", "\ud800", "</script><img src=x onerror=alert(1)>", "😀" * 50])
def test_hostile_texts_are_answered(text: str, client: Client) -> None:
    found = client.parts(state(text), "answer", "heads")
    assert set(found) == {"answer", "heads"}


@pytest.mark.filterwarnings("ignore:.*cut to")
def test_a_long_text_is_refused_or_cut_quickly(client: Client) -> None:
    begun = time.monotonic()
    client.parts(state("a " * 10_000), "answer")
    assert time.monotonic() - begun < 20


def test_a_stage_of_another_model_or_a_long_text_ends_in_the_limit_of_tokens(tmp_path: Any) -> None:
    parts = Parts({"m": npformer.load(tiny.folder(tmp_path / "model", "llama", "causal-lm", max_length=4096))})
    assert "shows at most 512: shorten it" in parts.part(read_state(state("a " * 1000)), "answer")["error"]


def test_a_newer_state_replaces_older_ones_that_wait(model: Model) -> None:
    """Of twenty states in quick succession, as when a user types, at most three are computed, including the last."""
    with view.explore({"tiny": model}, TEXT) as explorer:
        client = Client(explorer)
        parts, release = explorer._server.parts, threading.Event()
        usual = parts.part
        parts.part = lambda *args: (release.wait(30), usual(*args))[
            1
        ]  # the first computation lasts until all requests have arrived
        bodies = [client.request(state(TEXT[: i + 1]), "answer") for i in range(20)]
        replies: dict[int, tuple[int, Any]] = {}
        threads = []
        for body in bodies:
            work = lambda body=body: replies.update({body["number"]: client.post(body)})  # noqa: E731
            threads.append(threading.Thread(target=work))
            threads[-1].start()
            time.sleep(0.01)
        deadline = time.monotonic() + 30
        while explorer._server.latest._newest.get("test") != 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        release.set()
        for thread in threads:
            thread.join()
    assert explorer.computed <= 3
    assert [status for status, _ in replies.values()].count(409) >= 17
    assert replies[20][0] == 200
    assert shown(replies[20][1]["answer"]) == outcomes(model, TEXT[:20])


def test_work_that_is_not_wanted_any_more_ends_between_stages(client: Client) -> None:
    parts, latest = client.explorer._server.parts, client.explorer._server.latest
    heard = []

    def check() -> None:
        heard.append(1)
        if len(heard) == 5:
            raise RuntimeError("not wanted")

    with pytest.raises(RuntimeError, match="not wanted"):
        parts.view(read_state(state("the news is out")), check, "ablation")
    assert latest.run("test", client.number + 1, lambda check: 1) == 1


def test_connections_that_close_in_mid_work_or_say_nothing_do_no_harm(client: Client) -> None:
    place = client.host, client.port
    silent = [socket.create_connection(place) for _ in range(CONNECTIONS // 2)]
    for i in range(10):
        body = json.dumps(client.request(state(f"{TEXT} {i}"), "ablation")).encode()
        head = f"POST /{client.token}/parts HTTP/1.1\r\nHost: {client.host}:{client.port}\r\n"
        with socket.create_connection(place) as gone:
            gone.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        with socket.create_connection(place) as half:
            half.sendall(head.encode() + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
    assert shown(client.parts(state(TEXT), "answer")["answer"])
    for each in silent:
        each.close()


@pytest.mark.slow
def test_a_thousand_requests_need_no_more_memory_than_a_hundred(client: Client) -> None:
    def ask(count: int) -> int:
        for i in range(count):
            client.parts(state(f"{TEXT} {i}", edits=[EDITS["half a head"][0]]), "answer", "heads", "stages")
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        few = ask(100)
        many = ask(900)
    finally:
        tracemalloc.stop()
    assert many < few + 3_000_000
    assert threading.active_count() < 20


def test_every_part_has_a_test() -> None:
    others = "answer reasons change python step value was layer write compare"
    assert set(PARTS) == {*others.split(), *KINDS}
