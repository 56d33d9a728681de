"""`Writing`, the base of the tasks whose answers a model writes token by token: translation and text-generation.

The settings of `generation.Settings` control the search; those that the caller does not give come from the model's
generation_config.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from npformer.checks import unknown
from npformer.errors import NpformerError
from npformer.generation.settings import NAMES, UNSUPPORTED
from npformer.tasks.habits import translated
from npformer.tasks.options import Options
from npformer.tasks.task import InputError, Request, Task
from npformer.text.encoding import Encoded


@dataclass(frozen=True)
class WritingOptions(Options):
    """Options of `Writing`. `long` is "error" by default: half an answer is easily taken for a whole one."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    windows: ClassVar[str]  # why a text is not read in windows

    def __post_init__(self) -> None:
        if isinstance(self.long, str) and not self.long:
            object.__setattr__(self, "long", "error")
        super().__post_init__()
        if self.long == "window" or self.stride is not None:
            raise NpformerError(f"long: {self.windows}")


class Writing(Task):
    """A task whose answers are written. A task defines `source`, what the model reads, and `answer`."""

    options_type: ClassVar[type[WritingOptions]] = WritingOptions
    has_windows = False

    def settle(self, options: Any, given: Mapping[str, Any]) -> Any:
        """Returns the options with the given ones changed, the settings of generation among them."""
        given = translated(given, self.cut)
        without = ("settings", "stride", "max_length")  # max_length is a setting, of the text that is written
        own = [each.name for each in fields(options) if each.name not in without]
        of_search = {*NAMES, *UNSUPPORTED} - {*own}  # `resolve` refuses the unsupported ones, with the reason
        for name in given.keys() - {*own, *of_search}:
            raise unknown(f"argument of {self.name}", name, (*own, *NAMES))
        settings = {**options.settings, **{name: value for name, value in given.items() if name in of_search}}
        others = {name: given[name] for name in own if name in given}
        return super().settle(options, {**others, "settings": settings})

    def source(self, item: Any, options: Any) -> Encoded:
        """Returns what the model reads for one item."""
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
        """Does nothing: `answer` writes the answers of a group together."""


def pieces(tokenizer: Any, tokens: Iterable[int]) -> Iterator[str]:
    """Yields the text of tokens piece by piece, never half of a character; the pieces join to the whole text."""
    ids: list[int] = []
    shown = text = ""
    for token in tokens:
        ids.append(token)
        text = tokenizer.decode(ids)
        if text.startswith(shown) and not text.endswith("\ufffd"):  # part of a character waits for its other bytes
            yield text[len(shown) :]
            shown = text
    if text != shown and text.startswith(shown):
        yield text[len(shown) :]
