"""The page /docs: routes in order, examples, and a row for each field, in well-formed HTML without scripts."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from npformer.serve.declared import ALL_ROUTES
from npformer.serve.docs_page import docs, indented, values
from npformer.serve.examples import EXAMPLES
from npformer.serve.pages import ERRORS, GETS

PAGE = docs(ALL_ROUTES)
VOID = {"meta"}


class Reader(HTMLParser):
    """Collects the headings, ids, links and rows of a page, and checks that elements are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.headings: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if "href" in given else []
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
        if tag == "h2":
            self.headings.append("")
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag: str) -> None:
        while self.open.pop() != tag:
            assert self.open, tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open:
            self.rows[-1][-1] += data
        if "h2" in self.open:
            self.headings[-1] += data


def read() -> Reader:
    made = Reader()
    made.feed(PAGE)
    return made


def test_routes_come_in_order_each_with_its_example() -> None:
    found = read()
    posts = [f"POST {route.path}" for route in ALL_ROUTES]
    assert found.headings == [*posts, *(f"GET {path}" for path in GETS), "Errors", "Metrics"]
    assert PAGE.count("<h3>Request</h3>") == PAGE.count("<h3>Answer</h3>") == len(EXAMPLES)
    assert not found.open
    assert len(set(found.ids)) == len(found.ids)
    assert {each[1:] for each in found.links if each.startswith("#")} <= set(found.ids)
    assert "<script" not in PAGE


def test_every_field_has_a_row_and_no_row_has_a_schema() -> None:
    rows = [row for row in read().rows if row]
    names = [row[0] for row in rows]
    for route in ALL_ROUTES:
        for name, field in route.fields.items():
            assert name in names
            for inner in field.kind.schema.get("properties", ()):
                assert inner in names
    assert not [row for row in rows if '":' in "".join(row[1:3])]
    assert {str(status) for status in ERRORS} <= set(names)
    assert ["inputs", "text or list of text", "required", ""] in rows


def test_long_json_is_broken_into_lines() -> None:
    assert indented({"a": [1, 2]}) == '{"a": [1, 2]}'
    assert indented({"a": ["x" * 40, "y" * 40]}) == f'{{\n  "a": [\n    "{"x" * 40}",\n    "{"y" * 40}"\n  ]\n}}'
    shown = "\n".join(re.findall("<pre>(.*?)</pre>", PAGE, re.S))
    assert max(len(line) for line in shown.splitlines() if not line.startswith("data:")) < 120


def test_values_are_described_in_words() -> None:
    assert values({"type": "integer", "minimum": 1, "maximum": 2**31}) == "whole number from 1"
    assert values({"enum": [None, "a", 2]}) == '"a" or 2'
    assert values({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}) == (
        "text or list of text"
    )
