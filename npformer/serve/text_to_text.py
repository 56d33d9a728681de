"""The routes of encoder-decoders: whole answers in batches, or one answer as a stream of pieces.

/generate also serves causal language models, with the functions of `text_generation.py`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from npformer.serve import fields as f
from npformer.serve.fields import Field
from npformer.serve.models import TaskWork, choose, choose_writer
from npformer.serve.routes import MODEL, TRUNCATE, Reply, Route, Service
from npformer.serve.text_generation import (
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
from npformer.tasks.catalogue import TASKS
from npformer.tasks.text_to_text import TextToText

BEAMS = 16  # maximum number of beams; more would cost memory and time without benefit

BEAM_SEARCH = {
    "num_beams": Field(f.whole(1, BEAMS), None, "Number of beams (1: greedy decoding, or sampling)."),
    "length_penalty": Field(f.number(-50, 50), None, "Above 0: beam search prefers longer texts."),
    "early_stopping": Field(f.BOOLEAN, None, "Beam search ends once num_beams texts are finished."),
    "min_length": Field(f.whole(0), None, "Minimum number of tokens, including the start token."),
    "max_length": Field(f.whole(2), None, "Maximum number of tokens, including the start token."),
}
#: Parameters of /generate that only causal language models have.
OF_PROMPTS = {
    "stop": Field(f.nothing_else("stop strings need a causal language model", []), None),
    "return_full_text": Field(f.nothing_else("the output contains no prompt", False), None),
    "details": Field(f.nothing_else("the output has no details", False), None),
}
TO = Field(f.TEXT, None, "Target language, for a multilingual translation model.")
PARAMETERS = {
    **SEARCH,
    **BEAM_SEARCH,
    "src_lang": Field(f.TEXT, None, "Ignored."),
    "tgt_lang": TO,
    "generate_parameters": Field(f.an_object({**SEARCH, **BEAM_SEARCH}), None),
}


def _settled(task: TextToText, parameters: dict[str, Any]) -> Any:
    """Returns the task's options, updated with the parameters of a request."""
    parameters = dict(parameters)
    parameters.update(parameters.pop("generate_parameters", None) or {})
    parameters["to"] = parameters.pop("tgt_lang", None)
    parameters.pop("src_lang", None)
    return settled(task, {name: value for name, value in parameters.items() if value is not None}, "parameters")


def _work(task: TextToText, options: Any) -> TaskWork:
    """Returns a request's work. Sampled texts, which depend on their position in a batch, get a separate batch."""
    return TaskWork(task, options, together=not options.settings.get("do_sample"))


async def written(name: str, service: Service, given: dict[str, Any]) -> Reply:
    """Returns the answers of the named task to texts."""
    _, task = choose(service.models, given["model"], name)
    options = await service.in_thread(_settled, task, given["parameters"] or {})
    cost = COST * options.settings.get("num_beams", 1)
    found, prepared = await service.ask(_work(task, options), given["inputs"], given["truncate"], cost=cost)
    return Reply(prepared, [each for answer in found for each in (answer if isinstance(answer, list) else [answer])])


async def generate(service: Service, given: dict[str, Any]) -> Reply:
    task = choose_writer(service.models, given["model"])
    if not isinstance(task, TextToText):
        return await generated(service, given, task)
    parameters = effective(given["parameters"], OF_PROMPTS)
    options = await service.in_thread(_settled, task, {**parameters, "num_beams": 1})
    one = f.Texts([given["inputs"]], several=False)
    if not given["stream"]:
        (answer,), prepared = await service.ask(_work(task, options), one, given["truncate"], cost=COST)
        return Reply(prepared, {"generated_text": answer[task.key]})
    prepared = await service.prepared(task, one, given["truncate"], "inputs", options)
    long = "truncate" if prepared.cut else "error"
    writing = partial(task.tokens, given["inputs"], to=options.to, long=long, **options.settings)
    pieces = await service.in_thread(writing)
    return await streamed(service, task, pieces, prepared)


async def generate_stream(service: Service, given: dict[str, Any]) -> Reply:
    return await generate(service, {**given, "stream": True})


GENERATE_FIELDS = {
    "inputs": Field(f.TEXT),
    "parameters": Field(f.an_object({**GENERATE, "tgt_lang": TO}), None),
    **TRUNCATE,
    **MODEL,
}
WRITTEN = {"inputs": Field(f.TEXTS), "parameters": Field(f.an_object(PARAMETERS), None), **TRUNCATE, **MODEL}
ROUTES = (
    *(
        Route(TASKS[name].route, TASKS[name].summary, WRITTEN, partial(written, name))
        for name in ("translation", "summarization", "text2text-generation")
    ),
    Route(
        "/generate",
        "The text generated after a prompt, or by an encoder-decoder from a text; optionally as a stream",
        {
            **GENERATE_FIELDS,
            "stream": Field(f.BOOLEAN, False, "Send server-sent events, one for each piece as it is generated."),
        },
        generate,
    ),
    Route("/generate_stream", "The same as /generate, as a stream", GENERATE_FIELDS, generate_stream),
    Route("/v1/completions", "The text generated after each prompt, in OpenAI's format", COMPLETIONS, completions),
)
