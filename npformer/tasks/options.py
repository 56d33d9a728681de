"""`Options`: what every task can be told. Each task adds its own to these, in its file.

An option's value is checked when the options are made, so that a mistake shows before any text is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from npformer.checks import boolean, one_of, unknown, whole
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
        one_of("long", self.long, LONG)
        if self.stride is not None:
            whole("stride", self.stride, 0)
        if self.max_length is not None:
            whole("max_length", self.max_length, 1)
        boolean("progress", self.progress)

    def changed(self, task: str, given: Mapping[str, Any]) -> Self:
        """These options with those that were given in place."""
        known = [each.name for each in fields(self)]
        for name in given:
            if name not in known:
                raise unknown(f"argument of {task}", name, [*known, "truncation", *HABITS])
        if "stride" in given and "long" not in given:
            given = {**given, "long": ""}
        return replace(self, **given)
