"""`Task`, the base class of tasks, which turn one text, a list of texts or a generator into answers.

A task defines `inputs`, the texts that the model reads for one item, and `answer`, which turns the model's outputs into
answers. This file batches texts, and `text/encoding.py` encodes and truncates texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import length_hint
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from npformer.common.errors import NpformerError, warn
from npformer.common.other_libraries import TASK, Answering
from npformer.common.progress import part, with_bar
from npformer.config import Decoder
from npformer.engine.runtime.steps import Steps, pieces
from npformer.families import has_base
from npformer.model import Model
from npformer.tasks.catalogue import TASKS
from npformer.tasks.declaration import Form
from npformer.tasks.ignored_keywords import translated
from npformer.tasks.options import Options
from npformer.tasks.results import carrying
from npformer.text.encoding import Encoded, Encoder, was_cut
from npformer.text.inputs import Pair, as_text_or_pair

WINDOW = 1024  # number of inputs to read before the first answer; more would not be faster
ONE = str | bytes | bytearray | Mapping | Pair  # iterable types that count as one input
TOKENS = 32_768  # maximum tokens with outputs in memory at the same time


@runtime_checkable
class Indexed(Protocol):
    """Several inputs that are read by their index, such as a torch Dataset or the KeyDataset of Transformers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class InputError(NpformerError):
    """The error for an input that has no answer: the input's `index`, from 0, and the reason."""

    def __init__(self, index: int, reason: object) -> None:
        super().__init__(f"input {index}: {reason}")
        self.index = index
        self.reason = str(reason)


