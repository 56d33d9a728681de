"""`Options`: the options common to all tasks. Each task adds its own options in its own file.

Values are checked when the options are created, before any text is read. `typed_pipeline.pyi` declares the options as
keywords of `pipeline`, for type checkers and editors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from npformer.common.checks import boolean, one_of, unknown, whole
from npformer.tasks.ignored_keywords import IGNORED
from npformer.text.inputs import LONG


@dataclass(frozen=True)
class Options:
    """The options common to all tasks, which can be given when a task is made or called.

    Parameters
    ----------
    long : "truncate", "window" or "error"
        How to handle a text that is too long: truncate it, read it in overlapping windows, or raise an error. The
        default
        is "window" if a stride is given, else "truncate".
    stride : int, optional
        Tokens shared by neighbouring windows; by default a quarter of a window.
    max_length : int, optional
        Maximum tokens in a text or a window; by default the model's maximum.
    progress : bool
        Show a progress bar on stderr for many texts.
    """

    long: str = ""
    stride: int | None = None
    max_length: int | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        """Checks `long`, all switches and all whole numbers. A number must be at least 1, and a stride at least 0."""
        if isinstance(self.long, str) and not self.long:
            object.__setattr__(self, "long", "truncate" if self.stride is None else "window")
        one_of("long", self.long, LONG)
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type == "bool":
                boolean(each.name, value)
            elif each.type == "int" or (each.type == "int | None" and value is not None):
                whole(each.name, value, 0 if each.name.endswith("stride") else 1)

    def changed(self, task: str, given: Mapping[str, Any]) -> Self:
        """Returns the options with changes applied. Raises NpformerError for an unknown name."""
        known = [each.name for each in fields(self)]
        for name in given:
            if name not in known:
                own = [*known, "truncation"]
                raise unknown(f"argument of {task}", name, [*own, *IGNORED], f"Its options: {', '.join(own)}")
        if "stride" in given and "long" not in given:
            given = {**given, "long": ""}
        return replace(self, **given)
