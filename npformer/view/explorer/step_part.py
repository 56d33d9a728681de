"""The tab `Step`: a model's plain page, run line by line, with the arrays that lines make. Script: `assets/step.js`."""

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
from npformer.view.explorer.page_program import page_program
from npformer.view.explorer.page_worker import run_apart
from npformer.view.explorer.recorder import COLUMNS, ROWS, Recording, record
from npformer.view.pack import pack_floats

TOKENS = 128  # of a text, because every array of the page is kept while it runs
NOTES = [
    "The page reads the words as they are changed; changes of heads, blocks and rows are the engine's alone.",
    f"Large arrays are shown with evenly spaced rows and columns, at most {ROWS} and {COLUMNS}.",
]


class Stepped(NamedTuple):
    """A run of the page: its text, the lines that can be changed, its recording and its answer."""

    text: str
    changeable: dict[int, str]
    recording: Recording
    answer: ModelAnswer | None


def stepped(model: Any, inputs: Any, lines: list[ChangeLine]) -> Stepped:
    """Runs the page of a model for one text, in a process of its own if lines are changed."""
    count = sum(map(len, inputs)) if isinstance(inputs, tuple) else len(inputs)
    if count > TOKENS:
        raise NpformerError(f"step: expected at most {TOKENS} tokens, got {count}")
    program = page_program(model, inputs)
    if lines:
        text = changed_page(program.text, lines)
        answers, recording = run_apart(program._replace(text=text))
    else:
        text = program.text
        with single_blas_thread():  # small products; a second thread would mostly wait
            answers, recording = record(program)
    found = outcome_of(model, inputs, {name: np.asarray(each) for name, each in answers.items()})
    return Stepped(text, statements(program.text), recording, found)


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
    }  # fmt: skip


def value_of(run: Stepped, index: int) -> dict[str, Any]:
    """Returns a picture of an array with its data, as `assets/core.js` reads them."""
    if not 0 <= index < len(run.recording.values):
        raise NpformerError(f"value: expected a number below {len(run.recording.values)}, got {index}")
    value = run.recording.values[index]
    block = pack_floats("value", np.ascontiguousarray(value["data"]))
    return {**{name: each for name, each in value.items() if name != "data"}, "head": block.head(), "data": block.text}


def loops(text: str) -> list[int]:
    """The first lines of the bodies of loops over layers."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.For)]
    return [node.body[0].lineno for node in found if "layers" in ast.unparse(node.iter)]


def names_of(tokens: Any) -> list[str]:
    return list(piece_names(tokens)) if tokens else []
