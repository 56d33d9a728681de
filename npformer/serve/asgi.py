"""The ASGI app: what every route has in common. `routes.py`, `translate.py` and `write.py` have the routes.

A request passes, in this order: the API key, whether the server is stopping, the number of open requests, the size of
its body, its fields, the limits of its texts, and the queue. If its client leaves, its texts leave the queue.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route as Path

from npformer import __version__
from npformer.errors import NpformerError
from npformer.model import Seq2Seq
from npformer.serve import pages
from npformer.serve.batching import Batcher, Entry, QueueFull, log, place_of
from npformer.serve.fields import Refusal, read_fields, read_json
from npformer.serve.limits import ServiceLimits
from npformer.serve.metrics import Metrics
from npformer.serve.models import Served
from npformer.serve.replies import as_json, cut_header, error_body, error_headers
from npformer.serve.routes import Reply, Route, Service
from npformer.serve.translate import ALL_ROUTES

GONE = 499  # nginx's status, in the metrics, for a request whose client left
TOKENIZERS = 2  # threads that make tokens of texts
#: The route that "/" stands for, by the first model's first task, as in text-embeddings-inference.
AT_ROOT = {
    "text-ranking": "/rerank",
    "text-classification": "/predict",
    "translation": "/translate",
    "text-generation": "/generate",
    "sentence-embedding": "/embed",
    "sparse-embedding": "/embed_sparse",
}


class App:
    """The state of a service, and the entry points of its requests."""

    def __init__(self, models: dict[str, Served], limits: ServiceLimits, api_key: str | None) -> None:
        self.models = models
        self.limits = limits
        self.key = None if api_key is None else _digest(api_key.strip())
        self.stopping = False
        self.open = 0  # requests that are being answered
        self.routes = {route.path: route for route in ALL_ROUTES}
        self.service: Service | None = None  # from the start of the lifespan to its end
        self.metrics = Metrics(lambda: 0 if self.service is None else len(self.service.batcher.queue))

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Starts the batching thread, and ends it when all that was accepted is answered."""
        limits = self.limits
        batcher = Batcher(limits.batch_tokens, limits.wait_ms / 1000, limits.queue, self._observe)
        pool = ThreadPoolExecutor(TOKENIZERS, "npformer-tokens")
        loop = asyncio.get_running_loop()

        async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
            return await loop.run_in_executor(pool, partial(function, *arguments))

        self.service = Service(self.models, batcher, limits, in_thread)
        batcher.start()
        try:
            yield
        finally:
            self.service = None
            await asyncio.to_thread(batcher.close)
            pool.shutdown()

    def _observe(self, batch: Sequence[Entry], seconds: float) -> None:
        self.metrics.batch(batch, time.monotonic() - seconds, seconds)

    # --- one request ---------------------------------------------------------------------------------------------

    def answering(self, path: str) -> Callable[[Request], Awaitable[Response]]:
        """The function that answers requests to a route's path, wherever the app is mounted."""
        if path == "/":
            path = AT_ROOT[next(iter(next(iter(self.models.values())).tasks))]

        async def post(request: Request) -> Response:
            return await self.post(path, request)

        return post

    async def post(self, path: str, request: Request) -> Response:
        """Answers a POST request, or says why not."""
        start = time.monotonic()
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR
        try:
            self._admit(request)
            self.open += 1
            try:
                reply = await self._within_limits(request, self.routes[path])
                response = self._response(reply)
            finally:
                self.open -= 1
        except Refusal as refusal:
            response = refused(refusal, path)
        except (ClientDisconnect, _Gone):
            self.metrics.gone.inc()
            response = Response(status_code=GONE)
        except Exception as error:
            log.error("internal error: %s", place_of(error))
            response = refused(Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "an internal error", "Backend"), path)
        status = response.status_code
        self.metrics.requests.labels(path, status).inc()
        self.metrics.seconds.labels(path).observe(time.monotonic() - start)
        return response

    def _admit(self, request: Request) -> None:
        self._check_key(request)
        if self.service is None:
            raise Refusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the service has not started: the lifespan of its app has to run, also where another app mounts it",
                "Unhealthy",
            )
        if self.stopping:
            raise stopped()
        if self.open >= self.limits.queue:
            raise _overloaded(1)

    def _check_key(self, request: Request) -> None:
        if self.key is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(_digest(given.strip()), self.key):
            raise Refusal(HTTPStatus.UNAUTHORIZED, "the API key is missing or wrong: Authorization: Bearer KEY")

    async def _within_limits(self, request: Request, route: Route) -> Reply:
        try:
            async with asyncio.timeout(self.limits.seconds):
                body = await self._body(request)
                answering = asyncio.ensure_future(self._answer(route, body))
                leaving = asyncio.ensure_future(_left(request))
                try:
                    await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
                    if not answering.done():
                        raise _Gone
                    return answering.result()
                finally:
                    answering.cancel()
                    leaving.cancel()
        except TimeoutError:
            raise Refusal(
                HTTPStatus.GATEWAY_TIMEOUT, f"not answered within {self.limits.seconds:g} s", "Overloaded"
            ) from None
        except QueueFull as full:
            raise _overloaded(full.seconds) from None

    async def _body(self, request: Request) -> bytes:
        length = request.headers.get("content-length", "")
        if length.isdecimal():
            self.limits.check_body(int(length[:20]))
        body = bytearray()
        async for chunk in request.stream():
            self.limits.check_body(len(body) + len(chunk))
            body += chunk
        return bytes(body)

    async def _answer(self, route: Route, body: bytes) -> Reply:
        given = read_json(body)
        if route.path == "/embed" and isinstance(given, dict) and isinstance(given.get("inputs"), dict):
            route = self.routes["/similarity"]  # Hugging Face's endpoints take both at the root
        assert self.service is not None
        return await route.answer(self.service, read_fields(route.fields, given))

    def _response(self, reply: Reply) -> Response:
        headers = cut_header(list(reply.cut))
        if reply.pieces is not None:
            return StreamingResponse(self._pieces(reply), media_type=reply.media_type, headers=headers)
        return Response(as_json(reply.value), media_type=reply.media_type, headers=headers)

    async def _pieces(self, reply: Reply) -> AsyncIterator[bytes]:
        assert reply.pieces is not None
        self.open += 1
        try:
            async for piece in reply.pieces:
                yield piece
                await asyncio.sleep(0)  # others' turn, and the time to notice that the client has left
        except Exception as error:  # the status has been sent, so the error is the last event
            log.error("a stream ended early: %s", place_of(error))
            if reply.media_type == "text/event-stream":
                what = "a piece took too long" if isinstance(error, TimeoutError) else "an internal error"
                yield b"data:" + as_json({"error": what, "error_type": "Backend"}) + b"\n\n"
        finally:
            self.open -= 1

    # --- GET ------------------------------------------------------------------------------------------------------

    async def health(self, _: Request) -> Response:
        return refused(stopped(), "/health") if self.stopping else _json({"status": "ok"})

    def guarded(self, path: str, answer: Callable[[], Response]) -> Callable[[Request], Awaitable[Response]]:
        """A GET route that asks for the API key."""

        async def get(request: Request) -> Response:
            try:
                self._check_key(request)
            except Refusal as refusal:
                return refused(refusal, path)
            return answer()

        return get

    def info(self) -> Response:
        """TEI's form for the first model, and all models with their tasks."""
        models = [_described(each) for each in self.models.values()]
        limits = self.limits
        about = {
            "max_concurrent_requests": limits.queue, "max_batch_tokens": limits.batch_tokens,
            "max_client_batch_size": limits.texts, "max_batch_requests": None, "auto_truncate": False,
            "tokenization_workers": TOKENIZERS, "version": __version__, "sha": None, "docker_label": None,
        }  # fmt: skip
        return _json({**models[0], **about, "models": models})

    def list_models(self) -> Response:
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "npformer"} for name in self.models]
        return _json({"object": "list", "data": data})