@dataclass
class Request:
    """An input with its encoded texts and the model's outputs for each piece of each text."""

    item: Any
    encoded: list[Encoded]
    outputs: list[list[dict[str, np.ndarray]]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The number of tokens with an output, or 0 for a source text, which is translated as a whole."""
        return sum(len(piece) for each in self.encoded for piece in each.pieces)


class Task(Answering):
    """A model for one task. Call it with one text, a list of texts or a generator.

    One input gives one answer, a list gives a list, and an iterator gives a generator that keeps about a thousand
    inputs in memory. The bits of an answer, unless it is sampled, do not depend on the other texts, their order or
    the number of threads.

    Parameters
    ----------
    model : Model with the task's head
    **options : options of the task and the options common to all tasks; see `Options`
    """

    lines = TASK
    name: ClassVar[str]  # key in `catalogue.TASKS`
    options_type: ClassVar[type[Options]] = Options
    other_names: ClassVar[Mapping[str, str]] = {}  # keywords that `settle` translates to options, with their types
    cut: ClassVar[str] = "longest"  # the text of a long pair to truncate
    has_windows: ClassVar[bool] = True  # whether long texts can be read in windows
    form: ClassVar[Form] = Form()  # form of the answers
    instead: ClassVar[str] = "pass several texts as a list, a pair as npformer.Pair(a, b), and options by name"

    def __init__(self, model: Model, **options: Any) -> None:
        if not self.accepts(model):
            head = TASKS[self.name].head
            raise NpformerError(f"{self.name}: expected a {head} model, got a {model.config.head} model")
        self.model = model
        self.encoder = Encoder(model)
        self.window = WINDOW
        self.options = self.settle(self.defaults(), options)

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.model.tokenizer

    def __repr__(self) -> str:
        return f"<npformer.{self.name} {self.model!r}>"

    def __call__(self, inputs: Any, *others: Any, **options: Any) -> Any:
        """Answers one input, a list or an iterator; `options` override the task's."""
        if others:
            raise NpformerError(f"{self.name}: expected one argument, got {1 + len(others)}; {self.instead}")
        settled = self.settle(self.options, options)
        if isinstance(inputs, Iterator):
            return self._watched(inputs, settled)
        if self.is_one(inputs):
            try:
                return next(self.answers(iter([inputs]), settled))
            except InputError as error:
                raise NpformerError(error.reason) from None
        return self.collect(list(self._watched(inputs, settled)))

    def stream(self, inputs: Any, **options: Any) -> Iterator[Any]:
        """Yields the answer to each input, in order; `options` override the task's. One input gives one answer.

        About a thousand inputs are read before the first answer is yielded. The options are checked immediately.
        """
        settled = self.settle(self.options, options)
        return self._watched([inputs] if self.is_one(inputs) else inputs, settled)

    @classmethod
    def accepts(cls, model: Model) -> bool:
        """Returns whether the model has the head that the task needs."""
        return bool(model.config.head == TASKS[cls.name].head)

    def is_one(self, inputs: Any) -> bool:
        """Returns whether `inputs` is one input rather than several."""
        several = isinstance(inputs, Iterable | Indexed) and not isinstance(inputs, ONE)
        return not several or (isinstance(inputs, np.ndarray) and not inputs.ndim)

    def _watched(self, inputs: Iterable[Any] | Indexed, options: Any) -> Iterator[Any]:
        """Yields each answer once it is computed, with a progress bar if `options.progress`."""
        items = iter(inputs) if isinstance(inputs, Iterable) else map(inputs.__getitem__, range(len(inputs)))
        answers = self.answers(items, options)
        return with_bar(answers, length_hint(inputs) or None, delay=0, shown=True) if options.progress else answers

    def defaults(self) -> Any:
        """Returns the default options."""
        return self.options_type()

    def settle(self, options: Any, given: Mapping[str, Any]) -> Any:
        """Returns the options updated with the given ones. Checks each name and value."""
        return options.changed(self.name, translated(given, self.cut))

    def answers(self, items: Iterator[Any], options: Any, quiet: bool = False) -> Iterator[Any]:
        """Yields an answer for each item, in order.

        With `quiet`, yields an InputError for an input without an answer, and gives no warning about truncated texts.
        """
        index = 0
        warned = False
        for window in self._windows(items):
            requests = self.prepare(window, index, options)
            for group in _groups(requests):
                with part(len(group), 1):
                    self.run([request for request in group if isinstance(request, Request)])
                    results = list(self.finish(group, index, options))
                for result in results:
                    if isinstance(result, InputError):
                        if not quiet:
                            raise result
                    elif result.truncated and not (warned or quiet):
                        warned = True
                        hint = "long='window' reads whole texts, " if self.has_windows else ""
                        warn(
                            f"{was_cut(f'input {index}', result.n_tokens, self.limit(options))}. Later texts of "
                            f"this call give no warning; see .truncated of each result. {hint}long='error' refuses "
                            "long texts"
                        )
                    yield result
                    index += 1

    def _windows(self, items: Iterator[Any]) -> Iterator[list[Any]]:
        """Yields lists of `self.window` items. If reading fails, yields the items read so far, and then raises."""
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

    # --- for each task to define ---------------------------------------------------------------------------------

    def inputs(self, item: Any, options: Any) -> list[str | Pair]:
        """Returns the texts that the model reads for one item: for most tasks, the item itself."""
        return [as_text_or_pair(item)]

    def answer(self, requests: list[Request], options: Any) -> list[Any]:
        """Turns the model's outputs into answers: a dict, list or array for each request, or its NpformerError."""
        raise NotImplementedError

    def collect(self, answers: list[Any]) -> Any:
        """Combines the answers to a list of inputs."""
        return answers

    # --- the form of answers in datasets and on the command line -------------------------------------------------

    def gives_lists(self) -> bool:
        """Returns whether the task's options make each answer a list."""
        return bool(self.form.several)

    def columns(self) -> Mapping[str, Any]:
        """Returns a dataset's columns of answers, name -> type as in `Form`, or {} if they do not fit into columns."""
        return {self.form.several: [self.form.fields]} if self.gives_lists() else self.form.fields

    def values(self, answer: Any) -> dict[str, Any]:
        """Returns the values of an answer by their names, for JSON."""
        return {self.form.several: list(answer)} if isinstance(answer, list) else dict(answer)

    def row(self, answer: Any) -> dict[str, Any]:
        """Returns the values of an answer for `columns`."""
        return self.values(answer)

    def findings(self, text: str, answer: Any) -> list[str]:
        """Returns the lines that show the answer to a text."""
        return [self.form.line.format_map(each) for each in (answer if isinstance(answer, list) else [answer])]

    # --- for a service -------------------------------------------------------------------------------------------

    def reply(self, answer: Any) -> Any:
        """Returns an answer in the format of Hugging Face's inference API, usually the same as the pipeline's."""
        return answer

    def n_texts(self, options: Any) -> int:
        """Returns the number of texts that the model reads for an input."""
        return 1

    def n_answer_tokens(self, request: Request, options: Any) -> int:
        """Returns the number of tokens in an answer if the answer repeats its text several times, else 0."""
        return 0

    # --- reading texts -------------------------------------------------------------------------------------------

    def window_size(self, options: Any) -> tuple[int | None, int | None]:
        """Returns the size of a window (None: the model's limit) and the overlap of neighbouring windows, in tokens."""
        return options.max_length, options.stride

    def limit(self, options: Any) -> int:
        """Returns the number of tokens to which texts are truncated."""
        return min(self.window_size(options)[0] or self.encoder.limit, self.encoder.limit)

    def runner(self) -> Model:
        """Returns the model that reads the texts."""
        return self.model

    # --- the steps of `answers`, for callers with their own batching -----------------

    def prepare(self, window: Sequence[Any], first: int, options: Any) -> list[Request | InputError]:
        """Encodes the texts of each input, in pieces that fit the model."""
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

    def run(self, requests: list[Request]) -> None:
        """Runs the model on all pieces and assigns the outputs to their requests."""
        texts = [text for request in requests for each in request.encoded for text in each.texts]
        self._give(requests, self.runner().run(texts))

    def _give(self, requests: list[Request], found: Iterable[dict[str, np.ndarray]]) -> None:
        """Assigns the model's outputs for all texts to their requests."""
        outputs = iter(found)
        for request in requests:
            request.outputs = [[next(outputs) for _ in each.texts] for each in request.encoded]

    def in_steps(self, requests: list[Request], options: Any) -> Steps[list[Any]]:
        """Runs the model and answers in steps, between which a service can compute other answers.

        A step computes one layer for some of the texts. A request may have many texts, such as windows.
        """
        runner = self.runner()
        texts = [text for request in requests for each in request.encoded for text in each.texts]
        found: list[dict[str, np.ndarray]] = []
        for some in pieces(list(map(len, texts)), runner.threads):
            found += yield from runner.run_in_steps([texts[i] for i in some])
            yield
        self._give(requests, found)
        return self.answer(requests, options)

    def finish(self, group: Sequence[Request | InputError], first: int, options: Any) -> Iterator[Any]:
        """Yields an answer for each request, or an InputError."""
        requests = [request for request in group if isinstance(request, Request)]
        return self.finished(group, self.answer(requests, options) if requests else [], first)

    def finished(self, group: Sequence[Request | InputError], answers: Iterable[Any], first: int) -> Iterator[Any]:
        """Yields the answers and the InputErrors of a group, and frees the model's outputs."""
        answers = iter(answers)
        for index, request in enumerate(group, first):
            answer = request if isinstance(request, InputError) else next(answers)
            if isinstance(request, InputError) or isinstance(answer, NpformerError):
                yield answer if isinstance(answer, InputError) else InputError(index, answer)
            else:
                longest = max(request.encoded, key=lambda each: each.n_tokens)
                request.outputs = []  # outputs may be large, and requests stay in memory until the group ends
                yield carrying(answer, longest.n_tokens, longest.truncated)


def _groups(requests: list[Request | InputError]) -> Iterator[list[Request | InputError]]:
    """Yields the requests in order, in groups of at most TOKENS tokens or of a single request."""
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
    """Returns the encoder, with the same weights but without pooler and head. The output is last_hidden_state."""
    if model.config.head == "base" and "pooler" not in model.weights:
        return model
    config = replace(model.config, head="base", labels=(), problem_type=None)
    weights = {name: group for name, group in model.weights.items() if name not in ("pooler", "head")}
    if config.decoder:
        if not has_base(config.model_type):
            raise NpformerError(
                f"expected an encoder, which makes vectors, got the encoder-decoder {config.model_type}"
            )
        config = replace(config, decoder=Decoder(), shared=False, scale_output=False)
        weights = weights["encoder"]
    encoder = Model(config, weights, model.folder, model.threads, model.same_bits, model.limits)
    if isinstance(model, Model):
        encoder.tokenizer = model.tokenizer
    return encoder


def logits_of_texts(requests: Sequence[Request]) -> np.ndarray:
    """Returns the logits of each text, (texts, C).

    The logits of a text read in windows are the mean over the windows, weighted by the number of tokens in each window.
    """
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
