"""text-generation: continuations of prompts, whole and in pieces. `tests/oracle` compares it with
transformers.pipeline."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer.common.errors import NpformerError
from npformer.tasks.pipelines import tasks_of
from npformer.tasks.task import InputError
from npformer.tasks.text_generation import TextGeneration
from npformer.tasks.writing import pieces as pieces_of
from npformer.text.stop_strings import StopStrings
from tests.support import byte_fallback, tiny, writers

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12}


@pytest.fixture(scope="module")
def task() -> TextGeneration:
    made = npformer.pipeline("text-generation", writers.model(seed=4))
    assert isinstance(made, TextGeneration)
    return made


def texts(answer: list[dict[str, str]]) -> list[str]:
    return [each["generated_text"] for each in answer]


def test_answers_have_the_form_of_transformers(task: TextGeneration) -> None:
    one = task("The other", **GREEDY)
    assert [list(each) for each in one] == [["generated_text"]]
    assert one[0]["generated_text"].startswith("The other")
    assert task(["The other", {"text": "in"}], **GREEDY) == [one, task("in", **GREEDY)]
    assert list(task(iter(["The other"]), **GREEDY)) == [one]
    assert (one.n_tokens, one.truncated) == (len(task.model.tokenizer.encode("The other")), False)
    assert "The other" + task("The other", return_full_text=False, **GREEDY)[0]["generated_text"] == texts(one)[0]


def test_a_model_that_predicts_the_next_token_has_the_task(tmp_path: Path) -> None:
    folder = writers.folder(tmp_path / "m")
    assert isinstance(npformer.pipeline(model=folder), TextGeneration)
    assert tasks_of(npformer.load(folder).config) == ["text-generation", "feature-extraction", "sentence-embedding"]
    with pytest.raises(NpformerError, match="text-generation: no default model; pass model="):
        npformer.pipeline("text-generation")
    with pytest.raises(NpformerError, match="expected a causal-lm model, got a masked-lm model"):
        npformer.pipeline("text-generation", tiny.model("bert", "masked-lm"))


def test_samples_have_a_seed(task: TextGeneration) -> None:
    """By default tokens are sampled, as in transformers.pipeline, so several texts differ."""
    drawn = task("The", seed=1, max_new_tokens=9)
    assert drawn == task("The", seed=1, max_new_tokens=9) != task("The", seed=2, max_new_tokens=9)
    assert drawn == task("The", seed=1, max_new_tokens=9, temperature=0.7, do_sample=True)
    assert len(set(texts(task("The", seed=1, max_new_tokens=9, num_return_sequences=3)))) == 3
    assert len({texts(task("The", max_new_tokens=9))[0] for _ in range(4)}) > 1


def test_the_last_of_beams_and_sampling_wins(task: TextGeneration) -> None:
    beams = npformer.pipeline("text-generation", task.model, num_beams=3, max_new_tokens=6)
    assert beams("The") == task("The", num_beams=3, do_sample=False, max_new_tokens=6)
    assert beams("The", do_sample=True, seed=1) == task("The", seed=1, max_new_tokens=6)
    with pytest.raises(NpformerError, match="num_beams: expected 1 for sampling"):
        task("The", num_beams=3, do_sample=True)


def test_generation_stops_at_the_model_s_length(task: TextGeneration) -> None:
    """By default, a text ends when the model can read no more tokens, whatever the lengths of the other prompts are."""
    answers = task(["a" * 60, "a" * 64, "b"], do_sample=False, return_full_text=False, eos_token_id=())
    count = [len(task.model.tokenizer.encode(each[0]["generated_text"])) for each in answers]
    assert [bool(each) for each in count] == [True] * 3
    for prompt, answer in zip(["a" * 60, "a" * 64, "b"], answers, strict=True):
        assert answer == task(prompt, do_sample=False, return_full_text=False, eos_token_id=())
    with pytest.raises(NpformerError, match="expected at most 64 tokens, got 65 and 1 new ones"):
        task("a" * 65)


def test_a_stored_length_is_adapted_and_a_given_one_is_not(tmp_path: Path) -> None:
    """The model reads at most 64 tokens, but generation_config.json requests 40 new tokens and two beams."""
    stored = {"max_new_tokens": 40, "num_beams": 2, "num_return_sequences": 2}
    write = npformer.pipeline("text-generation", writers.folder(tmp_path / "m", generation=stored, max_length=64))
    prompt = "x" * 50
    settings = write.resolved(write.options, 50)
    assert (settings.max_new_tokens, settings.num_beams, settings.do_sample) == (15, 2, False)
    assert len(write(prompt)) == 2
    with pytest.raises(NpformerError, match="expected at most 64 tokens, got 50 and 40 new ones"):
        write(prompt, max_new_tokens=40)


def test_an_empty_prompt_leaves_room_for_the_start_token(task: TextGeneration) -> None:
    short = npformer.pipeline("text-generation", writers.model(max_length=12, end_ids=()))
    assert short("", do_sample=False).n_tokens == 0
    assert short.resolved(short.options, 0).max_new_tokens == 12


def test_an_impossible_prompt_does_not_affect_the_others(task: TextGeneration) -> None:
    given = {"max_length": 4, "do_sample": False}
    with pytest.raises(NpformerError, match="input 0: max_length: expected a whole number from"):
        task(["the other is in", "in"], **given)
    found = task.finish(task.prepare(["the other is in", "in"], 0, task.settle(task.options, given)), 0,
                        task.settle(task.options, given))  # fmt: skip
    assert [isinstance(each, InputError) for each in found] == [True, False]


def test_long_prompts(task: TextGeneration) -> None:
    with pytest.raises(NpformerError, match="expected at most 64 tokens, got 60 and 12 new ones; long='truncate'"):
        task("a" * 60, **GREEDY)
    with pytest.warns(UserWarning, match="input 1: 60 tokens, cut to 52"):
        cut = task(["a", "b" + "a" * 59], long="truncate", **GREEDY)[1]
    assert cut.truncated
    assert texts(cut)[0].removeprefix("b" + "a" * 7) == texts(task("a" * 52, **GREEDY))[0]
    with pytest.raises(NpformerError, match="expected at most 64 tokens, got 9 and 64 new ones"):
        task("a" * 9, long="truncate", max_new_tokens=64)
    with pytest.raises(NpformerError, match="long: prompts are not read in windows"):
        task("a", long="window")


def test_an_empty_prompt_is_the_start_token(task: TextGeneration) -> None:
    [answer] = task("", **GREEDY)
    [[expected]] = task.model.generate([0], **GREEDY)
    assert answer["generated_text"] == task.model.tokenizer.decode(expected.ids.tolist())
    with pytest.raises(NpformerError, match="expected at least one token, because the model has no start token"):
        npformer.pipeline("text-generation", writers.model(start_id=None))("")


@pytest.mark.parametrize("name", ["stop_strings", "stop_sequence", "stop"])
def test_a_text_ends_with_its_stop_string(name: str, task: TextGeneration) -> None:
    settings = {"do_sample": False, "max_new_tokens": 30, "return_full_text": False}
    [whole] = texts(task("The", **settings))
    stop = whole[4:6]
    [found] = texts(task("The", **settings, **{name: stop}))
    assert stop in found
    assert whole.startswith(found)
    assert len(found) < len(whole)
    assert "".join(task.tokens("The", do_sample=False, max_new_tokens=30, **{name: [stop]})) == found
    assert task(["The", "in"], **settings, **{name: stop})[0] == [{"generated_text": found}]


def test_one_option_by_two_names(task: TextGeneration) -> None:
    with pytest.raises(NpformerError, match="stop: conflicts with stop_strings or another alias of it"):
        task("The", stop="a", stop_strings=["b"])


def test_where_a_stop_string_ends() -> None:
    """A stop string must end in the last token, but may begin in any earlier token. -1 means no token."""
    tokenizer = writers.tokenizer()
    stops = StopStrings(tokenizer, ["other", "é"])
    expected = {"the other": True, "the others": False, "other": True, "oth": False, "caf\u00e9": True, "éa": False}
    for text, ends in expected.items():
        ids = np.array([[-1, -1, -1, *tokenizer.encode(text).ids]])
        assert stops(ids).tolist() == [ends], text
    half = tokenizer.encode("a" + "京").ids
    assert StopStrings(tokenizer, ["京"])(np.array([half, [*half[:-1], 5]])).tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "strings", "ends"),
    [
        ("\U0001f600\n", ["\n"], True),  # the token before the stop string ends a character
        ("中世", ["世"], True),
        (" a\n\n", ["\n\n"], True),
        ("b\n\U0001f600", ["\n"], False),
        ("b\n\U0001f600", ["\n", "a long string"], False),
    ],
)
def test_stop_strings_of_byte_tokens(text: str, strings: list[str], ends: bool) -> None:
    """A decoder turns a run of bytes that begins or ends inside a character into U+FFFD."""
    ids = np.array([byte_fallback.of_bytes(text)])
    assert StopStrings(byte_fallback.tokenizer(), strings)(ids).tolist() == [ends]


def test_pieces_go_on_after_invalid_bytes() -> None:
    """An invalid byte changes the text of earlier bytes, which have already been shown."""
    tokenizer = byte_fallback.tokenizer()
    the = tokenizer.token_to_id("▁the")
    ids = [the, *byte_fallback.of_bytes(b"\n\xf0"), the, *byte_fallback.of_bytes("\n"), the]
    assert tokenizer.decode(ids) == "the\ufffd\ufffd the\n the"
    assert "".join(pieces_of(tokenizer, ids)) == "the\n\ufffd the\n the"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pieces_join_to_the_text_and_are_whole_characters(seed: int, task: TextGeneration) -> None:
    settings = {"seed": seed, "max_new_tokens": 40, "temperature": 2.0}
    pieces = list(task.tokens("naïve", **settings))
    assert len(pieces) > 5
    assert "".join(pieces) == task("naïve", return_full_text=False, **settings)[0]["generated_text"]
    ids = task.model.tokenizer.encode("é京").ids
    assert list(npformer.tasks.writing.pieces(task.model.tokenizer, ids)) == ["é", "京"]
    assert next(iter(npformer.tasks.writing.pieces(task.model.tokenizer, ids[1:2]))) == "\ufffd"


def test_invalid_prompts_are_refused(task: TextGeneration) -> None:
    for wrong in (None, b"a", 3):
        with pytest.raises(NpformerError, match="expected a text, got"):
            task(wrong)
    for name, value, message in (
        ("stop", [""], "stop_strings: expected non-empty texts"),
        ("stop", [1], "stop_strings: expected a text, got int"),
        ("return_full_text", 1, "return_full_text: expected true or false"),
        ("max_new_token", 1, "did you mean 'max_new_tokens'"),
    ):
        with pytest.raises(NpformerError, match=message):
            task("a", **{name: value})


def test_a_text_s_bits_do_not_depend_on_the_others(task: TextGeneration) -> None:
    prompts = ["The other", "in", "é" * 20, "", "The other wind in the"]
    together = task(prompts, **GREEDY, num_beams=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert together == [task(each, **GREEDY) for each in prompts]
