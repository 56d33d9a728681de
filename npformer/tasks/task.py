"""`Task`: what all pipelines have in common. Texts come in one, many or endlessly; answers go out the same way.

A task says what the model reads of one item (`inputs`) and what is made of the model's answers (`answer`). Batching is
here, `text/encoding.py` encodes and cuts; each task is a file beside this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import length_hint
from typing import Any, ClassVar

import numpy as np

from npformer.errors import NpformerError, warn
from npformer.functions import softmax
from npformer.model import Model
from npformer.tap import tap
from npformer.tasks.habits import translated
from npformer.tasks.options import Options
from npformer.tasks.progress import with_bar
from npformer.tasks.results import carrying
from npformer.text.encoding import Encoded, Encoder, was_cut
from npformer.text.inputs import Pair, as_text_or_pair

WINDOW = 1024  # inputs that are read before the first is answered: enough for the model to work at its fastest
ONE = str | bytes | bytearray | Mapping | Pair  # types that are a single input, though some could be iterated
TOKENS = 32_768  # tokens whose answers are in memory at once


class InputError(NpformerError):
    """One input that cannot be answered: `index`, counted from 0, and why."""

    def __init__(self, index: int, reason: object) -> None:
        super().__init__(f"input {index}: {reason}")
        self.index = index
        self.reason = str(reason)


@dataclass
class Request:
    """An input on its way: what it is, the model's texts, and for each piece of each text the model's answers."""

    item: Any
    encoded: list[Encoded]
    outputs: list[list[dict[str, np.ndarray]]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Tokens for each of which the model gives an answer; none of a source, which is translated as a whole."""
        return sum(len(piece) for each in self.encoded for piece in each.pieces)


class Task:
    """A model and what it is asked. Call it with one text, with many, or with a generator of them.

    One input gives one answer, a list gives a list, and an iterator gives a generator that holds about a thousand
    inputs in memory. An answer has the same bits in any company, order and number of threads.
    """

    name: ClassVar[str]
    head: ClassVar[str]  # the model's head that this task reads
    options_type: ClassVar[type[Options]] = Options
    cut: ClassVar[str] = "longest"  # which of two texts gives way where they are too long
    has_windows: ClassVar[bool] = True  # whether too long a text can be read in several pieces

    def __init__(self, model: Model, **options: Any) -> None:
        if model.config.head != self.head:
            raise NpformerError(f"{self.name} takes a {self.head} model, this one is a {model.config.head} model")
        self.model = model
        self.encoder = Encoder(model)
        self.window = WINDOW
        self.options = self.settle(self.options_type(), options)

    def __repr__(self) -> str:
        return f"<npformer.{self.name} {self.model!r}>"

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """The answers to one input, to a list of them, or to an iterator's; `options` go before those of the task."""
        settled = self.settle(self.options, options)
        if isinstance(inputs, Iterator):
            return self._watched(inputs, settled)
        if isinstance(inputs, ONE) or not isinstance(inputs, Iterable):
            try:
                return next(self.stream(iter([inputs]), settled))
            except InputError as error:
                raise NpformerError(error.reason) from None
        return self.collect(list(self._watched(inputs, settled)))

    def _watched(self, inputs: Iterable[Any], options: Any) -> Iterator[Any]:
        """The answers as they come, with a bar if that was asked for: of the inputs' length, where they have one."""
        answers = self.stream(iter(inputs), options)
        return with_bar(answers, length_hint(inputs) or None) if options.progress else answers

    def settle(self, options: Any, given: Mapping[str, Any]) -> Any:
        """The options with those that were given in place; each name and value is checked."""
        return options.changed(self.name, translated(given, self.cut))

    def stream(self, items: Iterator[Any], options: Any, quiet: bool = False) -> Iterator[Any]:
        """An answer for each item, in order.

        quiet: an input that cannot be answered gives its InputError as the answer, and nobody is warned of cut texts.
        """
        index = 0
        warned = False
        for window in self._windows(items):
            requests = self._prepare(window, index, options)
            for group in _groups(requests):
                self._run([request for request in group if isinstance(request, Request)])
                for result in self._finish(group, index, options):
                    if isinstance(result, InputError):
                        if not quiet:
                            raise result
                    elif result.truncated and not (warned or quiet):
                        warned = True
                        hint = "long='window' reads texts whole, " if self.has_windows else ""
                        warn(
                            f"{was_cut(f'input {index}', result.n_tokens, self.limit(options))}. This warning comes "
                            f"once a call, each result tells by .truncated; {hint}long='error' refuses them"
                        )
                    yield result
                    index += 1

    def _windows(self, items: Iterator[Any]) -> Iterator[list[Any]]:
        """Items as many as are answered together; where reading them fails, first what was read."""
        window: list[Any] = []
        try:
            for item in items:
                window.append(item)
                if len(window) >= self.window:
                    yield window
                    window = []
        except Exception:
            if window:
                yield window
            raise
        if window:
            yield window

    # --- what a task defines -------------------------------------------------------------------------------------

    def inputs(self, item: Any, options: Any) -> list[str | Pair]:
        """What the model reads of one item; for most tasks the item itself."""
        return [as_text_or_pair(item)]

    def answer(self, requests: list[Request], options: Any) -> list[Any]:
        """What is made of the model's answers: a dict, list or array a request, or an NpformerError for a bad one."""
        raise NotImplementedError

    def collect(self, answers: list[Any]) -> Any:
        """The answers to a list of inputs."""
        return answers

    def window_size(self, options: Any) -> tuple[int | None, int | None]:
        """The tokens of a piece, where they are to be fewer than the model takes, and the tokens that two share."""
        return options.max_length, options.stride

    def limit(self, options: Any) -> int:
        """The tokens that a text is cut to."""
        return min(self.window_size(options)[0] or self.encoder.limit, self.encoder.limit)

    def runner(self) -> Model:
        """The model that reads the texts."""
        return self.model

    # --- the way of an input -------------------------------------------------------------------------------------

    def _prepare(self, window: Sequence[Any], first: int, options: Any) -> list[Request | InputError]:
        """Each input's texts as tokens that fit the model."""
        given: list[list[str | Pair] | NpformerError] = []
        for item in window:
            try:
                given.append(self.inputs(item, options))
            except NpformerError as error:
                given.append(error)
        texts = [each for several in given if isinstance(several, list) for each in several]
        encoded = iter(self.encoder.attempt(texts, options.long, self.cut, *self.window_size(options)))
        requests: list[Request | InputError] = []
        for index, (item, several) in enumerate(zip(window, given, strict=True), first):
            found = [next(encoded) for _ in several] if isinstance(several, list) else [several]
            bad = next((each for each in found if isinstance(each, NpformerError)), None)
            whole = [each for each in found if isinstance(each, Encoded)]
            requests.append(Request(item, whole) if bad is None else InputError(index, bad))
        return requests

    def _run(self, requests: list[Request]) -> None:
        """Give each request the model's answers to its pieces."""
        outputs = iter(
            self.runner().run([text for request in requests for each in request.encoded for text in each.texts])
        )
        for request in requests:
            request.outputs = [[next(outputs) for _ in each.texts] for each in request.encoded]

    def _finish(self, group: list[Request | InputError], first: int, options: Any) -> Iterator[Any]:
        requests = [request for request in group if isinstance(request, Request)]
        answers = iter(self.answer(requests, options) if requests else [])
        for index, request in enumerate(group, first):
            answer = request if isinstance(request, InputError) else next(answers)
            if isinstance(request, InputError) or isinstance(answer, NpformerError):
                yield answer if isinstance(answer, InputError) else InputError(index, answer)
            else:
                longest = max(request.encoded, key=lambda each: each.n_tokens)
                request.outputs = []  # they may be large, and the window lives on
                yield carrying(answer, longest.n_tokens, longest.truncated)


