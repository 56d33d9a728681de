"""`Stage`: the declaration of a stage, which each part of a model makes next to its formula.

A part declares its stages by names of its own; the part that contains it puts them in their place by `within`. So a
model's table of stages and their graph come from the parts that compute them: `transformer.stages` walks a whole model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

INPUT = "input"  # the rows that a part is called with
SOURCE = "source"  # the rows that cross-attention reads
EMBEDDED = "embedded"  # the rows that a stack is called with


class Stage(NamedTuple):
    """A stage in a trace of one text: T tokens, width D (tables: E), H heads of width K, F hidden units, C outputs."""

    name: str
    shape: str
    formula: str
    function: str  # below npformer: module and name
    hook: str = ""  # TransformerLens's name in a HookedEncoder, if it has one
    parents: tuple[str, ...] = ()  # the stages it is computed from, or INPUT, SOURCE, EMBEDDED
    kept: bool = True  # a backward pass reads it


def within(
    scope: str, stages: Iterable[Stage], given: Mapping[str, str], hooks: str | None = "", x: str = "X"
) -> list[Stage]:
    """The stages of a part below a scope. given: the stages that are its INPUT, SOURCE and EMBEDDED.

    hooks: a scope for their hooks, None for a part that has no hooks; x: the letter of the part's input in formulas.
    """
    prefix = f"{scope}." if scope else ""
    return [
        Stage(
            *(prefix + name, shape, formula.replace("{x}", x), function),
            hooks + hook if hook and hooks is not None else "",
            tuple([given.get(parent, prefix + parent) for parent in parents]),
            kept,
        )
        for name, shape, formula, function, hook, parents, kept in stages
    ]
