"""The page /docs: every route with an example and a table of its fields, without scripts or external resources."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from npformer.serve.examples import EXAMPLES
from npformer.serve.pages import ERRORS, GETS, METRICS
from npformer.serve.routes import Route
from npformer.version import __version__

Row = tuple[str, ...]  # cells of a table's row, as HTML
WIDTH = 72  # maximum characters in a line of JSON
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --mark: #2563eb; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; overflow-wrap: break-word; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h2 { font-size: 1.25rem; margin: 3rem 0 .25rem; padding-top: 1rem; border-top: 1px solid var(--line); }
.route { font-family: ui-monospace, Menlo, Consolas, monospace; }
h3 { font-size: .85rem; margin: 1.25rem 0 .25rem; opacity: .75; }
a { color: var(--mark); text-decoration: none; } a:hover { text-decoration: underline; }
code, pre { font: .875rem/1.45 ui-monospace, Menlo, Consolas, monospace; }
pre { background: var(--soft); border-radius: 6px; margin: 0; padding: .75rem; white-space: pre-wrap; }
.verb { background: var(--mark); border-radius: 4px; color: #fff; font-size: .75rem; padding: .15rem .4rem;
  vertical-align: .15rem; }
nav { columns: 3 9rem; padding: 1rem; } nav a { display: block; padding: .15rem 0; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .4rem .75rem .4rem 0; text-align: left; vertical-align: top; }
th { font-size: .85rem; opacity: .75; } td:first-child { white-space: nowrap; } td.values { min-width: 9rem; }
@media (min-width: 64rem) { nav { background: var(--soft); columns: 1; height: 100vh; left: 0; overflow-y: auto;
  padding: 1rem; position: fixed; top: 0; width: 17rem; } main { margin-left: 17rem; padding: 1rem 3rem; }
  :target { scroll-margin-top: 1rem; } }
@media (max-width: 40rem) { thead { display: none; } tr { border-bottom: 1px solid var(--line); display: block;
  padding: .5rem 0; } td, td.values { border: 0; display: block; padding: 0; }
  table, tbody { display: block; } code { overflow-wrap: anywhere; }
  td:first-child { white-space: normal; } td[title]:not(:empty)::before { content: attr(title) ": "; opacity: .75; } }
"""


def docs(routes: Iterable[Route]) -> str:
    """Returns the description of all routes as a web page."""
    shown = list(routes)
    links = [(_anchor(each.path), f"<code>{each.path}</code>") for each in shown]
    links += [(_anchor("/health"), "GET routes"), ("errors", "Errors"), ("counters", "Metrics")]
    nav = "".join(f'<a href="#{anchor}">{name}</a>' for anchor, name in links)
    errors = ((str(status), escape(what)) for status, what in ERRORS.items())
    metrics = ((f"<code>npformer_{name}</code>", escape(what)) for name, what in METRICS.items())
    return "".join(
        [
            "<!doctype html><html lang=en><meta charset=utf-8><title>npformer</title>",
            f"<meta name=viewport content='width=device-width'><style>{STYLE}</style><nav>{nav}</nav><main>",
            f"<h1>npformer {__version__}</h1><p>Requests are JSON objects. These routes are in ",
            "<a href=openapi.json>openapi.json</a> too. <a href=v1/models>v1/models</a> lists the models, and ",
            "<a href=info>info</a> the limits.</p>",
            *map(_route, shown),
            *(f"{_head('GET', path)}<p>{escape(what)}.</p>" for path, what in GETS.items()),
            f"<h2 id=errors>Errors</h2>{_table(('status', 'meaning'), errors)}",
            f"<h2 id=counters>Metrics</h2>{_table(('metric', 'meaning'), metrics)}</main></html>",
        ]
    )


def _anchor(path: str) -> str:
    return path.strip("/").replace("/", "-") or "root"


def _head(verb: str, path: str) -> str:
    return f"<h2 class=route id={_anchor(path)}><span class=verb>{verb}</span> {path}</h2>"


