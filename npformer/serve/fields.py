"""The fields of requests. A field's description validates its values, and defines its entry on the OpenAPI page.

A refusal names the place of an invalid value (`inputs[2]`), the expected type and the actual type. The message may
quote a number, but never a text, which may be private.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from npformer.common.errors import NpformerError
from npformer.text.inputs import Pair, as_text

REQUIRED = object()
MOST_STOPS = 4  # maximum stop strings, as in OpenAI's API and TGI; every string is searched for after each token
STOP_LENGTH = 1000  # maximum characters of a stop string
MOST_SHORT, SHORT_LENGTH = 1000, 1000  # maximum texts and characters in parameters such as labels
MOST_PARTS = 100_000  # maximum lists and objects in a body; while json creates them, no other thread can run
#: A JSON string, or an unterminated string up to the end of the body. If the pattern did not match an unterminated
#: string, it would be tried again at each quote, which takes hours and blocks all other threads.
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+', re.DOTALL)


class Refusal(Exception):
    """Refuses a request with an HTTP status, a message, and the name of the error in text-embeddings-inference."""

    def __init__(self, status: int, message: str, kind: str = "Validation", seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = HTTPStatus(status)
        self.message = message
        self.kind = kind
        self.seconds = seconds  # seconds after which the client may retry


def wrong(where: str, message: str) -> Refusal:
    return Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, f"{where}: {message}")


def too_large(message: str) -> Refusal:
    return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)


@dataclass(frozen=True)
class Kind:
    """A type of values: its JSON schema, and read(where, value), which returns the value for handlers."""

    schema: Mapping[str, Any]
    read: Callable[[str, Any], Any]


@dataclass(frozen=True)
class Field:
    """A field of a request. The value null means the field's default, if it has one."""

    kind: Kind
    default: Any = REQUIRED
    what: str = ""

    def described(self) -> dict[str, Any]:
        schema = dict(self.kind.schema)
        described: dict[str, Any] = schema if self.default is REQUIRED else {"anyOf": [schema, {"type": "null"}]}
        if self.what:
            described["description"] = self.what
        if self.default not in (REQUIRED, None):
            described["default"] = self.default
        return described


Fields = Mapping[str, Field]


@dataclass(frozen=True)
class Texts:
    """The texts or pairs of a request, and whether they were given as a list."""

    items: Sequence[str | Pair]
    several: bool


def named(value: Any) -> str:
    """Returns the name of the type of a JSON value, or "an empty list"."""
    if value == []:
        return "an empty list"
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def expected(where: str, what: str, value: Any) -> Refusal:
    return wrong(where, f"expected {what}, got {named(value)}")


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise expected(where, "a text", value)
    try:
        return as_text(value)
    except NpformerError as error:
        raise wrong(where, str(error)) from None


def _texts(where: str, value: Any) -> Texts:
    if isinstance(value, str):
        return Texts([_text(where, value)], several=False)
    if not isinstance(value, list) or not value:
        raise expected(where, "a text or a list of texts", value)
    return Texts([_text(f"{where}[{i}]", each) for i, each in enumerate(value)], several=True)


