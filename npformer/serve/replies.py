"""Answers and errors as bytes: JSON, TEI's form of an error, and OpenAI's below /v1."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from npformer.serve.fields import Refusal


def as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def error_body(refusal: Refusal, path: str) -> dict[str, Any]:
    """An error as the clients of a route read it."""
    if path.startswith("/v1/"):
        kind = "invalid_request_error" if refusal.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        return {"error": {"message": refusal.message, "type": kind, "param": None, "code": refusal.status}}
    return {"error": refusal.message, "error_type": refusal.kind}


def error_headers(refusal: Refusal) -> dict[str, str]:
    headers = {} if refusal.seconds is None else {"retry-after": str(refusal.seconds)}
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return headers


def cut_header(cut: list[int] | tuple[int, ...]) -> dict[str, str]:
    """The header that tells which of a request's texts were cut, counted from 0."""
    return {"x-truncated-inputs": ",".join(map(str, cut))} if cut else {}