class _Gone(Exception):
    """The client has left."""


async def _left(request: Request) -> None:
    """Returns when the client has left; its body has been read, so nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _digest(key: str) -> bytes:
    """Keys are compared by digests of one length, so that the time tells nothing about the length either."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _overloaded(seconds: int) -> Refusal:
    return Refusal(HTTPStatus.TOO_MANY_REQUESTS, f"the queue is full; try again in {seconds} s", "Overloaded", seconds)


def stopped() -> Refusal:
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping", "Unhealthy", 1)


def refused(refusal: Refusal, path: str) -> Response:
    response = _json(error_body(refusal, path), refusal.status)
    response.headers.update(error_headers(refusal))
    if refusal.status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
        response.headers["connection"] = "close"  # the rest of a body may not have been read
    return response


def _json(value: Any, status: int = HTTPStatus.OK) -> Response:
    return Response(as_json(value), status, media_type="application/json")


def _described(served: Served) -> dict[str, Any]:
    config = served.model.config
    kind: dict[str, Any] = {"embedding": {"pooling": "mean"}}
    if "text-classification" in served.tasks:
        labels = {str(i): label for i, label in enumerate(config.labels)}
        kind = {"reranker" if len(labels) == 1 else "classifier": {"id2label": labels}}
    elif isinstance(served.model, Seq2Seq):
        kind = {"translation": {}}
    elif next(iter(served.tasks)) == "sparse-embedding":
        kind = {"embedding": {"pooling": "splade"}}
    embed = served.tasks.get("sentence-embedding")
    if "embedding" in kind and embed is not None:
        kind = {"embedding": {"pooling": "+".join(embed.recipe.poolings)}}  # type: ignore[attr-defined]
    return {
        "model_id": served.name, "model_dtype": str(served.model.dtype), "model_sha": None, "model_type": kind,
        "max_input_length": served.max_length, "tasks": list(served.tasks),
    }  # fmt: skip


async def _not_a_route(request: Request, error: Exception) -> Response:
    """A path that does not exist, or one that is asked with another method."""
    assert isinstance(error, HTTPException)
    what = {404: "no such route; /docs lists them", 405: "this route takes another method; /docs lists them"}
    refusal = Refusal(error.status_code, what.get(error.status_code, "not a request that can be read"))
    return refused(refusal, request.url.path)


def make(served: dict[str, Served], limits: ServiceLimits, api_key: str | None) -> Starlette:
    """Makes the ASGI app that serves these models."""
    if api_key is not None and not api_key.strip():
        raise NpformerError("the API key is empty; give one of letters and digits, or none")
    state = App(served, limits, api_key)
    gets = {
        "/info": state.info,
        "/metrics": lambda: Response(state.metrics.shown(), media_type="text/plain; version=0.0.4"),
        "/v1/models": state.list_models,
        "/openapi.json": lambda: _json(pages.openapi(ALL_ROUTES)),
        "/docs": lambda: HTMLResponse(pages.docs(ALL_ROUTES)),
    }
    paths = [Path(path, state.answering(path), methods=["POST"]) for path in ("/", *state.routes)]
    paths += [Path(path, state.guarded(path, answer), methods=["GET"]) for path, answer in gets.items()]
    paths.append(Path("/health", state.health, methods=["GET"]))
    made = Starlette(routes=paths, lifespan=state.lifespan, exception_handlers={HTTPException: _not_a_route})
    made.state.npformer = state
    return made
