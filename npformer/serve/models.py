"""The models of a service with their tasks, and the preparation of texts for the batcher."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Any

from npformer.base_model import BaseModel
from npformer.common.errors import NpformerError
from npformer.common.limits import how_to_allow_more
from npformer.engine.runtime.steps import Steps
from npformer.model import Model, Seq2Seq
from npformer.serve.batching import log
from npformer.serve.fields import Refusal, too_large, wrong
from npformer.serve.request_limits import ServiceLimits
from npformer.tasks.catalogue import TASKS
from npformer.tasks.pipelines import class_of, pipeline, tasks_of
from npformer.tasks.sparse_embedding import SparseEmbedding
from npformer.tasks.task import InputError, Request, Task
from npformer.tasks.text_generation import TextGeneration
from npformer.tasks.text_ranking import TextRanking
from npformer.tasks.writing import Writing
from npformer.text.inputs import Pair

PORTION = 50_000  # number of characters that are tokenized at a time
Given = str | Path | Model | Seq2Seq | Task

#: Task -> the options whose defaults in a service differ from the task's own. If a model has several of these tasks,
#: the root path serves the first.
SERVED: dict[str, dict[str, Any]] = {
    "text-ranking": {"function_to_apply": "sigmoid"},
    "text-classification": {"top_k": None},
    "token-classification": {"aggregation_strategy": "simple"},
    "question-answering": {},
    "sentence-embedding": {},
    "feature-extraction": {"return_tensors": True},
}


@dataclass(frozen=True)
class TaskWork:
    """Computes the answers to prepared requests for the batcher, by a task with fixed options."""

    task: Task
    options: Any
    together: bool = True

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskWork) or self.task is not other.task:
            return False
        return self.options is other.options or self.options == other.options

    __hash__ = None  # type: ignore[assignment]

    @property
    def model(self) -> BaseModel:
        return self.task.model

    @property
    def stepwise(self) -> bool:
        return isinstance(self.task, Writing)

    def run(self, requests: list[Request]) -> list[Any] | Steps[list[Any]]:
        """Returns the answers to requests, or steps that compute them. The answer may be an InputError."""
        if self.stepwise:
            return self.in_steps(requests)
        self.task.run(requests)
        return list(self.task.finish(requests, 0, self.options))

    def in_steps(self, requests: list[Request]) -> Steps[list[Any]]:
        """Returns steps that compute the answers. Other requests can be computed between the steps."""
        answers = yield from self.task.in_steps(requests, self.options)
        return list(self.task.finished(requests, answers, 0))


@dataclass(frozen=True)
class Prepared:
    """Prepared texts: requests of a task, the number of tokens of each text, and the indices of truncated texts."""

    requests: list[Any]
    sizes: list[int]
    cut: list[int]


@dataclass(frozen=True)
class Served:
    """A named model with its tasks, by name."""

    name: str
    model: BaseModel
    tasks: Mapping[str, Task]

    @property
    def max_length(self) -> int:
        """The maximum number of tokens in a text."""
        task = next(iter(self.tasks.values()))
        return task.limit(task.options)

    def tokens(self, text: str, special: bool, most: int) -> list[dict[str, Any]]:
        """Returns the tokens of a text: id, text, whether a token is special, and character span.

        Raises NpformerError for an unreadable text, and for a text with clearly more than `most` tokens.
        """
        shown = next(iter(self.tasks.values())).encoder.described(text, special, most)
        return [dict(zip(("id", "text", "special", "start", "stop"), each, strict=True)) for each in shown]


def serve_all(models: Given | Sequence[Given] | Mapping[str, Given], **loading: Any) -> dict[str, Served]:
    """Loads models and returns them by name.

    If `models` is a mapping, the name of a model is its key; otherwise it is the folder name, bundled name, hub id or
    model type. `loading` has threads, revision and offline, as in `pipeline`. Raises NpformerError if there are no
    models or a name is duplicated.
    """
    if isinstance(models, Given):
        models = [models]
    pairs = models.items() if isinstance(models, Mapping) else ((None, each) for each in models)
    found: dict[str, Served] = {}
    for name, given in pairs:
        task = given if isinstance(given, Task) else pipeline(None, given, **loading)
        served = Served(name or _name_of(given, task), task.model, dict(_tasks(task)))
        if served.name in found:
            raise NpformerError(
                f"two models are named {served.name}; rename a folder, or name the models: app({{name: model, ...}})"
            )
        found[served.name] = served
    if not found:
        raise NpformerError("expected at least one model to serve")
    return found


def name_of_path(given: str | Path) -> str:
    """Returns the name of a folder, without resolving links, or a bundled name or hub id unchanged."""
    folder = Path(given).expanduser()
    return Path(os.path.abspath(folder)).name if folder.is_dir() else str(given)


def _name_of(given: Given, task: Task) -> str:
    if isinstance(given, str | Path):
        return name_of_path(given)
    return task.model.folder.name if task.model.folder is not None else task.model.config.model_type


def _tasks(task: Task) -> Iterator[tuple[str, Task]]:
    """Yields the tasks of a model that have a route, by name. The first task is served at the root path."""
    if isinstance(task, Writing):
        yield task.name, task
        return
    fitting = [name for name in tasks_of(task.model.config) if TASKS[name].route]
    if SparseEmbedding.name not in fitting and SparseEmbedding.accepts(task.model):
        fitting.append(SparseEmbedding.name)
    names = sorted(fitting, key=lambda name: list(SERVED).index(name) if name in SERVED else len(SERVED))
    if isinstance(task, TextRanking) and task.template is not None:  # this model reads texts only in a chat template
        yield task.name, task
        return
    if isinstance(task, SparseEmbedding):  # a sparse model gets no route for sentence-embedding
        names = [task.name, *(name for name in names if name not in (task.name, "sentence-embedding"))]
    for name in names:
        try:
            yield name, _in_service(name, task)
        except NpformerError as error:  # raised, for example, if the tokenizer has no mask token
            log.warning("no route %s: %s", TASKS[name].route, error)


def _in_service(name: str, task: Task) -> Task:
    """Returns the named task for the model of `task`. If `task` is this task, keeps options that the user changed."""
    options = SERVED.get(name, {})
    if name != task.name:
        return class_of(name)(task.model, **options)
    usual, made = task.defaults(), copy(task)
    unchanged = {each: options[each] for each in options if getattr(task.options, each) == getattr(usual, each)}
    made.options = task.settle(task.options, unchanged)
    return made if unchanged else task


def candidates(models: Mapping[str, Served], name: str | None) -> list[Served]:
    """Returns the model with this name, or all models if no name is given or only one model is served.

    With only one model, any name is accepted, because some clients must send a name. With several models, raises
    Refusal for an unknown name.
    """
    if name is None or len(models) == 1:
        return list(models.values())
    if name not in models:
        raise Refusal(HTTPStatus.NOT_FOUND, f"model: unknown name; served models: {', '.join(models)}")
    return [models[name]]


def choose(models: Mapping[str, Served], name: str | None, task: str) -> tuple[str, Any]:
    """Returns the name and Task of the model with this name, or of the first model that has the task.

    Raises Refusal if the name is unknown or the named model lacks the task, or, without a name, if no model has the
    task.
    """
    some = candidates(models, name)
    for each in some:
        if task in each.tasks:
            return each.name, each.tasks[task]
    what = "; ".join(f"{each.name} has {', '.join(each.tasks)}" for each in some)
    raise Refusal(HTTPStatus.FAILED_DEPENDENCY, f"this route needs {TASKS[task].models}; {what}", "Backend")


def choose_writer(models: Mapping[str, Served], name: str | None) -> Any:
    """Returns the task of the named model, or of the first generative model. Raises Refusal without such a model."""
    tasks = [task for each in candidates(models, name) for task in each.tasks.values()]
    found = next((task for task in tasks if isinstance(task, Writing)), None)
    return found or choose(models, name, "text-generation")[1]


def portions(items: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yields texts or pairs in portions of limited length, each with the index of its first item.

    Requests take turns in the tokenizing threads, one portion at a time.
    """
    first = size = 0
    for i, item in enumerate(items):
        length = n_characters(item)
        if i > first and size + length > PORTION:
            yield first, items[first:i]
            first, size = i, 0
        size += length
    if len(items) > first:
        yield first, items[first:]


