"""The ASGI app that all routes share. `declared.py` collects the routes.

These checks of a request are made in order: the API key, shutdown and the number of open requests (checked again after
the body), the body, the fields, the limits on texts, and the queue. If the client disconnects, the request's texts are
removed from the queue. A refusal is an exception, which a handler at the end of this file turns into a response.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route as Path

from npformer.common.errors import NpformerError
from npformer.serve import docs_page, pages
from npformer.serve.answers import Answer, Answers
from npformer.serve.batching import Batcher, QueueFull, log, place_of
from npformer.serve.bodies import Bodies, Gone
from npformer.serve.declared import ALL_ROUTES
from npformer.serve.fields import Refusal, read_fields, read_json
from npformer.serve.models import Served
from npformer.serve.prometheus import Metrics
from npformer.serve.replies import as_json, cut_header, in_parts, json_response, refused, some_parts
from npformer.serve.request_limits import ServiceLimits
from npformer.serve.routes import Reply, Route, Service
from npformer.serve.watch import GONE, Watch, path_of
from npformer.tasks.catalogue import TASKS
from npformer.text.chat_template import end_waiting, start_ahead
from npformer.version import __version__

TOKENIZERS = 2  # number of threads that tokenize
EVENTS = "text/event-stream"
UNBUFFERED = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # without these, nginx buffers 8 KB of events
RENDERERS = 2  # number of threads that render chat templates; a rendering runs in a process that was started in advance


class App:
    """The state of a service, and the entry points of its requests."""

    def __init__(self, models: dict[str, Served], limits: ServiceLimits, api_key: str | None) -> None:
        self.models = models
        self.limits = limits
        self.key = None if api_key is None else _digest(api_key.strip())
        self.stopping = False
        self.end: float | None = None  # when the grace period of a stopping server ends, as a value of time.monotonic()
        self.open = 0  # requests with a complete body and no answer yet
        self.bodies = Bodies(limits)
        self.answers = Answers(limits.answers)
        self.routes = {route.path: route for route in ALL_ROUTES}
        self.service: Service | None = None  # set during the app's lifespan
        self.metrics = Metrics(lambda: 0 if self.service is None else self.service.batcher.waiting)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Starts the batching thread, and ends it when all accepted requests have been answered.

        A batch that is still running at the end of the grace period is abandoned.
        """
        limits = self.limits
        cores = max(each.model.threads for each in self.models.values())
        batcher = Batcher(limits.batch_tokens, limits.wait_ms / 1000, limits.queue, self.metrics.batch, cores)
        tokenizers = ThreadPoolExecutor(TOKENIZERS, "npformer-tokens")
        renderers = ThreadPoolExecutor(RENDERERS, "npformer-templates")
        self.service = Service(self.models, batcher, limits, _in_thread(tokenizers), _rendering(renderers))
        batcher.start()
        try:
            yield
        finally:
            self.service = None
            left = None if self.end is None else max(0.0, self.end - time.monotonic())
            await asyncio.to_thread(batcher.close, left)
            for pool in (tokenizers, renderers):
                pool.shutdown()
            end_waiting()

    # --- one request ---------------------------------------------------------------------------------------------

    async def post(self, path: str, request: Request) -> Response:
        """Answers a POST request. Raises Refusal, QueueFull, TimeoutError or Gone."""
        request.state.route = path
        self._check_key(request)
        self._check_open()
        try:
            async with self.bodies.read(request) as body:
                self._check_open()  # again, because other requests may have been accepted while this body arrived
                return await self._accepted(path, request, body)
        except asyncio.CancelledError:
            if self.stopping:  # the grace period is over
                raise stopped() from None
            raise

    async def _accepted(self, path: str, request: Request, body: bytearray) -> Response:
        self.open += 1
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await self._unless_left(request, self._answer(request, self.routes[path], body))
        finally:
            self.open -= 1

    def _check_open(self) -> None:
        if self.service is None:
            raise Refusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the service has not started: run the app's lifespan, even if another app mounts it",
                "Unhealthy",
            )
        if self.stopping:
            raise stopped()
        if self.open >= self.limits.queue:
            raise QueueFull(1)

    def _check_key(self, request: Request) -> None:
        if self.key is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(_digest(given.strip()), self.key):
            raise Refusal(
                HTTPStatus.UNAUTHORIZED,
                "the API key is missing or wrong; send the header 'Authorization: Bearer KEY'",
            )

    async def _unless_left(self, request: Request, answer: Coroutine[Any, Any, Response]) -> Response:
        """Waits for an answer. Raises Gone if the client disconnects first."""
        answering, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise Gone
            return answering.result()
        finally:
            answering.cancel()
            leaving.cancel()

    async def _answer(self, request: Request, route: Route, body: bytearray) -> Response:
        assert self.service is not None
        in_thread = self.service.in_thread
        route, given = await in_thread(_read, route, body)
        reply = await route.answer(self.service, given)
        request.state.rows = len(reply.prepared.requests)
        headers = cut_header(reply.prepared.cut)
        if reply.media_type == EVENTS:
            headers |= UNBUFFERED
        how: dict[str, Any] = {"media_type": reply.media_type, "headers": headers}
        if reply.pieces is not None:
            return Answer(self.answers, self._pieces(reply), reply.held, **how)
        parts, found = await in_thread(in_parts, reply.value), list[bytes]()
        while some := await in_thread(some_parts, parts):  # in parts, so that requests take turns in the threads
            found.append(some)
        return Answer(self.answers, b"".join(found), **how)

    async def _pieces(self, reply: Reply) -> AsyncIterator[bytes]:
        assert reply.pieces is not None
        self.open += 1
        try:
            async for piece in reply.pieces:
                yield piece
                await asyncio.sleep(0)  # lets other tasks run, and detects a disconnected client
        except Exception as error:  # the status has been sent, so the error is the last event
            log.error("a stream ended early: %s", place_of(error))
            if reply.media_type == EVENTS:
                what = "generating a piece took too long" if isinstance(error, TimeoutError) else "an internal error"
                yield b"data:" + as_json({"error": what, "error_type": "Backend"}) + b"\n\n"
            else:  # the server closes the connection, which shows the client that the answer is incomplete
                raise
        finally:
            self.open -= 1

    # --- GET ------------------------------------------------------------------------------------------------------

    async def health(self, _: Request) -> Response:
        if self.stopping:
            raise stopped()
        return json_response({"status": "ok"})

    async def get(self, answer: Callable[[], Response], request: Request) -> Response:
        """Answers a GET request that needs the API key."""
        self._check_key(request)
        return answer()

    async def get_metrics(self, request: Request) -> Response:
        """Answers with the metrics, collected in a thread because a worker reads the files of all workers."""
        self._check_key(request)
        shown = await asyncio.to_thread(self.metrics.shown)
        return Response(shown, media_type="text/plain; version=0.0.4")

    def info(self) -> Response:
        """Returns TEI's fields for the first model, and a list of all models with their tasks."""
        models = [_described(each) for each in self.models.values()]
        limits = self.limits
        about = {
            "max_concurrent_requests": limits.queue, "max_batch_tokens": limits.batch_tokens,
            "max_client_batch_size": limits.texts, "max_batch_requests": None, "auto_truncate": False,
            "tokenization_workers": TOKENIZERS, "version": __version__, "sha": None, "docker_label": None,
        }  # fmt: skip
        return json_response({**models[0], **about, "models": models})

    def list_models(self) -> Response:
        return json_response({"object": "list", "data": list(map(_as_listed, self.models))})

    async def one_model(self, request: Request) -> Response:
        """Returns the entry of a model in the list of models."""
        self._check_key(request)
        name = request.path_params["name"]
        if name not in self.models:
            raise Refusal(HTTPStatus.NOT_FOUND, f"model: unknown name; served models: {', '.join(self.models)}")
        return json_response(_as_listed(name))


