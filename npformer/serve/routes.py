"""The routes: request and response formats of text-embeddings-inference (TEI) and of OpenAI's clients.

A route is an entry of ROUTES. Its fields validate requests and define the OpenAPI page, and its function answers
requests. The tasks of `npformer.pipeline` compute the answers, and this file formats them.

References
----------
https://huggingface.github.io/text-embeddings-inference and https://platform.openai.com/docs/api-reference/embeddings.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.serve import fields as f
from npformer.serve.batching import Batcher
from npformer.serve.fields import Field, Fields
from npformer.serve.models import (
    Prepared,
    Served,
    TaskWork,
    candidates,
    choose,
    first_error,
    joined,
    n_characters,
    portions,
    prepare,
    tokenized,
)
from npformer.serve.replies import as_json
from npformer.serve.request_limits import ServiceLimits
from npformer.tasks.pooling import normalize
from npformer.tasks.task import Task


@dataclass(frozen=True)
class Reply:
    """An answer to prepared texts: a JSON value, whose lists may be iterators, or the pieces of a text.

    Iterators and functions in the value are computed outside the event loop, so slow computations belong there.
    """

    prepared: Prepared
    value: Any = None
    pieces: AsyncIterator[bytes] | None = None
    held: int = 0  # number of bytes that stay in memory until the last piece is sent
    media_type: str = "application/json"


@dataclass(frozen=True)
class Service:
    """The models, limits and batcher that a route uses."""

    models: dict[str, Served]
    batcher: Batcher
    limits: ServiceLimits
    in_thread: Callable[..., Awaitable[Any]]  # runs a function in one of a few threads, for tokenizing
    in_renderer: Callable[..., Awaitable[Any]]  # runs a function in one of a few other threads, for chat templates

    async def prepared(self, task: Task, texts: f.Texts, truncate: bool, where: str, options: Any) -> Prepared:
        """Encodes the texts of a request. Refuses too many texts, and texts that are too long."""
        times = task.n_texts(options)
        self.limits.check_texts(where if times == 1 else f"{where}, each read {times} times", len(texts.items) * times)
        self.limits.check_characters(where, times * sum(map(n_characters, texts.items)))
        several, limits, found = texts.several, self.limits, list[Prepared]()
        for first, some in portions(texts.items):
            found.append(await self.in_thread(prepare, task, some, options, truncate, where, several, limits, first))
            limits.check_tokens(where, sum(sum(each.sizes) for each in found))
        return joined(found)

    async def answers(
        self, work: TaskWork, prepared: Prepared, where: str, several: bool = True, costs: Sequence[int] | None = None
    ) -> list[Any]:
        """Returns the answers to prepared texts. costs: the cost of each text in tokens, by default its size."""
        sizes = prepared.sizes
        found = await self.batcher.answers(work, prepared.requests, costs or sizes, sizes)
        first_error(found, where, several)
        return found

    async def ask(
        self, work: TaskWork, texts: f.Texts, truncate: bool, where: str = "inputs", cost: int = 1
    ) -> tuple[list[Any], Prepared]:
        """Returns the answers to the texts of a request, and the encoded texts.

        cost: cost of a token, relative to a token in an encoder.
        """
        prepared = await self.prepared(work.task, texts, truncate, where, work.options)
        costs = [size * cost for size in prepared.sizes]
        return await self.answers(work, prepared, where, texts.several, costs), prepared

    async def piece(self, task: Task, pieces: Iterator[str]) -> str | None:
        """Waits for the next piece of a stream, which is computed in its turn. Returns None at the end."""
        async with asyncio.timeout(self.limits.seconds):
            found: str | None = await self.batcher.call(lambda: next(pieces, None), task.model)
            return found


@dataclass(frozen=True)
class Route:
    """A POST route."""

    path: str
    summary: str
    fields: Fields
    answer: Callable[[Service, dict[str, Any]], Awaitable[Reply]]
    other: Route | None = None  # the route for bodies in a different format
    is_other: Callable[[dict[str, Any]], bool] = lambda given: False
    sign: str = ""  # for the documentation: how a body in the other format is recognized

    def of(self, given: Any) -> Route:
        """Returns the route for the parsed body of a request."""
        return self.other if self.other is not None and isinstance(given, dict) and self.is_other(given) else self

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of requests to the route."""
        if self.other is None:
            return f.schema_of(self.fields)
        return {"anyOf": [f.schema_of(self.fields), self.other.schema]}


# --- fields shared by several routes ---------------------------------------------------------------------------------

