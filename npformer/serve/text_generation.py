"""Text generation after a prompt: /generate of text-generation-inference (TGI), and OpenAI's /v1/completions.

Requests with the same settings share batches. A request with a seed has its own batch, because a sampled text depends
on its position in the batch. A stream has an event for each piece, and each piece waits for its turn in the queue. The
prompt is read with the first piece. The limits apply to each prompt together with all its new tokens.

References
----------
https://huggingface.github.io/text-generation-inference and https://platform.openai.com/docs/api-reference/completions.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from npformer.common.errors import NpformerError
from npformer.serve import fields as f
from npformer.serve.fields import Field, Fields
from npformer.serve.logprobs import NewScores, Scored, of_completion, scored
from npformer.serve.models import Prepared, TaskWork, choose
from npformer.serve.replies import as_json
from npformer.serve.routes import MODEL, TRUNCATE, Reply, Service
from npformer.tasks.text_generation import TextGeneration, Writer
from npformer.tasks.writing import Writing

COLDEST = 1e-6  # below this temperature, sampling is practically greedy

#: Sampling parameters that OpenAI does not have, under the names that OpenAI's clients use with other servers.
MORE_LIMITS = {
    "min_p": Field(f.number(0, 1), None, "Sample from tokens at least this fraction as likely as the best one."),
    "typical_p": Field(f.number(1e-6, 1), None, "Sample from the most typical tokens with this total probability."),
}
SEARCH = {
    "max_new_tokens": Field(f.whole(1), None, "Maximum number of new tokens."),
    "do_sample": Field(f.BOOLEAN, None, "Sample, instead of greedy decoding or beam search."),
    "temperature": Field(f.number(COLDEST, 1e6), None, "Divide logits by this number before sampling."),
    "top_k": Field(f.whole(0), None, "Sample from this many most likely tokens (0: all)."),
    "top_p": Field(f.number(0, 1), None, "Sample from the most likely tokens with this total probability."),
    **MORE_LIMITS,
    "seed": Field(f.whole(0, 2**63 - 1), None, "Seed for sampling (default: random)."),
    "repetition_penalty": Field(f.number(1e-6, 1e6), None, "Above 1: earlier tokens become less likely."),
    "no_repeat_ngram_size": Field(f.whole(0), None, "Do not repeat any sequence of this many tokens (0: no limit)."),
}
WITHOUT_EFFECT = {
    "best_of": Field(f.nothing_else("only one text is generated", 1), None),
    "watermark": Field(f.nothing_else("there is no watermarking", False), None),
    "decoder_input_details": Field(f.nothing_else("the prompt's tokens are not returned", False), None),
}
GENERATE = {
    **SEARCH,
    "stop": Field(f.STOPS, None, "Stop strings: generation stops after the first of these, which stays in the text."),
    "return_full_text": Field(f.BOOLEAN, None, "Include the prompt in the text."),
    "details": Field(f.BOOLEAN, None, "Return the number of tokens and the reason for stopping."),
    **WITHOUT_EFFECT,
}
COMPLETIONS = {
    "prompt": Field(f.OPENAI_TEXTS),
    **MODEL,
    "max_tokens": Field(f.whole(1), 16),
    "temperature": Field(f.number(0, 2), 1.0, f"Below {COLDEST}: greedy decoding."),
    "top_p": Field(f.number(0, 1), 1.0),
    **MORE_LIMITS,
    "n": Field(f.whole(1, 16), 1, "Texts per prompt."),
    "stop": Field(f.STOPS, None, "Stop strings: generation stops before the first of these."),
    "seed": Field(f.whole(0, 2**63 - 1), None, "Seed for sampling (default: random)."),
    "echo": Field(f.BOOLEAN, False, "Include the prompt in the text."),
    "stream": Field(f.BOOLEAN, False, "Send server-sent events; requires one prompt and n=1."),
    "stream_options": Field(
        f.an_object(
            {
                "include_usage": Field(f.BOOLEAN, False),
                "include_obfuscation": Field(f.BOOLEAN, None, "Ignored: no random characters are sent."),
            }
        ),
        None,
    ),
    "best_of": Field(f.nothing_else("n texts are generated", 1), None),
    "logprobs": Field(f.whole(0, 5), None, "Log probabilities of each new token and of this many top tokens."),
    "suffix": Field(f.nothing_else("there is no infilling"), None),
    "logit_bias": Field(f.nothing_else("logits cannot be biased", {}), None),
    "frequency_penalty": Field(f.nothing_else("there are no additive penalties", 0), None),
    "presence_penalty": Field(f.nothing_else("there are no additive penalties", 0), None),
    "user": Field(f.TEXT, None, "Ignored."),
    **TRUNCATE,
}
TGI_REASON = {"end": "eos_token", "stop": "stop_sequence", "length": "length"}
OPENAI_REASON = {"end": "stop", "stop": "stop", "length": "length"}

COST = 8  # cost of a source token, in tokens of an encoder; high, because the decoder runs for each new token
STEP = 4  # batch cost of a new token, in prompt tokens; high, because prompt tokens are read together
#: A parameter of /generate for translation only.
NO_LANGUAGE = {"tgt_lang": Field(f.nothing_else("only translation models take a target language"), None)}


def settled(task: Writing, given: dict[str, Any], where: str, length: str = "max_new_tokens") -> Any:
    """Returns the task's options, updated with a request's values. `length`: the request's name for max_new_tokens."""
    try:
        return task.settle(task.options, given)
    except NpformerError as error:
        raise f.wrong(where, str(error).replace("max_new_tokens", length)) from None


