"""What models that write after a prompt answer: /generate as text-generation-inference (TGI) has it, and OpenAI's
/v1/completions.

Requests with the same settings share batches, but for those that draw by a seed: what is drawn for a text depends on
its place in a batch. A stream has an event for each piece, which is computed when its turn comes.

References
----------
https://huggingface.github.io/text-generation-inference and https://platform.openai.com/docs/api-reference/completions.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

from npformer.errors import NpformerError
from npformer.serve import fields as f
from npformer.serve.fields import Field
from npformer.serve.models import Prepared, Served, TaskWork, choose
from npformer.serve.replies import as_json
from npformer.serve.routes import MODEL, TRUNCATE, Reply, Service
from npformer.tasks.text_generation import TextGeneration

SEARCH = {
    "max_new_tokens": Field(f.whole(1), None),
    "do_sample": Field(f.BOOLEAN, None),
    "temperature": Field(f.number(1e-6, 1e6), None),
    "top_k": Field(f.whole(0), None),
    "top_p": Field(f.number(1e-6, 1), None),
    "seed": Field(f.whole(0, 2**63 - 1), None, "Of sampling; a random one unless given."),
    "repetition_penalty": Field(f.number(1e-6, 1e6), None),
    "no_repeat_ngram_size": Field(f.whole(0), None),
}
GENERATE = {
    **SEARCH,
    "stop": Field(f.STOPS, None, "A text ends with the first of these that it has, which stays in it."),
    "return_full_text": Field(f.BOOLEAN, None, "Put the prompt before the text."),
    "details": Field(f.BOOLEAN, None, "Tell the number of tokens, and why the text ended."),
    "best_of": Field(f.nothing_else("one text is written", 1), None),
    "watermark": Field(f.nothing_else("texts are not marked", False), None),
    "decoder_input_details": Field(f.nothing_else("the prompt's tokens are not told", False), None),
}
COMPLETIONS = {
    "prompt": Field(f.OPENAI_TEXTS),
    **MODEL,
    "max_tokens": Field(f.whole(1), 16),
    "temperature": Field(f.number(0, 2), 1.0, "0: the likeliest token each time."),
    "top_p": Field(f.number(1e-6, 1), 1.0),
    "n": Field(f.whole(1, 16), 1, "Texts for each prompt."),
    "stop": Field(f.STOPS, None, "A text ends before the first of these that it has."),
    "seed": Field(f.whole(0, 2**63 - 1), None, "A random one unless given."),
    "echo": Field(f.BOOLEAN, False, "Put the prompt before the text."),
    "stream": Field(f.BOOLEAN, False, "Server-sent events, for one text of one prompt."),
    "stream_options": Field(f.an_object({"include_usage": Field(f.BOOLEAN, False)}), None),
    "best_of": Field(f.nothing_else("n texts are written", 1), None),
    "logprobs": Field(f.nothing_else("probabilities are not told"), None),
    "suffix": Field(f.nothing_else("a text is written after a prompt only"), None),
    "logit_bias": Field(f.nothing_else("logits are not changed", {}), None),
    "frequency_penalty": Field(f.nothing_else("there is no such penalty", 0), None),
    "presence_penalty": Field(f.nothing_else("there is no such penalty", 0), None),
    "user": Field(f.TEXT, None, "Has no effect."),
    **TRUNCATE,
}
TGI_REASON = {"end": "eos_token", "stop": "stop_sequence", "length": "length"}
OPENAI_REASON = {"end": "stop", "stop": "stop", "length": "length"}


def _settled(task: TextGeneration, given: dict[str, Any], where: str) -> Any:
    """The task's options with those of a request."""
    try:
        return task.settle(task.options, {"num_beams": 1, **given})
    except NpformerError as error:
        raise f.wrong(where, str(error)) from None


async def _answers(
    service: Service, task: TextGeneration, options: Any, texts: f.Texts, truncate: bool, where: str
) -> tuple[list[Any], Prepared]:
    """The texts for each prompt. A batch counts tokens that may be written as those of prompts."""
    prepared = await service.prepared(task, texts, truncate, where, options)
    new, settings = options.settings.get("max_new_tokens", 0), options.settings
    together = not (settings.get("do_sample") and settings.get("seed") is not None)
    weighed = replace(prepared, sizes=[size + new for size in prepared.sizes])
    return await service.answers(TaskWork(task, options, together), weighed, where, texts.several), prepared


def _task(served: Served) -> TextGeneration:
    task = served.tasks["text-generation"]
    assert isinstance(task, TextGeneration)
    return task


# --- text-generation-inference ---------------------------------------------------------------------------------------


async def generated(service: Service, given: dict[str, Any], served: Served) -> Reply:
    """Draws tokens only if a setting of drawing is given, as TGI does."""
    task, known = _task(served), {k: each for k, each in (given["parameters"] or {}).items() if each is not None}
    details = known.pop("details", False)
    for name in ("best_of", "watermark", "decoder_input_details"):
        known.pop(name, None)
    draws = bool(known.keys() & {"temperature", "top_k", "top_p"})
    usual = {"do_sample": draws, "temperature": 1.0, "top_k": 0, "return_full_text": False}
    options = _settled(task, {**usual, **known}, "parameters")
    one = f.Texts([given["inputs"]], several=False)
    if given["stream"]:
        prepared = await service.prepared(task, one, given["truncate"], "inputs", options)
        writer = task.writing(given["inputs"], **_again(options, prepared))
        pieces = iter(writer)
        first = await service.piece(pieces)  # before the answer begins, so that an error has its status
        before = given["inputs"] if options.return_full_text else ""

        def told() -> dict[str, Any]:
            return _details(len(writer.ids), writer.ended, options)

        shown = events(service, first, pieces, before, told if details else None)
        return Reply(cut=prepared.cut, pieces=shown, media_type="text/event-stream")
    [[answer]], prepared = await _answers(service, task, options, one, given["truncate"], "inputs")
    more = {"details": _details(answer.n_tokens, answer.ended, options)} if details else {}
    return Reply({"generated_text": answer["generated_text"], **more}, prepared.cut)


