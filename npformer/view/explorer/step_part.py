"""The tab `Step`: a model's plain page, run line by line, with each line's arrays. Script: `assets/step.js`."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

import numpy as np

from npformer.common.errors import NpformerError
from npformer.engine.runtime.threads import single_blas_thread
from npformer.interpret.answer import ModelAnswer, outcome_of
from npformer.text.words import piece_names
from npformer.view.explorer.changes import ChangeLine
from npformer.view.explorer.page_edit import changed_page, statements
from npformer.view.explorer.page_program import PageProgram, page_program
from npformer.view.explorer.page_worker import run_apart
from npformer.view.explorer.reading import read_given
from npformer.view.explorer.recorder import COLUMNS, ROWS, Recording, record
from npformer.view.pack import pack_floats

TOKENS = 128  # maximum tokens of a text, because every array of the page is kept while it runs
NOTES = [
    "The code in Step reads changed words, but ignores changes of heads, blocks and rows.",
    f"Large arrays are shown with evenly spaced rows and columns: at most {ROWS} and {COLUMNS} in the picture.",
]


class Refused(NamedTuple):
    """A change of a line that was refused, with the reason. The page runs without it."""

    line: int
    to: str
    reason: str


class Stepped(NamedTuple):
    """A run of the page: its text, the lines that can be changed, its recording, its answer and the refused changes."""

    text: str
    changeable: dict[int, str]
    recording: Recording
    answer: ModelAnswer | None
    refused: list[Refused]


def stepped(model: Any, inputs: Any, lines: list[ChangeLine]) -> Stepped:
    """Runs the page of a model for one text, in a separate process if lines are changed.

    The page runs without rejected lines, so that it stays visible with the reasons.
    """
    count = sum(map(len, inputs)) if isinstance(inputs, tuple) else len(inputs)
    if count > TOKENS:
        raise NpformerError(
            f"Step keeps every array of the page, and shows texts of at most {TOKENS} tokens; this one has {count}."
        )
    program = page_program(model, inputs)
    allowed, refused = _checked(program.text, lines)
    while True:
        text = changed_page(program.text, allowed)
        try:
            answers, recording = _run(program._replace(text=text), apart=bool(allowed))
            break
        except NpformerError as error:
            if not allowed:
                raise
            *allowed, last = allowed  # the newest line is the one that failed
            refused.append(Refused(last.line, last.to, str(error)))
    found = outcome_of(model, inputs, {name: np.asarray(each) for name, each in answers.items()})
    return Stepped(text, statements(program.text), recording, found, refused)


def page_answer(model: Any, text: Any, lines: list[ChangeLine]) -> ModelAnswer | None:
    """Returns the answer of a model's page with changed lines, computed in a process with limits.

    Raises NpformerError for a line that is refused, or a text that is too long.
    """
    run = stepped(model, read_given(model, text), lines)
    if run.refused:
        raise NpformerError(run.refused[0].reason)
    return run.answer


def _checked(text: str, lines: list[ChangeLine]) -> tuple[list[ChangeLine], list[Refused]]:
    """Returns the changed lines that may run, and the refused ones with the reasons."""
    allowed, refused = [], []
    for each in lines:
        try:
            changed_page(text, [each])
            allowed.append(each)
        except NpformerError as error:
            refused.append(Refused(each.line, each.to, str(error)))
    return allowed, refused


def _run(program: PageProgram, apart: bool) -> tuple[Any, Recording]:
    """Runs a page. Returns its answers and the recording of its lines."""
    if apart:
        return run_apart(program)
    with single_blas_thread():  # the products are small, so a second thread would mostly wait
        return record(program)


def step_view(
    run: Stepped, before: ModelAnswer | None, tokens: list[str], sources: list[str], text: str
) -> dict[str, Any]:
    """Returns the data of the tab, without the arrays. before: the answer of the unchanged page."""
    recording = run.recording
    return {
        "kind": "step", "heading": "Step through the page", "subtitle": text, "title": f"Step through the page: {text}",
        "arrays": {}, "notes": NOTES, "source": run.text.splitlines(), "changeable": run.changeable,
        "loops": loops(run.text), "frames": recording.frames, "steps": recording.steps,
        "outcomes": run.answer and run.answer.outcomes, "before": before and before.outcomes,
        "tokens": tokens, "sources": sources,
        "refused": {each.line: {"to": each.to, "reason": each.reason} for each in run.refused},
    }  # fmt: skip


def value_of(run: Stepped, index: int) -> dict[str, Any]:
    """Returns a picture of an array, with its data in the format that `assets/core.js` reads."""
    if not 0 <= index < len(run.recording.values):
        raise NpformerError(f"value: expected a number below {len(run.recording.values)}, got {index}")
    value = run.recording.values[index]
    block = pack_floats("value", np.ascontiguousarray(value["data"]))
    return {**{name: each for name, each in value.items() if name != "data"}, "head": block.head(), "data": block.text}


def value_before(run: Stepped, before: Stepped, step: int, made: int) -> dict[str, Any]:
    """Returns the array that the unchanged run computed for a step, at the same execution of the same line.

    made: index of the array among the values that the step assigned, followed by the value that it returned. Changes
    of a page do not shift its line numbers.
    """
    steps, others = run.recording.steps, before.recording.steps
    names = [*steps[step][3], "returned"] if step < len(steps) else []
    if made >= len(names):
        raise NpformerError("was: expected the numbers of a step and of one of its values")
    line = steps[step][1]
    nth = sum(each[1] == line for each in steps[:step])
    same = [each for each in others if each[1] == line][nth : nth + 1]
    value = {**same[0][3], "returned": same[0][4]}.get(names[made]) if same else None
    if not isinstance(value, int):
        raise NpformerError("Before the changes, this line did not compute this array.")
    return value_of(before, value)


def loops(text: str) -> list[int]:
    """Returns the line numbers at which the bodies of loops over layers begin."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.For)]
    return [node.body[0].lineno for node in found if "layers" in ast.unparse(node.iter)]


def names_of(tokens: Any) -> list[str]:
    return list(piece_names(tokens)) if tokens else []
