"""Answers and errors as bytes: JSON, with errors in TEI's format, or in OpenAI's for routes below /v1 and /v2."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from npformer.serve.fields import Refusal

if TYPE_CHECKING:
    from starlette.responses import Response

#: Statuses after which the connection is closed. 413 is not one of them: a client that is still sending its body would
#: not see the error.
ENDS = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.REQUEST_TIMEOUT)

PORTION = 200_000  # number of bytes of JSON that are encoded at a time


def as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def in_parts(value: Any) -> Iterator[bytes]:
    """Yields the JSON of a value in parts. An iterator becomes a list, with elements computed one at a time.

    A function is replaced by the value that it returns. No other Python thread runs while a part is encoded, so large
    answers are split into small parts.
    """
    if callable(value):
        yield from in_parts(value())
    elif isinstance(value, Iterator):
        yield b"["
        for i, each in enumerate(value):
            yield from [b","] * (i > 0)
            yield from in_parts(each)
        yield b"]"
    elif isinstance(value, dict) and any(isinstance(each, Iterator) or callable(each) for each in value.values()):
        for i, (name, each) in enumerate(value.items()):
            yield (b"," if i else b"{") + as_json(name) + b":"
            yield from in_parts(each)
        yield b"}"
    else:
        yield as_json(value)


def some_parts(parts: Iterator[bytes]) -> bytes:
    """Joins the next parts, up to about PORTION bytes. Returns b"" after the last part."""
    found, size = [], 0
    for part in parts:
        found.append(part)
        size += len(part)
        if size >= PORTION:
            break
    return b"".join(found)


def json_response(value: Any, status: int = HTTPStatus.OK) -> Response:
    from starlette.responses import Response

    return Response(as_json(value), status, media_type="application/json")


def refused(refusal: Refusal, path: str) -> Response:
    """Returns the error response for a refused request with this path."""
    response = json_response(error_body(refusal, path), refusal.status)
    response.headers.update(error_headers(refusal))
    return response


def error_body(refusal: Refusal, path: str) -> dict[str, Any]:
    """Returns an error in the format that clients of the path expect."""
    if path.startswith(("/v1/", "/v2/")):
        kind = "invalid_request_error" if refusal.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        return {"error": {"message": refusal.message, "type": kind, "param": None, "code": refusal.status}}
    return {"error": refusal.message, "error_type": refusal.kind}


def error_headers(refusal: Refusal) -> dict[str, str]:
    headers = {} if refusal.seconds is None else {"retry-after": str(refusal.seconds)}
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if refusal.status in ENDS:
        headers["connection"] = "close"
    return headers


def cut_header(cut: list[int] | tuple[int, ...]) -> dict[str, str]:
    """Returns the header with the indices, from 0, of the truncated texts in a request."""
    return {"x-truncated-inputs": ",".join(map(str, cut))} if cut else {}
