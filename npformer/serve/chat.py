"""Answers to conversations: OpenAI's /v1/chat/completions, with whole answers or streams.

Each token of an answer waits for its turn in the queue of all requests, so generation stops when the client
disconnects. Settings that are missing in a request come from the model's generation_config.json, or else from the task.

References
----------
https://platform.openai.com/docs/api-reference/chat.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from npformer.common.errors import NpformerError
from npformer.generation.state import PromptState
from npformer.serve import fields as f
from npformer.serve.fields import Field, Refusal
from npformer.serve.logprobs import NewScores, of_chat
from npformer.serve.models import choose
from npformer.serve.routes import MODEL, Reply, Route, Service
from npformer.serve.text_generation import (
    COLDEST,
    COMPLETIONS,
    MORE_LIMITS,
    OPENAI_REASON,
    begun,
    event,
    read_prompts,
    settled,
    usage_of,
    withheld,
)
from npformer.tasks.text_generation import TextGeneration, Writer

NO_TOOLS = "there are no tools"
MESSAGE = {
    "role": Field(f.one_of("system", "developer", "user", "assistant"), what="developer means system."),
    "content": Field(f.CONTENT, what="A text, or a list of its parts."),
    "name": Field(f.TEXT, None, "Ignored."),
    "refusal": Field(f.TEXT, None, "Ignored."),
    # Clients send earlier answers back with all fields, in which an empty value is allowed.
    **{name: Field(f.nothing_else(NO_TOOLS, []), None) for name in ("tool_calls", "function_call")},
    **{name: Field(f.nothing_else("models read texts", []), None) for name in ("annotations", "audio")},
}
OWN = "default: from the model's generation_config.json"
CHAT = {
    "messages": Field(f.messages(MESSAGE)),
    **MODEL,
    "max_completion_tokens": Field(f.whole(1), None, "Maximum number of tokens (default: 1024, or as many as fit)."),
    "max_tokens": Field(f.whole(1), None, "The older name of max_completion_tokens."),
    "temperature": Field(f.number(0, 2), None, f"Below {COLDEST}: greedy decoding ({OWN})."),
    "top_p": Field(f.number(0, 1), None, f"({OWN})"),
    "top_k": Field(f.whole(0), None, f"Sample from the most likely tokens ({OWN})."),
    **MORE_LIMITS,
    "repetition_penalty": Field(f.number(1e-6, 1e6), None),
    **{name: COMPLETIONS[name] for name in ("n", "stop", "seed")},
    "stream": Field(f.BOOLEAN, False, "Send server-sent events."),
    "stream_options": COMPLETIONS["stream_options"],
    "logprobs": Field(f.BOOLEAN, False, "Return the log probabilities of the answer's tokens."),
    "top_logprobs": Field(f.whole(0, 20), None, "With logprobs: also return this many top tokens at each position."),
    "chat_template_kwargs": Field(f.JSON_OBJECT, None, "Additional variables for the chat template."),
    "response_format": Field(f.an_object({"type": Field(f.nothing_else("answers are texts", "text"))}), None),
    "tools": Field(f.nothing_else(NO_TOOLS, []), None),
    "tool_choice": Field(f.nothing_else(NO_TOOLS, "none", "auto"), None),
    "store": Field(f.nothing_else("nothing is stored", False), None),
    "parallel_tool_calls": Field(f.BOOLEAN, None, f"Ignored, because {NO_TOOLS}."),
    **{name: COMPLETIONS[name] for name in ("logit_bias", "frequency_penalty", "presence_penalty", "user")},
    **{name: Field(f.TEXT, None, "Ignored.") for name in ("safety_identifier", "prompt_cache_key", "service_tier")},
    "metadata": Field(f.JSON_OBJECT, None, "Ignored."),
}


async def chat_completions(service: Service, given: dict[str, Any]) -> Reply:
    name, task = choose(service.models, given["model"], "text-generation")
    options = await service.in_thread(_settled, task, given)
    messages = [{"role": _role(each["role"]), "content": each["content"]} for each in given["messages"]]
    try:
        where = await service.in_thread(lambda: task.chat.where)
    except NpformerError:
        raise f.wrong("model", "it has no chat template; use /v1/completions") from None
    try:
        one = f.Texts([messages], several=False)  # type: ignore[list-item]
        rendering = replace(service, in_thread=service.in_renderer)
        prompts = await read_prompts(rendering, task, one, False, "messages", options)
    except Refusal as refusal:  # the message must not show the template's path to the client
        raise Refusal(refusal.status, refusal.message.replace(f"{where}: ", ""), refusal.kind) from None
    [writer] = prompts.writers
    n, new = given["n"], writer.settings.max_new_tokens
    if n > 1 and not writer.settings.do_sample:
        raise f.wrong("n", "expected 1 with greedy decoding, where all answers would be equal")
    service.limits.check_tokens("messages, with the new tokens", n * (len(writer.prompt) + new))
    answers = ChatAnswers(service, [writer, *(Writer(task, writer.prompt, _nth(options, i)) for i in range(1, n))])
    kind = "chat.completion.chunk" if given["stream"] else "chat.completion"
    frame = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": name}
    first = await answers.begun(0)
    if given["stream"]:
        counts = (given["stream_options"] or {}).get("include_usage", False)
        return Reply(prompts.prepared, pieces=answers.chunks(first, frame, counts), media_type="text/event-stream")
    contents = [await answers.whole(first if i == 0 else await answers.begun(i)) for i in range(n)]
    return Reply(prompts.prepared, {**frame, "choices": answers.choices(contents), "usage": answers.usage})


def _role(role: str) -> str:
    return "system" if role == "developer" else role


def _settled(task: TextGeneration, given: dict[str, Any]) -> Any:
    """Returns the task's options, overridden by the request's options."""
    temperature = given["temperature"]
    settings = {name: given[name] for name in ("top_p", "top_k", "repetition_penalty", "seed", *MORE_LIMITS)}
    length = "max_tokens" if given["max_completion_tokens"] is None else "max_completion_tokens"
    settings["max_new_tokens"] = given[length]
    if temperature is not None:
        settings |= {"do_sample": temperature >= COLDEST} | (
            {"temperature": temperature} if temperature >= COLDEST else {}
        )
    if given["logprobs"]:
        settings["logprobs"] = given["top_logprobs"] or 0
    elif given["top_logprobs"] is not None:
        raise f.wrong("top_logprobs", "expected logprobs=true with this field")
    if given["stop"] is not None:
        settings["stop_strings"] = given["stop"]
    settings["chat_template_kwargs"] = given["chat_template_kwargs"]
    fixed = {"num_beams": 1, "num_return_sequences": 1, "chat": True, "return_full_text": False}
    return settled(task, {**fixed, **settings}, "body", length)


def _nth(options: Any, i: int) -> Any:
    """Returns the options of answer i. If the request has a seed, each answer gets a different seed."""
    seed = options.settings.get("seed")
    return options if seed is None else replace(options, settings={**options.settings, "seed": (seed + i) % 2**63})


class ChatAnswers:
    """The n answers to a conversation, which are generated one after another. The prompt is read once."""

    def __init__(self, service: Service, writers: list[Writer]) -> None:
        self.service, self.writers = service, writers
        self.scores = list(map(NewScores, writers))

    @property
    def usage(self) -> dict[str, int]:
        return usage_of(len(self.writers[0].prompt), sum(len(each.ids) for each in self.writers))

    async def begun(self, i: int) -> AsyncIterator[str]:
        """Yields the pieces of answer i. Each piece is computed in its turn."""
        return await begun(self.service, self.writers[i].task, self._pieces(i), "messages")

    def _pieces(self, i: int) -> Iterator[str]:
        writer, read = self.writers[i], self.writers[0].stream
        if i and read is not None and isinstance(read.state, PromptState):
            ids = writer.prompt.ids
            writer.prompt = read.state.continued(ids, len(ids) - 1)
        return withheld(iter(writer), tuple(writer.options.stop_strings))

    async def whole(self, pieces: AsyncIterator[str]) -> str:
        """Returns the text of an answer from its pieces."""
        return "".join([piece async for piece in pieces])

    def choices(self, contents: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yields a choice for each answer's text."""
        for i, content in enumerate(contents):
            message = {"role": "assistant", "content": content, "refusal": None}
            ended = OPENAI_REASON[self.writers[i].ended]
            yield {"index": i, "message": message, "logprobs": self._logprobs(i, last=True), "finish_reason": ended}

    async def chunks(self, first: AsyncIterator[str], frame: dict[str, Any], counts: bool) -> AsyncIterator[bytes]:
        """Yields an event for each piece of the answers and, with `counts`, a last event with token counts."""
        frame = {**frame, "usage": None} if counts else frame

        def chunk(i: int, delta: dict[str, str], ended: str | None = None) -> bytes:
            logprobs = None if "role" in delta else self._logprobs(i, last=ended is not None)
            choice = {"index": i, "delta": delta, "logprobs": logprobs, "finish_reason": ended}
            return event({**frame, "choices": [choice]})

        for i, writer in enumerate(self.writers):
            yield chunk(i, {"role": "assistant", "content": ""})
            async for piece in first if i == 0 else await self.begun(i):
                yield await self.service.in_thread(chunk, i, {"content": piece})
            yield await self.service.in_thread(chunk, i, {}, OPENAI_REASON[writer.ended])
        if counts:
            yield event({**frame, "choices": [], "usage": self.usage})
        yield b"data: [DONE]\n\n"

    def _logprobs(self, i: int, last: bool) -> dict[str, Any] | None:
        """Returns the log probabilities of the tokens since the last call. `last`: whether the answer is complete."""
        return None if self.writers[i].settings.logprobs is None else of_chat(self.scores[i](last))


ROUTES = (Route("/v1/chat/completions", "The answer to a conversation, in OpenAI's format", CHAT, chat_completions),)
