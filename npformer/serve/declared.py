"""All routes. Routes made from the declarations of tasks have the format of Hugging Face's inference API.

The parameters are the options of the task's command, and the parameters in `MORE`. Routes for vectors, labels, ranks
and generated texts have the formats of other services. They are in `routes.py`, `reranking.py`, `text_to_text.py`,
`text_generation.py` and `chat.py`.

References
----------
https://huggingface.co/docs/inference-providers/tasks/index.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from npformer.serve import chat, reranking, routes, text_to_text
from npformer.serve import fields as f
from npformer.serve.fields import REQUIRED, Field, Kind
from npformer.serve.models import TaskWork, choose
from npformer.serve.routes import MODEL, TRUNCATE, Reply, Route, Service
from npformer.serve.text_generation import settled
from npformer.tasks.catalogue import TASKS
from npformer.tasks.declaration import Command, Option, comma_separated, labels, whole

MOST = 256  # maximum number of answers to a text, and of tokens in an answer
REPEATED = 64  # maximum tokens in answers that repeat their text, as a multiple of a request's maximum
KINDS = {
    whole: f.whole(1, MOST), int: f.whole(-(2**31)), float: f.number(-1e9, 1e9), comma_separated: f.short_list(0),
    labels: f.short_list(1),
}  # fmt: skip
#: Parameters that clients of the inference API send, but that are not options of the command.
MORE = {
    "token-classification": {
        "stride": Field(f.whole(0), None, "Read a long text in windows that share this many tokens."),
    },
    "question-answering": {
        "doc_stride": Field(f.whole(0), None, "Tokens shared by neighbouring windows of a long context."),
        "max_seq_len": Field(f.whole(64), None, "Maximum tokens in a window."),
        "max_question_len": Field(f.whole(0), None, "Ignored."),
        "align_to_words": Field(f.BOOLEAN, None, "Extend answers to whole words."),
    },
}
INPUTS = {"pair": f.PAIRS, "question": f.QUESTIONS}


def _kind(option: Option) -> Kind:
    """Returns the kind of a parameter's values, given the command's option."""
    if "choices" in option.how:
        return f.one_of(*option.how["choices"])
    return f.BOOLEAN if "action" in option.how else KINDS.get(option.how.get("type"), f.SHORT)


def declared(name: str, path: str, command: Command) -> Route:
    """Makes the route of a task from the task's command."""
    parameters = {
        each.sets: Field(_kind(each), REQUIRED if each.how.get("required") else None, each.how["help"] % each.how)
        for each in command.options
    } | MORE.get(name, {})
    required = any(each.default is REQUIRED for each in parameters.values())
    fields = {
        "inputs": Field(INPUTS.get(command.reads, f.TEXTS)),
        "parameters": Field(f.an_object(parameters), REQUIRED if required else None),
        **TRUNCATE,
        **MODEL,
    }
    return Route(path, TASKS[name].summary, fields, partial(answered, name))


async def answered(name: str, service: Service, given: dict[str, Any]) -> Reply:
    """Returns the answer of a task to one text, or a list of answers to a list of texts."""
    _, task = choose(service.models, given["model"], name)
    parameters = {key: value for key, value in (given["parameters"] or {}).items() if value is not None}
    texts, options = given["inputs"], await service.in_thread(settled, task, parameters, "parameters")
    prepared = await service.prepared(task, texts, given["truncate"], "inputs", options)
    count, most = 0, REPEATED * service.limits.tokens
    for each in prepared.requests:
        count += task.n_answer_tokens(each, options)
    if count > most:
        raise f.too_large(f"inputs: expected at most {most} tokens in the filled texts, got {count}; lower top_k")
    found = await service.answers(TaskWork(task, options), prepared, "inputs", texts.several)
    values = map(_plain, map(task.reply, found))
    return Reply(prepared, values if texts.several else partial(next, values))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


FORMATS = (*routes.ROUTES, *reranking.ROUTES, *text_to_text.ROUTES, *chat.ROUTES)
ALL_ROUTES = FORMATS + tuple(
    declared(name, each.route, each.command)
    for name, each in TASKS.items()
    if each.command and each.route and each.route not in {route.path for route in FORMATS}
)
