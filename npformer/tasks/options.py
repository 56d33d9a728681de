"""`Options`: the options of every task. Each task adds its own, in its file.

Values are checked when the options are made, before any text is read. `typed_pipeline.pyi`, which type checkers and
editors read, has them as the keywords of `pipeline`.
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
    """The options of every task, given when the task is made or when it is called.

    Parameters
    ----------
    long : "truncate", "window" or "error"
        How to handle a text that is too long: truncate it, read it in overlapping windows, or refuse it. The default
        is "window" if a stride is given, else "truncate".
    stride : int, optional
        Tokens shared by neighbouring windows; by default a quarter of a window.
    max_length : int, optional
        Most tokens in a text or a window; by default as many as the model takes.
    progress : bool
        Show a progress bar on stderr for many texts.
    """

    long: str = ""
    stride: int | None = None
    max_length: int | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.long, str) and not self.long:
            object.__setattr__(self, "long", "truncate" if self.stride is None else "window")
        one_of("long", self.long, LONG)
        if self.stride is not None:
            whole("stride", self.stride, 0)
        if self.max_length is not None:
            whole("max_length", self.max_length, 1)
        boolean("progress", self.progress)

    def changed(self, task: str, given: Mapping[str, Any]) -> Self:
        """Returns these options with the given ones changed. Raises NpformerError for an unknown name."""
        known = [each.name for each in fields(self)]
        for name in given:
            if name not in known:
                own = [*known, "truncation"]
                raise unknown(f"argument of {task}", name, [*own, *IGNORED], f"Its options: {', '.join(own)}")
        if "stride" in given and "long" not in given:
            given = {**given, "long": ""}
        return replace(self, **given)
