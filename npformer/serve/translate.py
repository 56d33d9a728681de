"""The routes of translation models: whole translations, batched, and one translation as a stream of its pieces.

/generate is that of `write.py` too, which has what models that go on after a prompt answer.
"""

from __future__ import annotations

from typing import Any

from npformer.serve import fields as f
from npformer.serve.fields import Field
from npformer.serve.models import Served, TaskWork, choose, choose_writer
from npformer.serve.routes import MODEL, ROUTES, TRUNCATE, Reply, Route, Service
from npformer.serve.write import (
    COMPLETIONS,
    COST,
    GENERATE,
    SEARCH,
    completions,
    effective,
    generated,
    settled,
    streamed,
)
from npformer.tasks.translation import Translation

BEAMS = 16  # more cost memory and time for nothing

BEAM_SEARCH = {
    "num_beams": Field(f.whole(1, BEAMS), None),
    "length_penalty": Field(f.number(-50, 50), None),
    "early_stopping": Field(f.BOOLEAN, None),
}
#: Parameters of /generate that only models that go on after a prompt have.
OF_PROMPTS = {
    "stop": Field(f.nothing_else("a translation ends by itself", []), None),
    "return_full_text": Field(f.nothing_else("a translation has no prompt before it", False), None),
    "details": Field(f.nothing_else("a translation comes without them", False), None),
}
TO = Field(f.TEXT, None, "The target's language, for a model with several.")
PARAMETERS = {
    **SEARCH,
    **BEAM_SEARCH,
    "src_lang": Field(f.TEXT, None, "Has no effect."),
    "tgt_lang": TO,
    "generate_parameters": Field(f.an_object({**SEARCH, **BEAM_SEARCH}), None),
}


def _settled(task: Translation, parameters: dict[str, Any]) -> Any:
    """The task's options with a request's parameters."""
    parameters = dict(parameters)
    parameters.update(parameters.pop("generate_parameters", None) or {})
    parameters["to"] = parameters.pop("tgt_lang", None)
    parameters.pop("src_lang", None)
    return settled(task, {name: value for name, value in parameters.items() if value is not None}, "parameters")


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
    options = _settled(task, given["parameters"] or {})
    prepared = await service.prepared(task, texts, given["truncate"], "inputs", options)
    found = await service.answers(_work(task, options), prepared, "inputs", texts.several, COST * _beams(options))
    flat = [each for answer in found for each in (answer if isinstance(answer, list) else [answer])]
    return Reply(prepared, flat)


async def generate(service: Service, given: dict[str, Any]) -> Reply:
    served = choose_writer(service.models, given["model"])
    if "text-generation" in served.tasks:
        return await generated(service, given, served)
    task = served.tasks["translation"]
    assert isinstance(task, Translation)
    options = _settled(task, {**effective(given["parameters"], OF_PROMPTS), "num_beams": 1})
    one = f.Texts([given["inputs"]], several=False)
    prepared = await service.prepared(task, one, given["truncate"], "inputs", options)
    if not given["stream"]:
        (answer,) = await service.answers(_work(task, options), prepared, "inputs", several=False, cost=COST)
        return Reply(prepared, {"generated_text": answer["translation_text"]})
    long = "truncate" if prepared.cut else "error"
    pieces = task.tokens(given["inputs"], to=options.to, long=long, **options.settings)
    return await streamed(service, pieces, prepared)


async def generate_stream(service: Service, given: dict[str, Any]) -> Reply:
    return await generate(service, {**given, "stream": True})


GENERATE_FIELDS = {
    "inputs": Field(f.TEXT),
    "parameters": Field(f.an_object({**GENERATE, "tgt_lang": TO}), None),
    **TRUNCATE,
    **MODEL,
}
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
        "What follows a prompt, or a text in another language; as a stream if asked for",
        {
            **GENERATE_FIELDS,
            "stream": Field(f.BOOLEAN, False, "Server-sent events, one for each piece as it is chosen."),
        },
        generate,
    ),
    Route("/generate_stream", "The same as a stream", GENERATE_FIELDS, generate_stream),
    Route("/v1/completions", "What follows each prompt, as OpenAI's clients ask for it", COMPLETIONS, completions),
)
