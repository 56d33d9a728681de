"""Writes a state as a Python program that can be pasted and run."""

from __future__ import annotations

import re
from typing import Any

from npformer.view.explorer.changes import AddDirection, PatchRow
from npformer.view.explorer.state import State


def program(state: State, name: str, model: Any) -> str:
    """The lines of Python that compute what a page shows: the edits, a trace of the first text, and its answer."""
    calls = [text for change in state.changes if (text := change.program())]
    reads = [kind for change in state.changes for kind in [type(change)] if kind in (PatchRow, AddDirection)]
    lines = ["import npformer"]
    if calls:
        names = sorted({re.match(r"\w+", call)[0] for call in calls})  # type: ignore[index]
        lines.append(f"from npformer.interpret.edits import {', '.join(names)}")
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
    return "\n".join([*lines, _printed(model), ""])


def _text(given: Any) -> str:
    return repr(given) if isinstance(given, str) else f"npformer.Pair({given[0]!r}, {given[1]!r})"


def _printed(model: Any) -> str:
    """The line that prints the answer."""
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