def n_characters(item: Any) -> int:
    """Returns the number of characters of a text or a pair. A conversation, which is read only once, counts as 0."""
    return len(item) if isinstance(item, str) else sum(map(len, item)) if isinstance(item, Pair) else 0


def joined(found: Sequence[Prepared]) -> Prepared:
    """Joins the portions of a request."""
    requests, sizes, cut = (
        list(chain(*each)) for each in zip(*((p.requests, p.sizes, p.cut) for p in found), strict=True)
    )
    return Prepared(requests, sizes, cut)


def tokenized(
    served: Served, texts: Sequence[str], special: bool, most: int, where: str, several: bool, first: int = 0
) -> Prepared:
    """Tokenizes texts into prepared requests. Raises Refusal for more than `most` tokens in total.

    first: the index of the first text in its request.
    """
    found: list[list[dict[str, Any]]] = []
    count = 0
    for index, text in enumerate(texts, first):
        try:
            found.append(served.tokens(text, special, most))
        except NpformerError as error:
            place = f"{where}[{index}]" if several else where
            raise too_large(f"{place}: {for_client(str(error))}") from None
        count += len(found[-1])
        if count > most:
            raise too_large(f"{where}: expected at most {most} tokens in a request, got more")
    return Prepared(found, [len(each) for each in found], [])


