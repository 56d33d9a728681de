"""AWS Lambda: the service behind a function URL or an HTTP API of API Gateway (payload format 2.0).

    pip install --target package ".[serve]" && cp examples/deploy/lambda_handler.py package
    (cd package && zip -qr ../npformer.zip .)       # set the handler to lambda_handler.handle

The package, including the bundled model, takes 160 MB of the 250 MB that a function may have. Zipped it takes 79 MB,
too much for a direct upload, so upload it through S3. The variable MODEL selects another model: a folder in the
package. The model is loaded once, when an instance starts. An instance answers one request at a time, so there is no
batching across requests, and answers are sent whole: a stream from /generate arrives only when it is complete.
"""

from __future__ import annotations

import asyncio
import base64
import os
from typing import Any

import npformer

app = npformer.serve.app(os.environ.get("MODEL", "distilbert-sst2"), api_key=os.environ.get("NPFORMER_API_KEY"))
loop = asyncio.new_event_loop()
running = app.router.lifespan_context(app)
loop.run_until_complete(running.__aenter__())  # never exited: the app runs as long as the instance


def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Answers one request."""
    return loop.run_until_complete(answer(event))


async def answer(event: dict[str, Any]) -> dict[str, Any]:
    body = event.get("body") or ""
    content = base64.b64decode(body) if event.get("isBase64Encoded") else body.encode()
    incoming = [{"type": "http.request", "body": content}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return incoming.pop() if incoming else await asyncio.Future()  # API Gateway does not report disconnections

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(name.lower().encode(), value.encode()) for name, value in event.get("headers", {}).items()]
    scope = {
        "type": "http", "http_version": "1.1", "scheme": "https", "headers": headers, "path": event["rawPath"],
        "method": event["requestContext"]["http"]["method"], "query_string": event.get("rawQueryString", "").encode(),
    }  # fmt: skip
    await app(scope, receive, send)
    start, *parts = sent
    return {
        "statusCode": start["status"],
        "headers": {name.decode(): value.decode() for name, value in start["headers"]},
        "body": b"".join(part.get("body", b"") for part in parts).decode(),
    }
