"""The page /openapi.json, made from the table of routes. /docs (`docs_page.py`) shows the same descriptions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from npformer.serve.examples import EXAMPLES
from npformer.serve.routes import Route
from npformer.version import __version__

ERRORS = {
    401: "The API key is missing or wrong",
    404: "Unknown model name; the message lists the known names",
    408: "The body did not arrive in time",
    413: "Too many bytes, texts or tokens, or a text that is too long for the model and is not truncated",
    415: "A compressed body",
    422: "Invalid JSON or an invalid field; the message says where",
    424: "The model does not support this task; the message lists its tasks",
    429: "The queue is full; retry after the time in Retry-After",
    503: "The server is shutting down, or answers that clients have not read take too much memory",
    504: "Not answered before the timeout",
}
GETS = {
    "/health": "200 while the server accepts requests, 503 while it shuts down",
    "/info": "The models, the limits and the version",
    "/metrics": "Counters for Prometheus",
    "/v1/models": "The models, in OpenAI's format",
    "/openapi.json": "This API as an OpenAPI document",
    "/docs": "This API as a web page",
    "/": "The same page",
}
#: Name of a metric in Prometheus, without the prefix `npformer_` -> its description. `prometheus.py` updates them.
METRICS = {
    "requests_total": "Requests by route and status",
    "request_seconds": "Seconds from a request's arrival to its answer, by route",
    "requests_gone_total": "Requests whose client disconnected before the answer",
    "tokens_total": "Tokens computed",
    "batch_texts": "Texts per batch",
    "batch_tokens": "Tokens per batch",
    "batch_seconds": "Seconds to compute a batch",
    "wait_seconds": "Seconds that a text waits before it is computed",
    "queue_texts": "Texts waiting in the queue",
}


def openapi(routes: Iterable[Route]) -> dict[str, Any]:
    """Returns the OpenAPI description of all routes."""
    errors = {str(status): {"description": what} for status, what in ERRORS.items()}
    paths: dict[str, Any] = {
        path: {"get": {"summary": what, "responses": {"200": {"description": "The answer"}}}}
        for path, what in GETS.items()
    }
    for route in routes:
        content: dict[str, Any] = {"schema": route.schema}
        answer: dict[str, Any] = {"description": "The answer"}
        if route.path in EXAMPLES:
            content["example"], shown = EXAMPLES[route.path]
            media = "text/event-stream" if isinstance(shown, str) else "application/json"
            answer["content"] = {media: {"example": shown}}
        body = {"required": True, "content": {"application/json": content}}
        responses = {"200": answer, **errors}
        paths[route.path] = {"post": {"summary": route.summary, "requestBody": body, "responses": responses}}
    security = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
    about = {"title": "npformer", "version": __version__}
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": security, "security": [{"key": []}, {}]}
