"""Formats answers as text, below or next to the input, or without the input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from npformer.cli.texts import plain, printable

if TYPE_CHECKING:
    from npformer.tasks.task import Task


def shown(task: Task, text: str, answer: Any) -> str:
    """Formats the answer to a text (None for a blank line) in the task's layout."""
    found = [] if answer is None else task.findings(text, answer)
    if task.form.layout == "whole":  # "whole" is the layout of texts with several lines
        return "\n---\n".join(map(printable, found))
    lines = list(map(plain, found))
    if task.form.layout == "alone":
        return "\n".join(lines)
    if task.form.layout == "beside":
        line = "  ".join(lines)
        return f"{line}  {plain(text, len(line) + 2)}"
    return "\n".join([plain(text, 0), *(f"  {each}" for each in lines)])


def as_written(task: Any, text: str) -> Iterator[str]:
    """Yields the text after a prompt while it is generated. With beams or several texts, yields the whole answer."""
    settings = task.resolved(task.options)
    if settings.num_beams > 1 or settings.num_return_sequences > 1:
        yield shown(task, text, task(text))
        return
    pieces = task.tokens(text)
    first = next(pieces, "")  # an invalid prompt raises an error here, before anything is printed
    yield printable(text) if task.options.return_full_text else ""
    yield printable(first)
    yield from map(printable, pieces)