def effective(parameters: dict[str, Any] | None, others: Fields) -> dict[str, Any]:
    """Returns the parameters of a request that have an effect.

    Refuses other parameters unless they have their default values. others: parameters of other kinds of models.
    """
    given = {name: value for name, value in (parameters or {}).items() if value is not None}
    for name, each in {**WITHOUT_EFFECT, **others}.items():
        if name in given:
            each.kind.read(f"parameters.{name}", given.pop(name))
    return given


async def begun(service: Service, task: Writing, pieces: Iterator[str], where: str) -> AsyncIterator[str]:
    """Computes the first piece of a text at once, so that errors have an HTTP status, and later pieces in turn."""
    try:
        first = await service.piece(task, pieces)
    except NpformerError as error:
        raise f.wrong(where, str(error)) from None

    async def one_by_one() -> AsyncIterator[str]:
        piece = first
        while piece is not None:
            yield piece
            piece = await service.piece(task, pieces)

    return one_by_one()


@dataclass(frozen=True)
class Prompts:
    """The prompts of a request, each with a writer and a cost in a batch."""

    prepared: Prepared
    writers: list[Writer]
    sizes: list[int]


async def read_prompts(
    service: Service, task: TextGeneration, texts: f.Texts, truncate: bool, where: str, options: Any
) -> Prompts:
    """Reads the prompts of a request. Refuses prompts that exceed the limits, alone or with their new tokens."""
    prepared = await service.prepared(task, texts, truncate, where, options)

    def writers() -> list[Writer]:
        return [Writer(task, request.encoded[0].texts[0], options) for request in prepared.requests]

    try:
        found: list[Writer] = await service.in_thread(writers)
    except NpformerError as error:
        raise f.wrong(where, str(error)) from None
    copies = [each.settings.num_return_sequences for each in found]
    new = [n * each.settings.max_new_tokens for n, each in zip(copies, found, strict=True)]
    read = [n * len(each.prompt) for n, each in zip(copies, found, strict=True)]
    service.limits.check_texts(where, sum(copies))
    service.limits.check_tokens(f"{where}, with the new tokens", sum(read) + sum(new))
    return Prompts(prepared, found, [before + STEP * after for before, after in zip(read, new, strict=True)])


async def _answers(
    service: Service, task: TextGeneration, prompts: Prompts, several: bool, where: str, options: Any
) -> list[Any]:
    """Returns the texts generated after each prompt."""
    seeded = options.settings.get("do_sample") and options.settings.get("seed") is not None
    return await service.answers(TaskWork(task, options, not seeded), prompts.prepared, where, several, prompts.sizes)


# --- text-generation-inference ---------------------------------------------------------------------------------------


async def generated(service: Service, given: dict[str, Any], task: TextGeneration) -> Reply:
    """Returns the text generated after a prompt. Sampling is used only if a sampling parameter is given, as in TGI."""
    known = effective(given["parameters"], NO_LANGUAGE)
    details = known.pop("details", False)
    draws = bool(known.keys() & {"temperature", "top_k", "top_p", *MORE_LIMITS})
    usual = {"do_sample": draws, "temperature": 1.0, "top_k": 0, "return_full_text": False}
    settings = {"num_beams": 1, "num_return_sequences": 1, **usual, **known}
    options = await service.in_thread(settled, task, settings, "parameters")
    one = f.Texts([given["inputs"]], several=False)
    prompts = await read_prompts(service, task, one, given["truncate"], "inputs", options)
    if given["stream"]:
        [writer] = prompts.writers
        before = given["inputs"] if options.return_full_text else ""

        def told() -> dict[str, Any]:
            return _details(len(writer.ids), writer.ended, options)

        return await streamed(service, task, iter(writer), prompts.prepared, before, told if details else None)
    [[answer]] = await _answers(service, task, prompts, False, "inputs", options)
    more = {"details": _details(answer.n_tokens, answer.ended, options)} if details else {}
    return Reply(prompts.prepared, {"generated_text": answer["generated_text"], **more})


def _details(n_tokens: int, ended: str, options: Any) -> dict[str, Any]:
    seed = options.settings.get("seed")
    return {"finish_reason": TGI_REASON[ended], "generated_tokens": n_tokens, "seed": seed, "prefill": [], "tokens": []}