def _text_list(where: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise expected(where, "a list of texts", value)
    return list(_texts(where, value).items)  # type: ignore[arg-type]


def _stops(where: str, value: Any) -> list[str]:
    """Reads stop strings, which may be an empty list, as sent by clients of text-generation-inference."""
    if isinstance(value, list) and len(value) > MOST_STOPS:
        raise wrong(where, f"expected at most {MOST_STOPS} texts, got {len(value)}")
    texts = [] if value == [] else [str(each) for each in _texts(where, value).items]
    for i, each in enumerate(texts):
        if not 0 < len(each) <= STOP_LENGTH:
            place = where if isinstance(value, str) else f"{where}[{i}]"
            raise wrong(place, f"expected 1 to {STOP_LENGTH} characters, got {len(each)}")
    return texts


def _openai_texts(where: str, value: Any) -> Texts:
    first = value[0] if isinstance(value, list) and value else None
    first = first[0] if isinstance(first, list) and first else first
    if isinstance(first, int):
        embeds = where == "input"  # the field of the routes for vectors; the routes for generation have `prompt`
        how = "; let the client send texts (check_embedding_ctx_length=False in LangChain's OpenAIEmbeddings)"
        raise wrong(where, f"expected texts, got token ids{how if embeds else ''}")
    return _texts(where, value)


def _text_or_pair(where: str, value: list[Any]) -> str | Pair:
    if len(value) not in (1, 2):
        raise wrong(where, f"expected [text] or [text, second text], got {len(value)} elements")
    texts = [_text(f"{where}[{i}]", each) for i, each in enumerate(value)]
    return texts[0] if len(texts) == 1 or not texts[1] else Pair(*texts)


def _pairs(where: str, value: Any) -> Texts:
    """Reads a text, a pair as a list of two texts, or a list of lists of one or two texts."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        for i, each in enumerate(value):
            if not isinstance(each, list):
                raise expected(f"{where}[{i}]", "a list of one or two texts", each)
        return Texts([_text_or_pair(f"{where}[{i}]", each) for i, each in enumerate(value)], several=True)
    if isinstance(value, list):
        return Texts([_text_or_pair(where, value)], several=False)
    return _texts(where, value)


def _questions(where: str, value: Any) -> Texts:
    """Reads an object with a question and its context, or a list of such objects."""
    several = isinstance(value, list)
    if value == []:
        raise expected(where, "a question and its context", value)
    items = []
    for i, each in enumerate(value if several else [value]):
        given = read_fields(QUESTION, each, f"{where}[{i}]" if several else where)
        items.append(Pair(given["question"], given["context"]))
    return Texts(items, several)


def _short(where: str, value: Any) -> str:
    text = _text(where, value)
    if len(text) > SHORT_LENGTH:
        raise wrong(where, f"expected at most {SHORT_LENGTH} characters, got {len(text)}")
    return text


def short_list(least: int) -> Kind:
    """Returns the kind of lists of short texts, with at least `least` of them."""

    def read(where: str, value: Any) -> list[str]:
        if not isinstance(value, list) or len(value) < least:
            raise expected(where, "a list of texts", value)
        if len(value) > MOST_SHORT:
            raise wrong(where, f"expected at most {MOST_SHORT} texts, got {len(value)}")
        return [_short(f"{where}[{i}]", each) for i, each in enumerate(value)]

    return Kind({"type": "array", "items": _SHORT, "minItems": least, "maxItems": MOST_SHORT}, read)


def _content(where: str, value: Any) -> str:
    """Reads the text of a message, or joins parts {"type": "text", "text": ...}."""
    if not isinstance(value, list):
        return _text(where, value)
    texts = []
    for i, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text":
            raise wrong(
                f"{where}[{i}]", 'expected {"type": "text", "text": ...}: other types of parts are not supported'
            )
        texts.append(_text(f"{where}[{i}].text", part.get("text")))
    return "".join(texts)


def _documents(where: str, value: Any) -> list[str]:
    """Reads texts, or objects with a field "text", as sent by the clients of Cohere and Jina."""
    if not isinstance(value, list) or not value:
        raise expected(where, "a list of texts", value)
    found = []
    for i, each in enumerate(value):
        inside = isinstance(each, dict) and "text" in each
        found.append(_text(f"{where}[{i}].text", each["text"]) if inside else _text(f"{where}[{i}]", each))
    return found


def _boolean(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise expected(where, "true or false", value)
    return value


def whole(low: int, high: int = 2**31) -> Kind:
    """Returns the kind of whole numbers from low to high. The number 1.0 counts as 1, as in JSON Schema."""

    def read(where: str, value: Any) -> int:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise expected(where, "a whole number", value)
        if not low <= value <= high:
            raise wrong(where, f"expected a whole number from {low} to {high}, got {value}")
        return value

    return Kind({"type": "integer", "minimum": low, "maximum": high}, read)


def number(low: float, high: float) -> Kind:
    """Returns the kind of numbers from low to high."""

    def read(where: str, value: Any) -> float:
        if type(value) not in (int, float):
            raise expected(where, "a number", value)
        if not low <= value <= high:
            raise wrong(where, f"expected a number from {low} to {high}, got {value}")
        return float(value)

    return Kind({"type": "number", "minimum": low, "maximum": high}, read)


def _json_object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise expected(where, "an object", value)
    return value


def one_of(*names: str) -> Kind:
    def read(where: str, value: Any) -> str:
        if not isinstance(value, str):
            raise expected(where, f"one of {', '.join(names)}", value)
        if value not in names:
            raise wrong(where, f"expected one of {', '.join(names)}, got another string")
        return value

    return Kind({"type": "string", "enum": list(names)}, read)


def nothing_else(why: str, *values: Any) -> Kind:
    """Returns the kind of a field that accepts only these values. `why`: the reason not to accept others."""

    def read(where: str, value: Any) -> Any:
        if not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values):
            raise wrong(where, f"unsupported: {why}")
        return value

    return Kind({"enum": [None, *values], "description": f"Other values are unsupported: {why}."}, read)


def schema_of(fields: Fields) -> dict[str, Any]:
    """Returns the JSON schema of an object with these fields."""
    required = [name for name, each in fields.items() if each.default is REQUIRED]
    properties = {name: each.described() for name, each in fields.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def an_object(fields: Fields) -> Kind:
    """Returns the kind of objects with these fields."""
    return Kind(schema_of(fields), lambda where, value: read_fields(fields, value, where))


def messages(fields: Fields) -> Kind:
    """Returns the kind of conversations: lists of messages with these fields."""

    def read(where: str, value: Any) -> list[dict[str, Any]]:
        if not isinstance(value, list) or not value:
            raise expected(where, "a list of messages", value)
        return [read_fields(fields, each, f"{where}[{i}]") for i, each in enumerate(value)]

    return Kind({"type": "array", "items": schema_of(fields), "minItems": 1}, read)


_ONE: dict[str, Any] = {"type": "string"}
_SEVERAL = {"type": "array", "items": {"type": "string"}, "minItems": 1}
TEXT = Kind(_ONE, _text)
_PART = {"type": "object", "required": ["type", "text"], "properties": {"type": {"enum": ["text"]}, "text": _ONE}}
CONTENT = Kind({"oneOf": [_ONE, {"type": "array", "items": _PART}]}, _content)
TEXTS = Kind({"oneOf": [_ONE, _SEVERAL]}, _texts)
TEXT_LIST = Kind(_SEVERAL, _text_list)
_STOP = {**_ONE, "minLength": 1, "maxLength": STOP_LENGTH}
STOPS = Kind({"oneOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MOST_STOPS}]}, _stops)
OPENAI_TEXTS = Kind({"oneOf": [_ONE, _SEVERAL]}, _openai_texts)
QUESTION = {"question": Field(TEXT), "context": Field(TEXT)}
_SHORT = {**_ONE, "maxLength": SHORT_LENGTH}
SHORT = Kind(_SHORT, _short)
_PAIR = {"type": "array", "items": _ONE, "minItems": 1, "maxItems": 2}
PAIRS = Kind({"oneOf": [_ONE, _PAIR, {"type": "array", "items": _PAIR, "minItems": 1}]}, _pairs)
_DOCUMENT = {"type": "object", "required": ["text"], "properties": {"text": _ONE}}
DOCUMENTS = Kind({"type": "array", "items": {"oneOf": [_ONE, _DOCUMENT]}, "minItems": 1}, _documents)
_QUESTION = schema_of(QUESTION)
QUESTIONS = Kind({"oneOf": [_QUESTION, {"type": "array", "items": _QUESTION, "minItems": 1}]}, _questions)
JSON_OBJECT = Kind({"type": "object", "properties": {}}, _json_object)
BOOLEAN = Kind({"type": "boolean"}, _boolean)


def read_json(body: bytes | bytearray) -> Any:
    """Parses a request's body. Raises Refusal for invalid JSON, with a message that does not quote the body."""
    if _openings(body) > MOST_PARTS and _openings(STRING.sub(b"", body)) > MOST_PARTS:
        raise too_large(f"body: more than {MOST_PARTS} lists and objects")
    try:
        text = body.decode("utf-8-sig")  # json.loads would also decode UTF-16, in which `_openings` miscounts
        return json.loads(text, parse_constant=_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise wrong("body", f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise wrong("body", f"not JSON: byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise wrong("body", "JSON nested too deeply") from None
    except ValueError:  # raised for an integer with thousands of digits
        raise wrong("body", "JSON with a number that is too long") from None


def _openings(body: bytes | bytearray) -> int:
    return body.count(b"[") + body.count(b"{")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes the dict for a JSON object. Refuses duplicate names, because parsers choose different values for them."""
    read = dict(pairs)
    if len(read) < len(pairs):
        raise wrong("body", "duplicate name in an object")
    return read


def _constant(name: str) -> Any:
    raise wrong("body", f"not JSON: {name} is not allowed")


def read_fields(fields: Fields, given: Any, where: str = "") -> dict[str, Any]:
    """Returns the checked values of an object's fields. Raises Refusal for an invalid, unknown or missing field."""
    if not isinstance(given, dict):
        raise expected(where or "body", "an object", given)
    inside = f"{where}." if where else ""
    for name in given:
        if name not in fields:
            raise wrong(f"{inside}{_shortened(name)}", f"unknown field; known fields: {', '.join(fields)}")
    values = {}
    for name, each in fields.items():
        value = given.get(name)
        if value is None and (each.default is REQUIRED):
            raise wrong(f"{inside}{name}", "missing" if name not in given else "expected a value, got null")
        values[name] = each.default if value is None else each.kind.read(f"{inside}{name}", value)
    return values


def _shortened(name: str) -> str:
    return name if len(name) <= 40 and name.isidentifier() else "field"