def _again(options: Any, prepared: Prepared) -> dict[str, Any]:
    """Options as keywords, with those of the search; a prompt that is cut has been allowed to be."""
    long = "truncate" if prepared.cut else "error"
    return {"long": long, "stop_strings": options.stop_strings, **options.settings}


def _details(n_tokens: int, ended: str, options: Any) -> dict[str, Any]:
    seed = options.settings.get("seed")
    return {"finish_reason": TGI_REASON[ended], "generated_tokens": n_tokens, "seed": seed, "prefill": [], "tokens": []}


async def events(
    service: Service, piece: str | None, pieces: Iterator[str], before: str = "", told: Any = None
) -> AsyncIterator[bytes]:
    """An event for each piece, and one with the whole text; each piece is computed when its turn comes."""
    whole = before
    index = 0
    while True:
        index += 1
        whole += piece or ""
        token = {"text": piece or "", "special": piece is None}
        event = {"index": index, "token": token, "generated_text": whole if piece is None else None, "details": None}
        if piece is None and told is not None:
            event["details"] = told()
        yield b"data:" + as_json(event) + b"\n\n"
        if piece is None:
            return
        piece = await service.piece(pieces)


# --- OpenAI ----------------------------------------------------------------------------------------------------------


async def completions(service: Service, given: dict[str, Any]) -> Reply:
    served = choose(service.models, given["model"], "text-generation")
    task, texts, n = _task(served), given["prompt"], given["n"]
    draws = given["temperature"] > 0
    settings = {
        "max_new_tokens": given["max_tokens"], "do_sample": draws, "top_k": 0, "top_p": given["top_p"],
        "num_return_sequences": n, "return_full_text": False, "seed": given["seed"],
        "stop_strings": given["stop"] or [],
        **({"temperature": given["temperature"]} if draws else {}),
    }  # fmt: skip
    if n > 1 and not draws:
        raise f.wrong("n", "expected 1 with temperature 0, where all texts are the same")
    options = _settled(task, settings, "body")
    frame = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time())}
    frame["model"] = served.name
    if given["stream"]:
        return await _streamed(service, given, task, options, frame)
    found, prepared = await _answers(service, task, options, texts, given["truncate"], "prompt")
    flat = [(text, each) for text, answer in zip(texts.items, found, strict=True) for each in answer]
    choices = []
    for i, (text, each) in enumerate(flat):
        shown = until(each["generated_text"], options.stop_strings)
        choices.append(_choice(i, str(text) + shown if given["echo"] else shown, each.ended))
    usage = _usage(sum(prepared.sizes), sum(each.n_tokens for _, each in flat))
    return Reply({**frame, "choices": choices, "usage": usage}, prepared.cut)


async def _streamed(
    service: Service, given: dict[str, Any], task: TextGeneration, options: Any, frame: dict[str, Any]
) -> Reply:
    texts = given["prompt"]
    if len(texts.items) > 1 or given["n"] > 1:
        raise f.wrong("stream", "expected one prompt and n of 1, got more")
    prepared = await service.prepared(task, texts, given["truncate"], "prompt", options)
    writer = task.writing(texts.items[0], **_again(options, prepared))
    pieces = withheld(iter(writer), options.stop_strings)
    first = await service.piece(pieces)  # before the answer begins, so that an error has its status

    async def lines() -> AsyncIterator[bytes]:
        piece = first
        if given["echo"]:
            yield _event({**frame, "choices": [_choice(0, texts.items[0], None)]})
        while piece is not None:
            yield _event({**frame, "choices": [_choice(0, piece, None)]})
            piece = await service.piece(pieces)
        yield _event({**frame, "choices": [_choice(0, "", writer.ended)]})
        if (given["stream_options"] or {}).get("include_usage"):
            yield _event({**frame, "choices": [], "usage": _usage(sum(prepared.sizes), len(writer.ids))})
        yield b"data: [DONE]\n\n"

    return Reply(cut=prepared.cut, pieces=lines(), media_type="text/event-stream")


def until(text: str, stops: tuple[str, ...]) -> str:
    """The text before the first of the stop strings."""
    return text[: min([place for each in stops if (place := text.find(each)) >= 0], default=len(text))]


def withheld(pieces: Iterator[str], stops: tuple[str, ...]) -> Iterator[str]:
    """Yields a text's pieces up to a stop string; the end that may be the beginning of one waits."""
    longest, whole, shown = max(map(len, stops), default=1), "", 0
    for piece in pieces:
        whole += piece
        safe = min(len(until(whole, stops)), len(whole) - longest + 1)
        if safe > shown:
            yield whole[shown:safe]
            shown = safe
    if rest := until(whole, stops)[shown:]:
        yield rest


def _choice(index: int, text: str | Any, ended: str | None) -> dict[str, Any]:
    reason = None if ended is None else OPENAI_REASON[ended]
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def _usage(prompt: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def _event(value: Any) -> bytes:
    return b"data: " + as_json(value) + b"\n\n"
