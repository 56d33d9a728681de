"""Middleware that counts, times and logs all requests, and hides the text of internal errors."""

from __future__ import annotations

import time
from collections.abc import Collection
from http import HTTPMethod, HTTPStatus
from typing import Any

from starlette.requests import ClientDisconnect

from npformer.serve.batching import log, place_of
from npformer.serve.fields import Refusal
from npformer.serve.prometheus import Metrics
from npformer.serve.replies import refused

GONE = 499  # nginx's status for a request whose client disconnected, used in metrics and logs


class Watch:
    """ASGI middleware around the app of a service.

    A route stores `route` and the number of `rows` in the request's state. A log line has the method, path, status,
    time and number of rows. An unknown method or path is logged as "-", because it could be a user's text.
    """

    def __init__(self, app: Any, metrics: Metrics, paths: Collection[str], access_log: bool) -> None:
        self.app = app
        self.metrics = metrics
        self.paths = paths
        self.access_log = access_log

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.monotonic(), 0
        state, path = scope.setdefault("state", {}), path_of(scope)

        async def noting(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if "route" in state:
                    self.metrics.request(state["route"], status, time.monotonic() - start, gone=status == GONE)
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except ClientDisconnect:  # the client disconnected during a stream
            pass
        except Exception as error:
            log.error("internal error: %s", place_of(error))
            if not status:
                refusal = Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "an internal error", "Backend")
                await refused(refusal, path)(scope, receive, noting)
        finally:
            if self.access_log:
                method = scope["method"] if scope["method"] in HTTPMethod.__members__ else "-"
                shown = path if path in self.paths else "-"
                seconds, rows = time.monotonic() - start, state.get("rows", 0)
                log.info("%s %s %d %.1f ms %d rows", method, shown, status, 1000 * seconds, rows)


def path_of(scope: Any) -> str:
    """Returns the path of a request, relative to the app's mount point."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
