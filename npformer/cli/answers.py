"""Formats answers: as text, below or next to their input, and as JSON where the task's own form is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from npformer.cli.texts import plain, printable

if TYPE_CHECKING:
    from npformer.tasks.task import Task


def several(answer: Any) -> list[Any]:
    """Returns the answers as a list, a single answer included."""
    return answer if isinstance(answer, list) else [answer]


def under(text: str, found: list[str]) -> str:
    """Lists the findings below their text."""
    return "\n".join([plain(text, 0), *(f"  {each}" for each in found)])


def labels(text: str, answer: Any, task: Task) -> str:
    width = max(map(len, task.model.config.labels))
    best = several(answer)
    line = "  ".join(f"{plain(each['label']):{width}}  {each['score']:.4f}" for each in best)
    return f"{line}  {plain(text, (width + 10) * len(best))}"


def own_labels(text: str, answer: Any, task: Task) -> str:
    scores = zip(answer["labels"], answer["scores"], strict=True)
    return under(text, [f"{score:.4f}  {plain(label)}" for label, score in scores])


def entities(text: str, answer: Any, task: Task) -> str:
    return under(
        text,
        [
            f"{each.get('entity_group', each.get('entity'))}  {each['score']:.4f}  {each['start']}-{each['end']}  "
            f"{plain(text[each['start'] : each['end']])}"
            for each in answer
        ],
    )


def spans(text: str, answer: Any, task: Task) -> str:
    found = several(answer)
    return under(text, [f"{one['score']:.4f}  {one['start']}-{one['end']}  {plain(one['answer'])}" for one in found])


def masks(answer: Any) -> list[Any]:
    """Returns a list of words for each mask, also for a single mask."""
    return answer if isinstance(answer[0], list) else [answer]


def words(text: str, answer: Any, task: Task) -> str:
    of_masks = masks(answer)
    found = []
    for number, best in enumerate(of_masks, 1):
        found += [f"mask {number}"] if len(of_masks) > 1 else []
        found += [f"{each['score']:.4f}  {plain(each['token_str'])}" for each in best]
    return under(text, found)


def vector(text: str, answer: Any, task: Task, count: int = 6) -> str:
    numbers = " ".join(f"{each:.4f}" for each in answer[:count])
    return under(text, [f"{len(answer)} numbers: {numbers}{' ...' if len(answer) > count else ''}"])


def weights(text: str, answer: Any, task: Task, count: int = 12) -> str:
    best = sorted(zip(answer["values"], answer["tokens"], strict=True), key=lambda each: -each[0])
    more = [f"... {len(best) - count} more"] if len(best) > count else []
    return under(text, [*(f"{value:.4f}  {plain(token)}" for value, token in best[:count]), *more])


def score(text: str, answer: Any, task: Task) -> str:
    line = f"{answer['score']:.4f}"
    return f"{line}  {plain(text, len(line) + 2)}"


def from_text(key: str, text: str, answer: Any, task: Task) -> str:
    found = [] if answer is None else several(answer)
    return "\n".join(plain(each[key]) for each in found)


def generated(text: str, answer: Any, task: Task) -> str:
    """Shows each text with its line breaks, and several texts separated by a line."""
    return "\n---\n".join(printable(each["generated_text"]) for each in answer)


def as_written(text: str, task: Any) -> Iterator[str]:
    """Yields the text after a prompt as it is generated; beams and several texts only when complete."""
    settings = task.resolved(task.options)
    if settings.num_beams > 1 or settings.num_return_sequences > 1:
        yield generated(text, task(text), task)
        return
    pieces = task.tokens(text)
    first = next(pieces, "")  # the prompt may be refused: find out before it is shown
    yield printable(text) if task.options.return_full_text else ""
    yield printable(first)
    yield from map(printable, pieces)


def named_from_text(key: str, several: str, answer: Any) -> dict[str, Any]:
    if answer is None:  # a blank line
        return {key: ""}
    return {several: answer} if isinstance(answer, list) else answer