def _groups(requests: list[Request | InputError]) -> Iterator[list[Request | InputError]]:
    """The requests in their order, in runs of at most TOKENS tokens, or of one request."""
    group: list[Request | InputError] = []
    taken = 0
    for request in requests:
        size = request.size if isinstance(request, Request) else 0
        if group and taken + size > TOKENS:
            yield group
            group, taken = [], 0
        group.append(request)
        taken += size
    yield group


def without_head(model: Model) -> Model:
    """The same encoder on the same weights, without its pooler and head: what it answers is last_hidden_state."""
    if model.config.head == "base" and "pooler" not in model.weights:
        return model
    weights = {name: model.weights[name] for name in ("embeddings", "layers")}
    config = replace(model.config, head="base", labels=(), problem_type=None)
    encoder = Model(config, weights, model.folder, model.threads, model.same_bits)
    encoder.tokenizer = model.tokenizer
    return encoder


def probabilities(logits: np.ndarray, function: str = "softmax") -> np.ndarray:
    """softmax or sigmoid of the logits over their last axis, or "none": the logits; (..., C) -> (..., C)."""
    if function == "softmax":
        return tap("probabilities", softmax(logits))
    if function == "sigmoid":
        e = np.exp(-np.abs(logits))
        return tap("probabilities", np.where(logits >= 0, 1 / (1 + e), e / (1 + e)))
    return logits


def logits_of_texts(requests: Sequence[Request]) -> np.ndarray:
    """The model's logits of each text of the requests, (texts, C); for one in windows their mean, by their tokens."""
    logits = []
    for request in requests:
        for encoded, outputs in zip(request.encoded, request.outputs, strict=True):
            if len(outputs) == 1:
                logits.append(outputs[0]["logits"])
            else:
                lengths = np.array([len(text) for text in encoded.texts])
                weights = lengths / lengths.sum()
                windows = np.stack([output["logits"] for output in outputs])
                logits.append((windows * weights[:, None]).sum(axis=0).astype(windows.dtype))
    return np.stack(logits)
