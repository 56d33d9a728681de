"""Writes a state as a Python program that can be pasted and run."""

from __future__ import annotations

import re
from typing import Any

from npformer.view.explorer.changes import AddDirection, PatchRow
from npformer.view.explorer.state import State


def program(state: State, name: str, model: Any) -> str:
    """Returns Python code that computes the state of a page.

    It has the edits, a trace of the first text with its answer and, if lines of the plain page are changed, the answer
    of the changed page.
    """
    calls = [text for change in state.changes if (text := change.program())]
    reads = [kind for change in state.changes for kind in [type(change)] if kind in (PatchRow, AddDirection)]
    lines = ["import npformer"]
    if calls:
        names = sorted({re.match(r"\w+", call)[0] for call in calls})  # type: ignore[index]
        lines.append(f"from npformer.interpret.edits import {', '.join(names)}")
    if state.lines:
        lines.append("from npformer.view.explorer.changes import ChangeLine")
        lines.append("from npformer.view.explorer.step_part import page_answer")
    lines += ["", f"model = npformer.load({name!r})"]
    if AddDirection in reads:
        lines.append(f"first = npformer.trace(model, {_text(state.given(0, model, changed=False))})")
    if reads:
        lines.append(f"second = npformer.trace(model, {_text(state.given(1, model))})")
    run = f"trace = npformer.trace(model, {_text(state.given(0, model))})"
    if calls:
        lines += ["edits = [", *(f"    {call}," for call in calls), "]", "with npformer.edit(*edits):", f"    {run}"]
    else:
        lines.append(run)
    given = _text(state.given(0, model))
    return "\n".join(
        [*lines, _printed(model), *_explained(state, given, model.config.head, bool(calls)), *_page(state, given), ""]
    )


def _explained(state: State, text: str, head: str, is_edited: bool) -> list[str]:
    """Returns the lines that print the words and heads for the explained outcome; [] for the model's own answer."""
    if state.explained is None:
        return []
    indent = "    " if is_edited else ""
    kinds = ["ablation"] if head == "masked-lm" else ["attribution", "ablation"]
    return [
        "", "# The words and heads that count for an outcome, by its number.",
        *(["with npformer.edit(*edits):"] if is_edited else []),
        *(f"{indent}print(npformer.view.{kind}(model, {text}, label={state.explained}))" for kind in kinds),
    ]  # fmt: skip


def _page(state: State, text: str) -> list[str]:
    """Returns the lines that run the plain page with its changed lines; [] if no line is changed."""
    if not state.lines:
        return []
    changed = [f"    ChangeLine({each.line}, {each.old!r}, {each.to!r})," for each in state.lines]
    return [
        "", "# The plain page with its changed lines. They do not affect the results above, which the engine computes.",
        "lines = [", *changed, "]", f"print(page_answer(model, {text}, lines))",
    ]  # fmt: skip


def _text(given: Any) -> str:
    return repr(given) if isinstance(given, str) else f"npformer.Pair({given[0]!r}, {given[1]!r})"


def _printed(model: Any) -> str:
    """Returns the code that prints the answer."""
    if model.config.head == "translation":
        return "print(trace.tokens[1:])  # the translation"
    if model.config.head == "causal-lm":
        return (
            'best = trace["probabilities"][-1].argsort()[::-1][:5]\n'
            'print([(model.tokenizer.decode([i]), trace["probabilities"][-1][i]) for i in best])'
        )
    if model.config.head == "base":
        return "print(trace)"
    return 'print(trace.label, trace["probabilities"])' if model.config.labels else 'print(trace["logits"])'
