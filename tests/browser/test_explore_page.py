"""The explorer's page outside its tabs: notes on computation, truncated texts and changed lines, pairs, and places."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import npformer
from npformer import Pair
from tests.browser.live import Live
from tests.browser.test_explore import SIZES, TEXT, after, expected
from tests.support import tiny
from tests.support.explorer_client import state

BACKSPACE = "\ue003"


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_the_page_says_that_it_computes(live: Live, model: Any, width: int, dark: bool) -> None:
    live.explore({"m": model}, TEXT, width=width, dark=dark)
    parts, go_on = live.explorer._server.parts, threading.Event()
    usual = parts.part
    parts.part = lambda *args: (go_on.wait(30), usual(*args))[1]
    assert live.text(".computing") == ""

    def work() -> None:
        live.one("textarea").send_keys(" now")
        live.until(lambda: live.text(".computing") == "Computing\u2026")
        assert live.js("const { bottom, right } = document.querySelector('.computing').getBoundingClientRect();"
                       "return bottom <= innerHeight && right <= innerWidth")  # fmt: skip
        go_on.set()

    live.act(work)
    live.until(lambda: live.text(".computing") == "")


@pytest.mark.parametrize("kind", ["attribution", "ablation"])
def test_the_answer_does_not_wait_for_a_slow_view(live: Live, model: Any, kind: str) -> None:
    live.explore({"m": model}, TEXT, at=f"view={kind}")
    parts, go_on = live.explorer._server.parts, threading.Event()
    usual = parts.part
    parts.part = lambda state, name, check: (name == kind and go_on.wait(30), usual(state, name, check))[1]

    def work() -> None:
        live.one("textarea").send_keys(" now")
        live.until(lambda: after(live) == expected(model, f"{TEXT} now"))
        live.until(lambda: live.js("return document.documentElement.dataset.slow") == "view")
        live.until(lambda: live.colour("main", "opacity") == "0.6")
        assert live.colour(".answer", "opacity") == "1"
        go_on.set()

    live.act(work)
    assert live.js("return document.title").endswith(": I love good ice cream now")
    live.until(lambda: live.colour("main", "opacity") == "1")


@pytest.mark.filterwarnings("ignore:.*cut to")
def test_a_cut_text_is_said_on_the_page(live: Live, model: Any) -> None:
    live.explore({"m": model}, TEXT)
    assert not live.one(".notice").is_displayed()
    live.js("document.querySelector('textarea').value = 'love ' .repeat(999)")
    live.act(lambda: live.one("textarea").send_keys("x"))
    assert f"the model reads {model.config.max_length} of them" in live.text(".notice")
    live.type(TEXT)
    assert not live.one(".notice").is_displayed()


@pytest.mark.parametrize("kind", ["step", "ablation"])
def test_an_empty_text_asks_for_one_and_shows_no_answer(live: Live, model: Any, kind: str) -> None:
    live.explore({"m": model}, "I", at=f"view={kind}")
    live.act(lambda: live.one("textarea").send_keys(BACKSPACE))
    assert live.text(".problem") == live.text(".missing") == "Type a text: there is nothing to read yet."
    assert not live.one(".answer").is_displayed()
    live.type(TEXT)
    assert live.outcomes() == expected(model, TEXT)
    assert not live.one(".problem").is_displayed()


def test_a_page_of_another_site_gets_nothing(live: Live, model: Any, tmp_path: Path) -> None:
    """A site that knows the whole address, for example from a screenshot, gets no answer from browser or server."""
    live.explore({"m": model}, TEXT)
    assert live.explorer is not None
    computed, own = live.explorer.computed, live.js("return location.href")
    site = tmp_path / "site.html"
    site.write_text("<!doctype html><title>site</title><link rel=icon href='data:,'>")
    live.driver.get(site.as_uri())
    ask = """const [url, body, done] = arguments;
        const json = { "Content-Type": "application/json" };
        const tries = [
            fetch(url), fetch(url, { mode: "no-cors" }), fetch(url + "parts", { method: "POST", headers: json, body }),
            fetch(url + "parts", { method: "POST", mode: "no-cors", headers: json, body }),
            new Promise((yes, no) => {
                const socket = new WebSocket(url.replace("http", "ws"));
                socket.onopen = yes;
                socket.onerror = () => no();
            }),
        ];
        Promise.allSettled(tries).then((all) => done(all.map(({ value }) => (value?.ok ? "read" : "nothing"))));"""
    body = json.dumps({"page": "x", "number": 1, "state": state(TEXT), "parts": ["answer"]})
    assert live.driver.execute_async_script(ask, live.url, body) == ["nothing"] * 5
    assert live.explorer.computed == computed
    assert live.driver.get_log("browser")  # the browser logs the requests that it has blocked
    live.driver.get(own)
    live.settle()


def test_a_changed_line_is_of_the_page_only(live: Live, model: Any) -> None:
    source = "scores = q @ k.mT / math.sqrt(q.shape[-1])"
    live.explore({"m": model}, TEXT, at="view=step")
    line = 1 + next(i for i, text in enumerate(live.texts(".code .text")) if source in text)
    edit = {"kind": "line", "line": line, "old": source, "to": "scores = q @ k.mT"}
    live.open(state(TEXT, edits=[edit]), "view=heads")
    assert live.texts(".change small") == ["Step only"]
    link = next(each for each in live.all(".notice a") if each.is_displayed())
    assert live.outcomes() == expected(model, TEXT)
    live.click(link)
    live.until(lambda: live.texts(".page-answer li"))
    assert live.text(".page-answer h3") == "Step's answer, before \u2192 after"


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_a_pair_is_begun_and_ended_in_the_page(live: Live, model: Any, width: int, dark: bool) -> None:
    live.explore({"m": model}, TEXT, width=width, dark=dark)
    live.act(lambda: live.click(live.one(".texts button")))
    assert live.js("return document.activeElement.dataset.text") == "0 1"
    live.act(lambda: live.press("no news"))
    assert after(live) == expected(model, Pair(TEXT, "no news"))
    live.act(lambda: live.click(live.one(".texts button")))
    assert len(live.all("textarea")) == 1
    assert live.outcomes() == expected(model, TEXT)
    assert live.fits()


def test_a_model_that_writes_reads_no_pair(live: Live, tmp_path: Any) -> None:
    live.explore({"m": npformer.load(tiny.folder(tmp_path / "model", "gpt2", "causal-lm"))}, TEXT)
    assert live.all(".texts button") == []


@pytest.mark.parametrize("first", ["heads", "ablation", "change"])
def test_a_chosen_head_is_chosen_on_every_tab(live: Live, model: Any, first: str) -> None:
    live.explore({"m": model}, TEXT, at="view=lens")
    tab(live, first)
    if first == "heads":
        live.click(live.all(".square")[2])
        live.press("o")  # selects only this head
    else:
        cell = live.one("[data-at='0 2']")
        live.act(cell.click) if first == "change" else cell.click()
    for kind in ("neurons", "ablation", "heads", "change"):
        tab(live, kind)
        live.until(lambda: "layer=0&head=2" in live.js("return location.hash"))
    tab(live, "lens")
    live.until(lambda: "layer=0" in live.js("return location.hash"))
    tab(live, "step")
    assert any("Layer 0, head 2" in each for each in live.texts(".buttons button"))


def tab(live: Live, kind: str) -> None:
    live.click(live.one(f".tabs [data-view={kind}]"))
    live.until(lambda: live.js("return document.body.dataset.view") == kind)


def test_a_chosen_token_is_chosen_on_other_tabs_and_own_choices_stay(live: Live, model: Any) -> None:
    live.explore({"m": model}, TEXT, at="view=neurons")
    tab(live, "heads")
    live.click(live.all(".from [role=option]")[3])
    tab(live, "neurons")
    live.until(lambda: "from=3" in live.js("return location.hash"))
    live.choose("Head", 3)
    tab(live, "lens")
    tab(live, "neurons")
    assert "head=3&from=3" in live.js("return location.hash")


def test_a_row_in_step_and_a_token_in_stages_are_chosen_on_other_tabs(live: Live, model: Any) -> None:
    live.explore({"m": model}, TEXT, at="view=step")
    live.until(lambda: live.all(".numbers .row"))
    live.click(live.all(".numbers .row")[2])
    live.until(lambda: live.texts(".numbers .on .row") == live.texts(".numbers .row")[2:3])
    tab(live, "stages")
    live.until(lambda: live.js("return document.querySelector('.chips [aria-pressed=true]')?.dataset.token") == "2")
    live.click(live.all(".chips li button")[3])
    tab(live, "heads")
    live.until(lambda: "from=3" in live.js("return location.hash"))
    tab(live, "step")
    live.until(lambda: live.texts(".numbers .on .row") == live.texts(".numbers .row")[3:4])


CHOSEN = {
    "stages": (".chips li button", ".chips [aria-pressed=true]", ".chips li:nth-child(3) button"),
    "step": (".numbers .row", ".numbers .on .row", ".numbers tr:nth-child(3) .row"),
}


@pytest.mark.parametrize("kind", CHOSEN)
def test_the_address_reopens_the_chosen_token(live: Live, model: Any, kind: str) -> None:
    live.explore({"m": model}, TEXT, at=f"view={kind}")
    every, chosen, third = CHOSEN[kind]
    live.until(lambda: live.all(every))
    live.click(live.all(every)[2])
    live.until(lambda: "&token=2" in live.js("return location.hash"))
    live.driver.refresh()
    live.until_ready()
    live.settle()
    live.until(lambda: live.texts(chosen) == live.texts(third) != [])
    tab(live, "heads")
    live.until(lambda: "from=2" in live.js("return location.hash"))
    live.open(None, f"view={kind}&token=99")
    live.until(lambda: live.all(every))
    assert live.texts(chosen) == []


def test_where_no_single_head_turns_the_answer_several_can_be_removed(live: Live, model: Any) -> None:
    live.explore({"m": model}, TEXT, at="view=ablation")
    assert live.text(".about").endswith("No single head changes the answer. Remove several.")
    live.click(live.one(".about button"))
    live.until(lambda: live.js("return document.body.dataset.view") == "change")
