"""`Options`: what every task can be told. Each task adds its own to these, in its file.

An option's value is checked when the options are made, so that a mistake shows before any text is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from npformer.checks import unknown
from npformer.errors import NpformerError
from npformer.tasks.habits import HABITS
from npformer.text.inputs import LONG


@dataclass(frozen=True)
class Options:
    """What every task can be told, when it is made or when it is called."""

    long: str = ""  # one of LONG; by default "window" where a stride is given, else "truncate"
    stride: int | None = None  # tokens that neighbouring windows share; by default a quarter of a window
    max_length: int | None = None  # tokens of a text or a window, where they are to be fewer than the model takes
    progress: bool = False  # show a bar on stderr while many texts are answered

    def __post_init__(self) -> None:
        if not self.long:
            object.__setattr__(self, "long", "truncate" if self.stride is None else "window")
        self.one_of("long", LONG)
        if self.stride is not None:
            self.whole("stride", 0)
        if self.max_length is not None:
            self.whole("max_length", 1)
        self.boolean("progress")

    def one_of(self, name: str, known: Iterable[str]) -> None:
        if getattr(self, name) not in known:
            raise unknown(name, getattr(self, name), known)

    def whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if type(value) is not int or value < least:
            raise NpformerError(f"{name}: expected a whole number of at least {least}, got {value!r:.80}")

    def boolean(self, name: str) -> None:
        if type(getattr(self, name)) is not bool:
            raise NpformerError(f"{name}: expected True or False, got {getattr(self, name)!r:.80}")

    def changed(self, task: str, given: Mapping[str, Any]) -> Self:
        """These options with those that were given in place."""
        known = [each.name for each in fields(self)]
        for name in given:
            if name not in known:
                raise unknown(f"argument of {task}", name, [*known, "truncation", *HABITS])
        if "stride" in given and "long" not in given:
            given = {**given, "long": ""}
        return replace(self, **given)