def _as_listed(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "npformer"}


def _in_thread(pool: ThreadPoolExecutor) -> Callable[..., Awaitable[Any]]:
    """Returns a function that runs another function in a thread of the pool and waits for the result."""

    async def waiting(function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(pool, partial(function, *arguments))

    return waiting


def _rendering(pool: ThreadPoolExecutor) -> Callable[..., Awaitable[Any]]:
    """Like `_in_thread`, but after each call starts processes for later renderings."""
    in_thread = _in_thread(pool)

    async def waiting(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await in_thread(function, *arguments)
        finally:
            with suppress(RuntimeError):  # raised if the pool is shut down
                pool.submit(start_ahead, RENDERERS)

    return waiting


def _read(route: Route, body: bytearray) -> tuple[Route, dict[str, Any]]:
    """Parses a body. Returns its route and the values of its fields."""
    given = read_json(body)
    route = route.of(given)
    return route, read_fields(route.fields, given)


async def _left(request: Request) -> None:
    """Waits until the client disconnects. No other message can arrive, because the body has already been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _digest(key: str) -> bytes:
    """Returns a digest of a key. Digests have equal lengths, so comparing them does not reveal the key's length."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def stopped() -> Refusal:
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the server is shutting down", "Unhealthy", 1)


def _described(served: Served) -> dict[str, Any]:
    config = served.model.config
    kind: dict[str, Any] = {"embedding": {"pooling": "mean"}}
    if "text-classification" in served.tasks:
        labels = {str(i): label for i, label in enumerate(config.labels)}
        kind = {"reranker" if len(labels) == 1 else "classifier": {"id2label": labels}}
    elif "text-ranking" in served.tasks:  # this ranker is a causal language model, which has no labels
        kind = {"reranker": {"id2label": {"0": "LABEL_0"}}}
    elif (first := next(iter(served.tasks))) == "sparse-embedding":
        kind = {"embedding": {"pooling": "splade"}}
    elif not first.endswith(("-embedding", "-extraction")):
        kind = {first: {}}
    embed = served.tasks.get("sentence-embedding")
    if "embedding" in kind and embed is not None:
        kind = {"embedding": {"pooling": "+".join(embed.recipe.poolings)}}  # type: ignore[attr-defined]
    return {
        "model_id": served.name, "model_dtype": str(served.model.dtype), "model_sha": None, "model_type": kind,
        "max_input_length": served.max_length, "tasks": list(served.tasks),
    }  # fmt: skip


# --- errors ----------------------------------------------------------------------------------------------------------


async def _refused(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    return refused(refusal, path_of(request.scope))


async def _not_a_route(request: Request, error: Exception) -> Response:
    """Answers a request with an unknown path, or with a method that is not allowed for the path."""
    assert isinstance(error, HTTPException)
    what = {404: "unknown route; see /docs", 405: "method not allowed for this route; see /docs"}
    refusal = Refusal(error.status_code, what.get(error.status_code, "malformed request"))
    response = await _refused(request, refusal)
    response.headers.update(error.headers or {})  # for example Allow, which lists the allowed methods
    return response


async def _gone(_: Request, error: Exception) -> Response:
    return Response(status_code=GONE)


def check_key(api_key: str | None) -> None:
    """Raises NpformerError for a key that is empty or cannot be sent in a header."""
    key = None if api_key is None else api_key.strip()
    if key == "":
        raise NpformerError("the API key is empty; give a key of letters and digits, or leave it out")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise NpformerError("the API key: expected one line of ASCII characters, which all clients can send")


def make(served: dict[str, Served], limits: ServiceLimits, api_key: str | None, access_log: bool = False) -> Starlette:
    """Makes the ASGI app that serves these models."""
    check_key(api_key)
    state = App(served, limits, api_key)

    async def too_late(request: Request, _: Exception) -> Response:
        message = f"not answered within {limits.seconds:g} s"
        return await _refused(request, Refusal(HTTPStatus.GATEWAY_TIMEOUT, message, "Overloaded"))

    page, described = docs_page.docs(ALL_ROUTES), pages.openapi(ALL_ROUTES)

    def docs() -> Response:
        return HTMLResponse(page)

    gets = {
        "/info": state.info,
        "/v1/models": state.list_models,
        "/openapi.json": lambda: json_response(described),
        "/docs": docs,
    }
    [first, *_] = next(iter(served.values())).tasks
    post, get = partial(state.post, TASKS[first].route), partial(state.get, docs)

    async def root(request: Request) -> Response:
        return await (post if request.method == "POST" else get)(request)

    paths = [Path("/", root, methods=["GET", "POST"]), Path("/health", state.health, methods=["GET"])]
    paths.append(Path("/metrics", state.get_metrics, methods=["GET"]))
    paths += [Path(path, partial(state.post, path), methods=["POST"]) for path in state.routes]
    paths += [Path(path, partial(state.get, answer), methods=["GET"]) for path, answer in gets.items()]
    paths.append(Path("/v1/models/{name:path}", state.one_model, methods=["GET"]))
    known = frozenset(each.path for each in paths)
    made = Starlette(
        routes=paths,
        lifespan=state.lifespan,
        middleware=[Middleware(Watch, metrics=state.metrics, paths=known, access_log=access_log)],
        exception_handlers={
            Refusal: _refused, TimeoutError: too_late, Gone: _gone, HTTPException: _not_a_route,
        },
    )  # fmt: skip
    made.router.redirect_slashes = False  # a redirect would point to the host named in the client's request
    made.state.npformer = state
    return made
