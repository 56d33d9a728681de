"""All routes. A route made from a task's declaration returns the values of the task's answers.

Routes for vectors, labels, ranks and generated texts follow the formats of other services (`routes.py`,
`text_to_text.py`, `text_generation.py` and `chat.py`). The parameters of all other routes are the options of a task's
command.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from npformer.serve import chat, routes, text_to_text
from npformer.serve import fields as f
from npformer.serve.fields import REQUIRED, Field, Kind
from npformer.serve.models import TaskWork, choose
from npformer.serve.routes import MODEL, TRUNCATE, Reply, Route, Service
from npformer.serve.text_generation import settled
from npformer.tasks.catalogue import TASKS
from npformer.tasks.declaration import Command, Option, comma_separated, whole

KINDS = {whole: f.whole(1), int: f.whole(-(2**31)), float: f.number(-1e9, 1e9), comma_separated: f.TEXT_LIST}


def _kind(option: Option) -> Kind:
    """Returns the kind of a parameter's values, from the command's option."""
    if "choices" in option.how:
        return f.one_of(*option.how["choices"])
    return f.BOOLEAN if "action" in option.how else KINDS.get(option.how.get("type"), f.TEXT)


def declared(name: str, path: str, command: Command) -> Route:
    """Makes the route of a task from its command."""
    parameters = {
        each.sets: Field(_kind(each), REQUIRED if each.how.get("required") else None, each.how["help"] % each.how)
        for each in command.options
    }
    required = any(each.default is REQUIRED for each in parameters.values())
    fields = {
        "inputs": Field(f.PAIRS if command.reads == "pair" else f.TEXTS),
        "parameters": Field(f.an_object(parameters), REQUIRED if required else None),
        **TRUNCATE,
        **MODEL,
    }
    return Route(path, TASKS[name].summary, fields, partial(answered, name))


async def answered(name: str, service: Service, given: dict[str, Any]) -> Reply:
    """Returns a task's answer to one text, or a list of answers to a list of texts."""
    _, task = choose(service.models, given["model"], name)
    parameters = {key: value for key, value in (given["parameters"] or {}).items() if value is not None}
    work = TaskWork(task, settled(task, parameters, "parameters"))
    found, prepared = await service.ask(work, given["inputs"], given["truncate"])
    values = [_plain(task.values(each)) for each in found]
    return Reply(prepared, values if given["inputs"].several else values[0])


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: each.tolist() if isinstance(each, np.ndarray) else each for name, each in values.items()}


FORMATS = (*routes.ROUTES, *text_to_text.ROUTES, *chat.ROUTES)
ALL_ROUTES = FORMATS + tuple(
    declared(name, each.route, each.command)
    for name, each in TASKS.items()
    if each.command and each.route and each.route not in {route.path for route in FORMATS}
)
