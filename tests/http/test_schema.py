"""The schemas of the OpenAPI page accept exactly the values that the checks of fields accept."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from npformer.serve.declared import ALL_ROUTES
from npformer.serve.fields import Refusal, read_fields, read_json
from npformer.serve.pages import openapi

ROUTES = {route.path: route for route in ALL_ROUTES}
PATHS = openapi(ALL_ROUTES)["paths"]
SCHEMAS = {path: PATHS[path]["post"]["requestBody"]["content"]["application/json"]["schema"] for path in ROUTES}

#: Values that JSON readers and Python confuse with other values, and some values of the wrong type.
ODD = st.sampled_from(
    [None, True, False, 0, 1, 0.0, 1.0, 1.5, -1, 1e-7, 1e300, 2**64, "", "a", [], [[]], [None], ["a"], ["a", "b", "c"], {}]
)  # fmt: skip


def near(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Returns a strategy for values that a schema accepts, and for similar values that it does not accept."""
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return st.one_of(*map(near, several), ODD)
    if "enum" in schema:
        return st.sampled_from(schema["enum"]) | ODD
    return NEAR[schema["type"]](schema) | ODD


def near_number(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    low, high = schema["minimum"], schema["maximum"]
    borders = [low, high, low - 1, high + 1, low * 0.5, high * 2, float(low), float(high), low + 0.5, (low + high) / 2]
    return st.sampled_from(borders)


def near_text(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    lengths = {schema.get(name, 1) + more for name in ("minLength", "maxLength") for more in (0, 1)}
    return st.text(max_size=3) | st.sampled_from([length * "é" for length in sorted(lengths)])


def near_list(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    return st.lists(near(schema["items"]), max_size=schema.get("maxItems", 2) + 1)


def near_object(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    fields = {name: near(each) for name, each in schema["properties"].items()}
    needed = {name: fields[name] for name in schema.get("required", ())}
    others = {name: each for name, each in fields.items() if name not in needed}
    some = st.lists(st.sampled_from(sorted(others)), max_size=2) if others else st.just([])
    of_some = some.flatmap(lambda names: st.fixed_dictionaries(needed, optional={name: others[name] for name in names}))
    return (
        of_some | st.fixed_dictionaries(needed, optional={"unknown": ODD}) | st.fixed_dictionaries({}, optional=fields)
    )


NEAR = {
    "integer": near_number,
    "number": near_number,
    "string": near_text,
    "array": near_list,
    "object": near_object,
    "boolean": lambda schema: st.booleans(),
    "null": lambda schema: st.none(),
}


@pytest.mark.parametrize("path", ROUTES)
def test_a_schema_and_the_checks_accept_the_same_values(path: str) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMAS[path])
    validator.check_schema(SCHEMAS[path])
    admitted = set()

    @settings(max_examples=75, deadline=None)
    @given(near(SCHEMAS[path]))
    @example({"inputs": {"source_sentence": "a", "sentences": ["b"]}})
    @example({"inputs": "a", "parameters": {"candidate_labels": ["b"]}})
    @example({"prompt": "a", "n": 1.0})
    @example({"prompt": "a", "temperature": 1e-7})
    @example({"inputs": "a", "parameters": {"temperature": 1e-7}})
    @example({"inputs": "a", "parameters": {"best_of": True}})
    @example({"prompt": "a", "frequency_penalty": False})
    def same(value: Any) -> None:
        body = json.dumps(value).encode()
        try:
            given = read_json(body)
            route = ROUTES[path].of(given)
            read_fields(route.fields, given)
        except Refusal as refusal:
            said = refusal.message
        else:
            said = ""
        assert validator.is_valid(json.loads(body)) == (not said), said
        admitted.add(not said)

    same()
    assert admitted == {True, False}