def prepare(
    task: Task,
    items: Sequence[Any],
    options: Any,
    truncate: bool,
    where: str,
    several: bool,
    limits: ServiceLimits,
    first: int = 0,
) -> Prepared:
    """Encodes texts. Raises Refusal for an unreadable text and, unless `truncate`, for a text that is too long.

    first: the index of the first text in its request.
    """
    if options.long == "window":
        found = _in_windows(task, items, options, where, limits)
    else:
        found = task.prepare(items, 0, replace(options, long="truncate"))
    requests, cut, limit = [], [], task.limit(options)
    for index, (item, request) in enumerate(zip(items, found, strict=True), first):
        place = f"{where}[{index}]" if several else where
        if isinstance(task, TextGeneration):
            request = _whole(task, request, item, options)
        if isinstance(request, InputError):
            if isinstance(task, TextGeneration) and limit < 1:  # truncation would leave no prompt
                raise wrong(
                    place, "too long with this many new tokens; shorten it, or lower max_new_tokens (max_tokens in "
                    "/v1/completions)",
                )  # fmt: skip
            reason = for_client(request.reason)
            if reason != request.reason:
                raise too_large(f"{place}: {reason}")
            raise wrong(place, reason)
        longest = max(request.encoded, key=lambda each: each.n_tokens)
        if longest.truncated:
            cut.append(index)
            if not truncate:
                most = limit + isinstance(task, TextGeneration)  # a prompt may have one token more; see `_whole`
                taken = f"expected at most {most} tokens, got {longest.n_tokens}"
                raise too_large(f"{place}: {taken}; shorten it or set truncate=true")
        requests.append(request)
    return Prepared(requests, [_size(each) for each in requests], cut)


def _in_windows(
    task: Task, items: Sequence[Any], options: Any, where: str, limits: ServiceLimits
) -> list[Request | InputError]:
    """Encodes texts one after another up to the token limit. Windows may have many more tokens than the texts."""
    found: list[Request | InputError] = []
    count = 0
    for item in items:
        [request] = task.prepare([item], 0, options)
        count += _size(request) if isinstance(request, Request) else 0
        limits.check_tokens(where, count)
        found.append(request)
    return found


def for_client(reason: str) -> str:
    """Returns an error's reason without the advice to raise a limit when loading, which a client cannot follow."""
    for limit in ("characters", "windows"):
        reason = reason.removesuffix("; " + how_to_allow_more(limit))
    return reason


def _whole(task: TextGeneration, request: Request | InputError, item: Any, options: Any) -> Request | InputError:
    """Returns a prompt's request. A prompt that need not be truncated may have one token more than the limit."""
    limit = task.limit(options)
    if limit < 1 if isinstance(request, InputError) else request.encoded[0].n_tokens == limit + 1:
        [whole] = task.prepare([item], 0, replace(options, long="error"))
        return whole if isinstance(whole, Request) else request
    return request


def _size(request: Request) -> int:
    return sum(len(text) for encoded in request.encoded for text in encoded.texts)


def first_error(answers: Iterable[Any], where: str, several: bool) -> None:
    """Raises Refusal for the first text that has no answer."""
    for index, answer in enumerate(answers):
        place = f"{where}[{index}]" if several else where
        if isinstance(answer, NpformerError):
            raise wrong(place, answer.reason if isinstance(answer, InputError) else str(answer))
        if isinstance(answer, Exception):
            raise Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, f"{place}: could not be computed", "Backend")
