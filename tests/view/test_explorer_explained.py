"""The explorer can explain an outcome other than the model's own answer."""

from __future__ import annotations

from typing import Any

import pytest

import npformer
from npformer import NpformerError
from npformer.interpret.edits import edit, without_head
from npformer.view.explorer.parts import Parts
from npformer.view.explorer.state import read_state
from tests.support.explorer_client import state


def test_another_outcome_is_explained_in_every_part_and_as_python(capsys: pytest.CaptureFixture) -> None:
    """NEGATIVE has the same words and heads as POSITIVE, with opposite signs, and the answer does not change."""
    model = npformer.load("distilbert-sst2")
    parts = Parts({"distilbert-sst2": model})
    head = {"kind": "head", "attention": "layers.1.attention", "head": 2}
    text = "The film is not bad"
    own, other = (read_state(state(text, edits=[head], **options)) for options in ({}, {"explained": 0}))
    answer = parts.part(other, "answer")
    assert (answer["explained"], answer["numbers"], parts.part(own, "answer")["explained"]) == (
        "NEGATIVE",
        [1, 0],
        None,
    )
    assert answer["answer"]["outcomes"] == parts.part(own, "answer")["answer"]["outcomes"]
    (words, _), (_, against) = (parts.part(each, "reasons")["answer"]["words"] for each in (own, other))
    assert [(word, number.replace("+", "-")) for word, number in words] == against
    assert parts.part(other, "ablation")["view"]["answer"] == "NEGATIVE"
    assert "NEGATIVE" in parts.part(other, "attribution")["view"]["explained"][0]["methods"][0]["about"]
    assert [parts.part(each, "lens")["view"]["followed"] for each in (own, other)] == [("POSITIVE",), ("NEGATIVE",)]
    assert parts.stepped(own) is parts.stepped(other)
    exec(parts.part(other, "python")["text"], {})
    printed = capsys.readouterr().out
    with edit(without_head("layers.1.attention.context", 2)):
        found = npformer.view.ablation(model, text, label="NEGATIVE")
    assert str(found) in printed
    assert found.found.before == pytest.approx(found.found.whole[1][1])
    wrong = parts.part(read_state(state(text, explained=2)), "answer")
    assert "explained: label=2: expected one of NEGATIVE, POSITIVE" in wrong["error"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"explained": -1}, "state.options.explained: expected the number of an outcome, got -1"),
        ({"explained": "POSITIVE"}, "state.options.explained: expected the number"),
        ({"hat": 1}, "state.options: expected a dict with the keys model and explained"),
    ],
)
def test_a_wrong_option_is_an_error_that_says_where(options: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError) as caught:
        read_state(state("a", **options))
    assert message in str(caught.value)
