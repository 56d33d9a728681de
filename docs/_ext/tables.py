"""Tables of the reference: the tasks and their options, the fields of dataclasses, and the routes of the service."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from markdown import code, directive, table
from numpydoc.docscrape import NumpyDocString
from sphinx.application import Sphinx

from npformer.serve.declared import ALL_ROUTES
from npformer.serve.examples import EXAMPLES
from npformer.serve.fields import REQUIRED
from npformer.serve.pages import ERRORS, GETS, METRICS
from npformer.tasks.catalogue import TASKS
from npformer.tasks.options import Options
from npformer.tasks.pipelines import class_of


def parameters(made: Any) -> dict[str, tuple[str, str]]:
    """Returns the parameters in a docstring: name -> type and description."""
    found = {}
    for names, kind, lines in NumpyDocString(inspect.getdoc(made) or "")["Parameters"]:
        for name in names.split(", "):
            found[name.lstrip("*")] = (kind, " ".join(lines))
    return found


def literal(text: str) -> str:
    """Returns a docstring's text as Markdown, with its backticks and its indented lines as code."""
    parts = re.split(r"(`[^`]*`|^ {4}.*$)", text, flags=re.MULTILINE)
    return "".join(part if part.startswith(("`", "    ")) else re.sub(r"([<*_\[\]])", r"\\\1", part) for part in parts)


def rows(made: Any) -> Iterable[tuple[str, str, str]]:
    """Returns the fields of a dataclass: name, default, and meaning from the docstring or trailing comments."""
    described = parameters(made)
    comments = dict(re.findall(r"^    (\w+): [^#\n]+# (.+)$", inspect.getsource(made), re.MULTILINE))
    for field in dataclasses.fields(made):
        kind, text = described.get(field.name, ("", comments.get(field.name, "")))
        meaning = literal(with_values(made, f"{kind}. {text}" if kind and text else kind or text))
        yield code(field.name), standard(field), meaning


def standard(field: dataclasses.Field[Any]) -> str:
    """Returns a field's default; a nested default omits fields with default values."""
    if field.default is dataclasses.MISSING:
        return ""
    kind = type(field.default)
    plain = dataclasses.is_dataclass(kind) and field.default == kind()
    return code(f"{kind.__name__}()" if plain else repr(field.default))


def with_values(made: Any, text: str) -> str:
    """Replaces the names of constants, such as ACTIVATIONS, with their values."""
    constants = vars(sys.modules[made.__module__])

    def values(found: re.Match[str]) -> str:
        constant = constants.get(found[0], found[0])
        return found[0] if isinstance(constant, str) else ", ".join(code(json.dumps(each)) for each in constant)

    return re.sub(r"\b[A-Z_]{6,}\b|\bHEADS\b", values, text).replace("`null`", "`None`")


def fields(place: str) -> Iterable[str]:
    """Returns a table of a dataclass's fields, given its module and name, with an index entry."""
    module, _, name = place.rpartition(".")
    yield from ("```{eval-rst}", f".. py:class:: {place}", "```")
    yield from table(("field", "default", "meaning"), rows(getattr(import_module(module), name)))


def tasks() -> Iterable[str]:
    """Returns every task with its requirements, options and an example."""
    shared = [field.name for field in dataclasses.fields(Options)]
    for name, task in TASKS.items():
        kind = class_of(name)
        doc = NumpyDocString(inspect.getdoc(kind) or "")
        yield f"## {name}"
        yield literal(" ".join([*doc["Summary"], *doc["Extended Summary"]]).replace("`", ""))
        yield ""
        command = f"[`npformer {task.command.name}`](#command-{task.command.name})" if task.command else ""
        alias = f"also {', '.join(map(code, task.aliases))}" if task.aliases else ""
        default = f"default model {code(task.default)}" if task.default else ""
        route = f"route {code('POST ' + task.route)}" if task.route else ""
        yield "; ".join(filter(None, [f"Needs {task.wanted}", default, alias, command, route])) + "."
        described = parameters(kind)
        own = [field for field in dataclasses.fields(kind.options_type) if field.name not in shared]
        yield from table(
            ("option", "default", "meaning"),
            (
                (code(each.name), standard(each), literal(". ".join(filter(None, described.get(each.name, ("", ""))))))
                for each in own
            ),
        )
        if doc["Examples"]:
            yield from ("```pycon", *doc["Examples"], "```", "")


def routes() -> Iterable[str]:
    """Returns the routes of `npformer serve`, with their fields and errors."""
    yield from table(("route", "answer"), ([f"`GET {path}`", literal(what)] for path, what in GETS.items()))
    for route in ALL_ROUTES:
        yield f"## POST {route.path}"
        yield f"{literal(route.summary)}."
        yield ""
        for each in filter(None, [route, route.other]):
            if each is not route:
                yield f"With {route.sign}, the request is one of `{each.path}`."
            else:
                yield from table(
                    ("field", "default", "values", "meaning"),
                    (
                        (
                            code(name),
                            "required"
                            if field.default is REQUIRED
                            else ""
                            if field.default is None
                            else code(json.dumps(field.default)),
                            values(field.kind.schema),
                            literal(field.what or field.kind.schema.get("description", "")),
                        )
                        for name, field in each.fields.items()
                    ),
                )
        yield from example(route.path)
    yield "## Errors"
    yield from table(("status", "meaning"), ([str(status), literal(what)] for status, what in ERRORS.items()))


def example(path: str) -> Iterable[str]:
    """Returns a request to a route, and its answer."""
    request, answer = EXAMPLES[path]
    language, text = ("text", answer.strip()) if isinstance(answer, str) else ("json", wrapped(json.dumps(answer)))
    yield from ("A request and its answer:", "", "```json", json.dumps(request), "```", "")
    yield from (f"```{language}", text, "```", "")


def wrapped(text: str) -> str:
    """Formats JSON in lines of about a page's width, broken outside strings."""
    lines = [""]
    for word in re.findall(r'(?:"(?:[^"\\]|\\.)*"|[^\s"])+', text):
        lines.append(word) if len(lines[-1]) + len(word) > 90 else lines.append(f"{lines.pop()} {word}".strip())
    return "\n".join(lines)


def metrics() -> Iterable[str]:
    """Returns the metrics of `GET /metrics`."""
    yield from table(("metric", "meaning"), ([code(f"npformer_{name}"), what] for name, what in METRICS.items()))


def values(schema: dict[str, Any]) -> str:
    """Describes the values that a JSON schema allows."""
    if "enum" in schema:
        return " or ".join(code(each) for each in schema["enum"] if each is not None)
    if either := schema.get("oneOf") or schema.get("anyOf"):
        return " or ".join(dict.fromkeys(values(each) for each in either))
    if schema.get("type") == "array":
        return f"list of ({values(schema['items'])})"
    if schema.get("type") == "object":
        return f"object of {', '.join(map(code, schema['properties'])) or 'nothing'}"
    low, high = schema.get("minimum"), schema.get("maximum")
    most = "" if high in (None, 2**31) else f" to {high}"
    return {"string": "text", "boolean": "true or false"}.get(
        schema["type"], f"{schema['type']}{'' if low is None else f' from {low}'}{most}"
    )


def setup(app: Sphinx) -> dict[str, bool]:
    for each in (fields, tasks, routes, metrics):
        app.add_directive(each.__name__, directive(each))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
