"""Messages in the text-generation pipeline, and conversations that reuse the keys and values of earlier turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import NpformerError
from npformer.tasks.conversation import Conversation
from npformer.tasks.text_generation import TextGeneration
from tests.support import chatters, writers

pytest.importorskip("jinja2", reason="needs the extra `chat`: jinja2")
pytestmark = pytest.mark.extra
ASKED = [{"role": "user", "content": "Hi"}]
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 9}


@pytest.fixture(scope="module", autouse=True)
def rendering_once() -> Iterator[None]:
    with chatters.rendering_once():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chatters.folder(tmp_path_factory.mktemp("m") / "m")


@pytest.fixture(scope="module")
def task(folder: Path) -> TextGeneration:
    made = npformer.pipeline("text-generation", folder)
    assert isinstance(made, TextGeneration)
    return made


def text(task: TextGeneration, messages: Any, **options: Any) -> str:
    [answer] = task(messages, return_full_text=False, **{**GREEDY, **options})
    return str(answer["generated_text"])


@pytest.mark.slow
def test_messages_are_answered_as_transformers_pipeline_does(task: TextGeneration) -> None:
    said = text(task, ASKED)
    answered = [{"generated_text": [*ASKED, {"role": "assistant", "content": said}]}]
    assert task(ASKED, **GREEDY) == answered
    assert task([ASKED, ASKED], **GREEDY) == [answered, answered]
    assert task("Hi", chat=True, **GREEDY) == [{"generated_text": said}]
    assert "".join(task.tokens(ASKED, **GREEDY)) == said
    begun = [*ASKED, {"role": "assistant", "content": "Well"}]
    [continued] = task(begun, **GREEDY)
    assert continued["generated_text"] == [*ASKED, {"role": "assistant", "content": "Well" + text(task, begun)}]
    system = [{"role": "system", "content": "Be brief."}, *ASKED]
    assert text(task, "Hi", chat=True, system="Be brief.") == text(task, system)
    plain, told = (
        task.prepare([ASKED], 0, task.settle(task.options, given))[0].encoded[0].texts[0].ids
        for given in ({}, {"tokenizer_encode_kwargs": {"enable_thinking": False}})
    )
    assert task.tokenizer.decode(told[len(plain) :].tolist()) == "no thought\n"
    assert len(task(ASKED, num_beams=2, num_return_sequences=2, **GREEDY)) == 2


def test_the_system_message_precedes_conversations_without_one(task: TextGeneration) -> None:
    brief, long = ({"role": "system", "content": f"Be {each}."} for each in ("brief", "long"))
    options = task.settle(task.options, {"chat": True, "system": "Be brief."})
    given = task.prepare([ASKED, [long, *ASKED]], 0, options)
    expected = task.prepare([[brief, *ASKED], [long, *ASKED]], 0, task.options)
    for found, each in zip(given, expected, strict=True):
        assert found.encoded[0].texts[0].ids.tolist() == each.encoded[0].texts[0].ids.tolist()


def test_messages_that_are_refused(task: TextGeneration, folder: Path) -> None:
    with pytest.raises(NpformerError, match="got a single message"):
        task(ASKED[0])
    with pytest.raises(NpformerError, match=r"input 1: messages\[0\]\.content: expected a text, got None"):
        task([ASKED, [{"role": "user"}]], **GREEDY)
    with pytest.raises(
        NpformerError, match=r"chat_template_kwargs: expected a dict of the template's variables, got 3"
    ):
        task(ASKED, chat_template_kwargs=3)
    for name in ("messages", "add_generation_prompt"):
        with pytest.raises(NpformerError, match=f"chat_template_kwargs: '{name}' follows from the conversation"):
            task(ASKED, chat_template_kwargs={name: False})
    with pytest.raises(NpformerError, match="system: needs chat=True"):
        task("Hi", system="Be brief.")
    with pytest.raises(
        NpformerError, match=r"the conversation has 5\d\d tokens, which with 9 new tokens exceed the model.s 512"
    ):
        task([{"role": "user", "content": "a" * 500}], long="truncate", **GREEDY)
    with pytest.raises(NpformerError, match=r"no chat template; looked for chat_template\.jinja"):
        npformer.pipeline("text-generation", writers.folder(folder.parent / "plain"))(ASKED)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [101, 986, 100_000])
def test_deep_variables_are_refused(depth: int, task: TextGeneration) -> None:
    with pytest.raises(NpformerError, match=r"^chat_template_kwargs: expected at most 100 levels of lists and dicts"):
        task(ASKED, chat_template_kwargs={"a": nested(depth)})
    with pytest.raises(NpformerError, match=r"messages\[0\]: expected at most 100 levels of lists and dicts"):
        task([{**ASKED[0], "calls": nested(depth)}], **GREEDY)


@pytest.mark.parametrize("value", ["\ud800", ["a\udfff"], {"b": {"\ud800": 1}}])
def test_variables_that_are_not_valid_text_are_refused(value: Any, task: TextGeneration) -> None:
    said = r"character \d is a lone surrogate, which is not valid text$"
    with pytest.raises(NpformerError, match=f"^chat_template_kwargs: {said}"):
        task(ASKED, chat_template_kwargs={"a": value})
    with pytest.raises(NpformerError, match=rf"messages\[0\]: {said}"):
        task([{**ASKED[0], "calls": value}], **GREEDY)


def test_nested_variables_reach_the_template(task: TextGeneration) -> None:
    assert task(ASKED, chat_template_kwargs={"a": nested(99), "enable_thinking": False}, **GREEDY)


def test_a_conversation_computes_only_new_tokens_and_has_the_same_answers(task: TextGeneration) -> None:
    conversation = Conversation(task, **{**GREEDY, "max_new_tokens": 24}, logprobs=2)
    before: list[int] = []
    for turn, said in enumerate(("One.", "And two?", "<|im_end|>")):
        answer = "".join(conversation.say(said))
        writer, asked = conversation.writer, conversation.messages[:-1]
        assert writer is not None
        assert answer == text(task, asked, max_new_tokens=24)
        fresh = task.writing(asked, **{**GREEDY, "max_new_tokens": 24}, logprobs=2)
        assert "".join(fresh) == answer
        assert fresh.likely is not None
        assert writer.likely is not None
        assert np.array_equal(fresh.likely.scores, writer.likely.scores)
        prompt = writer.prompt.ids.tolist()
        assert conversation.n_kept >= (len(before) if turn else 0)
        assert conversation.n_kept < len(prompt)
        before = prompt
    assert [each["role"] for each in conversation.messages] == ["user", "assistant"] * 3


def test_an_interrupted_answer_is_kept_and_a_refused_message_is_not(task: TextGeneration) -> None:
    conversation = Conversation(task, "Be brief.", **GREEDY, eos_token_id=[])
    for _ in conversation.say("Hi"):
        assert conversation.writer is not None
        conversation.writer.stopped = True
    assert len(conversation.writer.ids) < 9
    messages = conversation.messages
    assert [each["role"] for each in messages] == ["system", "user", "assistant"]
    with pytest.raises(NpformerError, match="leave out earlier messages"):
        list(conversation.say("a" * 500))
    assert conversation.messages == messages
    assert "".join(conversation.say("Go on")) == text(task, conversation.messages[:-1], eos_token_id=[])


def test_settings_of_the_folder(tmp_path: Path) -> None:
    """The folder stores several end tokens, and stop strings. A call can replace the stop strings."""
    plain = npformer.pipeline("text-generation", chatters.folder(tmp_path / "m"))
    whole = plain("a", **{**GREEDY, "max_new_tokens": 40}, return_full_text=False, eos_token_id=[])[0]
    stop = whole["generated_text"][2:4]
    stored = {"stop_strings": [stop], "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.8, "min_p": 0.05}
    stored |= {"repetition_penalty": 1.05, "max_new_tokens": 40}
    task = npformer.pipeline("text-generation", chatters.folder(tmp_path / "n", generation=stored))
    assert isinstance(task, TextGeneration)
    settings = task.resolved(task.options)
    assert settings.end_ids == (chatters.END, chatters.STOP)
    assert {name: getattr(settings, name) for name in stored if name != "stop_strings"} == {
        name: value for name, value in stored.items() if name != "stop_strings"
    }
    greedy = {"do_sample": False, "repetition_penalty": 1.0, "return_full_text": False, "eos_token_id": []}
    [stopped] = task("a", **greedy)
    assert (stopped["generated_text"].endswith(stop), stopped.ended) == (True, "stop")
    assert task("a", stop_strings=[], **greedy)[0]["generated_text"] == whole["generated_text"]


def test_log_probabilities_are_of_the_model_not_of_the_settings(task: TextGeneration) -> None:
    [[greedy], [drawn]] = (
        task("a", logprobs=3, **GREEDY),
        task("a", logprobs=3, seed=1, temperature=9.0, max_new_tokens=9),
    )
    for each in (greedy, drawn):
        assert each.likely.tokens.shape == (each.n_tokens, 4)
        ids = np.concatenate([task.encoder.ids("a"), each.likely.tokens[:-1, 0]])
        logits = task.model.run([npformer.Text(ids)])[0]["logits"][-9:]
        expected = npformer.engine.functions.log_softmax(logits)
        rows = np.arange(9)[:, None]
        assert np.array_equal(expected[rows, each.likely.tokens], each.likely.scores)
        assert np.array_equal(np.sort(expected, axis=1)[:, :-4:-1], each.likely.scores[:, 1:])
    assert (greedy.likely.tokens[:, 0] == greedy.likely.tokens[:, 1]).all()
    assert task("a", **GREEDY)[0].likely is None
    with pytest.raises(NpformerError, match="logprobs: not supported with beam search"):
        task("a", logprobs=3, num_beams=2)
