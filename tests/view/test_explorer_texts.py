"""The explorer's notes about texts that are empty, long or truncated, and about pairs that the user begins."""

from __future__ import annotations

import json

import pytest

import npformer
from npformer import Model, view
from npformer.view.explorer.parts import Parts
from npformer.view.explorer.state import read_state
from tests.support import tiny
from tests.support.explorer_client import state

TEXT = "I love good ice cream"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """Models with a tokenizer, by family."""
    heads = {"bert": "sequence-classification", "gpt2": "causal-lm"}
    place = tmp_path_factory.mktemp("loaded")
    return {kind: npformer.load(tiny.folder(place / kind, kind, head)) for kind, head in heads.items()}


@pytest.mark.filterwarnings("ignore:.*cut to")
def test_a_text_that_the_model_cuts_is_said_on_the_page(loaded: dict[str, Model]) -> None:
    parts, most = Parts({"m": loaded["bert"]}), loaded["bert"].config.max_length
    found = parts.part(read_state(state("a " * (most + 8), "b " * (most + 4))), "answer")["notes"]
    assert found == [
        f"{name} has {count} tokens, and the model reads {most} of them: the rest is cut off."
        for name, count in (("The text", most + 10), ("Text B", most + 6))
    ]
    assert parts.part(read_state(state(TEXT)), "answer")["notes"] == []


@pytest.mark.filterwarnings("ignore:.*cut to")
def test_no_token_is_written_after_a_text_that_fills_the_model_or_is_cut(loaded: dict[str, Model]) -> None:
    parts, most = Parts({"m": loaded["gpt2"]}), loaded["gpt2"].config.max_length
    words = [count - 2 for count in (most - 3, most, most + 1)]  # the tokenizer adds two tokens
    found = [parts.part(read_state(state(" ".join("a" * count))), "write") for count in words]
    assert [each["view"]["room"] for each in found[:2]] == [3, 0]
    assert found[2]["error"] == (
        f"Write: the text has {most + 1} tokens, and the model reads at most {most}, so a token after it has no "
        "meaning. Shorten the text."
    )


@pytest.mark.parametrize("text", ["", "  ", ["", ""]])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_an_empty_text_asks_for_one(text: str | list[str], kind: str, loaded: dict[str, Model]) -> None:
    parts = Parts({"m": loaded[kind]})
    for name in ("answer", "heads", "step", "ablation"):
        assert parts.part(read_state(state(text)), name)["error"] == "Type a text: there is nothing to read yet."


def test_a_pair_whose_second_text_is_not_typed_yet_is_one_text(loaded: dict[str, Model]) -> None:
    parts = Parts({"m": loaded["bert"]})
    begun, one = (parts.part(read_state(state(each)), "answer")["answer"] for each in ([TEXT, " "], TEXT))
    assert begun == one


@pytest.mark.parametrize(("kind", "pairs"), [("bert", True), ("gpt2", False)])
def test_a_pair_can_be_begun_where_the_model_reads_one(kind: str, pairs: bool, loaded: dict[str, Model]) -> None:
    with view.explore({"m": loaded[kind]}, TEXT) as explorer:
        assert f'"pairs":{json.dumps(pairs)}' in explorer._server.page
