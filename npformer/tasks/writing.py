"""`Writing`, the base class of the generative tasks, whose answers are generated token by token.

The settings of `generation.Settings` control the search; the defaults come from the model's generation_config.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

from npformer.common.checks import boolean, unknown
from npformer.common.errors import NpformerError
from npformer.engine.runtime.steps import finished
from npformer.generation.settings import NAMES, UNSUPPORTED, merged, resolve, stored_settings, usable
from npformer.tasks.ignored_keywords import translated
from npformer.tasks.options import Options
from npformer.tasks.task import InputError, Request, Task
from npformer.text.encoding import Encoded


@dataclass(frozen=True)
class WritingOptions(Options):
    """Options of `Writing`. `long` is "error" by default, because an answer to a truncated text looks complete."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    windows: ClassVar[str]  # the error message for long="window"

    def __post_init__(self) -> None:
        if isinstance(self.long, str) and not self.long:
            object.__setattr__(self, "long", "error")
        super().__post_init__()
        if self.long == "window" or self.stride is not None:
            raise NpformerError(f"long: {self.windows}")


class Writing(Task):
    """A generative task. A subclass defines `source`, the text that the model reads, and `in_steps`."""

    options_type: ClassVar[type[WritingOptions]] = WritingOptions
    usual: ClassVar[Mapping[str, Any]] = {}  # defaults that the model's folder and the caller can override
    has_windows = False
    key: ClassVar[str]  # key of the text in an answer
    column: ClassVar[str]  # column of the text in a dataset

    @property
    def own_settings(self) -> Mapping[str, Any]:
        """Returns the folder's settings for this task only, which `generate` does not read."""
        return {}

    @cached_property
    def stored(self) -> dict[str, Any]:
        """Returns the settings of the model's folder."""
        found = merged(usable(stored_settings(self.model.folder)[1], self.model.config)[0], self.own_settings)
        return {name: value for name, value in found.items() if value is not None}

    def defaults(self) -> Any:
        known = one_search(self.stored)
        usual = {name: value for name, value in merged(self.usual, known).items() if name not in known}
        if "max_new_tokens" in usual:
            usual["max_new_tokens"] = min(usual["max_new_tokens"], self.model.config.max_length)
        return self.options_type(settings={**usual, **self.own_settings})

    def settle(self, options: Any, given: Mapping[str, Any]) -> Any:
        """Returns the options, including generation settings, updated with the given ones."""
        given = one_search(translated(given, self.cut))
        without = ("settings", "stride", "max_length")  # max_length is a generation setting in these tasks
        own = [each.name for each in fields(options) if each.name not in without]
        of_search = {*NAMES, *UNSUPPORTED} - {*own}  # `resolve` rejects UNSUPPORTED names, with the reason
        for name in given.keys() - {*own, *of_search}:
            raise unknown(f"argument of {self.name}", name, (*own, *NAMES))
        searched = {name: value for name, value in given.items() if name in of_search and value is not None}
        settings = merged(options.settings, searched)
        others = {name: given[name] for name in own if name in given}
        return super().settle(options, {**others, "settings": settings})

    def __call__(self, inputs: Any, *, stream: bool = False, **options: Any) -> Any:
        """Answers inputs as `Task` does or, with stream=True, as `stream` does."""
        return self.stream(inputs, **options) if boolean("stream", stream) else super().__call__(inputs, **options)

    def stream(self, inputs: Any, **options: Any) -> Iterator[Any]:
        """Yields the pieces of the text generated for one input, or the answers to several inputs, in order."""
        return self.tokens(inputs, **options) if self.is_one(inputs) else super().stream(inputs, **options)

    def tokens(self, text: Any, **options: Any) -> Iterator[str]:
        """Yields the pieces of the text generated for one input, while its tokens are being chosen.

        Each token is either the most likely token or sampled. num_beams is 1 by default.
        """
        raise NotImplementedError

    def gives_lists(self) -> bool:
        settings = resolve(self.model.folder, self.model.config, self.options.settings)
        return settings.num_return_sequences > 1

    def columns(self) -> dict[str, Any]:
        return {self.form.several: [str]} if self.gives_lists() else {self.column: str}

    def row(self, answer: Any) -> dict[str, Any]:
        texts = self.findings("", answer)
        return {self.form.several: texts, self.column: texts[0]}

    def findings(self, text: str, answer: Any) -> list[str]:
        return [each[self.key] for each in (answer if isinstance(answer, list) else [answer])]

    def source(self, item: Any, options: Any) -> Encoded:
        """Returns the text that the model reads for one item."""
        raise NotImplementedError

    def prepare(self, window: Sequence[Any], first: int, options: Any) -> list[Request | InputError]:
        prepared: list[Request | InputError] = []
        for index, item in enumerate(window, first):
            try:
                prepared.append(Request(item, [self.source(item, options)]))
            except NpformerError as error:
                prepared.append(InputError(index, error))
        return prepared

    def run(self, requests: list[Request]) -> None:
        """Does nothing, because `answer` generates all answers of a group together."""

    def answer(self, requests: list[Request], options: Any) -> list[Any]:
        return finished(self.in_steps(requests, options))


def one_search(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Adds do_sample=False if num_beams is above 1, or num_beams=1 if do_sample is True, unless the caller set it."""
    beams = settings.get("num_beams")
    if isinstance(beams, int) and beams > 1:
        return {"do_sample": False, **settings}
    return {"num_beams": 1, **settings} if settings.get("do_sample") is True else settings


def pieces(tokenizer: Any, tokens: Iterable[int]) -> Iterator[str]:
    """Yields the text of tokens in pieces of whole characters. Joined, the pieces are the whole text.

    Tokenizers with a token for each byte are an exception: an invalid byte turns neighbouring bytes into U+FFFD, even
    if they have already been yielded as characters. Yielded characters are not corrected.
    """
    ids: list[int] = []
    shown, text = 0, ""  # number of characters yielded so far, and the text of all tokens so far
    for token in tokens:
        ids.append(token)
        text = tokenizer.decode(ids)
        if not text.endswith("\ufffd"):  # an incomplete character is yielded when it is complete
            yield text[shown:]
            shown = max(shown, len(text))
    if text[shown:]:
        yield text[shown:]