MODEL = {
    "model": Field(
        f.TEXT,
        None,
        "A model from /v1/models (default: the first model with the task). Ignored if only one model is served.",
    )
}
TRUNCATE = {
    "truncate": Field(f.BOOLEAN, False, "Truncate texts that are too long; otherwise they are refused with 413.")
}
TEI = {
    **TRUNCATE,
    "truncation_direction": Field(f.nothing_else("texts are truncated on the right", "right", "Right"), "right"),
    "prompt_name": Field(f.TEXT, None, "Name of one of the model's prompts, to put before each text."),
    **MODEL,
}
EMBED = {
    "inputs": Field(f.TEXTS),
    "normalize": Field(f.BOOLEAN, True, "Scale vectors to length 1; with false, their lengths stay as computed."),
    "dimensions": Field(f.whole(1), None, "Truncate each vector to this many numbers."),
    **TEI,
}
CLASSIFY = {
    "top_k": Field(f.whole(1), None),
    "function_to_apply": Field(f.one_of("softmax", "sigmoid", "none"), None),
}

# --- vectors ---------------------------------------------------------------------------------------------------------


async def _vectors(service: Service, given: dict[str, Any], texts: f.Texts, where: str) -> tuple[Any, Prepared, str]:
    """Returns the vectors (N, D) of texts in the model's dtype, truncated and normalized as requested."""
    name, task = choose(service.models, given.get("model"), "sentence-embedding")
    width = task.options.truncate_dim or task.width
    dimensions = given.get("dimensions") or width
    if dimensions > width:
        raise f.wrong("dimensions", f"expected at most {width}, the model's dimensions, got {dimensions}")
    options = prompted(task, given.get("prompt_name"))
    found, prepared = await service.ask(TaskWork(task, options), texts, given.get("truncate", False), where)
    vectors = np.stack([np.asarray(each) for each in found])[:, :dimensions]
    is_unit = task.is_normalized(options) and dimensions == width
    return (normalize(vectors) if given.get("normalize", True) and not is_unit else vectors), prepared, name


def prompted(task: Task, name: str | None) -> Any:
    """Returns the task's options with a prompt given by name. Raises Refusal for an unknown name."""
    try:
        return task.options if name is None else task.settle(task.options, {"prompt_name": name})
    except NpformerError as error:
        raise f.wrong("prompt_name", str(error).removeprefix("prompt_name: ")) from None


async def embed(service: Service, given: dict[str, Any]) -> Reply:
    vectors, prepared, _ = await _vectors(service, given, given["inputs"], "inputs")
    return Reply(prepared, map(np.ndarray.tolist, vectors))


async def embed_all(service: Service, given: dict[str, Any]) -> Reply:
    _, task = choose(service.models, given["model"], "feature-extraction")
    found, prepared = await service.ask(TaskWork(task, task.options), given["inputs"], given["truncate"])
    return Reply(prepared, pieces=_rows_of(service, found), held=sum(np.asarray(each).nbytes for each in found))


async def _rows_of(service: Service, arrays: Sequence[np.ndarray], rows: int = 16) -> AsyncIterator[bytes]:
    """Yields vectors (1, L, D) of texts as JSON, a few rows at a time, to give other requests a turn."""
    for i, array in enumerate(arrays):
        for at in range(0, array.shape[1], rows):
            opened = b"," if at else b",[" if i else b"[["
            shown = await service.in_thread(_listed, np.asarray(array)[0, at : at + rows])
            yield opened + shown
        yield b"]"
    yield b"]"


def _listed(rows: np.ndarray) -> bytes:
    """Returns vectors as JSON, without the outer brackets."""
    return b",".join(as_json(each.tolist()) for each in rows)


async def embed_sparse(service: Service, given: dict[str, Any]) -> Reply:
    _, task = choose(service.models, given["model"], "sparse-embedding")
    work = TaskWork(task, prompted(task, given["prompt_name"]))
    found, prepared = await service.ask(work, given["inputs"], given["truncate"])
    pairs = (zip(each["indices"].tolist(), each["values"].tolist(), strict=True) for each in found)
    return Reply(prepared, (({"index": index, "value": value} for index, value in each) for each in pairs))


async def similarity(service: Service, given: dict[str, Any]) -> Reply:
    inputs = given["inputs"]
    texts = [inputs["source_sentence"], *inputs["sentences"]]
    options = {**(given["parameters"] or {}), "model": given["model"]}
    vectors, prepared, _ = await _vectors(service, options, f.Texts(texts, several=True), "inputs")
    products = (vectors[1:] * vectors[0]).sum(axis=1)  # `@` would add in an order that depends on the number of rows
    return Reply(prepared, products.tolist())


