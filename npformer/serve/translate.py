"""The routes of translation models: whole translations, batched, and one translation as a stream of its pieces.

/generate speaks as Hugging Face's text-generation-inference does. With stream=true there is one server-sent event for
each piece, and the last has the whole text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from npformer.errors import NpformerError
from npformer.serve import fields as f
from npformer.serve.fields import Field
from npformer.serve.models import Served, TaskWork, choose
from npformer.serve.replies import as_json
from npformer.serve.routes import MODEL, ROUTES, TRUNCATE, Reply, Route, Service
from npformer.tasks.translation import Translation

BEAMS = 16  # more cost memory and time for nothing
COST = 8  # a source's token counts as so many in a batch: each of the target's is a step through the decoder

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
BEAM_SEARCH = {
    "num_beams": Field(f.whole(1, BEAMS), None),
    "length_penalty": Field(f.number(-50, 50), None),
    "early_stopping": Field(f.BOOLEAN, None),
}
TO = Field(f.TEXT, None, "The target's language, for a model with several.")
PARAMETERS = {
    **SEARCH,
    **BEAM_SEARCH,
    "src_lang": Field(f.TEXT, None, "Has no effect."),
    "tgt_lang": TO,
    "generate_parameters": Field(f.an_object({**SEARCH, **BEAM_SEARCH}), None),
}


def _settled(task: Translation, given: dict[str, Any], **fixed: Any) -> Any:
    """The task's options with those of a request's parameters."""
    parameters = {**(given["parameters"] or {}), **fixed}
    parameters.update(parameters.pop("generate_parameters", None) or {})
    parameters["to"] = parameters.pop("tgt_lang", None)
    parameters.pop("src_lang", None)
    wanted = {name: value for name, value in parameters.items() if value is not None}
    try:
        return task.settle(task.options, wanted)
    except NpformerError as error:
        raise f.wrong("parameters", str(error)) from None


def _translator(service: Service, given: dict[str, Any]) -> tuple[Served, Translation]:
    served = choose(service.models, given["model"], "translation")
    task = served.tasks["translation"]
    assert isinstance(task, Translation)
    return served, task


def _work(task: Translation, options: Any) -> TaskWork:
    """What is drawn for a text depends on its place in the list, so a request that samples is computed by itself."""
    return TaskWork(task, options, together=not options.settings.get("do_sample"))


def _beams(options: Any) -> int:
    beams: int = options.settings.get("num_beams", 1)
    return beams


async def translate(service: Service, given: dict[str, Any]) -> Reply:
    texts = given["inputs"]
    _, task = _translator(service, given)
    options = _settled(task, given)
    prepared = await service.prepared(task, texts, given["truncate"], "inputs", options)
    found = await service.answers(_work(task, options), prepared, "inputs", texts.several, COST * _beams(options))
    flat = [each for answer in found for each in (answer if isinstance(answer, list) else [answer])]
    return Reply(flat, prepared.cut)


async def generate(service: Service, given: dict[str, Any]) -> Reply:
    _, task = _translator(service, given)
    options = _settled(task, given, num_beams=1)
    one = f.Texts([given["inputs"]], several=False)
    prepared = await service.prepared(task, one, given["truncate"], "inputs", options)
    if not given["stream"]:
        (answer,) = await service.answers(_work(task, options), prepared, "inputs", several=False, cost=COST)
        return Reply({"generated_text": answer["translation_text"]}, prepared.cut)
    long = "truncate" if prepared.cut else "error"
    pieces = task.tokens(given["inputs"], to=options.to, long=long, **options.settings)
    first = await service.piece(pieces)  # before the answer begins, so that an error has its status
    return Reply(cut=prepared.cut, pieces=_events(service, first, pieces), media_type="text/event-stream")


async def _events(service: Service, piece: str | None, pieces: Iterator[str]) -> AsyncIterator[bytes]:
    """An event for each piece, and one with the whole text; each piece is computed when its turn comes."""
    whole = ""
    index = 0
    while True:
        index += 1
        whole += piece or ""
        token = {"text": piece or "", "special": piece is None}
        event = {"index": index, "token": token, "generated_text": whole if piece is None else None, "details": None}
        yield b"data:" + as_json(event) + b"\n\n"
        if piece is None:
            return
        piece = await service.piece(pieces)


ALL_ROUTES = (
    *ROUTES,
    Route(
        "/translate",
        "Each text in another language",
        {
            "inputs": Field(f.TEXTS),
            "parameters": Field(f.an_object(PARAMETERS), None),
            **TRUNCATE,
            **MODEL,
        },
        translate,
    ),
    Route(
        "/generate",
        "A text in another language, as a stream if asked for",
        {
            "inputs": Field(f.TEXT),
            "parameters": Field(f.an_object({**SEARCH, "tgt_lang": TO}), None),
            "stream": Field(f.BOOLEAN, False, "Server-sent events, one for each piece as it is chosen."),
            **TRUNCATE,
            **MODEL,
        },
        generate,
    ),
)