def _route(route: Route) -> str:
    parts = [_head("POST", route.path), f"<p>{escape(route.summary)}.</p>"]
    if route.path in EXAMPLES:
        request, answer = EXAMPLES[route.path]
        text = answer if isinstance(answer, str) else indented(answer)
        parts.append(f"<h3>Request</h3><pre>{escape(_curl(route.path, request), quote=False)}</pre>")
        parts.append(f"<h3>Answer</h3><pre>{escape(text.strip(), quote=False)}</pre>")
    described = {name: each.described() for name, each in route.fields.items()}
    required = [name for name, each in described.items() if "anyOf" not in each]
    rows = _rows(described, required)
    return "".join([*parts, "<h3>Fields</h3>", _table(("field", "values", "default", "meaning"), rows)])


def _curl(path: str, request: Any) -> str:
    quoted = indented(request).replace("'", "'\\''")
    return f"curl localhost:8080{path} -H 'Content-Type: application/json' \\\n  -d '{quoted}'"


def _table(head: Iterable[str], rows: Iterable[Row]) -> str:
    """Returns a table. Narrow screens hide its header row, and show the column's name before each value and default."""
    names = list(head)
    titles = "".join(f"<th>{name}" for name in names)
    marks = [f" class={name} title={name}" if name in ("values", "default") else "" for name in names]
    body = "".join(
        "<tr>" + "".join(f"<td{mark}>{cell}</td>" for mark, cell in zip(marks, row, strict=True)) for row in rows
    )
    return f"<table><thead><tr>{titles}</thead><tbody>{body}</tbody></table>"


def _rows(fields: Mapping[str, Any], required: Iterable[str], outer: Sequence[Mapping[str, Any]] = ()) -> Iterator[Row]:
    """Yields a row for each field, followed by rows for the fields of an object or of the objects of a list.

    outer: the fields of the enclosing objects, to which a field may refer.
    """
    for name, described in fields.items():
        default = "required" if name in required else escape(json.dumps(described.get("default", "")).strip('"'))
        schema = next(iter(described.get("anyOf", [described])))
        inner = schema if "properties" in schema else schema.get("items", {})
        properties = inner.get("properties", {})
        is_known = bool(properties) and any(properties.items() <= each.items() for each in (*outer, fields))
        what = described.get("description", schema.get("description", "")) or ("The same fields." if is_known else "")
        indent = f" style='padding-left: {1.25 * len(outer):g}rem'" if outer else ""
        yield f"<div{indent}><code>{name}</code></div>", escape(values(schema)), default, escape(what)
        if not is_known:
            yield from _rows(properties, inner.get("required", ()), (*outer, fields))


def values(schema: Mapping[str, Any]) -> str:
    """Describes the values that a JSON schema allows."""
    if "enum" in schema:
        return " or ".join(json.dumps(each) for each in schema["enum"] if each is not None) or "only null"
    if either := schema.get("oneOf") or schema.get("anyOf"):
        return " or ".join(dict.fromkeys(values(each) for each in either))
    if schema.get("type") == "array":
        return f"list of {values(schema['items'])}"
    if schema.get("type") == "object":
        return "object"
    low, high = schema.get("minimum"), schema.get("maximum")
    most = "" if high in (None, 2**31, 2**63 - 1) else f" to {high:g}"
    kind = {"string": "text", "boolean": "true or false", "integer": "whole number"}.get(schema["type"], schema["type"])
    return f"{kind}{'' if low in (None, -(2**31)) else f' from {low:g}'}{most}"


def indented(value: Any, inside: str = "") -> str:
    """Formats JSON, with values on one line if they fit, and otherwise with a line for each element."""
    line = json.dumps(value, ensure_ascii=False)
    if len(inside) + len(line) <= WIDTH or not isinstance(value, dict | list):
        return line
    more = inside + "  "
    if isinstance(value, dict):
        elements = [f"{json.dumps(name)}: {indented(each, more)}" for name, each in value.items()]
    else:
        elements = [indented(each, more) for each in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n{more}" + f",\n{more}".join(elements) + f"\n{inside}{last}"