async def embeddings(service: Service, given: dict[str, Any]) -> Reply:
    vectors, prepared, name = await _vectors(service, given, given["input"], "input")
    packed = given["encoding_format"] == "base64"
    data = (
        {"object": "embedding", "index": i, "embedding": _base64(each) if packed else each.tolist()}
        for i, each in enumerate(vectors)
    )
    return Reply(prepared, {"object": "list", "data": data, "model": name, "usage": usage(prepared)})


def usage(prepared: Prepared) -> dict[str, int]:
    return dict.fromkeys(("prompt_tokens", "total_tokens"), sum(prepared.sizes))


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


# --- labels ----------------------------------------------------------------------------------------------------------


async def predict(service: Service, given: dict[str, Any]) -> Reply:
    texts, parameters = given["inputs"], given["parameters"]
    _, task = choose(service.models, given["model"], "text-classification")
    function = (parameters or {}).get("function_to_apply") or ("none" if given["raw_scores"] else None)
    options = replace(task.options, top_k=(parameters or {}).get("top_k"), function_to_apply=function)
    found, prepared = await service.ask(TaskWork(task, options), texts, given["truncate"])
    # Hugging Face's inference client, which sends `parameters`, expects a list of lists even for one text.
    nested = texts.several or parameters is not None
    return Reply(prepared, iter(found) if nested else found[0])


# --- tokens ----------------------------------------------------------------------------------------------------------


async def tokenize(service: Service, given: dict[str, Any]) -> Reply:
    texts = given["inputs"]
    service.limits.check_texts("inputs", len(texts.items))
    served = candidates(service.models, given["model"])[0]
    special, most = given["add_special_tokens"], service.limits.tokens
    found: list[Prepared] = []
    for first, some in portions(texts.items):
        found.append(await service.in_thread(tokenized, served, some, special, most, "inputs", texts.several, first))
        if sum(sum(each.sizes) for each in found) > most:
            raise f.too_large(f"inputs: expected at most {most} tokens in a request, got more")
    prepared = joined(found)
    return Reply(prepared, map(iter, prepared.requests))


SIMILARITY = Route(
    "/similarity",
    "The cosine similarity of a text to other texts",
    {
        "inputs": Field(f.an_object({"source_sentence": Field(f.TEXT), "sentences": Field(f.TEXT_LIST)})),
        "parameters": Field(f.an_object({each: TEI[each] for each in TEI if each != "model"}), None),
        **MODEL,
    },
    similarity,
)
ROUTES = (
    # Hugging Face's endpoints accept the requests of /similarity at the root too.
    Route(
        "/embed",
        "A vector for each text",
        EMBED,
        embed,
        SIMILARITY,
        lambda given: isinstance(given.get("inputs"), dict),
        "an object in `inputs`",
    ),
    Route(
        "/embed_all",
        "A vector for each token of each text",
        {
            "inputs": Field(f.TEXTS),
            **TEI,
            "prompt_name": Field(f.nothing_else("prepend the prompt to each text"), None),
        },
        embed_all,
    ),
    Route(
        "/embed_sparse",
        "A sparse vector of word weights for each text",
        {"inputs": Field(f.TEXTS), **TEI},
        embed_sparse,
    ),
    SIMILARITY,
    Route(
        "/predict",
        "The labels of each text or pair with their scores, best first",
        {
            "inputs": Field(
                f.PAIRS,
                what="A text, a pair [text, second text], or a list of [text] and pairs. "
                "A list of two texts is one pair.",
            ),
            "raw_scores": Field(f.BOOLEAN, False, "Return logits, not probabilities."),
            "parameters": Field(f.an_object(CLASSIFY), None),
            **{each: TEI[each] for each in TEI if each != "prompt_name"},
        },
        predict,
    ),
    Route(
        "/tokenize",
        "The tokens of each text",
        {"inputs": Field(f.TEXTS), "add_special_tokens": Field(f.BOOLEAN, True), **MODEL},
        tokenize,
    ),
    Route(
        "/v1/embeddings",
        "A vector for each text, in OpenAI's format",
        {
            "input": Field(f.OPENAI_TEXTS),
            **MODEL,
            "encoding_format": Field(f.one_of("float", "base64"), "float", "base64: little-endian float32."),
            "dimensions": Field(
                f.whole(1), None, "Truncate each vector to this many numbers, and scale it to length 1."
            ),
            "user": Field(f.TEXT, None, "Ignored."),
            **TRUNCATE,
        },
        embeddings,
    ),
)
