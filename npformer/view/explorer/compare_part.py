"""The tab `Compare`: compares a state with the unchanged model, text B or other models. Script: `assets/compare.js`."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from npformer.interpret.answer import ModelAnswer
from npformer.interpret.traces import Trace
from npformer.view.explorer.changes import place

MOST = 12  # maximum number of heads to list
BUDGET = 1e-6  # the largest relative difference between two stages that rounding can explain


def compare_view(found: list[dict[str, Any]], text: str) -> dict[str, Any]:
    """Returns the data of the tab."""
    notes = [
        "Only stages of the same shape are compared. Relative difference: RMS(a - b) / RMS(b), a ratio of root mean "
        "squares. The length of a bar is proportional to the square root of the relative difference.",
        "Heads: half the sum of |a - b| over a token's attention weights, averaged over the tokens; at most 1.",
    ]
    about = {"kind": "compare", "heading": "Compare", "subtitle": text, "title": f"Compare: {text}", "arrays": {}}
    return about | {"notes": notes, "comparisons": found}


def comparison(title: str, ours: tuple[Trace, ModelAnswer | None], theirs: Any, problem: str = "") -> dict[str, Any]:
    """Compares two states, each given by its trace and its answer.

    theirs: None if the second state cannot be read, for the reason `problem`.
    """
    if theirs is None:
        return {"title": title, "problem": problem}
    (trace, answer), (other, other_answer) = ours, theirs
    found = differences(trace, other)
    return {
        "title": title,
        "problem": "",
        "outcomes": answer and answer.outcomes,
        "others": other_answer and other_answer.outcomes,
        "stages": found,
        "first": next((i for i, (_, relative, _) in enumerate(found) if relative > BUDGET), None),
        "compared": [len(found), len(trace)],
        "heads": heads(trace, other),
    }


def differences(trace: Trace, other: Trace) -> list[tuple[str, float, float]]:
    """Returns (name, RMS(a - b) / RMS(b), max |a - b|) for each stage of the same shape. RMS: root mean square."""
    found = []
    for name in trace:
        if name in other and np.shape(trace[name]) == np.shape(other[name]):
            a, b = (np.asarray(each[name], np.float64) for each in (trace, other))
            size = float(np.sqrt(np.mean(b**2))) if b.size else 0.0
            apart = float(np.sqrt(np.mean((a - b) ** 2))) if b.size else 0.0
            found.append((name, apart / size if size else float(apart > 0), float(np.abs(a - b).max(initial=0.0))))
    return found


def heads(trace: Trace, other: Trace) -> list[dict[str, Any]]:
    """Returns the heads that differ most: half the sum of |a - b| over the keys, averaged over the queries, 0 to 1."""
    found: list[dict[str, Any]] = []
    for name in trace:
        if name.endswith("attention.weights") and name in other and trace[name].shape == other[name].shape:
            apart = np.abs(trace[name] - other[name]).sum(axis=-1).mean(axis=-1) / 2
            attention = name.removesuffix(".weights")
            layer = int(re.findall(r"layers\.(\d+)", name)[-1])
            found += [
                {"title": f"{place(attention)}, head {h}", "layer": layer, "head": h, "apart": float(each)}
                for h, each in enumerate(apart)
            ]
    return sorted(found, key=lambda each: -float(each["apart"]))[:MOST]