async def streamed(
    service: Service, task: Writing, pieces: Iterator[str], prepared: Prepared, before: str = "", told: Any = None
) -> Reply:
    """Returns a stream with an event for each piece of a text, and a last event with the whole text."""
    shown = await begun(service, task, pieces, "inputs")

    async def events() -> AsyncIterator[bytes]:
        whole, index = before, 1
        async for piece in shown:
            whole += piece
            token = {"text": piece, "special": False}
            shown_piece = {"index": index, "token": token, "generated_text": None, "details": None}
            yield b"data:" + as_json(shown_piece) + b"\n\n"
            index += 1
        last = {"index": index, "token": {"text": "", "special": True}, "generated_text": whole}
        yield b"data:" + as_json({**last, "details": None if told is None else told()}) + b"\n\n"

    return Reply(prepared, pieces=events(), media_type="text/event-stream")


# --- OpenAI ----------------------------------------------------------------------------------------------------------


async def completions(service: Service, given: dict[str, Any]) -> Reply:
    name, task = choose(service.models, given["model"], "text-generation")
    texts, n = given["prompt"], given["n"]
    draws = given["temperature"] >= COLDEST
    settings = {
        "max_new_tokens": given["max_tokens"], "do_sample": draws, "top_k": 0, "top_p": given["top_p"],
        "num_beams": 1, "num_return_sequences": n, "return_full_text": False, "seed": given["seed"],
        "stop_strings": given["stop"] or [], **{name: given[name] for name in ("logprobs", *MORE_LIMITS)},
        **({"temperature": given["temperature"]} if draws else {}),
    }  # fmt: skip
    if n > 1 and not draws:
        raise f.wrong("n", f"expected 1 with a temperature below {COLDEST}, because all texts would be equal")
    if given["echo"] and given["logprobs"] is not None:
        raise f.wrong("echo", "expected false with logprobs: log probabilities of prompt tokens are not computed")
    options = await service.in_thread(settled, task, settings, "body", "max_tokens")
    frame = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time())}
    frame["model"] = name
    if given["stream"] and (len(texts.items) > 1 or n > 1):
        raise f.wrong("stream", "expected one prompt and n=1 for a stream, got more")
    prompts = await read_prompts(service, task, texts, given["truncate"], "prompt", options)
    if given["stream"]:
        return await _completed(service, given, prompts, options, frame)
    found = await _answers(service, task, prompts, texts.several, "prompt", options)
    flat = [(text, each) for text, answer in zip(texts.items, found, strict=True) for each in answer]

    def choices() -> Iterator[dict[str, Any]]:
        for i, (text, each) in enumerate(flat):
            shown = until(each["generated_text"], options.stop_strings)
            tokens = None if each.likely is None else scored(task.model.tokenizer, each.likely, each.ended)
            yield _choice(i, str(text) + shown if given["echo"] else shown, each.ended, tokens)

    usage = usage_of(sum(prompts.prepared.sizes), sum(each.n_tokens for _, each in flat))
    return Reply(prompts.prepared, {**frame, "choices": choices(), "usage": usage})


async def _completed(
    service: Service, given: dict[str, Any], prompts: Prompts, options: Any, frame: dict[str, Any]
) -> Reply:
    """Returns a stream with a chunk for each piece of a text, and a last chunk with the finish reason."""
    [writer] = prompts.writers
    shown = await begun(service, writer.task, withheld(iter(writer), options.stop_strings), "prompt")

    scores, wanted, offset = NewScores(writer), given["logprobs"] is not None, 0

    def chunk(text: str, ended: str | None = None) -> bytes:
        nonlocal offset
        tokens = scores(ended is not None) if wanted else None
        choice = _choice(0, text, ended, tokens, offset)
        offset += sum(len(each.text) for each in tokens or ())
        return event({**frame, "choices": [choice]})

    async def chunks() -> AsyncIterator[bytes]:
        if given["echo"]:
            yield await service.in_thread(chunk, given["prompt"].items[0])
        async for piece in shown:
            yield await service.in_thread(chunk, piece)
        yield await service.in_thread(chunk, "", writer.ended)
        if (given["stream_options"] or {}).get("include_usage"):
            yield event({**frame, "choices": [], "usage": usage_of(sum(prompts.prepared.sizes), len(writer.ids))})
        yield b"data: [DONE]\n\n"

    return Reply(prompts.prepared, pieces=chunks(), media_type="text/event-stream")


def until(text: str, stops: tuple[str, ...]) -> str:
    """Returns a text up to its first stop string."""
    return text[: min([place for each in stops if (place := text.find(each)) >= 0], default=len(text))]


def withheld(pieces: Iterator[str], stops: tuple[str, ...]) -> Iterator[str]:
    """Yields the pieces of a text up to a stop string. Possible beginnings of a stop string wait for the next piece."""
    longest, whole, shown = max(map(len, stops), default=1), "", 0
    for piece in pieces:
        whole += piece
        safe = min(len(until(whole, stops)), len(whole) - longest + 1)
        if safe > shown:
            yield whole[shown:safe]
            shown = safe
    if rest := until(whole, stops)[shown:]:
        yield rest


def _choice(
    index: int, text: str | Any, ended: str | None, tokens: list[Scored] | None = None, offset: int = 0
) -> dict[str, Any]:
    reason = None if ended is None else OPENAI_REASON[ended]
    logprobs = None if tokens is None else of_completion(tokens, offset)
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def usage_of(prompt: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def event(value: Any) -> bytes:
    return b"data: " + as_json(value) + b"\n\n"
